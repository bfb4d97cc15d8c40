"""Confine code: this process for good, or one call within limits of time and memory.

`confine` uses seccomp and Landlock, where the system has them; they hold for native code as well. A
seccomp filter refuses system calls that open connections, start programs, reach other processes or
a terminal, or change files in any way. Landlock refuses to open files outside of some folders,
which can only be read.
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

# The system calls that are refused. Columns: name, number on x86_64, number on aarch64 (-1: the
# machine has no such call), and the error if it is not EPERM. ENOSYS lets libraries fall back to
# calls that the filter can check; ENOTTY is what a file that is no terminal answers.
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
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC  # no file is opened with these
_CLONE_THREAD = 0x10000  # flag of `clone`: a thread and no process
# By machine: the index of its column of numbers above, and its AUDIT_ARCH number.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # from this number on, x86_64 has the calls of another ABI
# Instructions of BPF.
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# Byte offsets in the `seccomp_data` that a filter sees.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT = 16  # of the first argument; each further one is 8 bytes on
# What a filter returns: allow the call, or fail with the error number added to this.
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
# Calls that depend on an argument: their numbers, the argument's index, and the test of its low
# word that allows the call.
_ALLOWED_BY_ARGUMENT = (
    ((56, 220), 0, (_ANY_BIT, 1, 0, _CLONE_THREAD)),  # clone
    ((302, 261), 0, (_EQUAL, 1, 0, 0)),  # prlimit, of this process
    ((2, -1), 1, (_ANY_BIT, 0, 1, _WRITE_FLAGS)),  # open
    ((257, 56), 2, (_ANY_BIT, 0, 1, _WRITE_FLAGS)),  # openat
)
_TGKILL = (234, 131)
# Operations of `prctl`.
_NO_NEW_PRIVILEGES = 38
_SET_SECCOMP = 22
_GET_SECCOMP = 21

# Landlock's system calls, which have the same numbers on all machines.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_RIGHTS_BY_VERSION = (0, 13, 14, 15, 15, 16)  # number of rights to files in each version
# What programs and their libraries read; libraries are loaded when a format first needs them.
_SYSTEM_PATHS = (
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl",
    "/etc/mime.types",
    "/etc/httpd",
    "/etc/apache",
    "/etc/apache2",
    "/dev/null",
    "/dev/urandom",
)


def confine(folders: Iterable[str]) -> None:
    """Let this thread, and those it starts, only compute and read files in `folders`.

    The system's own libraries can be read as well. Only what the system has means to refuse is
    refused; `holds` lists these means.
    """
    means = holds()
    if means:
        _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if "Landlock" in means:
        _allow_reading([*_SYSTEM_PATHS, *folders], _landlock_version())
    if "seccomp" in means:
        instructions = _filter(*_MACHINES[platform.machine()])
        packed = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
        program = ctypes.create_string_buffer(packed)
        header = struct.pack("HP", len(instructions), ctypes.addressof(program))
        _libc().prctl(_SET_SECCOMP, 2, header, 0, 0)


def holds() -> dict[str, str]:
    """Return the means of confinement that this system has, and what each refuses."""
    means = {}
    with suppress(OSError, AttributeError):  # no libc with prctl
        if platform.machine() in _MACHINES and _libc().prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0:
            means["seccomp"] = "no network, no programs, no writing"
        if _landlock_version() > 0:
            means["Landlock"] = "no files but Python's and the system's"
    return means


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call and return its result; -1 if it fails."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *words))


def _landlock_version() -> int:
    """Return the version of Landlock; 0 or less if the system has none."""
    if platform.system() != "Linux":
        return 0
    return _call(_CREATE_RULESET, None, 0, 1)


def _allow_reading(paths: Iterable[str], version: int) -> None:
    """Allow reading below `paths` only, and no file to be written, created, removed or executed."""
    newest = min(version, len(_RIGHTS_BY_VERSION) - 1)
    file_rights = (1 << _RIGHTS_BY_VERSION[newest]) - 1
    # The three words are the rights to files; TCP, from version 4 on; and abstract sockets of other
    # processes and signals to them, from version 6 on.
    words = 1
    if version > 3:
        words = 2
    if version > 5:
        words = 3
    handled = struct.pack("QQQ", file_rights, 3, 3)[: 8 * words]
    ruleset = _call(_CREATE_RULESET, handled, len(handled), 0)
    for path in paths:
        with suppress(OSError):  # this system has no such path
            descriptor = os.open(path, os.O_PATH)
            allowed = _READ_FILE
            if os.path.isdir(path):
                allowed |= _READ_FOLDER
            _call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
            os.close(descriptor)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _filter(column: int, architecture: int) -> list[tuple[int, int, int, int]]:
    """Build the BPF program that refuses system calls.

    Args:
        column: The machine's column of numbers in `_REFUSED`.
        architecture: Its AUDIT_ARCH number; calls of another architecture are refused.

    Returns:
        Instructions: (code, instructions to skip if true, if false, operand) each.
    """
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), refuse]
    program += [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), refuse]

    for row in _REFUSED.split(","):
        _, *numbers, error = row.split() if len(row.split()) == 4 else [*row.split(), "EPERM"]
        number = int(numbers[column])
        if number >= 0:
            fail = (_RETURN, 0, 0, _ERROR | getattr(errno, error))
            program += [(_EQUAL, 0, 1, number), fail]

    # `abort` sends a signal to its own process, and to no other.
    tgkill = (_TGKILL, 0, (_EQUAL, 1, 0, os.getpid()))
    for numbers_of_call, argument, test in (*_ALLOWED_BY_ARGUMENT, tgkill):
        number = numbers_of_call[column]
        if number >= 0:
            load_argument = (_LOAD, 0, 0, _ARGUMENT + 8 * argument)
            program += [(_EQUAL, 0, 4, number), load_argument, test, refuse, allow]
    return [*program, allow]


T = TypeVar("T")
_WALL_PER_CPU = 10  # seconds on the clock for each processor second that is allowed (guess)
_POLL_S = 0.25  # seconds between two looks at a fork
# A fork that sleeps this long, in seconds, waits for a lock that another thread held when the
# process forked, and that nobody releases in the fork (guess).
_MAX_ASLEEP_S = 1.0
_MAX_FORKS = 3  # forks to try, since the next one may find the lock free (guess)
# Python instructions after which an exception that was sent to this thread has surely been raised.
_INSTRUCTIONS = 1000


class BoundError(BaseException):
    """The code exceeded its time or memory. No Exception, which the code itself might catch."""


class _AsleepError(Exception):
    """A fork waits for a lock that is never released."""


def bounded(work: Callable[[], T], *, seconds: float, megabytes: int) -> T:
    """Call `work` within limits of time and memory, and return its result.

    On Linux the call runs in a fork, so that its limits are no other thread's. It must not wait for
    anything, and what it returns or raises must pass pickle. The libraries of other systems do not
    survive a fork; there, only the time is limited.

    Args:
        work: The function to call.
        seconds: Processor seconds in user mode.
        megabytes: Memory on top of what the process has, in 10^6 bytes.

    Raises:
        BoundError: A limit was exceeded. Errors of `work` pass through.
    """
    if sys.platform != "linux":
        return timed(work, seconds)
    for _ in range(_MAX_FORKS):
        with suppress(_AsleepError):
            return _in_fork(work, seconds, megabytes)
    raise BoundError("it waits for something that does not come")


def _in_fork(work: Callable[[], T], seconds: float, megabytes: int) -> T:
    """Call `work` in a fork, as for `bounded`. Raises _AsleepError if it waits for a lock."""
    receiver, sender = os.pipe()
    # No multiprocessing: it closes standard input, whose lock a reading thread may hold.
    child = os.fork()
    if child == 0:
        # With the receiver open it would wait forever to send, if the process itself was killed.
        os.close(receiver)
        _send(sender, work, seconds, megabytes)
    os.close(sender)
    result: tuple[T, BaseException | None] | None = None
    status = 0
    is_ready = False
    with open(receiver, "rb") as stream, suppress(EOFError, pickle.UnpicklingError):
        try:
            is_ready = _wait_for(receiver, child, _WALL_PER_CPU * seconds)
            if is_ready:
                result = pickle.load(stream)
        finally:
            with suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
    if result is None:
        is_late = not is_ready or os.WTERMSIG(status) == signal.SIGVTALRM
        raise BoundError(f"it takes more than {seconds:g} s" if is_late else "it ends its process")
    value, error = result
    if error is not None:
        raise error
    return value


def _wait_for(receiver: int, child: int, seconds: float) -> bool:
    """Wait until a fork writes or ends; return False if it does neither within `seconds`.

    Raises _AsleepError if it only sleeps.
    """
    poll = select.poll()  # `select` takes no descriptor from 1024 on
    poll.register(receiver)
    deadline = time.monotonic() + seconds
    asleep_s = 0.0
    last_state = ""
    while not poll.poll(_POLL_S * 1000):
        if time.monotonic() > deadline:
            return False
        state = _state(child)
        if state == last_state and state.startswith("S"):
            asleep_s += _POLL_S
        else:
            asleep_s = 0.0
        last_state = state
        if asleep_s >= _MAX_ASLEEP_S:
            raise _AsleepError
    return True


def _state(process: int) -> str:
    """Return the state of a process ("S" if it sleeps), and its ticks in user and system mode.

    The state is "" if there is no such process.
    """
    with suppress(OSError, IndexError):
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{values[0]} {values[11]} {values[12]}"
    return ""


def _send(sender: int, work: Callable[[], object], seconds: float, megabytes: int) -> NoReturn:
    """Call `work` in the fork, write its result or error to the pipe, and end the process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the process itself
        # The default action ends it even within a single long expression.
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        new_limit = pages * mmap.PAGESIZE + megabytes * 1_000_000
        if soft_limit != resource.RLIM_INFINITY:
            new_limit = min(new_limit, soft_limit)
        resource.setrlimit(resource.RLIMIT_AS, (new_limit, hard_limit))
        message = pickle.dumps((work(), None))
    except MemoryError:
        message = pickle.dumps((None, BoundError(f"it takes more than {megabytes} MB")))
    except BaseException as error:
        message = pickle.dumps((None, error))
    finally:
        with suppress(BaseException), open(sender, "wb") as stream:
            stream.write(message)
        os._exit(0)


def timed(work: Callable[[], T], seconds: float) -> T:
    """Call `work` in this thread, for at most `seconds`, and return its result.

    Raises BoundError between two instructions of Python, within this call or not at all.
    """

    class OverError(BoundError):
        """The time of this call is over; no other call raises it."""

    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
    is_done = False
    is_sent = False

    def send_error() -> None:
        nonlocal is_sent
        with lock:
            if not is_done:
                is_sent = True
                raise_in_thread(thread, ctypes.py_object(OverError))

    timer = threading.Timer(seconds, send_error)
    timer.daemon = True
    error: BaseException | None = None
    results: list[T] = []
    try:
        timer.start()
        try:
            results.append(work())
        except OverError:
            raise
        except BaseException as raised:
            error = raised
        with lock:
            is_done = True  # from here on nothing is sent
        if is_sent:
            # The error that was sent is raised between two of these instructions, at the latest.
            for _ in range(_INSTRUCTIONS):
                pass
    except OverError:
        raise BoundError(f"it takes more than {seconds:g} s") from None
    finally:
        timer.cancel()
    if error is not None:
        raise error
    return results[0]
