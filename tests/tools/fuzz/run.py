"""Running one command of a case: in a fork that has torch loaded, or in a new process."""

import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.support.warm import ONE_THREAD, Warm
from tests.tools.fuzz.case import Command, Place, Result

PROGRAM = ""  # Python code that forks run in place of ngt: for tests
_POLL = 0.002  # seconds between two looks at a process
_READ = 20_000_000  # bytes of output that are looked at
_SPACE = 4 << 30  # bytes of address space a fork may add; a guess above what any answer needs
_REAL_SPACE = 16 << 20  # kB of it for a new process, which maps torch first
_CLOSE = {0: "<&-", 1: ">&-", 2: "2>&-"}


def run(command: Command, place: Place) -> Result:
    """Run `command` in its folders. The process and all it started are gone afterwards."""
    with ExitStack() as stack:
        typed, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        typed.write(command.stdin)
        typed.seek(0)
        streams: list[Any] = [typed, out, err]
        for number, way in command.streams.items():
            if way == "full":
                streams[number] = stack.enter_context(open("/dev/full", "r+b", buffering=0))
            elif way == "gone":
                read, write = os.pipe()
                os.close(read)
                streams[number] = stack.enter_context(open(write, "wb", buffering=0))
        terminal = None
        if command.terminal:
            terminal, other = _open_terminal(command.terminal)
            stack.callback(os.close, terminal)
            os.write(terminal, command.stdin)
            streams = [stack.enter_context(open(other, "r+b", buffering=0))] * 3
        process: Any = (_start if command.real else _fork)(command, place, streams)
        clock = time.monotonic()  # the first fork has waited for the server of forks
        shown, late = _wait(process, command, place.home, terminal, clock)
        _kill_all(process.pid)
        return Result(
            process.returncode,
            (shown if terminal else _head(out)).decode("utf-8", "replace"),
            _head(err).decode("utf-8", "replace"),
            time.monotonic() - clock,
            0 if command.real else process.memory,
            late,
        )


def _environment(command: Command, place: Place) -> dict[str, str]:
    """The variables of a run: nothing of the user's own, one thread, no network.

    Without a background no process is started that outlives a run.
    """
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(place.work),
        "TMPDIR": tempfile.gettempdir(),
        "NGT_HOME": str(place.home),
        "TERM": "xterm-256color",
        "HF_HOME": str(place.home / "hub"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "NGT_THREADS": "1",
        "NGT_BACKGROUND": "none",
        **ONE_THREAD,
        **command.environ,
    }


def _fork(command: Command, place: Place, streams: list[Any]) -> Warm:
    closed = [number for number, way in command.streams.items() if way == "closed"]
    return Warm(
        *command.arguments,
        code=PROGRAM,
        cwd=place.work,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        closed=closed,
        start_new_session=True,
        space=_SPACE,
        env=_environment(command, place),
    )


def _start(command: Command, place: Place, streams: list[Any]) -> "subprocess.Popen[bytes]":
    closed = [_CLOSE[number] for number, way in command.streams.items() if way == "closed"]
    script = f'ulimit -v {_REAL_SPACE}; exec "$@" {" ".join(closed)}'
    return subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-m", "ngtcli", *command.arguments],
        cwd=place.work,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        start_new_session=True,
        env=_environment(command, place),
    )


def _wait(
    process: Any, command: Command, home: Path, terminal: int | None, clock: float
) -> tuple[bytes, bool]:
    """What the terminal showed, and whether the process was ended because it was late.

    Sends the process its signals until it has ended.
    """
    shown, late, stops = bytearray(), False, list(command.stops)
    while process.poll() is None:
        shown += _read(terminal)
        passed = time.monotonic() - clock
        if passed > command.seconds:
            late = True
            _kill_all(process.pid)
        if stops and passed >= stops[0].after and (not stops[0].partial or _half_written(home)):
            process.send_signal(stops.pop(0).signal)
        hurried = stops and stops[0].partial  # a file is half written briefly
        time.sleep(_POLL / 20 if hurried else _POLL)
    return bytes(shown + _read(terminal)), late


def _read(terminal: int | None) -> bytes:
    found = bytearray()
    with suppress(OSError):  # nothing there, or the other end is closed
        while terminal is not None and len(found) < _READ:
            found += os.read(terminal, 65536)
    return bytes(found)


def _half_written(home: Path) -> bool:
    return any("partial" in name for _, _, names in os.walk(home / "cache") for name in names)


def _kill_all(process: int) -> None:
    """The process with all that it started, which are of its group."""
    with suppress(OSError):
        os.killpg(process, signal.SIGKILL)


def _head(file: Any) -> bytes:
    file.seek(0)
    head: bytes = file.read(_READ)
    return head


def _open_terminal(size: tuple[int, int]) -> tuple[int, int]:
    """Both ends of a pseudo-terminal of (rows, columns), which does not echo what is typed."""
    main, other = os.openpty()
    termios.tcsetwinsize(other, size)
    modes = termios.tcgetattr(other)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(other, termios.TCSANOW, modes)
    os.set_blocking(main, False)
    return main, other
