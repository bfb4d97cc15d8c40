"""What a run computes with: the number of threads, and the device."""

import math
import os
from contextlib import suppress
from pathlib import Path

from ngtcli.errors import ModelError

CGROUP = Path("/sys/fs/cgroup")
MOST = 1024  # threads; guessed: a larger number is a mistake of the user


def pick_threads(given: int = 0) -> int:
    """`given`; for 0 the number in OMP_NUM_THREADS, or if that is unset the number of idle cores.

    The cores are those in the process's CPU affinity, at most the quota of its control group. The
    busy share of them is the machine's load (threads that run or wait, now or on average over the
    last minute, whichever is less) divided by its CPUs. Busy cores are left out because threads
    that compute together wait for the slowest, and one that shares its core delays all others.
    Unless all cores are idle the number is rounded down to a power of two, because the cost of a
    pass is measured and stored separately for each number of threads.
    """
    if given:
        return given
    with suppress(ValueError):
        if (threads := int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])) > 0:
            return min(threads, MOST)
    cores = usable_cores()
    return idle_cores(cores, waiting(), os.cpu_count() or cores)


def idle_cores(cores: int, load: float, machine: int) -> int:
    """How many of `cores` are idle if `machine` CPUs have a load of `load` threads; at least 1.

    >>> [idle_cores(4, load, 4) for load in (0.2, 1, 2, 3, 50)]
    [4, 2, 2, 1, 1]
    """
    idle = cores * (1 - load / max(machine, cores))
    if idle > cores - 0.5:
        return min(cores, MOST)
    return int(min(2 ** int(math.log2(max(idle, 1.0))), MOST))


def busy(threads: int) -> bool:
    """Whether fewer cores are idle than `threads` need, so that what they time takes longer."""
    cores = usable_cores()
    idle = cores * (1 - waiting() / max(os.cpu_count() or cores, cores))
    return idle < min(threads, cores) - 0.5


def usable_cores() -> int:
    """Physical cores that this process may use; CPUs that are threads of one core count once."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # this system has no affinity
        usable = set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in usable})
    return max(1, min(cores, int(quota() or cores)))


def _siblings(cpu: int) -> str:
    """A name for the physical core of a CPU; the CPU's number if the system does not tell it."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    with suppress(OSError):
        return path.read_text()
    return str(cpu)


def quota(root: Path = CGROUP) -> float:
    """CPUs that the control group (version 2 or 1) may use; 0.0 without a limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        most, period = (root / "cpu.max").read_text().split()
        return 0.0 if most == "max" else int(most) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        most = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        return max(0.0, int(most) / int(period))
    return 0.0


def waiting() -> float:
    """Threads of the machine that run or wait to run, without this one.

    The lesser of the number now and the average over the last minute: the average still counts a
    run that has just ended, the present number counts threads that run for a moment.
    """
    try:
        average = os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0
    with suppress(OSError, ValueError, IndexError):
        now = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
        return min(average, float(now))
    return average


def pick_device(wanted: str) -> str:
    """The device that "auto" stands for. Raises ModelError where the one named is missing."""
    import torch  # here: light commands do without

    here = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return next(name for name, available in here.items() if available)
    if not here[wanted]:
        raise ModelError(f"no {wanted} device here", "Use --device auto.")
    return wanted
