"""Confines code: this process for good, or one call within bounds of time and memory.

`confine` uses seccomp and Landlock, where the system has them: they hold for native code too. A
filter of seccomp refuses system calls that open connections, start programs, reach other processes
or a terminal, or change files in any way; Landlock refuses to open any file but those of some
folders, which can be read.
"""

import ctypes
import errno
import mmap
import os
import pickle
import platform
import resource
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

# System calls that are refused: their numbers on x86_64 and aarch64, -1 where there is no such one,
# and the error if it is not EPERM, but as of a system, or for a file, that has no such thing.
_REFUSED = """
    socket 41 198, connect 42 203, bind 49 200, execve 59 221, execveat 322 281, fork 57 -1,
    vfork 58 -1, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
    pidfd_getfd 438 438, kill 62 129, tkill 200 130, rt_sigqueueinfo 129 138,
    rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, io_uring_setup 425 425, bpf 321 280,
    userfaultfd 323 282, perf_event_open 298 241, keyctl 250 219, add_key 248 217,
    request_key 249 218, unshare 272 97, setns 308 268, mount 165 40, shmget 29 194, shmat 30 196,
    msgget 68 186, semget 64 190, mq_open 240 180, chmod 90 -1, fchmod 91 52, fchmodat 268 53,
    fchmodat2 452 452, chown 92 -1, fchown 93 55, lchown 94 -1, fchownat 260 54, utime 132 -1,
    utimes 235 -1, utimensat 280 88, futimesat 261 -1, setxattr 188 5, lsetxattr 189 6,
    fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, unlink 87 -1,
    unlinkat 263 35, rmdir 84 -1, creat 85 -1, rename 82 -1, renameat 264 38, renameat2 316 276,
    truncate 76 45, ftruncate 77 46, mkdir 83 -1, mkdirat 258 34, link 86 -1, linkat 265 37,
    symlink 88 -1, symlinkat 266 36, mknod 133 -1, mknodat 259 33,
    clone3 435 435 ENOSYS, openat2 437 437 ENOSYS, ioctl 16 29 ENOTTY
"""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC  # flags that no file is opened with
_THREAD = 0x10000  # CLONE_THREAD: no new process
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_X32 = 0x40000000  # from this number on, x86_64 has the calls of another ABI
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of BPF
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in what a filter sees; 8 to each further one
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# Those that an argument allows: its numbers, which one, and the test of its low word.
_ALLOWED_BY = (
    ((56, 220), 0, (_ANY_BIT, 1, 0, _THREAD)),  # clone
    ((302, 261), 0, (_EQUAL, 1, 0, 0)),  # prlimit, of this process
    ((2, -1), 1, (_ANY_BIT, 0, 1, _WRITES)),  # open
    ((257, 56), 2, (_ANY_BIT, 0, 1, _WRITES)),  # openat
)
_TGKILL = (234, 131)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _GET_SECCOMP = 38, 22, 21  # of prctl

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # Landlock's system calls, on all machines
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_RIGHTS = (0, 13, 14, 15, 15, 16)  # number of rights to files in each version of Landlock
# What programs and their libraries read; libraries are loaded when a format first needs them.
_SYSTEM = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime",
           "/etc/ssl", "/etc/mime.types", "/etc/httpd", "/etc/apache", "/etc/apache2",
           "/dev/null", "/dev/urandom")  # fmt: skip


def confine(folders: Iterable[str]) -> None:
    """Refuse this thread and those that it starts all but computing and reading in `folders`.

    The system's own libraries can be read as well. What the system has no means for is not done;
    `holds` says what there is.
    """
    if "seccomp" in (means := holds()) or "Landlock" in means:
        _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if "Landlock" in means:
        _only_read([*_SYSTEM, *folders], _landlock())
    if "seccomp" in means:
        steps = _filter(*_MACHINES[platform.machine()])
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in steps))
        about = struct.pack("HP", len(steps), ctypes.addressof(program))
        _libc().prctl(_SET_SECCOMP, 2, about, 0, 0)


