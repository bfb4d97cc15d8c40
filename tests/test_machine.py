"""How many threads a run takes on machines of several kinds, and bounds on code of others."""

import resource
import signal
from pathlib import Path

import pytest

from ngtcli.system import machine as threads
from ngtcli.system.sandbox import BoundError, bounded


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Eight idle cores, all of them this process's."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    monkeypatch.setattr(threads, "waiting", lambda: 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    return monkeypatch


@pytest.mark.parametrize(
    ("cpus", "load", "wanted"),
    [(8, 0, 8), (8, 1, 4), (8, 2.5, 4), (8, 4, 4), (8, 6.5, 1), (8, 8, 1), (8, 400, 1),
     (64, 3, 8)],  # of a large machine, all CPUs share the load
)  # fmt: skip
def test_a_machine_gives_the_cores_that_are_idle_in_powers_of_two(
    machine: pytest.MonkeyPatch, cpus: int, load: float, wanted: int
) -> None:
    machine.setattr("os.cpu_count", lambda: cpus)
    machine.setattr(threads, "waiting", lambda: load)
    assert threads.pick_threads() == wanted


@pytest.mark.parametrize(
    ("variable", "given", "threads_"),
    [("3", 5, 5), ("3", 0, 3), *((odd, 0, 8) for odd in ("", "many", "-2", "0", ","))],
)
def test_what_is_asked_for_is_taken_and_a_senseless_variable_counts_as_unset(
    machine: pytest.MonkeyPatch, variable: str, given: int, threads_: int
) -> None:
    machine.setenv("OMP_NUM_THREADS", variable)
    assert threads.pick_threads(given) == threads_


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 0.0),
        ({"cpu.max": "?"}, 0.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.0),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
    ],
)
def test_the_quota_of_the_control_group_is_read(
    tmp_path: Path, files: dict[str, str], cpus: float
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert threads.quota(tmp_path) == cpus


def test_more_cores_than_the_quota_buys_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "quota", lambda: 1.0)
    assert threads.usable_cores() == 1


def test_torch_computes_with_the_threads_of_the_setting() -> None:
    import torch

    from ngtcli.decode.load import use_threads

    before = torch.get_num_threads()
    try:
        use_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "load", "wanted", "is_busy"),
    [
        (4, 0.0, 4, False), (4, 0.4, 4, False), (4, 1.0, 4, True), (4, 1.0, 3, False),
        (4, 3.0, 1, False), (4, 4.0, 1, True), (1, 0.2, 1, False), (1, 1.0, 1, True),
        (2, 0.0, 8, False),
    ],
)  # fmt: skip
def test_a_machine_is_busy_without_an_idle_core_for_each_thread(
    cores: int, load: float, wanted: int, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(threads, "waiting", lambda: load)
    assert threads.busy(wanted) == is_busy


# --- code of others ---


def endless() -> None:
    while True:
        pass


def state() -> object:
    return (
        resource.getrlimit(resource.RLIMIT_AS),
        signal.getitimer(signal.ITIMER_VIRTUAL),
        signal.getsignal(signal.SIGVTALRM),
    )


def test_bounds_hold_and_are_taken_off_again() -> None:
    before = state()
    with pytest.raises(BoundError, match="more than 0.1 s"):
        bounded(endless, seconds=0.1, megabytes=100)
    with pytest.raises(BoundError, match="more than 100 MB"):
        bounded(lambda: bytearray(10**12), seconds=5, megabytes=100)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, seconds=5, megabytes=100)
    assert bounded(lambda: 7, seconds=5, megabytes=100) == 7
    assert state() == before


def test_a_bound_that_the_process_has_already_is_not_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    lower = 40 * 10**12
    resource.setrlimit(resource.RLIMIT_AS, (lower, before[1]))
    try:
        found = bounded(
            lambda: resource.getrlimit(resource.RLIMIT_AS)[0], seconds=5, megabytes=10**8
        )
        assert found == lower
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
