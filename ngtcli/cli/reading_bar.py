"""The status line while the model reads a prompt: a bar, tokens, tokens a second, time left."""

import time

from ngtcli.cli.notes import Notes
from ngtcli.errors import counted
from ngtcli.prompt.fitting import short

_CELLS = 10  # of the bar: then the line stays below 60 columns


class ReadingBar:
    """Called before each chunk with the tokens read and those of the prompt; shown by `notes`.

    Where nothing can be wiped, `notes` with -v says one line a prompt.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._read, self._since = 0, 0.0

    def __call__(self, read: int, total: int) -> None:
        now = time.monotonic()
        rate = (read - self._read) / max(now - self._since, 1e-6) if read > self._read else 0.0
        self._read, self._since = read, now
        if self._notes.wipes:
            self._notes.status(reading_line(read, total, rate))
        elif read == 0:
            self._notes.status(f"Reading the prompt: {counted(total, 'token')} …")


def reading_line(read: int, total: int, rate: float) -> str:
    """The line for so many tokens read, at `rate` tokens a second of late; 0.0 where unknown.

    >>> reading_line(0, 94, 0.0), reading_line(12_288, 30_000, 850.0)
    ('Reading ░░░░░░░░░░ 0 of 94 tokens', 'Reading ████░░░░░░ 12k of 30k tokens, 850/s, 21 s left')
    """
    full = _CELLS * read // max(total, 1)
    bar = "█" * full + "░" * (_CELLS - full)
    line = f"Reading {bar} {short(read)} of {short(total)} tokens"
    if not rate:
        return line
    return f"{line}, {short(round(rate))}/s, {time_left((total - read) / rate)} left"


def time_left(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours.

    >>> time_left(20.4), time_left(300), time_left(9000)
    ('20 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
