"""The process itself: its standard streams, the signals that end it, and how it ends.

Imports nothing that takes time, so that the handlers stand before anything else is loaded.
Until there is something to keep, a signal ends the process at once: nothing is worth unwinding
for, and libraries turn a KeyboardInterrupt that meets their imports into other errors. From
`unwind_on_interrupt` on a first Ctrl-C raises KeyboardInterrupt and a second one ends the process.
A file that is being written inside `unbroken()` is written to its end before.

Python runs handlers between two of its own instructions only; a thread that waits for signals ends
the process where the main thread is inside a library's code.
"""

import _thread
import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing takes as long to load as all the rest here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

AGAIN_S = 0.2  # what comes sooner is the same key press, or `timeout` signalling twice: guessed
WRITE_S = 2.0  # longest wait for a file that is being written: guessed
_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


class _State:
    """What a signal meets."""

    def __init__(self) -> None:
        self.keeps = False  # there is something to keep: Ctrl-C unwinds at first
        self.interrupted = False
        self.wipe = b""  # what removes the status line that stands on stderr
        self.writes = 0  # blocks of `unbroken` that are open
        self.held = 0  # the signal that came meanwhile
        self.main = _thread.get_ident()
        self.writing = _thread.RLock()
        self.ending = _thread.allocate_lock()


_state = _State()


def guard() -> None:
    """Open what is missing of the standard streams and set the handlers; once, by the process."""
    _open_missing()
    for number in _ENDING:
        # What nohup ignores stays so; a Ctrl-C is obeyed in the background as well.
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
    if os.name == "posix":
        _watch_signals()


def unwind_on_interrupt() -> None:
    """From now on a first Ctrl-C raises KeyboardInterrupt, so that what there is can be kept."""
    _state.keeps = True


def interrupted() -> bool:
    """Whether a Ctrl-C came that raised KeyboardInterrupt: libraries may have swallowed it."""
    return _state.interrupted


def wipe_at_end(control: bytes) -> None:
    """What a signal that ends the process writes to stderr first; b"" for nothing."""
    _state.wipe = control


class unbroken:  # noqa: N801
    """A block that no signal breaks off; one that came meanwhile takes effect at the end."""

    def __enter__(self) -> None:
        _state.writing.acquire()
        _state.writes += 1

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        trace: "TracebackType | None",
    ) -> None:
        _state.writes -= 1
        _state.writing.release()
        if not _state.writes and _state.held:
            number, _state.held = _state.held, 0
            _handle(number, None)


def leave(code: int) -> "NoReturn":
    """End the process without the libraries' teardown, which takes torch up to two seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # it has been reported, or cannot be
            pass
    os._exit(code)


def _handle(number: int, frame: object) -> None:
    if _state.writes:
        _state.held = _state.held or number
    elif number == signal.SIGINT and _state.keeps:
        if not _state.interrupted:
            _state.interrupted = True
            raise KeyboardInterrupt
    else:
        _end(number)


def _end(number: int) -> None:
    """Say what must be said and end the process, unless another thread is about to."""
    if not _state.ending.acquire(blocking=False):
        return
    words = b""
    if number == signal.SIGINT:
        words = b"\n" * _state.keeps + b"ngt: interrupted\n"
    try:
        os.write(2, _state.wipe + words)
    except OSError:
        pass
    os._exit(128 + number)


def _watch_signals() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # A signal between the fork and `_release` would reach the parent's pipe.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_release)
    _thread.start_new_thread(_watch, (read,))


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _release() -> None:
    """In a forked process: its signals are its own, and must not reach the parent's pipe."""
    signal.set_wakeup_fd(-1)
    for number in _ENDING:
        if signal.getsignal(number) is _handle:
            default = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
            signal.signal(number, default)
    _unblock()


def _watch(handle: int) -> None:
    """End the process at signals that the main thread does not come to."""
    first = 0.0
    while data := os.read(handle, 64):
        for number in filter(_ENDING.__contains__, data):
            if number == signal.SIGINT and _state.keeps:
                first = first or time.monotonic()
                if time.monotonic() - first < AGAIN_S:
                    continue
            _state.writing.acquire(timeout=WRITE_S)
            _end(number)


def _uncaught(
    kind: type[BaseException], error: BaseException, trace: "TracebackType | None"
) -> None:
    """The last net: a Ctrl-C between two blocks that would catch it leaves no traceback."""
    if issubclass(kind, KeyboardInterrupt):
        _end(signal.SIGINT)
    sys.__excepthook__(kind, error, trace)


def _unraisable(args: "Any") -> None:
    """A Ctrl-C that met a finalizer, where it cannot be raised, comes again."""
    if isinstance(args.exc_value, KeyboardInterrupt):
        _state.interrupted = False
        _thread.start_new_thread(_again, ())
    else:
        sys.__unraisablehook__(args)


def _again() -> None:
    time.sleep(0.01)  # the hook that started this thread must be over, or it would be hit
    signal.pthread_kill(_state.main, signal.SIGINT)


def _open_missing() -> None:
    """/dev/null in the place of standard streams that are closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", errors="replace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
