"""What is tried once and kept: its name, what is refused, what a busy machine changes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ngtcli.system import remembered
from ngtcli.system.files import DamagedFileError
from ngtcli.system.remembered import Remembered, cpu

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    name: str = ""
    number: int = 0


def kept(*parts: object, device: Any = CPU, **more: Any) -> Remembered[Result]:
    return Remembered("tried", device, parts, Result, **more)


def test_it_is_made_once_and_read_after_that() -> None:
    assert kept().load() is None
    assert kept().find(lambda: Result("a", 1)) == Result("a", 1)
    assert kept().find(lambda: pytest.fail("made again")) == kept().load() == Result("a", 1)
    assert kept("other").load() is None


GOOD = {"name": "a", "number": 1}
DAMAGED: list[object] = [
    None, [], {}, GOOD, {"found": GOOD}, {"found": GOOD, "tries": 0, "more": 1},
    {"found": GOOD, "tries": True}, {"found": GOOD, "tries": "0"}, {"found": None, "tries": 0},
    {"found": {**GOOD, "number": True}, "tries": 0}, {"found": {**GOOD, "name": 1}, "tries": 0},
]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[" * 9000, "x" * 9000, *map(json.dumps, DAMAGED)])
def test_a_file_that_is_wrong_in_any_way_is_made_again(text: str) -> None:
    file = kept()
    file.path.parent.mkdir(parents=True)
    file.path.write_text(text)
    with pytest.raises(DamagedFileError):
        file.load()
    said: list[str] = []
    assert file.find(lambda: Result("b", 2), damaged=said.append) == Result("b", 2)
    assert len(said) == 1 and kept().load() == Result("b", 2)


def test_a_folder_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "file"))
    assert kept().find(lambda: Result("a")) == Result("a")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    yield
    torch.set_num_threads(before)


def test_what_is_known_for_more_threads_serves_where_asked_and_not_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second start on a busier machine, on one with four cores."""
    monkeypatch.setattr("ngtcli.system.machine.usable_cores", lambda: 4)
    now = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])

    def known(threads: int) -> Result | None:
        now[0] = threads
        return kept(of_more=True).load()

    def save(threads: int) -> None:
        now[0] = threads
        kept(of_more=True).save(Result(f"of {threads}"))

    save(1)
    assert known(4) is None
    save(4)
    assert [known(n) for n in (1, 2, 3, 4)] == [Result(f"of {n}") for n in (1, 4, 4, 4)]
    now[0] = 2
    assert kept().load() is None
    assert kept(of_more=True).find(lambda: pytest.fail("made again")) == Result("of 4")
    save(2)  # stands beside that of four
    assert [known(n) for n in (2, 4)] == [Result("of 2"), Result("of 4")]
    kept(of_more=True).path.write_text("{")
    assert known(3) is None


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


def named_on(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file's name on a machine whose CPUs the text tells of."""
    path.write_text(text)
    monkeypatch.setattr(remembered, "_CPU_INFO", path)
    cpu.cache_clear()
    return kept().path.name


def test_flags_of_the_cpu_are_in_the_name_and_its_clock_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AMX torch names the same capability, and oneDNN chooses other kernels."""
    file = tmp_path / "cpuinfo"
    try:
        plain = named_on(file, INTEL.format(more=""), monkeypatch)
        faster = INTEL.format(more="").replace("2000.1", "2600.0").replace("3111.5", "99")
        assert named_on(file, faster, monkeypatch) == plain
        assert named_on(file, INTEL.format(more=" amx_bf16"), monkeypatch) != plain
        assert named_on(file, INTEL.format(more="").replace("Xeon", "Core"), monkeypatch) != plain
        file.unlink()
        monkeypatch.setattr(remembered, "_CPU_INFO", tmp_path / "nowhere")  # not Linux
        cpu.cache_clear()
        monkeypatch.setattr("platform.processor", lambda: "arm")
        elsewhere = kept().path.name
        cpu.cache_clear()
        monkeypatch.setattr("platform.processor", lambda: "Intel64 Family 6")
        assert kept().path.name != elsewhere != plain
    finally:
        cpu.cache_clear()


def test_versions_and_switches_of_instruction_sets_are_in_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    changes = [
        lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "avx2"),
        lambda patch: patch.setattr(remembered, "__version__", "another"),
    ]
    for package in ("torch", "transformers"):
        real = remembered.version
        other = lambda name, p=package, real=real: "9.9" if name == p else real(name)  # noqa: E731
        changes.append(lambda patch, other=other: patch.setattr(remembered, "version", other))
    paths = {kept().path}
    for change in changes:
        with monkeypatch.context() as patch:
            change(patch)
            paths.add(kept().path)
    assert len(paths) == 1 + len(changes)


def test_the_number_of_threads_is_in_the_name_where_it_matters(two_threads: None) -> None:
    now = kept().path, kept(threads=False).path
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    assert kept().path != now[0] and kept(threads=False).path == now[1]


def test_a_gpu_is_named_and_threads_of_its_host_do_not_count(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "H100")
    first = kept(device=gpu).path
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    assert kept(device=gpu).path == first
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A100")
    assert kept(device=gpu).path != first


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
        monkeypatch.setattr(remembered, "busy", lambda threads, states=states: next(states))
        found = kept().find(lambda number=number: Result("s", number), timed=True)
        assert found.number == wanted
        if wanted == 1:  # saving what was learned since does not make it sure
            kept_now = kept()
            kept_now.load()
            kept_now.save(Result("s", 7))
            assert kept().load() == Result("s", 7)


def test_what_is_not_a_time_is_stored_from_a_busy_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remembered, "busy", lambda threads: True)
    assert kept().find(lambda: Result("a", 1)) == kept().find(lambda: Result("b", 2))
