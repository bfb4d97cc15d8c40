"""The process in which files of foreign formats are parsed. Nothing that it sends is trusted.

A request and a reply are two messages each: JSON, then data, which is a file in a request and a
text in UTF-8 in a reply. The process has limits on its memory, and on the CPU time for each file.
What else it must not do, the system refuses where it can (`system/sandbox.py`). Elsewhere only
Python code in it is kept from opening connections and starting programs.
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
from ngtcli.documents.content import INSTALL, Extracted, ParserInput
from ngtcli.documents.text import Unreadable
from ngtcli.system import sandbox

_FORBIDDEN_EVENTS = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
)
_OPEN_ELSEWHERE = "If another program opens it, save it as PDF or text there."
# Nested calls, for files that nest deeply; Python's default is 1000 (guess).
_MAX_RECURSION = 5000
_MAX_REASON = 160  # characters of a parser's message that are shown
# Messages of libraries that found no memory for themselves.
_OUT_OF_MEMORY_MESSAGES = ("failed to map segment", "bad_alloc")


def serve(descriptor: int, max_cpu_s: float, max_memory: int) -> NoReturn:
    """Parse files, one after another, until the connection ends.

    Args:
        descriptor: File descriptor of the connection.
        max_cpu_s: CPU time for each file.
        max_memory: Memory of this process, in bytes.
    """
    connection: Connection[bytes, bytes] = Connection(descriptor)
    _confine(max_memory)
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        data = connection.recv_bytes()
        file_format = _format_named(request["format"])
        # Import the parser's libraries first, so that they do not count for the file. An error
        # comes again in `_reply_to`, which reports it.
        with suppress(Exception):
            file_format.parser()
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)

        def on_page() -> None:
            """Give the next page its own time, and report that it begins."""
            signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
            connection.send_bytes(b"")

        source = ParserInput(data=data, on_page=on_page, **request["source"])
        reply, text = _reply_to(file_format, source, max_memory)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace"))
        connection.send_bytes(text)


def _confine(max_memory: int) -> None:
    """Limit this process for good: `max_memory` bytes, no files written, no network."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process whatever a library is doing
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.setrecursionlimit(_MAX_RECURSION)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with suppress(OSError, ValueError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))

    # Allow reading what Python and libraries are loaded from; of a checkout, only the package.
    package = Path(ngtcli.__file__).parent
    checkout = package.parent if (package.parent / "pyproject.toml").exists() else None
    folders = [*sys.path]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders.append(os.environ.get("TESSDATA_PREFIX", ""))
    allowed = [folder for folder in folders if folder and folder != str(checkout)]
    sandbox.confine([sys.prefix, sys.base_prefix, str(package), *allowed])
    sys.addaudithook(_refuse_forbidden)


def _refuse_forbidden(event: str, arguments: Any) -> None:
    if event.startswith(_FORBIDDEN_EVENTS) and event != "socket.__new__":
        raise PermissionError(f"{event} in a parser")


def _reply_to(
    file_format: formats.Format, source: ParserInput, max_memory: int
) -> tuple[dict[str, Any], bytes]:
    """Parse a file; return the description, which `parsers.Reply` reads, and the text."""
    try:
        extracted = parse(file_format.name, source)
        text = extracted.text.encode("utf-8", "replace")
        if len(text) > source.max_bytes:
            raise Unreadable(
                f"{file_format.noun} with too much text in it",
                "Raise the limit with --set max_mb.",
            )
        return {"about": asdict(extracted.about)}, text
    except Unreadable as error:
        return _unreadable(str(error), error.advice, error.lasting), b""
    except RecursionError:
        return _unreadable(f"broken {file_format.name} (nested too deep)"), b""
    except Exception as error:  # any error of a parser means that the file breaks its format
        return _reply_to_error(error, file_format, max_memory), b""


def _reply_to_error(
    error: Exception, file_format: formats.Format, max_memory: int
) -> dict[str, Any]:
    """Describe an error of a parser: out of memory, a missing package, or a broken file."""
    if _is_out_of_memory(error):
        return {
            "error": "failed",
            "reason": (
                f"{file_format.noun} that takes more than {max_memory // 10**6} MB of memory"
                " to read"
            ),
            "advice": "Raise the limit with --set parser_mb.",
        }
    reason = f"{type(error).__name__}: {error}".split("\n")[0][:_MAX_REASON]
    if isinstance(error, ImportError) and file_format is formats.PICTURE:
        return _unreadable(
            f"{file_format.noun}, which only text recognition (OCR) can read",
            INSTALL.format("ocr"),
            lasting=False,
        )
    if isinstance(error, ImportError):
        # An error without a name is of a library that cannot be loaded in this process.
        package = f"the package {error.name}" if error.name else f"a package ({reason})"
        return _unreadable(
            f"{file_format.noun}, which needs {package}", INSTALL.format("docs"), lasting=False
        )
    return _unreadable(f"broken {file_format.name} ({reason})")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    message = str(error)
    if isinstance(error, SyntaxError) and "unknown error" in message:  # raised by lxml
        return True
    return any(words in message for words in _OUT_OF_MEMORY_MESSAGES)


def _unreadable(reason: str, advice: str = _OPEN_ELSEWHERE, lasting: bool = True) -> dict[str, Any]:
    return {"error": "unreadable", "reason": reason, "advice": advice, "lasting": lasting}


def parse(format_name: str, source: ParserInput) -> Extracted:
    """Parse a file by the format of this name. Raises Unreadable, and what parsers raise."""
    extracted = formats.parse(_format_named(format_name), source)
    if not extracted.text or extracted.text.isspace():
        raise Unreadable("no text in it", "Give a document with text in it.")
    if "\0" in extracted.text:
        raise Unreadable("binary, not text", "Save it as text first.")
    return extracted


def _format_named(name: str) -> formats.Format:
    return next(f for f in formats.FORMATS if f.name == name)
