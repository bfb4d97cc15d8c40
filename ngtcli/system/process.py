"""The process: its standard streams, its signals, and its end.

This module imports only small modules, so that signal handlers are set before anything else loads.

At first a signal ends the process at once, because libraries turn a KeyboardInterrupt during their
import into other errors. After `unwind_on_interrupt`, the first Ctrl-C raises KeyboardInterrupt in
the main thread, and the second ends the process. Both wait for the end of an `unbroken()` block.
While the main thread runs a library's code, Python calls no handlers: a thread that receives every
signal acts then.
"""

import _thread
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing it from typing takes as long as all other imports here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Environment variable of a server that a command starts in the background.
KEPT_WARM = "_NGT_KEPT_WARM"
# Begins the error that ended such a server, to tell it from the warnings in its log.
FAILED = "ngt: error: "
# Within this many seconds, a second Ctrl-C is the same key press, or `timeout` signalling twice
# (guess).
AGAIN_S = 0.2
WRITE_S = 2.0  # longest wait in seconds for a file that is being written (guess)
_HANDLER_S = 0.05  # seconds in which Python handles a Ctrl-C, if Python code runs (guess)
_ENDING_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_WAKING_SIGNAL = signal.SIGURG  # ends a wait of the main thread; no other program sends it


class _State:
    """The state that the signal handlers and their thread share."""

    unwinds = False  # the first Ctrl-C raises KeyboardInterrupt
    interrupted = False  # it did
    is_second = False  # the next Ctrl-C ends the process
    last_interrupt = 0.0  # when the first Ctrl-C came or was dealt with, by time.monotonic
    delayed_signal = 0  # the first signal during an `unbroken` block of the main thread; 0: none
    main_blocks = 0  # nested `unbroken` blocks that the main thread is in
    writing = _thread.RLock()  # held in such blocks of every thread
    wakeup_fd = -1  # descriptor that the system writes signals to
    wipe = b""  # control sequence that erases the status line on stderr
    endings: "list[Callable[[], object]]" = []  # called before the process ends
    main_thread = _thread.get_ident()


_state = _State()


def guard() -> None:
    """Open missing standard streams and set the signal handlers; called once, at the start."""
    _open_missing()
    for number in _ENDING_SIGNALS:
        # What nohup ignores stays ignored; SIGINT is handled in background processes, too.
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)
    signal.signal(_WAKING_SIGNAL, lambda *_: _handle(signal.SIGINT) if _state.is_second else None)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    pipe, _state.wakeup_fd = os.pipe()
    os.set_blocking(_state.wakeup_fd, False)
    signal.set_wakeup_fd(_state.wakeup_fd, warn_on_full_buffer=False)
    # A signal between fork and `_release` would be written to the parent's pipe.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS),
        after_in_child=_release,
    )
    _thread.start_new_thread(_watch, (pipe,))


def unwind_on_interrupt() -> None:
    """Let the first Ctrl-C raise KeyboardInterrupt from now on, so that results can be saved."""
    _state.unwinds = True


def resume() -> None:
    """Let the next Ctrl-C raise KeyboardInterrupt again, after an interruption was handled."""
    _state.last_interrupt = time.monotonic()
    _state.delayed_signal = 0
    _state.is_second = False
    _state.interrupted = False
    if _state.wakeup_fd >= 0:  # an event loop may have taken it
        signal.set_wakeup_fd(_state.wakeup_fd, warn_on_full_buffer=False)


def interrupted() -> bool:
    """Return whether a Ctrl-C raised KeyboardInterrupt, even if a library caught it."""
    return _state.interrupted


def wipe_at_end(control: bytes) -> None:
    """Set the bytes that are written to stderr before a signal ends the process."""
    _state.wipe = control


