"""Running one command of a case: in a fork of this process, or in a new one.

A fork has torch, the compiled functions and all modules in place, so it starts in milliseconds, and
it may be killed, starved or left in any state. This is the one place that knows how ngt is called.
"""

import fcntl
import os
import resource
import signal
import struct
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ngtcli.config import SETTINGS
from tests.tools.fuzz.case import Command, Place, Result, Streams

_POLL = 0.002  # seconds between two looks at a process
# Set before torch is imported: forks share one thread; no network is asked.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
# Without a background no process is started that outlives a run.
_OWN = {"threads": "1", "background": "none"}
_NGT_OWN = {f"NGT_{name.upper()}": _OWN[name] for name in _OWN if name in SETTINGS}
_READ = 20_000_000  # bytes of output that are looked at
_SPACE = 4 << 30  # bytes of address space a fork may add; a guess above what any answer needs
_REAL_SPACE = 16 << 30  # the same for a new process, which maps torch first


def run(command: Command, place: Place) -> Result:
    """Run `command` in its folders. The process and all it started are gone afterwards."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        terminal = _open_terminal(command.streams)
        clock = time.monotonic()
        process = os.fork()
        if process == 0:
            _be_ngt(command, place, out, err, terminal)
        before = 0 if command.real else _resident(process)
        if terminal:
            os.close(terminal[1])
        watch = _Watch(process, command, place.home, terminal[0] if terminal else None, clock)
        try:
            status, used = watch.wait()
        finally:
            if terminal:
                os.close(terminal[0])
        memory = used.ru_maxrss * 1024 - before
        if not (before or command.real):  # it had ended before it was looked at
            memory = 0
        shown = bytes(watch.shown) if terminal else _head(out)
        return Result(
            os.waitstatus_to_exitcode(status), shown.decode("utf-8", "replace"),
            _head(err).decode("utf-8", "replace"), time.monotonic() - clock, memory, watch.late,
        )  # fmt: skip


class _Watch:
    """Waits for a process, sends it its signals, reads its terminal and ends it when it is late."""

    def __init__(
        self, process: int, command: Command, home: Path, terminal: int | None, clock: float
    ) -> None:
        self._process, self._command, self._home = process, command, home
        self._terminal, self._clock = terminal, clock
        self._stops = list(command.stops)
        self.shown, self.late = bytearray(), False
        if terminal is not None:
            os.set_blocking(terminal, False)
            os.write(terminal, command.stdin)

    def wait(self) -> tuple[int, resource.struct_rusage]:
        """Status and resources of the process, reaped with whatever it started."""
        while True:
            self._read()
            done, status, used = os.wait4(self._process, os.WNOHANG)
            if done:
                self._read()
                _kill_group(self._process)
                return status, used
            passed = time.monotonic() - self._clock
            if passed > self._command.seconds:
                self.late = True
                _kill_group(self._process)
            self._stop(passed)
            hurried = self._stops and self._stops[0].partial  # a file is half written briefly
            time.sleep(_POLL / 20 if hurried else _POLL)

    def _stop(self, passed: float) -> None:
        if self._stops and passed >= self._stops[0].after:
            if self._stops[0].partial and not _half_written(self._home):
                return
            os.kill(self._process, self._stops.pop(0).signal)

    def _read(self) -> None:
        while self._terminal is not None and len(self.shown) < _READ:
            try:
                part = os.read(self._terminal, 65536)
            except OSError:  # nothing there, or the other end is closed
                return
            self.shown += part


def _half_written(home: Path) -> bool:
    return any("partial" in name for _, _, names in os.walk(home / "cache") for name in names)


def _kill_group(process: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except OSError:
            pass


def _resident(process: int) -> int:
    """Bytes of a process that are in memory: of a new fork, what it was born with."""
    statm = Path(f"/proc/{process}/statm").read_text().split()
    return int(statm[1]) * resource.getpagesize()


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_READ)


def _open_terminal(streams: Streams) -> tuple[int, int] | None:
    """Both ends of a pseudo-terminal of the size wanted, which does not echo what is typed."""
    if streams.terminal is None:
        return None
    main, other = os.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", *streams.terminal, 0, 0))
    modes = termios.tcgetattr(other)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(other, termios.TCSANOW, modes)
    return main, other


def environment(command: Command, place: Place) -> dict[str, str]:
    """The variables of a run: nothing of the user's own, one thread, no network."""
    return {
        "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": str(place.work),
        "TMPDIR": tempfile.gettempdir(), "NGT_HOME": str(place.home), "TERM": "xterm-256color",
        "HF_HOME": str(place.home / "hub"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1",
        **ONE_THREAD, **_NGT_OWN, **command.environ,
    }  # fmt: skip


def _be_ngt(
    command: Command, place: Place, out: IO[bytes], err: IO[bytes], terminal: tuple[int, int] | None
) -> None:
    """In the fork: become a run of ngt. Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(place.work)
        space = _REAL_SPACE if command.real else _SPACE + _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        environ = environment(command, place)
        # Until ngt has its own handler; a KeyboardInterrupt might come back to the pool's code.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        _place_streams(command, out.fileno(), err.fileno(), terminal[1] if terminal else None)
        if command.real:
            _start(command, environ)
        from ngtcli import __main__  # here: the command line stands above this room

        code = become(__main__.main, command.arguments, environ)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _place_streams(command: Command, out: int, err: int, terminal: int | None) -> None:
    """Put what is wanted at the descriptors 0, 1 and 2."""
    with tempfile.TemporaryFile() as typed:
        typed.write(command.stdin)
        typed.seek(0)
        os.lseek(typed.fileno(), 0, os.SEEK_SET)
        for number, own in enumerate((typed.fileno(), out, err)):
            os.dup2(own if terminal is None else terminal, number)
    streams = command.streams
    for number in streams.full:
        os.dup2(os.open("/dev/full", os.O_RDWR), number)
    for number in streams.gone:
        read, write = os.pipe()
        os.dup2(write, number)
        os.close(read)
    for number in streams.closed:
        os.close(number)


def _start(command: Command, environ: Mapping[str, str]) -> None:
    os.execve(sys.executable, [sys.executable, "-m", "ngtcli", *command.arguments], environ)


def become(main: Callable[[], object], arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """In a fork: call what the installed command calls, which ends the process; else its code.

    The descriptors 0 to 2 are in place. torch is loaded, and has one thread.
    """
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[misc, assignment]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _stream(2, "w")  # type: ignore[misc, assignment]
    sys.argv = ["ngt", *arguments]
    import torch

    torch.set_num_threads(1)  # makes torch's pool anew; two threads doing so at once would clash
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):  # as Python does
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return code


def _stream(number: int, mode: str) -> IO[str] | None:
    """Standard input, output or error as Python opens them; None for a closed one."""
    try:
        os.fstat(number)
    except OSError:
        return None
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    return open(number, mode, encoding="utf-8", errors=errors, buffering=1 if number == 2 else -1)
