"""Compilation of the loops of `auto` in a separate process, while answers are made.

Compiling takes half a minute of processor time, once per machine. A run does not wait for it:
another method drafts meanwhile, with the same answer. The process outlives the run, so that a later
run finds the functions in the store. It has the lowest priority and limits on its time, and a lock
admits one process at a time. Each function is stored as soon as it is compiled, so that a killed
process leaves its results for the next one.

If nothing can be stored, each run would have to compile everything again. So only a run that stays
(a server, a conversation, many documents) starts a process, which sends its results to the run and
ends with it. Any other run starts nothing.

Importing this module does not load numba.
"""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from enum import Enum, auto
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from ngtcli.drafting.auto import NAME
from ngtcli.system import compiled
from ngtcli.system.files import private_folder

MAX_ATTEMPTS = 3  # processes that end too soon, after which a run compiles by itself (guess)
MAX_CPU_S = 600  # processor seconds, about 20 times what it takes (guess)
MAX_S = 3600  # seconds on a busy machine (guess)
ROOM = 16_000_000  # bytes that must be free to store all functions, which take 3.5 MB (measured)


class Begun(Enum):
    """The compilation that this process has begun."""

    NOTHING = auto()  # or another process had begun before
    FOR_ALL = auto()  # a process that stores what it compiles
    FOR_THIS_RUN = auto()  # a process that sends what it compiles
    NOT_STORED = auto()  # nothing, as it could not be stored


class _State:
    """The state of this process. The lock is for servers, which prepare answers in threads."""

    is_ready = False
    begun = Begun.NOTHING
    process: subprocess.Popen[bytes] | None = None
    lock = threading.Lock()


def is_ready() -> bool:
    """Return whether `auto` has nothing to compile."""
    if not _State.is_ready:
        _State.is_ready = compiled.is_ready(NAME)
    return _State.is_ready


def begun() -> Begun:
    """Return the compilation that calls of `begin` have started."""
    return _State.begun


def begin(stays: bool = True) -> bool:
    """Compile in another process, unless one does so already.

    If nothing can be stored, nothing is started unless this process `stays`.

    Returns False if several processes have ended without a result, or none can be started: then
    this process should compile, and show the error.
    """
    with _State.lock:
        if _State.process is not None and _State.process.poll() is None:
            return True
        try:
            lock = _locked()
        except BlockingIOError:  # another run's process compiles
            return True
        except OSError:
            return _begin_without_store(stays)
        try:
            if shutil.disk_usage(compiled.lock_path().parent).free < ROOM:
                return _begin_without_store(stays)
            attempts = _attempts() + 1
            if attempts > MAX_ATTEMPTS:
                return False
            compiled.COMPILED.put(_attempts_key(), str(attempts).encode())
            if _attempts() != attempts:
                return _begin_without_store(stays)
            if not _start([], lock):
                return False
            _State.begun = Begun.FOR_ALL
            os.truncate(lock, 0)
            os.write(lock, str(_State.process.pid).encode() if _State.process else b"")
            return True
        finally:
            os.close(lock)  # the process has a copy, which keeps the lock


def _attempts_key() -> str:
    return compiled.key_in_store("attempts", NAME)


def _attempts() -> int:
    return int(compiled.COMPILED.get(_attempts_key()) or 0)


def _locked() -> int:
    """Lock a file beside the store, and return its descriptor; it will hold a process id.

    Raises BlockingIOError if another process has locked it, and other OSErrors.
    """
    path = compiled.lock_path()
    private_folder(path.parent)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _begin_without_store(stays: bool) -> bool:
    """Start a process that sends its results, which cannot be stored, if this process stays."""
    if not stays:
        _State.begun = Begun.NOT_STORED
        return True
    if _State.process is not None:
        return False
    receiving, sending = Pipe(duplex=False)
    with sending:
        if not _start([str(sending.fileno())], sending.fileno()):
            receiving.close()
            return False
    _State.begun = Begun.FOR_THIS_RUN
    threading.Thread(target=_receive, args=(receiving,), daemon=True).start()
    return True


def _receive(receiving: Connection) -> None:
    with receiving, suppress(EOFError, OSError):
        while (result := receiving.recv()) is not None:
            key, data = result
            compiled.received[key] = data
        _State.is_ready = True


def _start(arguments: list[str], descriptor: int) -> bool:
    """Start a process with this descriptor in a new session, so that Ctrl-C does not reach it.

    Returns False if that is not possible.
    """
    command = [sys.executable, "-P", "-m", __name__, *arguments]
    package = Path(__file__).parents[3]
    environment = dict(os.environ)
    # The process does not stay in the current folder, which may be removed or unmounted.
    paths = [str(package), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    for name in ("NGT_HOME", "NUMBA_CACHE_DIR"):
        if folder := environment.get(name):
            environment[name] = os.path.abspath(os.path.expanduser(folder))
    try:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=[descriptor],
        )
    except OSError:
        return False
    _State.process = started
    # If it ends before this process does, it is waited for, or it would stay a zombie.
    threading.Thread(target=started.wait, daemon=True).start()
    return True


def compile_here(descriptor: int | None = None) -> None:
    """Compile everything with the lowest priority, and store it or send it to a descriptor."""
    _yield_to_others()
    sending = None if descriptor is None else Connection(descriptor, readable=False)
    if sending is not None:
        compiled.compiled_listeners.append(lambda key, data: sending.send((key, data)))
    from ngtcli.drafting.auto.drafter import compile_loops  # imported here: it loads numba

    compile_loops()
    if sending is not None:
        sending.send(None)


def _yield_to_others() -> None:
    """Give all other processes precedence, and end this one if it takes far too long."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    signal.alarm(MAX_S)
    # Linux may give each session the same share of the processor, whatever its priorities, and
    # ends the process with the highest score first where memory runs out.
    for path, value in (("/proc/self/autogroup", "19"), ("/proc/self/oom_score_adj", "1000")):
        with suppress(OSError):
            Path(path).write_text(value)


if __name__ == "__main__":
    compile_here(int(sys.argv[1]) if len(sys.argv) > 1 else None)
