"""How many threads a run computes with."""

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MOST = 1024  # threads; more is a mistake


def pick_threads(wanted: int = 0) -> int:
    """`wanted`; for 0 what OMP_NUM_THREADS says, and without it as many as cores are idle.

    The cores are those this process may run on (its affinity), no more than its control group's
    quota buys. Of these a share is taken for busy: the processes of the machine that run or wait,
    now and over the last minute, whichever are fewer, to its CPUs. For threads that compute
    together wait for the slowest, spinning, and one that shares its core holds up all the others.
    Unless all cores are idle the number is rounded down to a power of two: what a pass costs is
    kept for each number.
    """
    if wanted:
        return wanted
    with suppress(ValueError):
        if (given := int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])) > 0:
            return min(given, MOST)
    cores = usable_cores()
    return idle_cores(cores, waiting(), os.cpu_count() or cores)


def idle_cores(cores: int, load: float, machine: int) -> int:
    """How many of `cores` are idle where `machine` CPUs have a load of `load`; 1 at least.

    >>> [idle_cores(4, load, 4) for load in (0.2, 1, 2, 3, 50)]
    [4, 2, 2, 1, 1]
    """
    idle = cores * (1 - load / max(machine, cores))
    if idle > cores - 0.5:
        return min(cores, MOST)
    return int(min(2 ** int(math.log2(max(idle, 1.0))), MOST))


def usable_cores() -> int:
    """Physical cores this process may use: two that are one core's threads compute as one."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not on this system
        usable = set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in usable})
    return max(1, min(cores, int(quota() or cores)))


def _siblings(cpu: int) -> str:
    """The name of the physical core of a CPU; the CPU's own number where none is told."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    with suppress(OSError):
        return path.read_text()
    return str(cpu)


def quota(root: Path = CGROUP) -> float:
    """CPUs that the control group may use, of version 2 or 1; 0.0 where there is no limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        most, period = (root / "cpu.max").read_text().split()
        return 0.0 if most == "max" else int(most) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        most = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        return max(0.0, int(most) / int(period))
    return 0.0


def waiting() -> float:
    """Threads of the machine that run or wait to run, without this one: now, or of late if fewer.

    The average of the last minute counts a run that ended just now, the present what comes and
    goes.
    """
    try:
        late = os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0
    with suppress(OSError, ValueError, IndexError):
        now = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
        return min(late, float(now))
    return late
