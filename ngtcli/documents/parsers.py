"""Processes that parse files of foreign formats: a few, kept, and replaced when one is lost.

A worker gets bytes and gives text over a connection (`worker.py` has the form). It starts without
the user's environment and current folder, ends when its connection is closed, and is ended when a
file takes too much of its CPU time. Whatever it replies is checked as if a stranger had sent it.

A file is to blame for a crash, or for taking too much, only where that happens in a fresh worker;
never for a worker that something else has ended or stopped.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ngtcli
from ngtcli.documents.content import About, Extracted, Source
from ngtcli.documents.formats import Format
from ngtcli.documents.text import Unreadable
from ngtcli.system.storage import DamagedFileError, parse_json

EXTRA = "ngtcli[docs]"
INSTALL = f"Install it: pip install '{EXTRA}'"
MOST_WORKERS = 4  # each may take `parser_mb`; guess
_END_S = 0.2  # in which a worker that crashed is gone and its code known; guess
_REPLY = 64_000_000  # most bytes of a reply's description; guess
_START_S = 10.0  # CPU time of a worker's imports, in addition to that for the file; guess
_LOOK_S = 30.0  # between two looks at whether a worker still computes; guess
_WALL = 10  # seconds of wall time for each of CPU time that a file may take; guess
_SHOWN = 200  # characters of a parser's own words
_CODE = (
    "import sys; limits = float(sys.argv[2]), int(sys.argv[3]); sys.path[:] = sys.argv[4:]\n"
    "sys.dont_write_bytecode = True\n"
    "from ngtcli.documents.worker import serve; serve(int(sys.argv[1]), *limits)"
)
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_CRASHES = {getattr(signal, f"SIG{name}") for name in "SEGV ABRT BUS ILL FPE TRAP SYS XFSZ".split()}
_AGAIN = "Run it again."


class MissingExtra(Unreadable):
    """A package that the format needs is not installed."""

    def __init__(self, what: str, package: str) -> None:
        super().__init__(f"{what}, which needs the package {package}", INSTALL, lasting=False)


class FailedParser(Unreadable):
    """A parser crashed, or took too much: the file is to blame if another run ends the same."""

    def __init__(self, reason: str, advice: str, is_tried_again: bool = True) -> None:
        super().__init__(reason, advice, lasting=False)
        self.is_tried_again = is_tried_again  # at once, in a fresh worker


class Parsers:
    """At most `MOST_WORKERS` worker processes; `extract` may be called from many threads.

    A file may take `seconds` of CPU time, and a worker `mb` megabytes of memory.
    """

    def __init__(self, seconds: int, mb: int) -> None:
        self.size = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._seconds, self._mb = seconds, mb
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._lock = threading.Lock()  # of the two below
        self._all: list[_Worker] = []
        self._closed = False
        for _ in range(self.size):
            self._idle.put(None)

    def extract(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable, whatever happens to the worker."""
        check_installed(form)
        try:
            return self._extract(form, source)
        except FailedParser as failed:
            if not failed.is_tried_again:
                raise
        return self._extract(form, source, fresh=True)

    def _extract(self, form: Format, source: Source, fresh: bool = False) -> Extracted:
        worker = self._idle.get()
        try:
            if worker is not None and (fresh or not worker.is_running):
                self._end(worker)
                worker = None
            if worker is None:
                worker = self._start()
            return _read(worker.ask(form, source, self._seconds), form, self._mb)
        except _WorkerLost as lost:
            raise self._why(lost, form) from None
        finally:
            if worker is not None and not worker.is_usable:
                self._end(worker)
                worker = None
            self._idle.put(worker)

    def _start(self) -> "_Worker":
        with self._lock:
            if self._closed:
                raise _ended()
            worker = _Worker(self._seconds, self._mb)
            self._all.append(worker)
            return worker

    def _end(self, worker: "_Worker") -> None:
        worker.kill()
        with self._lock, suppress(ValueError):
            self._all.remove(worker)

    def _why(self, lost: "_WorkerLost", form: Format) -> Unreadable:
        """What is told of a worker that was lost over a file."""
        if self._closed:
            return _ended()
        if lost.is_late:
            what = f"{form.what} that takes more than {self._seconds} s to read"
            return FailedParser(what, "Raise the limit with --parser-seconds.", False)
        if lost.is_hung:
            what = f"{form.what} at which its parser stood still"
            return FailedParser(what, "Save it again, or leave it out.", False)
        name = signal.Signals(-lost.code).name if lost.code < 0 else f"code {lost.code}"
        if lost.code < 0 and -lost.code not in _CRASHES:
            what = f"not read: something else ended its parser ({name})"
            advice = f"{_AGAIN} If memory had run out, close other programs first."
            return Unreadable(what, advice, lasting=False)
        damaged = "It is damaged, or needs more memory: see --parser-mb."
        return FailedParser(f"{form.what} at which its parser crashed ({name})", damaged)

    def close(self) -> None:
        """End all workers at once."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.kill()


def _ended() -> Unreadable:
    return Unreadable("not read: reading was ended", _AGAIN, lasting=False)


def check_installed(form: Format) -> None:
    """Raise MissingExtra unless the packages that a format needs are there."""
    from importlib.util import find_spec  # here: few commands read such files

    for package in form.needs:
        if find_spec(package) is None:
            raise MissingExtra(form.what, package)


class _WorkerLost(Exception):
    """The worker ended: with `code`, negative for a signal.

    `is_late` where its time was up, `is_hung` where it stood still and was ended here.
    """

    def __init__(self, code: int, is_late: bool, is_hung: bool) -> None:
        self.code, self.is_late, self.is_hung = code, is_late, is_hung


class _Worker:
    """One process. Its connection is closed with the last reference: a thread may be reading."""

    def __init__(self, seconds: int, mb: int) -> None:
        from multiprocessing.connection import Pipe  # here: few commands read such files

        own = str(Path(ngtcli.__file__).parents[1])
        left_out = {os.getcwd()} - {own}  # it may be one of documents
        places = [place for place in sys.path if os.path.isabs(place) and place not in left_out]
        self._connection, theirs = Pipe()
        numbers = theirs.fileno(), seconds, mb * 1_000_000
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, *map(str, numbers), *places, own],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=os.sep,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
            )
        self.is_usable, self._is_late, self._is_hung = True, False, False

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, form: Format, source: Source, seconds: int) -> tuple[bytes, bytes]:
        """The two messages of the reply. Raises _WorkerLost."""
        about = {name: getattr(source, name) for name in Source.__slots__ if name != "data"}
        request = {"format": form.name, "source": about}
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done, seconds), daemon=True).start()
        try:
            for message in (json.dumps(request).encode(), source.data):
                self._connection.send_bytes(message)
            reply = self._connection.recv_bytes(_REPLY), self._connection.recv_bytes(source.most)
            self.is_usable = b'"memory"' not in reply[0][:_SHOWN]  # fragmented: start another
            return reply
        except (OSError, EOFError, ValueError):
            code = self._exit_code()
            is_late = self._is_late or code == -signal.SIGPROF
            raise _WorkerLost(code, is_late, self._is_hung) from None
        finally:
            done.set()

    def _watch(self, done: threading.Event, seconds: float) -> None:
        """End the process if it hangs, or computes on though its own timer should have ended it.

        It hangs if three looks in a row find the same CPU time. Two would not do: after ngt itself
        was stopped, one look comes at once. One that something else has stopped is waited for.
        """
        looks: list[float] = []
        with suppress(OSError):  # it has ended
            start = self._cpu_s()
            while not done.wait(_LOOK_S):
                looks = [] if self._is_stopped() else [*looks[-2:], self._cpu_s()]
                self._is_late = self._cpu_s() - start > seconds + _START_S
                self._is_hung = len(looks) == 3 and looks[0] == looks[2]
                if self._is_late or self._is_hung:
                    return self._process.kill()

    def _cpu_s(self) -> float:
        """Seconds of CPU time that the process has used. Raises OSError where it has ended."""
        if sys.platform != "linux":  # no clock of another process
            return time.monotonic() / _WALL
        return time.clock_gettime((~self._process.pid << 3) | 2)  # as clock_getcpuclockid makes it

    def _is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process."""
        if sys.platform != "linux":
            return False
        about = Path(f"/proc/{self._process.pid}/stat").read_text()
        return about.rpartition(")")[2].split()[0] in "Tt"

    def kill(self) -> None:
        """End the process; it is not usable afterwards."""
        self.is_usable = False
        self._process.kill()
        self._process.wait()

    def _exit_code(self) -> int:
        """The exit code, negative for a signal, of a process that is ending or is ended here."""
        self.is_usable = False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.kill()
        return self._process.returncode


