"""Runs code of others in this process, within bounds of time and memory."""

import mmap
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class BoundError(BaseException):
    """The code took more time or memory than it may. No Exception: the code must not catch it."""


def bounded(work: Callable[[], T], *, seconds: float, megabytes: int) -> T:
    """What `work` returns. Raises BoundError, or what `work` raises.

    `seconds` are of the processor, in user mode, and count in the main thread alone; `megabytes`
    come on top of what the process has, and count on Linux alone.
    """
    try:
        with _limited_memory(megabytes * 1_000_000), _limited_time(seconds):
            return work()
    except MemoryError:
        raise BoundError(f"it takes more than {megabytes} MB") from None


@contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return

    def end(*_: Any) -> None:
        raise BoundError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Bounds the address space of the process: one expression can ask for any amount."""
    taken = _address_space()
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    if taken is None or before != resource.RLIM_INFINITY and before <= taken + size:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (taken + size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def _address_space() -> int | None:
    """Bytes of address space that the process has; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError):
        return None
