"""The process in which files of foreign formats are parsed; nothing it does is trusted.

`serve` reads requests from standard input and writes replies to standard output. Each is 8 bytes of
length, that much JSON, 8 bytes of length, and that much data: a file in a request, a text in UTF-8
in a reply. The process can write no file, open no connection and start no program; it is bounded in
memory from its start and in time for each file, and ends itself when its time is up.
"""

import json
import os
import resource
import signal
import sys
from importlib import import_module
from typing import IO, Any, NoReturn

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats import FORMATS
from ngtcli.documents.text import Unreadable

_FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn")
_LENGTH = 8  # bytes
_DEPTH = 5000  # nested calls, against the 1000 of Python: what nests deep is parsed; guess


def serve() -> NoReturn:
    """Parse one file after the other until standard input ends."""
    requests, replies = _streams()
    limits = json.loads(_frame(requests))
    _confine(limits["memory"])
    while head := requests.read(_LENGTH):
        request = json.loads(requests.read(int.from_bytes(head, "little")))
        data = _frame(requests)
        signal.setitimer(signal.ITIMER_REAL, limits["seconds"])
        reply, text = _answer(request, data)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if len(text) > request["most"]:
            reply, text = {"error": "too long"}, b""
        _send(replies, json.dumps(reply).encode(), text)
    os._exit(0)


def _streams() -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of the parent's pipes; what parsers print goes nowhere."""
    ends = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    return ends


def _frame(stream: IO[bytes]) -> bytes:
    return stream.read(int.from_bytes(stream.read(_LENGTH), "little"))


def _send(stream: IO[bytes], *frames: bytes) -> None:
    for frame in frames:
        stream.write(len(frame).to_bytes(_LENGTH, "little"))
        stream.write(frame)
    stream.flush()


def _confine(memory: int) -> None:
    """Bound this process for good: `memory` bytes of addresses, no files written, no network."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process whatever a library is doing
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.setrecursionlimit(_DEPTH)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (OSError, ValueError):  # macOS knows no such limit
        pass
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: Any) -> None:
    if event.startswith(_FORBIDDEN) and event != "socket.__new__":
        raise PermissionError(f"{event} in a parser")


def _answer(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """The reply to one request: a description with a text, or an error with a reason."""
    source = Source(
        data=data,
        suffix=request["suffix"],
        most=request["most"],
        password=request["password"],
        field=request["field"],
    )
    try:
        found = parse(request["format"], source)
        return {"about": found.about.as_json()}, found.text.encode("utf-8", "replace")
    except Unreadable as error:
        told = {"reason": str(error), "advice": error.advice, "lasting": error.lasting}
        return {"error": "unreadable", **told}, b""
    except MemoryError:
        return {"error": "memory"}, b""
    except RecursionError:
        return {"error": "broken", "reason": "nested too deep"}, b""
    except ModuleNotFoundError as error:
        return {"error": "missing", "reason": error.name or ""}, b""
    except Exception as error:  # a parser's own: the file is not as its format says
        if isinstance(error, SyntaxError) and "unknown error" in str(error):
            return {"error": "memory"}, b""  # how lxml words it
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        return {"error": "broken", "reason": reason}, b""


def parse(name: str, source: Source) -> Extracted:
    """The text of `source` as the format of that name. Raises Unreadable and what parsers raise."""
    module = next(f.module for f in FORMATS if f.name == name)
    found: Extracted = import_module(f"ngtcli.documents.formats.{module}").parse(source)
    text = found.text
    if not text or text.isspace():
        raise Unreadable("no text in it", "Give a document with text in it.")
    if "\0" in text:
        raise Unreadable("binary, not text", "Save it as text first.")
    return found
