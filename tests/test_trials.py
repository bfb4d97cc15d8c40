"""What is tried once and kept: its key, what is refused, what a busy machine changes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ngtcli.system import machine, trials
from ngtcli.system.store import Kind
from ngtcli.system.trials import Trial, cpu, results

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    name: str = ""
    number: int = 0

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below zero")


def tried(*depends_on: object, device: Any = CPU, timed: bool = False) -> Trial[Result]:
    return Trial("tried", device, depends_on, Result, timed)


def test_it_is_made_once_and_read_after_that() -> None:
    assert tried().load() is None
    assert tried().find(lambda: Result("a", 1)) == Result("a", 1)
    assert tried().find(lambda: pytest.fail("made again")) == tried().load() == Result("a", 1)
    assert tried("other").load() is None
    Trial("another", CPU, (), Result).save(Result("b", 2))
    assert results("tried", Result) == [Result("a", 1)]


GOOD = {"name": "a", "number": 1}
OTHERS: list[object] = [
    None, [], {}, GOOD, [GOOD], [GOOD, "0"], [None, 0], [{**GOOD, "number": True}, 0],
    [{**GOOD, "name": 1}, 0], [{**GOOD, "number": -1}, 0],
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_a_result_of_another_form_is_made_again(other: Any) -> None:
    Kind("trials", object).put(tried().key, other)
    assert tried().load() is None and results("tried", Result) == []
    assert tried().find(lambda: Result("b", 2)) == tried().load() == Result("b", 2)


def test_a_cache_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "file"))
    assert tried().find(lambda: Result("a")) == Result("a")


INTEL = """processor : 0
vendor_id : GenuineIntel
model name : Xeon
cpu MHz : 2000.1
flags : fpu avx512f{more}

processor : 1
vendor_id : GenuineIntel
model name : Xeon
cpu MHz : 3111.5
flags : fpu avx512f{more}
"""


def key_on(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key on a machine whose CPUs the text tells of."""
    path.write_text(text)
    monkeypatch.setattr(trials, "_CPU_INFO", path)
    cpu.cache_clear()
    return tried().key


def test_flags_of_the_cpu_are_in_the_key_and_its_clock_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AMX torch names the same capability, and oneDNN chooses other kernels."""
    file = tmp_path / "cpuinfo"
    try:
        plain = key_on(file, INTEL.format(more=""), monkeypatch)
        faster = INTEL.format(more="").replace("2000.1", "2600.0").replace("3111.5", "99")
        assert key_on(file, faster, monkeypatch) == plain
        assert key_on(file, INTEL.format(more=" amx_bf16"), monkeypatch) != plain
        assert key_on(file, INTEL.format(more="").replace("Xeon", "Core"), monkeypatch) != plain
        monkeypatch.setattr("platform.processor", lambda: "arm")  # all that is known elsewhere
        elsewhere = key_on(file, "", monkeypatch)
        monkeypatch.setattr("platform.processor", lambda: "Intel64 Family 6")
        assert key_on(file, "", monkeypatch) != elsewhere != plain
    finally:
        cpu.cache_clear()


def test_versions_switches_and_threads_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    changes = [
        lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "avx2"),
        lambda patch: patch.setattr(trials, "__version__", "another"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
        lambda patch: patch.setattr(trials, "_libraries", lambda: ("9.9", "5.0")),
    ]
    keys = {tried().key}
    for change in changes:
        with monkeypatch.context() as patch:
            change(patch)
            keys.add(tried().key)
    assert len(keys) == 1 + len(changes)


def test_a_gpu_is_named_and_threads_of_its_host_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "H100")
    first = tried(device=gpu).key
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert tried(device=gpu).key == first
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A100")
    assert tried(device=gpu).key != first


@pytest.mark.parametrize(
    ("busy", "numbers"),
    [
        ([(True, True), (False, False), (True, True)], [1, 2, 2]),  # sure once it was idle
        ([(True, True)] * 5, [1, 2, 3, 3, 3]),  # a machine that is always busy
        ([(False, True), (False, False)], [1, 2]),  # it got busy meanwhile
    ],
)
def test_what_a_busy_machine_measured_is_measured_again_at_the_next_uses(
    busy: list[tuple[bool, bool]], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use is another process's, on a machine that is busy before and after it measures."""
    for number, (answers, wanted) in enumerate(zip(busy, numbers, strict=True), 1):
        states = iter(answers)
        monkeypatch.setattr(trials, "busy", lambda threads, states=states: next(states))
        found = tried(timed=True).find(lambda number=number: Result("s", number))
        assert found.number == wanted
        if wanted == 1:  # saving what was learned since does not make it sure
            tried(timed=True).save(Result("s", 7))
            assert tried().load() == Result("s", 7)


def test_what_is_not_a_time_is_final_from_a_busy_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "busy", lambda threads: True)
    assert tried().find(lambda: Result("a", 1)) == tried().find(lambda: Result("b", 2))


@pytest.mark.parametrize(
    ("cores", "cpus", "average", "threads", "busy"),
    [(4, 4, 0.4, 4, False), (4, 4, 0.6, 4, True), (4, 8, 1.0, 4, False), (4, 8, 1.2, 4, True),
     (4, 4, 2.4, 1, False), (4, 4, 3.6, 1, True), (2, 64, 1.0, 2, False), (2, 2, 9.0, 2, True)],
)  # fmt: skip
def test_a_machine_is_busy_where_fewer_cores_are_idle_than_there_are_threads(
    cores: int, cpus: int, average: float, threads: int, busy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    monkeypatch.setattr("os.getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(machine, "_LOAD", Path("/nowhere"))
    assert machine.busy(threads) == busy