def _read(frames: tuple[bytes, bytes], form: Format, mb: int) -> Extracted:
    """The text in a reply. Raises Unreadable for an error in it, and for what is not a reply."""
    try:
        reply = parse_json(frames[0], dict)
        if "error" in reply:
            raise _told(reply, form, mb)
        text = frames[1].decode()
        return Extracted(text, About.from_json(reply["about"], len(text)))
    except (DamagedFileError, KeyError, ValueError):
        raise Unreadable(f"{form.what} whose parser made no sense", "It is damaged.") from None


def _told(reply: Mapping[str, Any], form: Format, mb: int) -> Unreadable:
    kind, reason = reply["error"], str(reply.get("reason", ""))[:_SHOWN]
    if kind == "unreadable":
        advice = str(reply.get("advice", ""))[:_SHOWN]
        return Unreadable(reason, advice, reply.get("lasting") is not False)
    if kind == "missing":
        return MissingExtra(form.what, reason)
    if kind == "memory":
        limit = "Raise the limit with --parser-mb."
        return FailedParser(f"{form.what} that takes more than {mb} MB of memory to read", limit)
    if kind == "too long":
        return Unreadable(f"{form.what} with too much text in it", "Raise the bound with --max-mb.")
    return Unreadable(f"broken {form.name} ({reason})", "Save it again.")
