"""The process in which files of foreign formats are parsed; nothing it does is trusted.

A request and a reply are two messages each: JSON, and data, which is a file in a request and a text
in UTF-8 in a reply. The process is bounded in memory, and in CPU time for each file. What else it
cannot do the system must be able to refuse (`system/sandbox.py`); elsewhere no Python code in it
can open a connection or start a program.
"""

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import ngtcli
from ngtcli.documents import formats
from ngtcli.documents.content import INSTALL, Extracted, Source
from ngtcli.documents.text import Unreadable
from ngtcli.system import sandbox

_FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn")
_ELSEWHERE = "If another program opens it, save it as PDF or text there."
_DEPTH = 5000  # nested calls, against the 1000 of Python: what nests deep is parsed; guess


def serve(number: int, seconds: float, memory: int) -> NoReturn:
    """Parse one file after the other until the connection of that descriptor ends.

    Each may take `seconds` of CPU time, and this process `memory` bytes.
    """
    connection: Connection[bytes, bytes] = Connection(number)
    _confine(memory)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        data = connection.recv_bytes()
        with suppress(Exception):  # `_answer` meets the same and tells it
            _format(request["format"]).parser()  # its libraries' imports do not count for the file
        signal.setitimer(signal.ITIMER_PROF, seconds)

        def on_page() -> None:
            """Give the next page its own time, and tell that there is one."""
            signal.setitimer(signal.ITIMER_PROF, seconds)
            connection.send_bytes(b"")

        source = Source(data=data, on_page=on_page, **request["source"])
        reply, text = _answer(_format(request["format"]), source, memory)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace"))
        connection.send_bytes(text)


def _confine(memory: int) -> None:
    """Bound this process for good: `memory` bytes of addresses, no files written, no network."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process whatever a library is doing
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.setrecursionlimit(_DEPTH)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with suppress(OSError, ValueError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # From where Python and libraries are loaded; of a checkout the package alone.
    package = Path(ngtcli.__file__).parent
    checkout = package.parent if (package.parent / "pyproject.toml").exists() else None
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    named.append(os.environ.get("TESSDATA_PREFIX", ""))
    places = [place for place in (*sys.path, *named) if place and place != str(checkout)]
    sandbox.confine([sys.prefix, sys.base_prefix, str(package), *places])
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: Any) -> None:
    if event.startswith(_FORBIDDEN) and event != "socket.__new__":
        raise PermissionError(f"{event} in a parser")


def _answer(form: formats.Format, source: Source, memory: int) -> tuple[dict[str, Any], bytes]:
    """The reply to one request as `parsers.Reply` has it, and the text."""
    try:
        found = parse(form.name, source)
        text = found.text.encode("utf-8", "replace")
        if len(text) > source.max_bytes:
            what = f"{form.noun} with too much text in it"
            raise Unreadable(what, "Raise the bound with --set max_mb.")
        return {"about": asdict(found.about)}, text
    except Unreadable as error:
        return _refusal(str(error), error.advice, error.lasting), b""
    except RecursionError:
        return _refusal(f"broken {form.name} (nested too deep)"), b""
    except Exception as error:  # a parser's own: the file is not as its format says
        lxml_has_none = isinstance(error, SyntaxError) and "unknown error" in str(error)
        # Or a library found no memory for itself.
        has_none = any(words in str(error) for words in ("failed to map segment", "bad_alloc"))
        if isinstance(error, MemoryError) or lxml_has_none or has_none:
            what = f"{form.noun} that takes more than {memory // 10**6} MB of memory to read"
            advice = "Raise the limit with --set parser_mb."
            return {"error": "failed", "reason": what, "advice": advice}, b""
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:160]
        if isinstance(error, ImportError):  # or a library of it cannot be read in here
            needs = f"the package {error.name}" if error.name else f"a package ({reason})"
            what = f"{form.noun}, which needs {needs}"
            extra = "ocr" if form is formats.PICTURE else "docs"
            return _refusal(what, INSTALL.format(extra), lasting=False), b""
        return _refusal(f"broken {form.name} ({reason})"), b""


def _refusal(reason: str, advice: str = _ELSEWHERE, lasting: bool = True) -> dict[str, Any]:
    return {"error": "unreadable", "reason": reason, "advice": advice, "lasting": lasting}


def parse(name: str, source: Source) -> Extracted:
    """The text of `source` as the format of that name. Raises Unreadable and what parsers raise."""
    found = formats.parse(_format(name), source)
    if not found.text or found.text.isspace():
        raise Unreadable("no text in it", "Give a document with text in it.")
    if "\0" in found.text:
        raise Unreadable("binary, not text", "Save it as text first.")
    return found


def _format(name: str) -> formats.Format:
    return next(form for form in formats.FORMATS if form.name == name)
