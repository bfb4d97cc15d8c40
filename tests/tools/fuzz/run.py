"""Run one command of a case, in a fork that has torch loaded or in a new process."""

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

PROGRAM = ""  # Tests set this to Python code, which forks then run instead of ngt.
_POLL_S = 0.002  # Seconds between two looks at a process.
_MAX_OUTPUT = 20_000_000  # Bytes of output that are judged.
# Bytes of address space that a fork may add: a guess, above what any answer needs.
_FORK_ADDRESS_SPACE = 4 << 30
_PROCESS_ADDRESS_SPACE_KB = 16 << 20  # The same for a new process, which maps torch first.
_SHELL_CLOSES = {0: "<&-", 1: ">&-", 2: "2>&-"}


def run(command: Command, place: Place) -> Result:
    """Run `command` in the folders of its case, then end all processes that it started."""
    with ExitStack() as stack:
        stdin = stack.enter_context(tempfile.TemporaryFile())
        stdout = stack.enter_context(tempfile.TemporaryFile())
        stderr = stack.enter_context(tempfile.TemporaryFile())
        stdin.write(command.stdin)
        stdin.seek(0)
        streams: list[Any] = [stdin, stdout, stderr]
        for number, state in command.streams.items():
            if state == "full":
                streams[number] = stack.enter_context(open("/dev/full", "r+b", buffering=0))
            elif state == "gone":
                read_end, write_end = os.pipe()
                os.close(read_end)
                streams[number] = stack.enter_context(open(write_end, "wb", buffering=0))
        terminal = None
        if command.terminal:
            terminal, process_end = _open_terminal(command.terminal)
            stack.callback(os.close, terminal)
            os.write(terminal, command.stdin)
            streams = [stack.enter_context(open(process_end, "r+b", buffering=0))] * 3

        start = _start if command.new_process else _fork
        process: Any = start(command, place, streams)
        # The clock starts here because the first fork waits until the fork server has started.
        started = time.monotonic()
        screen, late = _wait(process, command, place.home, terminal, started)
        _kill_group(process.pid)

        output = screen if terminal else _read_file(stdout)
        return Result(
            code=process.returncode,
            out=output.decode("utf-8", "replace"),
            err=_read_file(stderr).decode("utf-8", "replace"),
            seconds=time.monotonic() - started,
            memory=0 if command.new_process else process.memory,
            late=late,
        )


def _environment(command: Command, place: Place) -> dict[str, str]:
    """Return the variables of a run: none of the user's own, one thread, no network.

    NGT_BACKGROUND is "none" so that no process outlives a run.
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
    closed = [number for number, state in command.streams.items() if state == "closed"]
    return Warm(
        *command.arguments,
        code=PROGRAM,
        cwd=place.work,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        closed=closed,
        start_new_session=True,
        space=_FORK_ADDRESS_SPACE,
        env=_environment(command, place),
    )


def _start(command: Command, place: Place, streams: list[Any]) -> "subprocess.Popen[bytes]":
    closed = [number for number, state in command.streams.items() if state == "closed"]
    redirections = " ".join(_SHELL_CLOSES[number] for number in closed)
    script = f'ulimit -v {_PROCESS_ADDRESS_SPACE_KB}; exec "$@" {redirections}'
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
    process: Any, command: Command, home: Path, terminal: int | None, started: float
) -> tuple[bytes, bool]:
    """Wait for the end of the process, and send it its signals.

    Returns:
        What the terminal showed, and whether the process was killed at the time limit.
    """
    screen = bytearray()
    late = False
    stops = list(command.stops)
    while process.poll() is None:
        screen += _read_terminal(terminal)
        elapsed = time.monotonic() - started
        if elapsed > command.seconds:
            late = True
            _kill_group(process.pid)
        if stops and elapsed >= stops[0].after:
            if not stops[0].partial or _has_partial_file(home):
                process.send_signal(stops.pop(0).signal)
        # A file is half written only for a moment: look for it more often.
        waits_for_file = stops and stops[0].partial
        time.sleep(_POLL_S / 20 if waits_for_file else _POLL_S)
    screen += _read_terminal(terminal)
    return bytes(screen), late


def _read_terminal(terminal: int | None) -> bytes:
    """Read what is there without waiting."""
    if terminal is None:
        return b""
    output = bytearray()
    with suppress(OSError):  # nothing is there, or the other end is closed
        while len(output) < _MAX_OUTPUT:
            output += os.read(terminal, 65536)
    return bytes(output)


def _has_partial_file(home: Path) -> bool:
    """Whether a file of the cache is half written: its name says so."""
    for _, _, names in os.walk(home / "cache"):
        if any("partial" in name for name in names):
            return True
    return False


def _kill_group(process_id: int) -> None:
    """Kill the process and all that it started, which are in its process group."""
    with suppress(OSError):
        os.killpg(process_id, signal.SIGKILL)


def _read_file(file: Any) -> bytes:
    file.seek(0)
    content: bytes = file.read(_MAX_OUTPUT)
    return content


def _open_terminal(size: tuple[int, int]) -> tuple[int, int]:
    """Open a pseudo-terminal of (rows, columns) that does not echo what is typed.

    Returns:
        The descriptors of our end and of the process's end.
    """
    our_end, process_end = os.openpty()
    termios.tcsetwinsize(process_end, size)
    modes = termios.tcgetattr(process_end)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(process_end, termios.TCSANOW, modes)
    os.set_blocking(our_end, False)
    return our_end, process_end
