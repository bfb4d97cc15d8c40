"""A process in which grammars are compiled for the first time: see `worker.py`.

One that crashes, or takes too much, is the fault of its grammar only where that happens in a fresh
process. A few are kept, for the threads of a server; they end when they are not used for a while.
"""

import atexit
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import ngtcli
from ngtcli.decoding.grammar.matcher import in_a_line, library
from ngtcli.errors import NgtError, UsageError
from ngtcli.words import reason_of

_SECONDS = 10.0  # of processor time that all grammars of one form may take (guess)
_WALL = 10  # seconds on the clock for each of the processor (guess)
_START_S = 5.0  # of processor time for the start of a process (guess)
_MEMORY = 2_000_000_000  # bytes of a process's address space (guess: 40 times what is usual)
_PROCESSES = 2  # at once (guess: other users' schemas do not wait for one user's large schema)
_CODE = (
    "import sys; memory = int(sys.argv[1]); sys.path[:] = sys.argv[2:]\n"
    "sys.dont_write_bytecode = True\n"
    "from ngtcli.decoding.grammar.worker import serve; serve(memory)"
)
_SIMPLER = "Make it simpler."


class CompileError(Exception):
    """A grammar ended the process that compiled it; `is_slow`: for it took too much time."""

    def __init__(self, message: str, is_slow: bool = False) -> None:
        super().__init__(message)
        self.is_slow = is_slow


class CompileProcess:
    """A process that compiles grammars, one after the other. `error` starts it where need be."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_fresh = False

    def error(self, request: dict[str, object], seconds: float) -> tuple[str, float]:
        """Return the fault of a grammar, "" for none, and the seconds that finding it took.

        Raises CompileError where the process crashes over it or takes too much; OSError where none
        can be started.
        """
        line = json.dumps({**request, "seconds": seconds}).encode() + b"\n"
        while True:
            self._start()
            was_fresh = self._is_fresh
            self._is_fresh = False
            reply = self._ask(line, _WALL * (seconds + _START_S))
            if reply:
                result = json.loads(reply)
                if result["error"] == "memory":
                    raise _lost(-signal.SIGKILL)
                return result["error"], result["seconds"]
            code = self.close()
            if was_fresh or code == -signal.SIGPROF:
                raise _lost(code)

    def _ask(self, line: bytes, wall_s: float) -> bytes:
        """Send a request; return the reply, or b"" if the process ends or hangs."""
        assert self._process and self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            return b""
        return _line(self._process.stdout, wall_s)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        package = str(Path(ngtcli.__file__).parents[1])
        left_out = {os.getcwd()} - {package}  # it may be a folder of documents
        folders = [folder for folder in sys.path if os.path.isabs(folder)]
        folders = [folder for folder in folders if folder not in left_out]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, str(_MEMORY), *folders, package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=os.sep,
            env={"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the command
        )
        self._is_fresh = True

    def close(self) -> int:
        """End the process, if there is one; return its exit code, negative for a signal."""
        process = self._process
        if process is None:
            return 0
        self._process = None
        try:
            code = process.wait(0.2)  # one that crashed is gone by then (guess)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        for stream in (process.stdin, process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # what could not be written to it
                pass
        return code


def _lost(code: int) -> CompileError:
    """Make the error for a grammar over which a process ended with this code."""
    if code == -signal.SIGKILL:
        return CompileError("compiling it takes too much memory or time")
    return CompileError("the grammar library crashes over it", is_slow=code == -signal.SIGPROF)


def _line(stream: IO[bytes], wall_s: float) -> bytes:
    """Read a line of a pipe; b"" if it ends, or the line takes longer than `wall_s`."""
    line = b""
    deadline = time.monotonic() + wall_s
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            return b""
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return b""
        line += data
    return line


class Trials:
    """The grammars of one form, which together may take some seconds of the processor."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = self._left = seconds

    def error(self, grammar: str, form: str = "grammar", words: str = "") -> str:
        """Return what llguidance has against a grammar, in one line; "" if it takes it.

        Args:
            grammar: The grammar.
            form: "regex" where it is a pattern in the usual syntax.
            words: A tokenizer.json, with whose tokens some answers are tried; "" for no such trial.

        Raises:
            UsageError: The grammar crashes the library, or takes too long.
        """
        library()  # where it is missing, that is said here
        request: dict[str, object] = {"grammar": grammar, "form": form, "words": words}
        process = _borrow()
        try:
            error, seconds = process.error(request, max(self._left, 0.001))
        except CompileError as failed:
            problem = str(failed)
            if failed.is_slow:
                problem = f"compiling it takes more than {self._seconds:g} s"
            raise UsageError(problem, hint=_SIMPLER) from None
        except OSError as failure:
            raise NgtError(
                f"cannot start a process to compile the grammar ({reason_of(failure)})",
                hint="Close other programs, or raise the limit of processes.",
            ) from None
        except BaseException:  # a reply that nobody read must not be that to another request
            process.close()
            raise
        finally:
            _idle.put(process)
        self._left -= seconds
        return in_a_line(error)


_idle: queue.LifoQueue[CompileProcess] = queue.LifoQueue()
_count = threading.Semaphore(_PROCESSES)  # those that are not made yet


def _borrow() -> CompileProcess:
    """Take a process that nobody uses; wait for one where all are in use."""
    try:
        return _idle.get_nowait()
    except queue.Empty:
        return CompileProcess() if _count.acquire(blocking=False) else _idle.get()


def _close_all() -> None:
    while not _idle.empty():
        _idle.get_nowait().close()


atexit.register(_close_all)
