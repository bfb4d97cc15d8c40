"""Trials, whose results are stored: their keys, damaged results, and busy machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ngtcli.system import cpu
from ngtcli.system.store import Kind
from ngtcli.system.trials import Trial

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    name: str = ""
    number: int = 0

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below zero")


def make_trial(*depends_on: object, timed: bool = False) -> Trial[Result]:
    return Trial("test", CPU, depends_on, Result, timed)


def test_a_trial_is_made_once_and_then_read() -> None:
    assert make_trial().load() is None
    assert make_trial().find(lambda: Result("a", 1)) == Result("a", 1)
    assert make_trial().find(lambda: pytest.fail("made again")) == Result("a", 1)
    assert make_trial().load() == Result("a", 1)


def test_trials_with_other_names_and_dependencies_have_other_results() -> None:
    make_trial().save(Result("a", 1))
    Trial("another", CPU, (), Result).save(Result("b", 2))
    assert make_trial("dependency").load() is None
    assert make_trial().load() == Result("a", 1)


GOOD = {"name": "a", "number": 1}


@pytest.mark.parametrize(
    "stored",
    [
        None,
        GOOD,
        [GOOD, "0"],
        [{**GOOD, "name": 1}, 0],
        [{**GOOD, "number": -1}, 0],
    ],
)
def test_a_result_that_cannot_be_decoded_is_made_again(stored: Any) -> None:
    Kind("trials", object).put(make_trial().key, stored)
    assert make_trial().load() is None
    assert make_trial().find(lambda: Result("b", 2)) == Result("b", 2)
    assert make_trial().load() == Result("b", 2)


INTEL = """processor : 0
vendor_id : GenuineIntel
model name : Xeon
cpu MHz : 2000.1
flags : fpu avx512f
"""


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        ("cpu", INTEL.replace("2000.1", "2600.0"), False),
        ("cpu", INTEL.replace("avx512f", "avx512f amx_bf16"), True),  # other kernels of oneDNN
        ("platform.processor", lambda: "arm", True),  # all that is known elsewhere
        ("ONEDNN_MAX_CPU_ISA", "AVX2", True),
        ("PATH", "/", False),
        ("ngtcli.system.trials.__version__", "another", True),
        ("torch.get_num_threads", lambda: 77, True),
    ],
)
def test_a_key_depends_on_versions_cpu_switches_and_threads_alone(
    name: str, value: Any, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(INTEL)
    monkeypatch.setattr(cpu, "_CPU_INFO", file)
    for variable in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(variable, raising=False)
    cpu.description.cache_clear()
    try:
        key = make_trial().key
        cpu.description.cache_clear()
        if name == "cpu":
            file.write_text(value)
        elif "." in name:
            monkeypatch.setattr(name, value)
        else:
            monkeypatch.setenv(name, value)
        assert (make_trial().key != key) == counts
    finally:
        cpu.description.cache_clear()


@pytest.mark.parametrize(
    ("timed", "busy", "numbers"),
    [
        (True, [(True, True), (False, False), (True, True)], [1, 2, 2]),  # sure once it was idle
        (True, [(True, True)] * 5, [1, 2, 3, 3, 3]),  # a machine that is always busy
        (True, [(False, True), (False, False)], [1, 2]),  # it got busy meanwhile
        (False, [(True, True)] * 2, [1, 1]),
    ],
)
def test_times_of_a_busy_machine_are_measured_again(
    timed: bool,
    busy: list[tuple[bool, bool]],
    numbers: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each use is another process's; the pair says if the machine is busy before and after it."""
    for use, (states, expected) in enumerate(zip(busy, numbers, strict=True), 1):
        remaining = iter(states)
        monkeypatch.setattr(
            "ngtcli.system.trials.busy", lambda threads, remaining=remaining: next(remaining)
        )
        result = make_trial(timed=timed).find(lambda use=use: Result("s", use))
        assert result.number == expected
        if timed and expected == 1:
            # Saving another result meanwhile does not make the measurement reliable.
            make_trial().save(Result("s", 7))
            assert make_trial().load() == Result("s", 7)
