"""A small pool of processes that parse files of foreign formats; lost ones are replaced.

A worker receives bytes and returns text over a connection (see `worker.py` for the protocol). It
runs without the user's environment, current folder and terminal, and its replies are not trusted.
If a worker crashes or takes too much, the file is parsed again in a fresh worker, and blamed only
if that fails, too.
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
from ngtcli.documents.content import MAX_OCR_PAGES, About, Extracted, ParserInput
from ngtcli.documents.formats import Format
from ngtcli.documents.text import Unreadable

MAX_WORKERS = 4  # each may take `parser_mb` of memory (guess)
_EXIT_TIMEOUT_S = 0.2  # how long to wait for the exit code of a crashed worker (guess)
_MAX_REPLY_BYTES = 64_000_000  # of a reply's description (guess)
_START_CPU_S = 10.0  # CPU time of a worker's imports, in addition to that for the file (guess)
_WALL_PER_CPU_S = 10  # wall time without a sign of life for each second of CPU time (guess)
_MAX_SHOWN = 200  # characters of a worker's message that are shown
_CODE = (
    "import sys; limits = float(sys.argv[2]), int(sys.argv[3]); sys.path[:] = sys.argv[4:]\n"
    "sys.dont_write_bytecode = True\n"
    "from ngtcli.documents.worker import serve; serve(int(sys.argv[1]), *limits)"
)
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Give large pieces of memory back, and set none aside for threads: otherwise a worker runs out of
# addresses (measured).
_ENV = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "4000000", "OPENBLAS_NUM_THREADS": "1"}
_CRASH_NAMES = ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS", "XFSZ")
_CRASH_SIGNALS = {getattr(signal, f"SIG{name}") for name in _CRASH_NAMES}
_RETRY = "Run it again."


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's description of a text, or why there is none.

    Attributes:
        about: Facts about the text; None if there is none.
        error: "" if there is a text, "unreadable", or "failed" if the parser took too much.
        reason: Why there is no text.
        advice: What to do about it.
        lasting: Whether the same bytes will be unreadable again.
    """

    about: About | None = None
    error: str = ""
    reason: str = ""
    advice: str = ""
    lasting: bool = True


class FailedParser(Unreadable):
    """A parser crashed, or took too much time or memory.

    This is not stored (it is not `lasting`), because the machine may have been the cause.

    Args:
        reason: Why there is no text.
        advice: What to do about it.
        should_retry: Whether to parse the file again at once, in a fresh worker.
    """

    def __init__(self, reason: str, advice: str, should_retry: bool = True) -> None:
        super().__init__(reason, advice, lasting=False)
        self.should_retry = should_retry


