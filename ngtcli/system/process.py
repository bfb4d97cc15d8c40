"""The process: its standard streams, the signals that end it, and its end.

This module imports only fast modules, so that the handlers are set before anything else is loaded.
At first a signal ends the process at once: libraries turn a KeyboardInterrupt during their import
into other errors. After `unwind_on_interrupt` the first Ctrl-C raises KeyboardInterrupt in the main
thread and the second ends the process. Blocks of `unbroken()` come to their end first. A thread
that hears of each signal acts where the main thread runs a library's code, which calls no handlers.
"""

import _thread
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing takes as long to load as all the rest here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

KEPT_WARM = "_NGT_KEPT_WARM"  # the variable of a process that is started behind the scenes
FAILED = "ngt: error: "  # before the error that ends such a process: its log has warnings, too
AGAIN_S = 0.2  # sooner, a second Ctrl-C is the same key press, or `timeout` signalling twice; guess
WRITE_S = 2.0  # longest wait for a file that is being written; guess
_HANDLED_S = 0.05  # in which Python's code has handled a Ctrl-C, if any runs; guess
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_WAKING = signal.SIGURG  # what ends a wait of the main thread; other programs do not send it


class _State:
    """What the signal handlers need to know."""

    unwinds = False  # whether the first Ctrl-C raises KeyboardInterrupt
    interrupted = False  # whether it did
    is_second = False  # whether the next Ctrl-C ends the process
    heard = 0.0  # when the first Ctrl-C came or was dealt with, by time.monotonic
    delayed = 0  # the first signal during a block of the main thread; 0 for none
    blocks = 0  # of `unbroken`, nested, that the main thread is in
    writing = _thread.RLock()  # held in such blocks of every thread
    wakeup = -1  # descriptor that the system writes signals to
    wipe = b""  # control sequence that erases the status line on stderr
    endings: "list[Callable[[], object]]" = []  # called before the process leaves
    main = _thread.get_ident()


_state = _State()


def guard() -> None:
    """Open missing standard streams and set the signal handlers; called once, at the start."""
    _open_missing()
    for number in _ENDING:
        # What nohup ignores stays ignored; SIGINT is handled in background processes, too.
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)
    signal.signal(_WAKING, lambda *_: _handle(signal.SIGINT) if _state.is_second else None)
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
    read, _state.wakeup = os.pipe()
    os.set_blocking(_state.wakeup, False)
    signal.set_wakeup_fd(_state.wakeup, warn_on_full_buffer=False)
    # A signal between fork and `_release` would be written to the parent's pipe.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING),
        after_in_child=_release,
    )
    _thread.start_new_thread(_watch, (read,))


def unwind_on_interrupt() -> None:
    """From now on the first Ctrl-C raises KeyboardInterrupt, so that results can be saved."""
    _state.unwinds = True


def resume() -> None:
    """What a Ctrl-C interrupted is dealt with: the next one raises KeyboardInterrupt again."""
    _state.heard, _state.delayed = time.monotonic(), 0
    _state.is_second = _state.interrupted = False
    if _state.wakeup >= 0:  # an event loop may have taken it
        signal.set_wakeup_fd(_state.wakeup, warn_on_full_buffer=False)


def interrupted() -> bool:
    """Whether a Ctrl-C raised KeyboardInterrupt, even if a library caught it."""
    return _state.interrupted


def wipe_at_end(control: bytes) -> None:
    """Set the bytes that a signal writes to stderr before it ends the process; b"" for none."""
    _state.wipe = control


class unbroken:  # noqa: N801
    """A block that no signal interrupts; a signal during it takes effect at its end.

    One thread at a time is in such a block.
    """

    def __enter__(self) -> None:
        self._is_main = _thread.get_ident() == _state.main
        if self._is_main:  # before the lock is taken: nothing may interrupt between the two
            _state.blocks += 1
        _state.writing.acquire()

    def __exit__(self, *_: object) -> None:
        _state.writing.release()
        if self._is_main:
            _state.blocks -= 1
            if not _state.blocks and _state.delayed:
                number, _state.delayed = _state.delayed, 0
                _handle(number)


class without_collection:  # noqa: N801
    """A block without garbage collection, from which what it imports is then excluded for good.

    torch and transformers create a million objects that are never freed; scanning them takes a
    fourth of their import. Where all modules were loaded before, nothing is excluded: else models
    that await collection would never be freed.
    """

    def __enter__(self) -> None:
        self._enabled, self._modules = gc.isenabled(), len(sys.modules)
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            if len(sys.modules) > self._modules:
                gc.freeze()  # all objects there are: Python cannot exclude some
            gc.enable()


def before_leaving(work: "Callable[[], object]") -> None:
    """Have `work` done before the process leaves; not where a signal ends it."""
    _state.endings.append(work)


def leave(code: int) -> "NoReturn":
    """End the process with exit code `code`, without the libraries' teardown (torch: up to 2 s)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for work in (sys.stdout.flush, sys.stderr.flush, *_state.endings):
        try:
            work()
        except Exception:  # reported already, or impossible to report
            pass
    os._exit(code)


def _handle(number: int, frame: object = None) -> None:
    """The handler of signals: Python calls it in the main thread."""
    if _state.blocks:
        _state.delayed = _state.delayed or number
    elif number != signal.SIGINT or not _state.unwinds:
        _end(number)
    elif not _state.interrupted:
        _state.interrupted = True
        raise KeyboardInterrupt


def _end(number: int) -> None:
    """Write the last message and end the process, once no file is being written."""
    _state.writing.acquire(timeout=WRITE_S)
    is_told = number == signal.SIGINT
    words = (b"\n" * _state.unwinds + b"ngt: interrupted\n") * is_told
    try:
        os.write(2, _state.wipe + words)
    except OSError:
        pass
    os._exit(128 + number)


def _release() -> None:
    """In a forked process: restore the default handlers and leave the parent's pipe."""
    signal.set_wakeup_fd(-1)
    _state.wakeup = -1
    for number in _ENDING:
        if signal.getsignal(number) is _handle:
            default = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _watch(pipe: int) -> None:
    """End the process at signals that the main thread does not handle."""
    while data := os.read(pipe, 64):
        for number in filter(_ENDING.__contains__, data):
            if number != signal.SIGINT or not _state.unwinds:
                _end(number)
            elif time.monotonic() - _state.heard >= AGAIN_S:
                if _state.is_second:
                    _end(number)
                _state.heard, _state.is_second = time.monotonic(), True
                time.sleep(_HANDLED_S)
                # The system may hand a signal to another thread, or just before the main thread
                # begins to wait; or what the handler raised was lost in a finalizer.
                if not _state.interrupted:
                    signal.pthread_kill(_state.main, _WAKING)


def _uncaught(kind: type[BaseException], *rest: "Any") -> None:
    """Hook for uncaught errors: a KeyboardInterrupt ends the process without a traceback."""
    if issubclass(kind, KeyboardInterrupt):
        _end(signal.SIGINT)
    sys.__excepthook__(kind, *rest)


def _unraisable(args: "Any") -> None:
    """Hook for errors in finalizers: a KeyboardInterrupt, which is lost there, comes again."""
    if isinstance(args.exc_value, KeyboardInterrupt):
        _state.interrupted = False
    else:
        sys.__unraisablehook__(args)


def _open_missing() -> None:
    """Open /dev/null for standard streams that are closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", errors="replace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
