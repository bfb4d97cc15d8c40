"""Progress as words: bars, bytes, what is left, and the passing line of something long."""

import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

BAR = "█░"  # done and not done; a line with these is passing: only terminals show it
_CELLS = 10  # of a bar: then lines with one stay below 60 columns
_SHOWN_S = 0.1  # between two lines; guess
HEARTBEAT_S = 60.0  # between two lines of progress in a pipe; guess


def progress_bar(done: int, total: int) -> str:
    """A bar of characters.

    >>> progress_bar(3, 7)
    '████░░░░░░'
    """
    full = min(_CELLS, _CELLS * done // max(total, 1))
    return BAR[0] * full + BAR[1] * (_CELLS - full)


def sized(size: int, total: int = 0) -> str:
    """Bytes in decimal units, or how many of a total they are.

    >>> sized(81_200), sized(45_120_000), sized(1_234_000_000), sized(1_234_000_000, 16_400_000_000)
    ('81 kB', '45 MB', '1.2 GB', '1.2/16.4 GB')
    """
    most = max(size, total)
    scale, unit = (1e9, "GB") if most >= 1e9 else (1e6, "MB") if most >= 1e6 else (1e3, "kB")
    digits = int(1e9 <= most < 100e9)
    return f"{size / scale:.{digits}f}{f'/{total / scale:.{digits}f}' * bool(total)} {unit}"


def time_left(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours.

    >>> time_left(20.4), time_left(300), time_left(9000)
    ('20 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class ByteBar:
    """Passing lines with bytes, speed and time, as `Loading ████░░░░░░ 6.4/16.0 GB, 9 MB/s, 18 min
    left`, from several threads, ten a second at most and none once it is `closed`."""

    def __init__(
        self, verb: str, total: int, progress: Callable[[str], None], done: int = 0
    ) -> None:
        self.closed = False
        self._verb, self._total, self._progress = verb, total, progress
        self._done, self._read, self._lock = done, 0, threading.Lock()
        self._began, self._shown = time.monotonic(), 0.0

    def update(self, n: float) -> None:
        """So many bytes more are there; fewer than 0 where some are read again."""
        with self._lock:
            self._done, self._read = self._done + int(n), self._read + int(n)
            now = time.monotonic()
            if self.closed or now - self._shown < _SHOWN_S or self._read <= 0:
                return
            self._shown, rate = now, self._read / max(now - self._began, 1e-6)
            line = f"{progress_bar(self._done, self._total)} {sized(self._done, self._total)}"
            left = time_left(max(0, self._total - self._done) / rate)
            self._progress(f"{self._verb} {line}, {sized(round(rate))}/s, {left} left")


class Heartbeat:
    """Report the newest progress message once a minute, for output that cannot be wiped.

    The lines come from a thread, so that they also come while a single step takes long. Work that
    ends within the first minute reports nothing.

    Args:
        report: Writes one line.
        interval_s: Seconds between two lines.
    """

    def __init__(self, report: Callable[[str], object], interval_s: float = HEARTBEAT_S) -> None:
        self._report = report
        self._interval_s = interval_s
        self._message = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def update(self, message: str) -> None:
        """Replace the message that the next line reports; a bar in it is left out."""
        self._message = re.sub(f"[{BAR}]+ ?", "", message)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(self._interval_s):
            if self._message:
                elapsed = time_left(time.monotonic() - began)
                self._report(f"{self._message} ({elapsed} so far)")
