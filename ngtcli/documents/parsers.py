"""Processes that parse files of foreign formats: a few, kept, and replaced when one is lost.

A worker gets bytes and gives text over a connection (`worker.py` has the form), without the user's
environment, current folder and terminal. Whatever it replies is checked as if a stranger had sent
it. A file is to blame for a crash, or for taking too much, only where that happens in a fresh
worker.
"""

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import ngtcli
from ngtcli.documents.content import MAX_OCR_PAGES, About, Extracted, Source
from ngtcli.documents.formats import Format
from ngtcli.documents.text import Unreadable

MOST_WORKERS = 4  # each may take `parser_mb`; guess
_END_S = 0.2  # in which a worker that crashed is gone and its code known; guess
_REPLY = 64_000_000  # most bytes of a reply's description; guess
_START_S = 10.0  # CPU time of a worker's imports, in addition to that for the file; guess
_WALL = 10  # seconds of wall time for each of CPU time that a worker may stand still; guess
_SHOWN = 200  # characters of a parser's own words
_CODE = (
    "import sys; limits = float(sys.argv[2]), int(sys.argv[3]); sys.path[:] = sys.argv[4:]\n"
    "sys.dont_write_bytecode = True\n"
    "from ngtcli.documents.worker import serve; serve(int(sys.argv[1]), *limits)"
)
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Large pieces of memory are given back, none set aside for threads: else addresses run out (tried).
_ENV = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "4000000", "OPENBLAS_NUM_THREADS": "1"}
_CRASHES = {getattr(signal, f"SIG{name}") for name in "SEGV ABRT BUS ILL FPE TRAP SYS XFSZ".split()}
_AGAIN = "Run it again."


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker says of a text; or why there is none: "unreadable" or "failed"."""

    about: About | None = None
    error: str = ""
    reason: str = ""
    advice: str = ""
    lasting: bool = True


class FailedParser(Unreadable):
    """A parser crashed, or took too much: so would it again, unless the machine was to blame."""

    def __init__(self, reason: str, advice: str, is_tried_again: bool = True) -> None:
        super().__init__(reason, advice, lasting=False)
        self.is_tried_again = is_tried_again  # at once, in a fresh worker


class Parsers:
    """At most `MOST_WORKERS` worker processes; `extract` may be called from many threads.

    A file may take `seconds` of CPU time, and a worker `mb` megabytes of memory. `tessdata` is the
    folder of Tesseract's languages.
    """

    def __init__(self, seconds: float, mb: int, tessdata: str = "") -> None:
        self.size = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers = [_Worker(seconds, mb, tessdata) for _ in range(self.size)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()  # held while a process starts
        self._closed = False

    def extract(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable; OSError where no worker can be started."""
        worker, fresh = self._idle.get(), False
        try:
            while True:
                with self._lock:
                    if self._closed:
                        raise Unreadable("not read: reading was interrupted", _AGAIN, lasting=False)
                    worker.get_ready(fresh)
                try:
                    return worker.ask(form, source)
                except FailedParser as failed:
                    if fresh or not failed.is_tried_again:
                        raise
                fresh = True
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all workers at once."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()


class _Worker:
    """A process, which `get_ready` starts, and again where it has ended.

    Its connection is closed with the last reference: a thread may be reading.
    """

    def __init__(self, seconds: float, mb: int, tessdata: str) -> None:
        self._seconds, self._mb = seconds, mb
        self._env = _ENV | ({"TESSDATA_PREFIX": tessdata} if tessdata else {})
        self.wall_s = int(_WALL * (seconds + _START_S))  # it may stand still
        self._process: subprocess.Popen[bytes] | None = None

    def get_ready(self, fresh: bool) -> None:
        """Have a process that runs; with `fresh` another than before."""
        if fresh:
            self.kill()
        if self._process is not None and self._process.poll() is None:
            return
        from multiprocessing.connection import Connection  # here: few commands read such files

        own = str(Path(ngtcli.__file__).parents[1])
        left_out = {os.getcwd()} - {own}  # it may be one of documents
        places = [place for place in sys.path if os.path.isabs(place) and place not in left_out]
        ours, theirs = socket.socketpair()
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # `poll` would not bound a message
            ours.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", self.wall_s, 0))
        self._connection = Connection(ours.detach())
        numbers = theirs.fileno(), self._seconds, self._mb * 1_000_000
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, *map(str, numbers), *places, own],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=os.sep,
                env=self._env | {name: os.environ[name] for name in _KEPT if name in os.environ},
                start_new_session=True,  # without the terminal, into which it could type
            )

    def ask(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable, also where the process ends or stands still."""
        own = "data", "on_page"  # not in the description
        about = {name: getattr(source, name) for name in Source.__slots__ if name not in own}
        request = {"format": form.name, "source": about}
        try:
            for message in (json.dumps(request).encode(), source.data):
                self._connection.send_bytes(message)
            for _ in range(MAX_OCR_PAGES + 1):  # an empty message says that a page is begun
                if described := self._connection.recv_bytes(_REPLY):
                    break
                source.on_page()
            text = self._connection.recv_bytes(source.max_bytes)
        except BlockingIOError:
            self.kill()
            what = f"not read: its parser hung for {self.wall_s} s"
            raise Unreadable(what, _AGAIN, lasting=False) from None
        except (OSError, EOFError):
            raise self._lost(form) from None
        try:
            return self._read(msgspec.json.decode(described, type=Reply), text, form)
        except (RecursionError, ValueError):
            raise Unreadable(f"{form.noun} whose parser made no sense", "It is damaged.") from None

    def _read(self, reply: Reply, text: bytes, form: Format) -> Extracted:
        """The text in a reply. Raises Unreadable for an error in it; ValueError for nonsense."""
        reason, advice = reply.reason[:_SHOWN], reply.advice[:_SHOWN]
        if reply.error == "failed":
            self.kill()  # its memory is fragmented: the next file gets another
            raise FailedParser(reason, advice)
        if reply.error:
            raise Unreadable(reason, advice, reply.lasting)
        if reply.about is None:
            raise ValueError("neither a text nor an error")
        shown = text.decode()
        reply.about.check(len(shown))
        return Extracted(shown, reply.about)

    def _lost(self, form: Format) -> Unreadable:
        """What is told of a file over which the process ended, or is ended here."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.kill()
        code = -self._process.returncode
        if code == signal.SIGPROF:
            what = f"{form.noun} that takes more than {self._seconds} s to read"
            return FailedParser(what, "Raise the limit with --set parser_seconds.", False)
        name = signal.Signals(code).name if code > 0 else f"code {-code}"
        if code > 0 and code not in _CRASHES:
            what = f"not read: something else ended its parser ({name})"
            advice = f"{_AGAIN} If memory had run out, close other programs first."
            return Unreadable(what, advice, lasting=False)
        damaged = "It is damaged, or needs more memory: see --set parser_mb."
        return FailedParser(f"{form.noun} at which its parser crashed ({name})", damaged)

    def kill(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
