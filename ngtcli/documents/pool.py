"""Processes that parse files of foreign formats: a few, kept, and replaced when one is lost.

A worker gets bytes and gives text, both over pipes (`worker.py` has the form). It starts without
the user's environment and current folder, ends when its pipe is closed, and is killed when a file
takes too long. Whatever it replies is checked as if a stranger had sent it.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import ngtcli
from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted, Source
from ngtcli.documents.formats import Format
from ngtcli.documents.text import Unreadable
from ngtcli.system.storage import DamagedFileError, parse_json

EXTRA = "ngtcli[docs]"
INSTALL = f"Install it: pip install '{EXTRA}'"
MOST_WORKERS = 4  # each may take `parser_mb`; guess
_LENGTH = 8  # bytes before each frame
_END_S = 0.2  # in which a worker that crashed is gone and its code known; guess
_REPLY = 64_000_000  # most bytes of a reply's description; guess
_START_S = 10.0  # a worker's start and its imports, beside the time for the file; guess
_SHOWN = 200  # characters of a parser's own words
_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; sys.dont_write_bytecode = True\n"
    "from ngtcli.documents.worker import serve; serve()"
)
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class MissingExtra(Unreadable):
    """A package that the format needs is not installed."""

    def __init__(self, what: str, package: str) -> None:
        super().__init__(f"{what}, which needs the package {package}", INSTALL, lasting=False)


class Pool:
    """At most `MOST_WORKERS` worker processes; `extract` may be called from many threads."""

    def __init__(self, settings: Settings) -> None:
        self.size = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._seconds, self._mb = settings.parser_seconds, settings.parser_mb
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._all: list[_Worker] = []
        self._closed = False
        for _ in range(self.size):
            self._idle.put(None)

    def extract(self, form: Format, source: Source) -> Extracted:
        """The text of `source`. Raises Unreadable, whatever happens to the worker."""
        check_installed(form)
        worker = self._idle.get()
        try:
            if worker is None:
                worker = self._start()
            return _read(worker.ask(form, source, self._seconds), form, self._mb)
        except _WorkerLost as lost:
            raise self._why(lost, form) from None
        finally:
            if worker is not None and not worker.is_usable:
                worker.kill()
                worker = None
            self._idle.put(worker)

    def _start(self) -> "_Worker":
        if self._closed:
            raise Unreadable("not read: reading was ended", "Run it again.", lasting=False)
        worker = _Worker(self._seconds, self._mb)
        self._all.append(worker)
        return worker

    def _why(self, lost: "_WorkerLost", form: Format) -> Unreadable:
        if lost.timed_out:
            longer = "Raise the limit with --parser-seconds."
            return Unreadable(f"{form.what} that takes more than {self._seconds} s to read", longer)
        name = signal.Signals(-lost.code).name if lost.code < 0 else f"code {lost.code}"
        reason = f"{form.what} at which its parser crashed ({name})"
        return Unreadable(reason, "It is damaged, or needs more memory: see --parser-mb.")

    def close(self) -> None:
        """End all workers at once."""
        self._closed = True
        for worker in self._all:
            worker.kill()


def check_installed(form: Format) -> None:
    """Raise MissingExtra unless the packages that a format needs are there."""
    from importlib.util import find_spec  # here: few commands read such files

    for package in form.needs:
        if find_spec(package) is None:
            raise MissingExtra(form.what, package)


class _WorkerLost(Exception):
    """The worker ended. `code` is what the process left with, negative for a signal."""

    def __init__(self, code: int, timed_out: bool) -> None:
        self.code, self.timed_out = code, timed_out


class _Worker:
    """One process."""

    def __init__(self, seconds: int, mb: int) -> None:
        paths = [*filter(os.path.isabs, sys.path), str(Path(ngtcli.__file__).parents[1])]
        self.is_usable = True
        self._timed_out = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.sep,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        self._limits = {"seconds": seconds, "memory": mb * 1_000_000}

    def ask(self, form: Format, source: Source, seconds: int) -> tuple[bytes, bytes]:
        """The frames of the reply. Raises _WorkerLost."""
        request = {"format": form.name, "suffix": source.suffix, "most": source.most,
                   "password": source.password, "field": source.field}  # fmt: skip
        timer = threading.Timer(seconds + _START_S, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            self._send([*self._first(), json.dumps(request).encode(), source.data])
            reply = self._receive(_REPLY), self._receive(source.most)
            self.is_usable = b'"memory"' not in reply[0][:_SHOWN]  # fragmented: begin anew
            return reply
        except (OSError, EOFError, ValueError):
            code = self._end()
            raise _WorkerLost(code, self._timed_out or code == -signal.SIGALRM) from None
        finally:
            timer.cancel()

    def _first(self) -> list[bytes]:
        """The limits, which the worker is told once."""
        limits, self._limits = self._limits, {}
        return [json.dumps(limits).encode()] if limits else []

    def _send(self, frames: list[bytes]) -> None:
        stream: Any = self._process.stdin
        for frame in frames:
            stream.write(len(frame).to_bytes(_LENGTH, "little"))
            stream.write(frame)
        stream.flush()

    def _receive(self, most: int) -> bytes:
        stream: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        size = int.from_bytes(_exactly(stream, _LENGTH), "little")
        if size > most:
            raise EOFError
        return _exactly(stream, size)

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def kill(self) -> None:
        """End the process; it is not usable afterwards."""
        self.is_usable = False
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not sent yet has nowhere to go
                assert stream is not None
                stream.close()

    def _end(self) -> int:
        """The exit code, negative for a signal, of a process that is ending or is ended here."""
        self.is_usable = False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.kill()
        return self._process.returncode


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _read(frames: tuple[bytes, bytes], form: Format, mb: int) -> Extracted:
    """The text in a reply. Raises Unreadable for an error in it, and for what is no reply."""
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
        return Unreadable(f"{form.what} that takes more than {mb} MB of memory to read", limit)
    if kind == "too long":
        return Unreadable(f"{form.what} with too much text in it", "Raise the bound with --max-mb.")
    return Unreadable(f"broken {form.name} ({reason})", "Save it again.")
