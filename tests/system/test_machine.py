"""How many threads a run takes, the memory that is free, and bounds on code of others."""

import io
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ngtcli.errors import ModelError
from ngtcli.system import machine
from ngtcli.system.sandbox import BoundError, bounded, timed
from tests.support.warm import Warm


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "variable", "given", "threads"),
    [
        ({}, "3", 5, 5),
        ({}, "3", 0, 3),
        *(({}, odd, 0, 8) for odd in ("", "many", "-2", "0", ",")),
        ({"cpu.max": "150000 100000\n"}, None, 0, 1),
        ({"cpu.max": "max 100000\n"}, None, 0, 8),
        ({"a/cpu.max": "350000 100000\n", "a/b/cpu.max": "550000 100000\n"}, None, 0, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, 0, 8),
        ({"cpu/a/cpu.cfs_quota_us": "250000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None, 0, 2),
    ],
)
def test_threads_are_those_asked_for_or_the_cores_that_the_process_may_use(
    files: dict[str, str],
    variable: str | None,
    given: int,
    threads: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen CPUs are two threads of eight cores each, on a machine that others keep busy."""
    write(tmp_path, {"cgroup": "0::/a/b\n7:cpu,cpuacct:/a\n", **files})
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_siblings", lambda cpu: str(cpu // 2))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("os.getloadavg", lambda: (400.0, 400.0, 400.0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert machine.pick_threads(given) == threads


def test_torch_computes_with_the_threads_of_the_setting(monkeypatch) -> None:
    from ngtcli.decoding.load import use_threads

    counts = list[int]()
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    use_threads(2)
    assert counts == [2]


HOST = 250 * 10**9 // 1024 * 1024  # bytes that the whole machine has left


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "5\n"}, HOST),
        ("0::/\n", {"memory.max": "4000\n", "memory.current": "1500\n"}, 2500),  # a container's
        ("0::/a/b\n", {"a/b/memory.max": "4000\n", "a/b/memory.current": "5000\n"}, 0),
        (
            "0::/a/b\n",
            {
                "a/b/memory.high": "3000\n",
                "a/b/memory.max": "4000\n",
                "a/b/memory.current": "1500\n",
            },
            1500,
        ),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "max\n",
                "a/b/memory.current": "1000\n",
                "a/memory.max": "9000\n",
                "a/memory.current": "8000\n",
            },
            1000,
        ),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "4000\n",
                "a/b/memory.current": "1000\n",
                "a/memory.max": "9000\n",
                "a/memory.current": "8000\n",
            },
            1000,
        ),
        (
            "0::/a\n",
            {
                "a/memory.max": "4000\n",
                "a/memory.current": "3000\n",
                "a/memory.stat": "anon 500\ninactive_file 2000\nactive_file 1\n",
            },
            3001,
        ),
        ("0::/a\n", {"a/memory.max": "odd\n", "a/memory.current": "3000\n"}, HOST),
        (
            "4:cpu:/x\n3:memory:/a/b\n",
            {
                "memory/a/b/memory.limit_in_bytes": "7000\n",
                "memory/a/b/memory.usage_in_bytes": "6000\n",
            },
            1000,
        ),
        (
            "3:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "7000\n",
                "memory/a/memory.usage_in_bytes": "6000\n",
                "memory/a/memory.stat": "inactive_file 1\n"
                "total_inactive_file 2\ntotal_active_file 3\n",
            },
            1005,
        ),
        (
            "3:memory:/docker/b\n",
            {
                "memory/memory.limit_in_bytes": "7000\n",  # as mounted there
                "memory/memory.usage_in_bytes": "6000\n",
            },
            1000,
        ),
        (
            "3:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "6000\n",
            },
            HOST,
        ),
    ],
)
def test_free_memory_is_that_of_the_control_group_and_those_around_it(
    groups: str, files: dict[str, str], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = f"MemTotal: 1 kB\nMemAvailable: {HOST // 1024} kB\n"
    write(tmp_path, {"cgroup": groups, "meminfo": available, **files})
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
    assert machine.free_memory("cpu") == free
    (tmp_path / "meminfo").unlink()
    assert machine.free_memory("cpu") is None


def test_memory_that_torch_keeps_for_tensors_of_a_gpu_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = {"memory_reserved": 700, "memory_allocated": 200, "mem_get_info": (1000, 9000)}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda on, figure=figure: figure)
    assert machine.free_memory("cuda:0") == 1500


def test_a_device_that_is_not_here_is_refused() -> None:
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="this machine has no cuda device"):
            machine.pick_device("cuda")
    assert machine.pick_device("cpu") == "cpu"


# --- code of others ---


def endless() -> None:
    while True:
        pass


def growing() -> None:
    found = ["x"]
    while True:
        found += found


def state() -> object:
    return (
        resource.getrlimit(resource.RLIMIT_AS),
        signal.getitimer(signal.ITIMER_VIRTUAL),
        signal.getsignal(signal.SIGVTALRM),
    )


def check_bounds() -> None:
    for work, words in (
        (endless, "more than 0.1 s"),
        (growing, "more than"),
        (lambda: bytearray(10**12), "more than 100 MB"),
        (lambda: 9 ** (9**9), "more than"),
    ):
        with pytest.raises(BoundError, match=words):
            bounded(work, seconds=0.1, megabytes=100)
    with pytest.raises(ModelError, match="odd") as caught:
        bounded(fail, seconds=5, megabytes=100)
    assert caught.value.hint == "Correct it."
    assert bounded(lambda: "7" * 10**7, seconds=5, megabytes=100) == "7" * 10**7


def fail() -> None:
    raise ModelError("odd", hint="Correct it.")


def test_code_that_is_bounded_in_threads_limits_no_other_thread() -> None:
    """Two at once, while this one takes more memory than they may."""
    before = state()
    begun = threading.Barrier(3)

    def work() -> None:
        begun.wait()
        check_bounds()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work) for _ in range(2)]
        begun.wait()
        while wait(running, 0.05).not_done:
            assert len(bytearray(110_000_000)) == 110_000_000
            assert state() == before
    assert state() == before
    assert [one.result() for one in running] == [None, None]


def test_time_alone_is_bounded_in_any_thread_where_processes_are_not_forked() -> None:
    """As on macOS; what ended in time is not disturbed later."""

    def check() -> None:
        before = state()
        for _ in range(3):
            with pytest.raises(BoundError, match=r"more than 0.05 s"):
                timed(endless, 0.05)
        with pytest.raises(ModelError, match="odd"):
            timed(fail, 60)
        assert timed(lambda: 5, 60) == 5
        assert state() == before

    check()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check).result()


@pytest.mark.skipif(sys.platform != "linux", reason="it forks on Linux alone")
def test_bounded_work_ends_when_its_process_is_killed() -> None:
    work = "lambda: os.kill(os.getppid(), 9) or bytes(1 << 20), seconds=9, megabytes=99"
    code = f"import os\nfrom ngtcli.system.sandbox import bounded\nbounded({work})"
    with Warm(code=code) as process:
        assert select.select([process.stdout], [], [], 60)[0]


def test_a_thread_that_reads_standard_input_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a batch answers lines that still come. In a fork nothing frees the stream's lock."""
    reads = threading.Event()
    end = threading.Event()

    class Waiting(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _: Any) -> int:
            reads.set()
            end.wait()
            return 0

    stdin = io.TextIOWrapper(io.BufferedReader(Waiting()))
    monkeypatch.setattr("sys.stdin", stdin)
    reader = threading.Thread(target=stdin.buffer.read)
    reader.start()
    try:
        assert reads.wait(60)
        assert bounded(lambda: 5, seconds=1, megabytes=100) == 5
    finally:
        end.set()
        reader.join()


def test_code_that_ends_its_process_ends_no_other() -> None:
    with pytest.raises(BoundError, match="ends its process"):
        bounded(lambda: os.kill(os.getpid(), signal.SIGKILL), seconds=5, megabytes=100)


def test_a_bound_that_the_process_has_already_is_not_raised() -> None:
    kind = resource.RLIMIT_AS
    lower = 40 * 10**12
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (lower, before[1]))
    try:
        assert bounded(lambda: resource.getrlimit(kind)[0], seconds=5, megabytes=10**8) == lower
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.skipif(sys.platform != "linux", reason="it forks on Linux alone")
def test_a_lock_that_another_thread_holds_at_the_fork_is_no_end() -> None:
    """Nobody releases it in the fork: another fork is made, when it may be free."""
    lock = threading.Lock()
    lock.acquire()
    release = threading.Timer(0.5, lock.release)
    release.start()
    try:
        assert bounded(lambda: lock.acquire() and 5, seconds=0.2, megabytes=100) == 5
    finally:
        release.join()


@pytest.mark.skipif(sys.platform != "linux", reason="it forks on Linux alone")
def test_a_fork_that_waits_for_ever_is_reported() -> None:
    lock = threading.Lock()
    with lock, pytest.raises(BoundError, match="does not come"):
        bounded(lock.acquire, seconds=5, megabytes=100)


class Sent:
    """In the place of a timer, whose end is where `work` calls it."""

    def __init__(self, seconds: float, end: Callable[..., None], *arguments: Any) -> None:
        Sent.end = partial(end, *(arguments[0] if arguments else ()))

    def start(self) -> None:
        pass

    cancel = join = start


def test_the_end_of_the_time_is_raised_in_the_call_even_as_that_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what it says, and never in what comes after the call, or in what ends it."""
    monkeypatch.setattr(threading, "Timer", Sent)
    with pytest.raises(BoundError, match=r"more than 9 s"):
        timed(lambda: Sent.end(), 9)

    def fails() -> None:
        Sent.end()
        raise ValueError

    with pytest.raises(BoundError, match=r"more than 9 s"):
        timed(fails, 9)

    def swallows() -> int:
        with suppress(BaseException):
            Sent.end()
            for _ in range(1000):
                pass
        return 5

    assert timed(swallows, 9) == 5
    assert timed(lambda: 6, 9) == 6
    Sent.end()  # after the call
    assert sum(range(1000)) == 499500
