"""Processes that parse files of foreign formats: a few, kept, and replaced when one is lost.

A worker gets bytes and gives text over a connection (`worker.py` has the form), without the user's
environment and current folder. Whatever it replies is checked as if a stranger had sent it. A file
is to blame for a crash, or for taking too much, only where that happens in a fresh worker.
"""

import importlib.util
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
from ngtcli.system.files import DamagedFileError, parse_json

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

    def __init__(self, seconds: float, mb: int) -> None:
        self.size = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers = [_Worker(seconds, mb) for _ in range(self.size)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()  # held while a process starts
        self._closed = False

    def extract(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable; OSError where no worker can be started."""
        for package in form.needs:
            if importlib.util.find_spec(package) is None:
                raise MissingExtra(form.what, package)
        try:
            return self._extract(form, source)
        except FailedParser as failed:
            if not failed.is_tried_again:
                raise
        return self._extract(form, source, fresh=True)

    def _extract(self, form: Format, source: Source, fresh: bool = False) -> Extracted:
        worker = self._idle.get()
        try:
            with self._lock:
                if self._closed:
                    raise _ended()
                worker.get_ready(fresh)
            try:
                return worker.ask(form, source)
            except (OSError, EOFError):
                raise _ended() if self._closed else worker.lost(form) from None
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all workers at once."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()


def _ended() -> Unreadable:
    return Unreadable("not read: reading was ended", _AGAIN, lasting=False)


class _Worker:
    """A process, which `get_ready` starts, and again where it has ended.

    Its connection is closed with the last reference: a thread may be reading.
    """

    def __init__(self, seconds: float, mb: int) -> None:
        self._seconds, self._mb = seconds, mb
        self._process: subprocess.Popen[bytes] | None = None

    def get_ready(self, fresh: bool) -> None:
        """Have a process that runs; with `fresh` another than before."""
        if fresh:
            self.kill()
        if self._process is not None and self._process.poll() is None:
            return
        from multiprocessing.connection import Pipe  # here: few commands read such files

        own = str(Path(ngtcli.__file__).parents[1])
        left_out = {os.getcwd()} - {own}  # it may be one of documents
        places = [place for place in sys.path if os.path.isabs(place) and place not in left_out]
        self._connection, theirs = Pipe()
        numbers = theirs.fileno(), self._seconds, self._mb * 1_000_000
        self._is_late = self._is_hung = False
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

    def ask(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable; OSError and EOFError where the process ended."""
        about = {name: getattr(source, name) for name in Source.__slots__ if name != "data"}
        request = {"format": form.name, "source": about}
        done = threading.Event()
        threading.Thread(target=self._watch, args=(self._process, done), daemon=True).start()
        try:
            for message in (json.dumps(request).encode(), source.data):
                self._connection.send_bytes(message)
            reply = self._connection.recv_bytes(_REPLY), self._connection.recv_bytes(source.most)
        finally:
            done.set()
        if b'"memory"' in reply[0][:_SHOWN]:  # it is fragmented: the next file gets another
            self.kill()
        return _read(*reply, form, self._mb)

    def _watch(self, process: "subprocess.Popen[bytes]", done: threading.Event) -> None:
        """End the process if it hangs, or computes on though its own timer should have ended it.

        It hangs if three looks in a row find the same CPU time. Two would not do: after ngt itself
        was stopped, one look comes at once. One that something else has stopped is waited for.
        """
        looks: list[float] = []
        with suppress(OSError):  # it has ended
            start = _cpu_s(process.pid)
            while not done.wait(_LOOK_S):
                looks = [] if _is_stopped(process.pid) else [*looks[-2:], _cpu_s(process.pid)]
                self._is_late = _cpu_s(process.pid) - start > self._seconds + _START_S
                self._is_hung = len(looks) == 3 and looks[0] == looks[2]
                if self._is_late or self._is_hung:
                    return process.kill()

    def lost(self, form: Format) -> Unreadable:
        """What is told of a file over which the process ended, or is ended here."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.kill()
        code = -self._process.returncode
        if self._is_late or code == signal.SIGPROF:
            what = f"{form.what} that takes more than {self._seconds} s to read"
            return FailedParser(what, "Raise the limit with --parser-seconds.", False)
        if self._is_hung:
            what = f"{form.what} at which its parser stood still"
            return FailedParser(what, "Save it again, or leave it out.", False)
        name = signal.Signals(code).name if code > 0 else f"code {-code}"
        if code > 0 and code not in _CRASHES:
            what = f"not read: something else ended its parser ({name})"
            advice = f"{_AGAIN} If memory had run out, close other programs first."
            return Unreadable(what, advice, lasting=False)
        damaged = "It is damaged, or needs more memory: see --parser-mb."
        return FailedParser(f"{form.what} at which its parser crashed ({name})", damaged)

    def kill(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _cpu_s(process: int) -> float:
    """Seconds of CPU time that a process has used. Raises OSError where it has ended."""
    if sys.platform != "linux":  # no clock of another process
        return time.monotonic() / _WALL
    return time.clock_gettime((~process << 3) | 2)  # as clock_getcpuclockid makes it


def _is_stopped(process: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    if sys.platform != "linux":
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _read(description: bytes, text: bytes, form: Format, mb: int) -> Extracted:
    """The text in a reply. Raises Unreadable for an error in it, and for what is not a reply."""
    try:
        reply = parse_json(description, dict)
        if "error" in reply:
            raise _told(reply, form, mb)
        shown = text.decode()
        return Extracted(shown, About.from_json(reply["about"], len(shown)))
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
