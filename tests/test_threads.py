"""How many threads a run takes, on machines of several kinds."""

from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.system import machine as threads


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Eight idle cores, all of them this process's."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    monkeypatch.setattr(threads, "waiting", lambda: 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    return monkeypatch


def test_an_idle_machine_gives_all_its_cores(machine: pytest.MonkeyPatch) -> None:
    assert threads.pick_threads() == 8


@pytest.mark.parametrize(("load", "most"), [(1, 7), (4, 4), (6.5, 1), (8, 1), (400, 1)])
def test_a_busy_machine_gives_what_is_idle(
    machine: pytest.MonkeyPatch, load: float, most: int
) -> None:
    machine.setattr(threads, "waiting", lambda: load)
    assert 1 <= threads.pick_threads() <= most


def test_what_is_asked_for_is_taken(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("OMP_NUM_THREADS", "3")
    assert threads.pick_threads(5) == 5
    assert threads.pick_threads() == 3


@pytest.mark.parametrize("given", ["", "many", "-2", "0", ","])
def test_a_senseless_variable_counts_as_unset(machine: pytest.MonkeyPatch, given: str) -> None:
    machine.setenv("OMP_NUM_THREADS", given)
    assert threads.pick_threads() == 8


def test_the_load_of_a_large_machine_is_shared_by_all_its_cpus(
    machine: pytest.MonkeyPatch,
) -> None:
    machine.setattr("os.cpu_count", lambda: 64)
    machine.setattr(threads, "waiting", lambda: 3.0)
    assert threads.pick_threads() == 8


@pytest.mark.parametrize(
    ("file", "text", "cpus"),
    [("cpu.max", "150000 100000\n", 1.5), ("cpu.max", "max 100000\n", 0.0), ("cpu.max", "?", 0.0)],
)
def test_the_control_groups_quota_is_read(
    tmp_path: Path, file: str, text: str, cpus: float
) -> None:
    (tmp_path / file).write_text(text)
    assert threads.quota(tmp_path) == cpus


def test_the_older_control_groups_quota_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.quota(tmp_path) == 0.0
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    assert threads.quota(tmp_path) == 2.5


def test_more_cores_than_the_quota_buys_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "quota", lambda: 1.0)
    assert threads.usable_cores() == 1


def test_threads_are_a_setting_and_torch_computes_with_them() -> None:
    import torch

    from ngtcli.decode.load import use_threads

    before = torch.get_num_threads()
    try:
        use_threads(Settings(threads=2).threads)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(UsageError):
        Settings(threads=-1)