class unbroken:  # noqa: N801
    """A block that no signal interrupts: a signal takes effect at its end.

    Only one thread at a time is in such a block.
    """

    def __enter__(self) -> None:
        self._is_main = _thread.get_ident() == _state.main_thread
        if self._is_main:  # before the lock is taken: nothing may interrupt between the two
            _state.main_blocks += 1
        _state.writing.acquire()

    def __exit__(self, *_: object) -> None:
        _state.writing.release()
        if self._is_main:
            _state.main_blocks -= 1
            if not _state.main_blocks and _state.delayed_signal:
                number = _state.delayed_signal
                _state.delayed_signal = 0
                _handle(number)


class without_garbage_collection:  # noqa: N801
    """A block without garbage collection; what it imports is excluded from collection for good.

    torch and transformers create a million objects that are never freed, and scanning them takes a
    quarter of their import. If the block imported nothing new, nothing is excluded:
    otherwise models that await collection would never be freed.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        self._modules_before = len(sys.modules)
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            if len(sys.modules) > self._modules_before:
                gc.freeze()  # excludes all objects: Python cannot exclude only some
            gc.enable()


def before_leaving(work: "Callable[[], object]") -> None:
    """Call `work` before the process ends, unless a signal ends it."""
    _state.endings.append(work)


def leave(code: int) -> "NoReturn":
    """End the process, without the libraries' teardown, which takes torch up to 2 s."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for work in (sys.stdout.flush, sys.stderr.flush, *_state.endings):
        try:
            work()
        except Exception:  # reported already, or impossible to report
            pass
    os._exit(code)


def _handle(number: int, frame: object = None) -> None:
    """Handle a signal; Python calls this in the main thread."""
    if _state.main_blocks:
        if not _state.delayed_signal:
            _state.delayed_signal = number
    elif number != signal.SIGINT or not _state.unwinds:
        _end(number)
    elif not _state.interrupted:
        _state.interrupted = True
        raise KeyboardInterrupt


def _end(number: int) -> None:
    """Write the last message and end the process, once no file is being written."""
    _state.writing.acquire(timeout=WRITE_S)
    message = b""
    if number == signal.SIGINT:
        message = b"\nngt: interrupted\n" if _state.unwinds else b"ngt: interrupted\n"
    try:
        os.write(2, _state.wipe + message)
    except OSError:
        pass
    os._exit(128 + number)


def _release() -> None:
    """Restore the default handlers in a forked process, and leave the parent's pipe."""
    signal.set_wakeup_fd(-1)
    _state.wakeup_fd = -1
    for number in _ENDING_SIGNALS:
        if signal.getsignal(number) is _handle:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)


def _watch(pipe: int) -> None:
    """End the process at signals that the main thread does not handle."""
    while data := os.read(pipe, 64):
        for number in filter(_ENDING_SIGNALS.__contains__, data):
            if number != signal.SIGINT or not _state.unwinds:
                _end(number)
            elif time.monotonic() - _state.last_interrupt >= AGAIN_S:
                if _state.is_second:
                    _end(number)
                _state.last_interrupt = time.monotonic()
                _state.is_second = True
                time.sleep(_HANDLER_S)
                # The main thread may not have noticed: the system may hand the signal to another
                # thread, or to this one just before it begins to wait, or the error that the
                # handler raised was lost in a finalizer.
                if not _state.interrupted:
                    signal.pthread_kill(_state.main_thread, _WAKING_SIGNAL)


def _uncaught(kind: type[BaseException], *rest: "Any") -> None:
    """Handle an uncaught error: KeyboardInterrupt ends the process without a traceback."""
    if issubclass(kind, KeyboardInterrupt):
        _end(signal.SIGINT)
    sys.__excepthook__(kind, *rest)


def _unraisable(args: "Any") -> None:
    """Handle an error in a finalizer: a KeyboardInterrupt, which is lost there, is raised again."""
    if isinstance(args.exc_value, KeyboardInterrupt):
        _state.interrupted = False
    else:
        sys.__unraisablehook__(args)


def _open_missing() -> None:
    """Open /dev/null in place of standard streams that are closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", errors="replace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
