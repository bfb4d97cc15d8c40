"""The threads, the device and the memory that a run may use."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath

from ngtcli.errors import ModelError

CGROUP = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")  # the control groups that this process is in
_MEMORY = Path("/proc/meminfo")
_LOAD = Path("/proc/loadavg")
# Files of control groups, version 2 before version 1: quotas of CPUs, and memory limits with usage.
_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
MAX_THREADS = 1024  # (guess) a larger number is the user's mistake


def pick_threads(threads: int = 0) -> int:
    """Return the number of threads to use.

    Args:
        threads: The user's number; 0 for the one in OMP_NUM_THREADS, or else the usable cores.
    """
    if threads:
        return threads
    with suppress(ValueError):
        omp_threads = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
        if omp_threads > 0:
            return min(omp_threads, MAX_THREADS)
    return min(MAX_THREADS, usable_cores())


def usable_cores() -> int:
    """Count the physical cores that this process may use.

    Its CPU affinity and its control group's quota limit them. CPUs that are threads of one core
    count once.
    """
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # this system has no affinity
        usable = set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in usable})
    return max(1, int(min(cores, _quota())))


def _siblings(cpu: int) -> str:
    """Return a name for a CPU's physical core; the CPU's number if the system has none."""
    with suppress(OSError):
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    return str(cpu)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those that contain them.

    The root is one of them: in a container the path may be that of its host.
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
    """Yield the numbers in files of a controller, with the folder, for each group with a limit.

    Args:
        controller: Its name.
        files: Names of files that are read together.
    """
    for group, names in product(_groups(controller), files):
        with suppress(OSError, ValueError):  # this group has no limit
            words = " ".join((group / name).read_text() for name in names).split()
            yield group, [int(word) for word in words]


def _quota() -> float:
    """Return the number of CPUs that the control groups may use; infinity without a limit."""
    cpus = math.inf
    for _, (quota, period) in _limits("cpu", _QUOTAS):
        if quota > 0 and period > 0:
            cpus = min(cpus, quota / period)
    return cpus


def pick_device(name: str) -> str:
    """Return the device of a setting. Raises ModelError if this machine does not have it.

    Args:
        name: "cuda", "mps" or "cpu", or "auto" for the first of these that is available.
    """
    import torch  # imported here: light commands do not need it

    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(device for device, is_available in available.items() if is_available)
    if not available[name]:
        raise ModelError(f"this machine has no {name} device", hint="Use --device auto.")
    return name


def return_memory() -> None:
    """Return freed memory of this process to the system; GNU's C library would keep it."""
    import ctypes  # imported here: light commands do not need it

    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def free_memory(device: str) -> int | None:
    """Return the free bytes of a device such as "cuda:0"; None if they are unknown."""
    if device.startswith("cuda"):
        from torch import cuda  # imported here: light commands do not need it

        # torch keeps memory that it does not use, for further tensors.
        unused = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        return int(cuda.mem_get_info(device)[0] + unused)
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if not free:
        return None
    for group, (limit, used) in _limits("memory", _LIMITS):
        free.append(limit - used + _file_bytes(group))
    return max(0, min(free))


def _file_bytes(group: Path) -> int:
    """Return the bytes of cached files in a control group, which the system frees when needed."""
    with suppress(OSError, ValueError, KeyError):
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Version 1 has further counts that include the groups inside this one.
        prefix = "total_" if "total_inactive_file" in counts else ""
        return int(counts[f"{prefix}active_file"]) + int(counts[f"{prefix}inactive_file"])
    return 0


def busy(threads: int) -> bool:
    """Return whether fewer cores are idle than `threads` need, so that times would be too long."""
    waiting = 0.0
    with suppress(OSError, ValueError, IndexError):
        waiting = os.getloadavg()[0]  # threads that run or wait to run, over the last minute
        # The average still counts a run that has just ended; the current number, which includes
        # this thread, does not.
        running = _LOAD.read_text().split()[3].split("/")[0]
        waiting = min(waiting, int(running) - 1.0)
    cores = usable_cores()
    idle = cores * (1 - waiting / max(os.cpu_count() or cores, cores))
    return idle < min(threads, cores) - 0.5
