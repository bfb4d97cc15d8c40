"""Parsers of which one stops in the middle of a document, and what happens to it there.

The processes are those of the commands, and so are the signals; a parser stops itself, so that what
is to happen in the middle of its work does, on a machine of any speed.
"""

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from ngtcli.documents import parsers
from ngtcli.documents.parsers import Parsers

SECONDS = 0.3  # that a disturbed parser has for a file, while the settings say more
_LOOK_S = 0.002
_SERVES = "from ngtcli.documents.worker import"  # how the code of a parser's process continues
_STOPS = """
import hashlib, signal
from ngtcli.documents import worker

def stopping(name, source, parse=worker.parse):
    if hashlib.sha256(source.data).hexdigest() == {!r}:
        signal.raise_signal(signal.SIGSTOP)
    return parse(name, source)

worker.parse = stopping
"""


def kill(parser: int) -> None:
    """As the system does when memory is short."""
    os.kill(parser, signal.SIGKILL)


def suspend(parser: int) -> None:
    """Stop it for longer than a file may take, as Ctrl-Z and a closed lid do."""
    time.sleep(SECONDS + 0.2)
    os.kill(parser, signal.SIGCONT)


def interrupt(parser: int) -> None:
    """As Ctrl-C in a terminal, which all processes get."""
    for number in (signal.SIGINT, signal.SIGCONT):
        os.kill(parser, number)
    interrupt_command(parser)


def interrupt_command(parser: int) -> None:
    """A Ctrl-C of which the parser knows nothing, since it still stands still."""
    os.kill(os.getpid(), signal.SIGINT)


def fail_beside(pipe: Path) -> Callable[[int], None]:
    """What is read from `pipe` meanwhile is no document, with which the command ends."""
    return lambda parser: Path(pipe).write_bytes(b"\0\1\2")


@contextmanager
def stopping_at(document: bytes, act: Callable[[int], None]) -> Iterator[list[int]]:
    """Parsers are new processes, which stop themselves at `document`; the list has those that did.

    `act` is called with the process id of each that has stopped.
    """
    started, stopped, over = list[int](), list[int](), threading.Event()

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)

    def watch() -> None:
        while not over.wait(_LOOK_S):
            for parser in [p for p in started if _stands_still(p) and p not in stopped]:
                stopped.append(parser)
                with suppress(ProcessLookupError):
                    act(parser)

    stops = _STOPS.format(hashlib.sha256(document).hexdigest())
    code = parsers._CODE.replace(_SERVES, f"{stops}\n{_SERVES}")
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with (
            patch.object(parsers, "_CODE", code),
            patch.object(parsers.subprocess, "Popen", Noted),
            patch("ngtcli.documents.read.Parsers", lambda _, *more: Parsers(SECONDS, *more)),
            patch("os.cpu_count", lambda: 2),  # parsers
        ):
            yield stopped
    finally:
        over.set()
        watcher.join()


def _stands_still(process: int) -> bool:
    with suppress(ChildProcessError):
        return bool(os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    return False