def holds() -> dict[str, str]:
    """The means that the system has here, and what each refuses."""
    means = {}
    with suppress(OSError, AttributeError):  # no libc with prctl
        if platform.machine() in _MACHINES and _libc().prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0:
            means["seccomp"] = "no network, no programs, no writing"
        if _landlock() > 0:
            means["Landlock"] = "no files but Python's and the system's"
    return means


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """A system call; its result, -1 where it fails."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *words))


def _landlock() -> int:
    """The version of Landlock here; 0 or less where there is none."""
    return _call(_CREATE, None, 0, 1) if platform.system() == "Linux" else 0


def _only_read(paths: Iterable[str], version: int) -> None:
    """Files can be read below `paths` alone, and none be written, made, removed or run."""
    rights = (1 << _RIGHTS[min(version, len(_RIGHTS) - 1)]) - 1
    # TCP (from version 4 on); other programs' abstract sockets and signals to them (from 6 on)
    handled = struct.pack("QQQ", rights, 3, 3)[: 24 if version > 5 else 16 if version > 3 else 8]
    rules = _call(_CREATE, handled, len(handled), 0)
    for path in paths:
        with suppress(OSError):  # there is none
            place = os.open(path, os.O_PATH)
            allowed = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
            _call(_ADD, rules, 1, struct.pack("=Qi", allowed, place), 0)
            os.close(place)
    _call(_RESTRICT, rules, 0)
    os.close(rules)


def _filter(column: int, architecture: int) -> list[tuple[int, int, int, int]]:
    """A program of BPF: (instruction, steps to skip if true, if false, operand) each."""
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), refuse]
    steps += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), refuse]
    for row in _REFUSED.split(","):
        numbers, error = row.split()[1:3], [*row.split(), "EPERM"][3]
        if (number := int(numbers[column])) >= 0:  # libraries take `clone` and `openat` then
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | getattr(errno, error))]
    own = (_TGKILL, 0, (_EQUAL, 1, 0, os.getpid()))  # as `abort` does
    for calls, argument, test in (*_ALLOWED_BY, own):
        if calls[column] >= 0:
            value = (_LOAD, 0, 0, _ARGUMENT + 8 * argument)
            steps += [(_EQUAL, 0, 4, calls[column]), value, test, refuse, allow]
    return [*steps, allow]


T = TypeVar("T")
_WALL = 10  # seconds on the clock for each of the processor; guess
_SLICE_S = 0.25  # how often a fork is looked at
# A fork that has slept for so long waits for a lock that another thread held when it was made, and
# which nobody releases there. Another fork is made then. Guesses.
_ASLEEP_S, _FORKS = 1.0, 3
_INSTRUCTIONS = 1000  # that run before an exception sent to this thread has surely been raised


class BoundError(BaseException):
    """The code took more time or memory than it may. No Exception: the code must not catch it."""


class _AsleepError(Exception):
    """A fork waits for ever."""


def bounded(work: Callable[[], T], *, seconds: float, megabytes: int) -> T:
    """What `work` returns. Raises BoundError, or what `work` raises.

    On Linux it is done in a fork, whose limits are no other thread's: what it returns or raises
    must pass pickle, and it must not wait for anything. `seconds` are of the processor, in user
    mode; `megabytes` come on top of what the process has. Other systems' libraries do not survive a
    fork: there time alone is bounded.
    """
    if sys.platform != "linux":
        return timed(work, seconds)
    for _ in range(_FORKS):
        with suppress(_AsleepError):
            return _in_fork(work, seconds, megabytes)
    raise BoundError("it waits for something that does not come")


def _in_fork(work: Callable[[], T], seconds: float, megabytes: int) -> T:
    """As `bounded`. Raises _AsleepError where the fork waits for a lock."""
    receiver, sender = os.pipe()
    child = os.fork()  # multiprocessing closes standard input, whose lock a reading thread may hold
    if child == 0:
        os.close(receiver)  # else it would wait for ever to send, where the process was killed
        _send(sender, work, seconds, megabytes)
    os.close(sender)
    found, status, ready = None, 0, False
    with open(receiver, "rb") as stream, suppress(EOFError, pickle.UnpicklingError):
        try:
            if ready := _comes(receiver, child, _WALL * seconds):
                found = pickle.load(stream)
        finally:
            with suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
    if found is None:
        over = not ready or os.WTERMSIG(status) == signal.SIGVTALRM
        raise BoundError(f"it takes more than {seconds:g} s" if over else "it ends its process")
    if found[1] is not None:
        raise found[1]
    return found[0]  # type: ignore[no-any-return]


def _comes(receiver: int, child: int, seconds: float) -> bool:
    """Whether a fork writes, or ends, within `seconds`. Raises _AsleepError where it only waits."""
    (waiting := select.poll()).register(receiver)  # select takes no descriptor from 1024 on
    end, asleep_s, before = time.monotonic() + seconds, 0.0, ""
    while not waiting.poll(_SLICE_S * 1000):
        if time.monotonic() > end:
            return False
        state = _state(child)
        asleep_s = asleep_s + _SLICE_S if state == before and state.startswith("S") else 0.0
        before = state
        if asleep_s >= _ASLEEP_S:
            raise _AsleepError
    return True


def _state(process: int) -> str:
    """The state of a process, as "S" for one that waits, and its ticks of the processor so far."""
    with suppress(OSError, IndexError):
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{values[0]} {values[11]} {values[12]}"
    return ""


def _send(sender: int, work: Callable[[], object], seconds: float, megabytes: int) -> NoReturn:
    """In the fork: write what `work` returns, or what it raises, and end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process itself is told
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # ends it within one expression, too
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        before, most = resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        limits = {taken + megabytes * 1_000_000, before} - {resource.RLIM_INFINITY}
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
        found = pickle.dumps((work(), None))
    except MemoryError:
        found = pickle.dumps((None, BoundError(f"it takes more than {megabytes} MB")))
    except BaseException as error:
        found = pickle.dumps((None, error))
    finally:
        with suppress(BaseException), open(sender, "wb") as stream:
            stream.write(found)
        os._exit(0)


def timed(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns, in any thread. Raises BoundError between two instructions of Python.

    It is raised within this call, or not at all.
    """

    class OverError(BoundError):
        """The time of this call is over; no other call raises it."""

    thread, lock = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    raise_there = ctypes.pythonapi.PyThreadState_SetAsyncExc
    is_done = is_sent = False

    def end() -> None:
        nonlocal is_sent
        with lock:
            if not is_done:
                is_sent = True
                raise_there(thread, ctypes.py_object(OverError))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    error: BaseException | None = None
    found: list[T] = []
    try:
        timer.start()
        try:
            found.append(work())
        except OverError:
            raise
        except BaseException as raised:
            error = raised
        with lock:
            is_done = True  # from here on nothing is sent
        # What was sent before is raised between two of these instructions, unless it was already.
        for _ in range(_INSTRUCTIONS if is_sent else 0):
            pass
    except OverError:
        raise BoundError(f"it takes more than {seconds:g} s") from None
    finally:
        timer.cancel()
    if error is not None:
        raise error
    return found[0]