class Parsers:
    """A pool of at most `MAX_WORKERS` workers; `extract` may be called from many threads.

    Args:
        max_cpu_s: CPU time for a file.
        max_mb: Memory of a worker, in megabytes.
        tessdata: The folder of Tesseract's languages, or "".
    """

    def __init__(self, max_cpu_s: float, max_mb: int, tessdata: str = "") -> None:
        self.size = max(1, min(MAX_WORKERS, os.cpu_count() or 1))
        self._workers = [_Worker(max_cpu_s, max_mb, tessdata) for _ in range(self.size)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()  # held while a process starts
        self._is_closed = False

    def extract(self, file_format: Format, source: ParserInput) -> Extracted:
        """Parse a file. Raises Unreadable; OSError if no worker can be started."""
        worker = self._idle.get()
        is_retry = False
        try:
            while True:
                with self._lock:
                    if self._is_closed:
                        raise Unreadable("not read: reading was interrupted", _RETRY, lasting=False)
                    worker.ensure_running(is_fresh=is_retry)
                try:
                    return worker.extract(file_format, source)
                except FailedParser as error:
                    if is_retry or not error.should_retry:
                        raise
                is_retry = True
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Kill all workers."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()


class _Worker:
    """A worker process and the connection to it.

    The connection is closed with its last reference, because a thread may be reading from it.
    """

    def __init__(self, max_cpu_s: float, max_mb: int, tessdata: str) -> None:
        self._max_cpu_s = max_cpu_s
        self._max_mb = max_mb
        self._env = dict(_ENV)
        if tessdata:
            self._env["TESSDATA_PREFIX"] = tessdata
        self.timeout_s = int(_WALL_PER_CPU_S * (max_cpu_s + _START_CPU_S))  # without a sign of life
        self._process: subprocess.Popen[bytes] | None = None

    def ensure_running(self, is_fresh: bool) -> None:
        """Start a process unless one is running; with `is_fresh`, replace a running one."""
        if is_fresh:
            self.kill()
        if self._process is not None and self._process.poll() is None:
            return
        from multiprocessing.connection import Connection  # lazy: few commands read such files

        package_root = str(Path(ngtcli.__file__).parents[1])
        # The current folder may be one of documents, from which nothing must be imported.
        excluded = {os.getcwd()} - {package_root}
        import_path = [path for path in sys.path if os.path.isabs(path) and path not in excluded]
        import_path.append(package_root)
        inherited = {n: os.environ[n] for n in _INHERITED_VARIABLES if n in os.environ}

        our_socket, worker_socket = socket.socketpair()
        # Timeouts of the socket bound each message; `poll` would bound only its beginning.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            our_socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", self.timeout_s, 0))
        self._connection = Connection(our_socket.detach())
        arguments = [
            str(worker_socket.fileno()),
            str(self._max_cpu_s),
            str(self._max_mb * 1_000_000),
            *import_path,
        ]
        with worker_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[worker_socket.fileno()],
                cwd=os.sep,
                env=self._env | inherited,
                start_new_session=True,  # without the terminal, into which it could type
            )

    def extract(self, file_format: Format, source: ParserInput) -> Extracted:
        """Have a file parsed. Raises Unreadable, also if the process exits or hangs."""
        sent_otherwise = ("data", "on_page")
        fields = {n: getattr(source, n) for n in ParserInput.__slots__ if n not in sent_otherwise}
        request = {"format": file_format.name, "source": fields}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            self._connection.send_bytes(source.data)
            # An empty message reports that OCR begins a page.
            for _ in range(MAX_OCR_PAGES + 1):
                description = self._connection.recv_bytes(_MAX_REPLY_BYTES)
                if description:
                    break
                source.on_page()
            text = self._connection.recv_bytes(source.max_bytes)
        except BlockingIOError:
            self.kill()
            raise Unreadable(
                f"not read: its parser hung for {self.timeout_s} s", _RETRY, lasting=False
            ) from None
        except (OSError, EOFError):
            raise self._exit_error(file_format) from None
        try:
            return self._check(msgspec.json.decode(description, type=Reply), text)
        except (RecursionError, ValueError):
            raise Unreadable(
                f"{file_format.noun} whose parser gave an invalid result", "It is damaged."
            ) from None

    def _check(self, reply: Reply, text: bytes) -> Extracted:
        """Check a reply. Raises Unreadable for an error in it; ValueError for an invalid reply."""
        reason = reply.reason[:_MAX_SHOWN]
        advice = reply.advice[:_MAX_SHOWN]
        if reply.error == "failed":
            self.kill()  # its memory is fragmented, so the next file gets another process
            raise FailedParser(reason, advice)
        if reply.error:
            raise Unreadable(reason, advice, reply.lasting)
        if reply.about is None:
            raise ValueError("neither a text nor an error")
        decoded_text = text.decode()
        reply.about.check(len(decoded_text))
        return Extracted(decoded_text, reply.about)

    def _exit_error(self, file_format: Format) -> Unreadable:
        """Make the error for a file at which the process exited; kill it if it still runs."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        self.kill()
        number = -self._process.returncode  # of a signal; 0 or less for an exit code
        if number == signal.SIGPROF:
            return FailedParser(
                f"{file_format.noun} that takes more than {self._max_cpu_s} s to read",
                "Raise the limit with --set parser_seconds.",
                should_retry=False,
            )
        cause = signal.Signals(number).name if number > 0 else f"code {-number}"
        if number > 0 and number not in _CRASH_SIGNALS:
            return Unreadable(
                f"not read: something else ended its parser ({cause})",
                f"{_RETRY} If memory had run out, close other programs first.",
                lasting=False,
            )
        return FailedParser(
            f"{file_format.noun} at which its parser crashed ({cause})",
            "It is damaged, or needs more memory: see --set parser_mb.",
        )

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
