"""Progress for people: bars, sizes, remaining time, and status lines of long work."""

import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ngtcli.system import reporting

# The done and the remaining part of a bar. A line with a bar is a status line that the next one
# replaces, so that only terminals show it.
BAR = "█░"
_BAR_CELLS = 10  # characters of a bar, which keep a status line below 60 columns
_UPDATE_INTERVAL_S = 0.1  # seconds between two status lines (guess)
HEARTBEAT_S = 60.0  # seconds between two lines of progress in a pipe (guess)


def progress_bar(done: int, total: int) -> str:
    """Draw a bar of characters.

    >>> progress_bar(3, 7)
    '████░░░░░░'
    """
    full = min(_BAR_CELLS, _BAR_CELLS * done // max(total, 1))
    return BAR[0] * full + BAR[1] * (_BAR_CELLS - full)


def sized(size: int, total: int = 0) -> str:
    """Format a size in bytes, in decimal units; with `total`, as a part of that size.

    >>> sized(81_200), sized(45_120_000), sized(1_234_000_000), sized(1_234_000_000, 16_400_000_000)
    ('81 kB', '45 MB', '1.2 GB', '1.2/16.4 GB')
    """
    largest = max(size, total)
    if largest >= 1e9:
        scale, unit = 1e9, "GB"
    elif largest >= 1e6:
        scale, unit = 1e6, "MB"
    else:
        scale, unit = 1e3, "kB"
    digits = 1 if 1e9 <= largest < 100e9 else 0
    number = f"{size / scale:.{digits}f}"
    if total:
        number += f"/{total / scale:.{digits}f}"
    return f"{number} {unit}"


def time_left(seconds: float) -> str:
    """Format a duration: in seconds up to two minutes, then in minutes, then in hours.

    >>> time_left(20.4), time_left(300), time_left(9000)
    ('20 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class ByteBar:
    """Status lines with a bar, as `Loading ████░░░░░░ 6.4/16.0 GB, 9 MB/s, 18 min left`.

    Any thread may call `update`. At most ten lines a second are shown, and none once `closed` is
    set. They go to the reporter of who makes this.

    Args:
        verb: First word of the line.
        total: Bytes there are in all.
        done: Bytes that were there before.
    """

    def __init__(self, verb: str, total: int, done: int = 0) -> None:
        self.closed = False
        self._verb = verb
        self._total = total
        self._reporter = reporting.current()  # the threads that call `update` have no context
        self._done = done  # bytes of `total`
        self._received = 0  # bytes since the start, which decide the speed
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._last_shown = 0.0

    def update(self, n: float) -> None:
        """Count `n` more bytes; negative where a part is to be received again."""
        with self._lock:
            self._done += int(n)
            self._received += int(n)
            now = time.monotonic()
            is_due = now - self._last_shown >= _UPDATE_INTERVAL_S
            if self.closed or not is_due or self._received <= 0:
                return
            self._last_shown = now
            bar = f"{progress_bar(self._done, self._total)} {sized(self._done, self._total)}"
            bytes_per_s = self._received / max(now - self._started, 1e-6)
            remaining = time_left(max(0, self._total - self._done) / bytes_per_s)
            self._reporter.status(
                f"{self._verb} {bar}, {sized(round(bytes_per_s))}/s, {remaining} left"
            )


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
        started = time.monotonic()
        while not self._ended.wait(self._interval_s):
            if self._message:
                elapsed = time_left(time.monotonic() - started)
                self._report(f"{self._message} ({elapsed} so far)")
