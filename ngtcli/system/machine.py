"""What a run computes with: the number of threads, the device, and its memory."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath

from ngtcli.errors import ModelError

CGROUP = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")  # which control groups this process is in
_MEMORY = Path("/proc/meminfo")
_LOAD = Path("/proc/loadavg")
# Files of control groups, of version 2 and of 1: CPUs, and limits of memory with what is used.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
_LIMITS = (
    ("memory.max", "memory.current"), ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)  # fmt: skip
MOST = 1024  # threads; guessed: a larger number is a mistake of the user


def pick_threads(given: int = 0) -> int:
    """`given`; for 0 the number in OMP_NUM_THREADS, or if that is unset of `usable_cores`."""
    if given:
        return given
    with suppress(ValueError):
        if (threads := int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])) > 0:
            return min(threads, MOST)
    return min(MOST, usable_cores())


def usable_cores() -> int:
    """Physical cores that this process may use, by its CPU affinity and its control group's quota.

    CPUs that are threads of one core count once.
    """
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # this system has no affinity
        usable = set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in usable})
    return max(1, int(min(cores, _quota())))


def _siblings(cpu: int) -> str:
    """A name for the physical core of a CPU; the CPU's number if the system does not tell it."""
    with suppress(OSError):
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    return str(cpu)


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in, and of those around them.

    The root's too: inside a container the path may be that of its host.
    """
    lines = ["0::/", f"0:{controller}:/"]
    with suppress(OSError):
        lines += _GROUPS.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CGROUP / controller if controllers else CGROUP
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                yield root / str(group).lstrip("/")


def _limits(controller: str, files: Sequence[Sequence[str]]) -> Iterator[tuple[Path, list[int]]]:
    """The numbers in such files of a controller, and the folder, where all of them are numbers."""
    for group, names in product(_groups(controller), files):
        with suppress(OSError, ValueError):  # there is no limit
            words = " ".join((group / name).read_text() for name in names).split()
            yield group, [int(word) for word in words]


def _quota() -> float:
    """CPUs that the control groups may use; infinity without a limit."""
    quotas = (numbers for _, numbers in _limits("cpu", _QUOTAS))
    return min([math.inf, *(most / period for most, period in quotas if min(most, period) > 0)])


def pick_device(wanted: str) -> str:
    """The device that "auto" stands for. Raises ModelError where the one named is missing."""
    import torch  # here: light commands do without

    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    here = {"cuda": cuda, "mps": mps, "cpu": True}
    if wanted == "auto":
        return next(name for name, available in here.items() if available)
    if not here[wanted]:
        raise ModelError(f"no {wanted} device here", hint="Use --device auto.")
    return wanted


def return_memory() -> None:
    """Give the system back what this process has freed, where its C library keeps that."""
    import ctypes  # here: light commands do without

    with suppress(AttributeError, OSError, TypeError):  # not that of GNU
        ctypes.CDLL(None).malloc_trim(0)


def free_memory(device: str) -> int | None:
    """Bytes that are free on a device, as "cuda:0"; None where that is unknown."""
    if device.startswith("cuda"):
        from torch import cuda  # here: light commands do without

        kept = cuda.memory_reserved(device) - cuda.memory_allocated(device)  # by torch, for tensors
        return int(cuda.mem_get_info(device)[0] + kept)
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    groups = _limits("memory", _LIMITS)
    free += [most - used + _of_files(group) for group, (most, used) in groups if free]
    return max(0, min(free)) if free else None


def _of_files(group: Path) -> int:
    """Bytes of files in the memory of a control group, which are given back when it is needed."""
    with suppress(OSError, ValueError, KeyError):
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        total = "total_" * ("total_inactive_file" in counts)  # version 1: of the groups in it, too
        return sum(int(counts[f"{total}{kind}_file"]) for kind in ("active", "inactive"))
    return 0


def busy(threads: int) -> bool:
    """Whether fewer cores are idle than `threads` need, so that what they time takes longer."""
    waiting = 0.0
    with suppress(OSError, ValueError, IndexError):
        waiting = os.getloadavg()[0]  # threads that run or wait to run, over the last minute
        # It still counts a run that has just ended.
        running = _LOAD.read_text().split()[3].split("/")[0]
        waiting = min(waiting, int(running) - 1.0)  # without this thread
    cores = usable_cores()
    idle = cores * (1 - waiting / max(os.cpu_count() or cores, cores))
    return idle < min(threads, cores) - 0.5
