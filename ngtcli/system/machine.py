"""What a run computes with: the number of threads, the device, and its memory."""

import os
from contextlib import suppress
from pathlib import Path

from ngtcli.errors import ModelError

CGROUP = Path("/sys/fs/cgroup")
MOST = 1024  # threads; guessed: a larger number is a mistake of the user


def pick_threads(given: int = 0) -> int:
    """`given`; for 0 the number in OMP_NUM_THREADS, or if that is unset the number of idle cores.

    The cores are those in the process's CPU affinity, at most the quota of its control group, less
    the share of them that the machine's load keeps busy: threads that compute together wait for the
    slowest. Unless all cores are idle the number is rounded down to a power of two, because the
    cost of a pass is measured and stored separately for each number of threads.
    """
    if given:
        return given
    with suppress(ValueError):
        if (threads := int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])) > 0:
            return min(threads, MOST)
    cores = usable_cores()
    idle = _idle(cores)
    fewer = 1 << int(max(idle, 1.0)).bit_length() - 1
    return min(MOST, cores if idle > cores - 0.5 else fewer)


def numbers_of_threads() -> list[int]:
    """What `pick_threads` may choose, the most last: powers of two, and the number of cores."""
    cores = min(MOST, usable_cores())
    return [*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores]


def busy(threads: int) -> bool:
    """Whether fewer cores are idle than `threads` need, so that what they time takes longer."""
    cores = usable_cores()
    return _idle(cores) < min(threads, cores) - 0.5


def _idle(cores: int) -> float:
    """How many of this process's cores are idle, which share the load of the whole machine."""
    return cores * (1 - waiting() / max(os.cpu_count() or cores, cores))


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
    with suppress(OSError):
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
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

    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    here = {"cuda": cuda, "mps": mps, "cpu": True}
    if wanted == "auto":
        return next(name for name, available in here.items() if available)
    if not here[wanted]:
        raise ModelError(f"no {wanted} device here", "Use --device auto.")
    return wanted


def return_memory() -> None:
    """Give the system back what this process has freed, where its C library keeps that."""
    import ctypes  # here: light commands do without

    with suppress(AttributeError, OSError, TypeError):  # not that of GNU
        ctypes.CDLL(None).malloc_trim(0)


def free_memory(device: str) -> int | None:
    """Bytes that are free on a device; None where that is unknown."""
    if device == "cuda":
        import torch  # here: light commands do without

        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
