"""Messages of commands on stderr: the status line, progress, remarks, warnings and errors."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len

from ngtcli.cli.streams import styles, terminal_width
from ngtcli.errors import MarkedError, NgtError
from ngtcli.models.recommended import demonstration_note
from ngtcli.render.sinks import Wrapper
from ngtcli.render.terminal import (
    DIM,
    cell,
    cut,
    drafted_style,
    is_plain,
    one_line,
    paint,
    reveal,
)
from ngtcli.system import process, progress
from ngtcli.system.progress import BAR, progress_bar, time_left
from ngtcli.system.reporting import Reporter
from ngtcli.words import counted, short

MAX_LINE = 2000  # characters of a line of an error (guess)
CUT_OFF = {  # by the finish reason of an answer
    "length": "the answer is cut off: it reached --max-tokens",
    "context": "the answer is cut off: the context is full",
}
_WIPE = "\r\x1b[K"  # to the line's start, then clear to its end


_is_quiet = False  # whether -q was given
_with_status: TextIO | None = None  # the stream whose last line is a status line


def silence(quiet: bool) -> None:
    """Print only errors and replies from now on, or everything again."""
    global _is_quiet
    _is_quiet = quiet


def is_silent() -> bool:
    """Return whether only errors and replies are printed."""
    return _is_quiet


class Notes(Reporter):
    """A reporter that writes to stderr. On a terminal it shows a status line, and wipes it again.

    With -q only errors and replies are written.

    Attributes:
        terminal: Whether stderr is a terminal.
        verbose: Whether -v was given.
        said: Whether a line was written since the last answer began.
        wipes: Whether a status line can be shown and wiped.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.terminal = sys.stderr.isatty()
        self.verbose = verbose
        self.said = False
        self.wipes = self.terminal and not is_plain()
        self._last_status = ""  # the last one that -v reported
        self._part = ""
        self._reading_bar = ReadingBar(self)
        self._heartbeat: progress.Heartbeat | None = None
        self._warned = set[str]()  # the warnings of warn_once
        self._demonstration_notes = set[str]()

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Report the status once a minute within this context if no status line can be shown.

        Long commands use it, so that a pipe or a log file shows their progress.
        """
        if self.wipes or _is_quiet or self._heartbeat is not None:
            yield
            return
        with progress.Heartbeat(self.say, progress.HEARTBEAT_S) as heartbeat:
            self._heartbeat = heartbeat
            try:
                yield
            finally:
                self._heartbeat = None

    def part(self, words: str) -> None:
        """Put these words before every status from now on; "" for nothing."""
        process.unwind_on_interrupt()  # so that an interrupted run reports what is finished
        self._part = f"{words}: " if words else ""

    def reading(self, read: int, total: int) -> None:
        """Show how many tokens of a prompt have been read."""
        self._reading_bar(read, total)

    def status(self, message: str, words: str = "") -> None:
        """Show what is being done now.

        Args:
            message: The status.
            words: A text of which the end follows the status, dim.
        """
        if _is_quiet:
            return
        message = f"{self._part}{message}"
        if self.wipes:
            process.wipe_at_end(_WIPE.encode())
            columns = terminal_width(sys.stderr) - 1
            line = cut(reveal(one_line(message)), columns)
            if words:
                last = reveal(one_line(words[-columns:]))
                while last and cell_len(line) + cell_len(last) > columns:
                    last = last[1:]
                line += paint(last, DIM) if styles(sys.stderr) else last
            _write((_WIPE if _with_status is sys.stderr else "") + line)
            _show_status(True)
        elif self.verbose and set(BAR).isdisjoint(message):
            if message != self._last_status:
                self.say(message)
            self._last_status = message
        elif self._heartbeat is not None:
            self._heartbeat.update(message)

    def clear(self) -> None:
        """Wipe the status line."""
        if _with_status is sys.stderr:
            _write(_WIPE)
            _show_status(False)
            process.wipe_at_end(b"")

    def begin_answer(self) -> None:
        """Wipe the status line, and add an empty line between other lines and the answer."""
        self.clear()
        if self.said and self.terminal and sys.stdout.isatty():
            _write("\n")
        self.said = False

    def say(self, message: str, dim: bool = False) -> None:
        """Write a message that stays, unless -q was given."""
        if not _is_quiet:
            self.reply(message, dim)

    def reply(self, message: str, dim: bool = False) -> None:
        """Write a line that the user asked for; a terminal gets it broken between words."""
        text = reveal(one_line(message))
        for line in lines_between_words(text) if self.terminal else [text]:
            self.styled(paint(line, DIM) if dim and styles(sys.stderr) else line)

    def styled(self, styled: str) -> None:
        """Write a line that already has its control sequences."""
        self.clear()
        self.said = True
        _write(f"{styled}\n")

    def remark(self, message: str) -> None:
        """Write a remark, dim."""
        self.say(message, dim=True)

    def warn(self, message: str) -> None:
        """Write a warning."""
        self.say(f"ngt: {message}")

    def warn_once(self, message: str) -> None:
        """Write a warning about many prompts or rounds, at the first of them."""
        if message not in self._warned:
            self._warned.add(message)
            self.warn(message)

    def demonstration(self, model: str, limit: str = "") -> None:
        """Remark once that the built-in model is a demonstration, and what it cannot do.

        Other models get no remark.

        Args:
            model: The model that answers.
            limit: What the built-in model cannot do; each limit is named once.
        """
        note = demonstration_note(model, limit)
        if (
            note
            and note not in self._demonstration_notes
            and (limit or not self._demonstration_notes)
        ):
            self.remark(note)
            self._demonstration_notes.add(note)

    def legend(self, origins: Sequence[str]) -> None:
        """Write what the colors of an answer mean.

        Args:
            origins: The names of the sources that its drafts may come from.
        """
        if _is_quiet:
            return
        is_styled = styles(sys.stderr)
        drafted = origins or ["drafted"]
        width = terminal_width(sys.stderr) - len("Sources: ")
        for line in lines_of([*drafted, "the model's own"], width):
            words = [
                paint(word, drafted_style(word)) if is_styled and word in drafted else word
                for word in line
            ]
            self.styled(f"Sources: {' · '.join(words)}")

    def facts(self, parts: list[str]) -> None:
        """Write short facts with dots between them, in lines of the terminal's width."""
        for line in lines_of(parts, terminal_width(sys.stderr)):
            self.say(" · ".join(line), dim=True)


@dataclass(frozen=True, slots=True)
class EachWarningOnce(Reporter):
    """A reporter that passes reports to `notes`, and each warning only once."""

    notes: Notes

    def status(self, text: str) -> None:
        """As `Reporter.status`."""
        self.notes.status(text)

    def warn(self, text: str) -> None:
        """As `Reporter.warn`."""
        self.notes.warn_once(text)

    def remark(self, text: str) -> None:
        """As `Reporter.remark`."""
        self.notes.remark(text)

    def reading(self, read: int, total: int) -> None:
        """As `Reporter.reading`."""
        self.notes.reading(read, total)

    def part(self, words: str) -> None:
        """As `Reporter.part`."""
        self.notes.part(words)


def lines_between_words(message: str) -> list[str]:
    """Break a message into lines of the terminal of stderr; an indented message stays as it is."""
    wrapper = Wrapper()
    width = terminal_width(sys.stderr)
    runs = [*wrapper.feed([(message, "")], width), *wrapper.flush(width)]
    return "".join(text for text, _ in runs).split("\n")


def _show_status(is_shown: bool) -> None:
    global _with_status
    _with_status = sys.stderr if is_shown else None


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def lines_of(parts: Sequence[str], width: int) -> list[list[str]]:
    """Group parts into lines shorter than `width`, counting " · " between them.

    A part that is too long has a line of its own.

    >>> lines_of(["one", "two", "three"], 10)
    [['one', 'two'], ['three']]
    """
    lines: list[list[str]] = [[]]
    for part in parts:
        if lines[-1] and len(" · ".join([*lines[-1], part])) >= width:
            lines.append([])
        lines[-1].append(part)
    return lines


def report_error(error: NgtError) -> None:
    """Write what happened, the place of a mistake in a text of the user's, and what to do."""
    is_terminal = sys.stderr.isatty()
    if is_terminal and not is_plain():
        sys.stderr.write(_WIPE)  # there may be a status line
    begin = process.FAILED if process.KEPT_WARM in os.environ else "ngt: "
    lines = [f"{begin}{error}"]
    if isinstance(error, MarkedError):
        lines += pointed(error.text, error.place)
    if error.hint:
        lines.append(error.hint)
    for line in lines:
        if len(line) > MAX_LINE:  # because of a long name in it
            line = f"{line[: MAX_LINE // 2]} … {line[-200:]}"
        text = reveal(one_line(line))
        for part in lines_between_words(text) if is_terminal else [text]:
            sys.stderr.write(f"{part}\n")


def pointed(text: str, place: int, before: int = 40, after: int = 14) -> list[str]:
    """Return the part of a text around a character, and a line with a caret under it.

    Args:
        text: The text.
        place: The index of the character.
        before: The maximum number of characters before it.
        after: The maximum number of characters from it on.

    >>> pointed("n=8..x", 5)
    ['  n=8..x', '       ^']
    """
    head = cell(text[max(0, place - before) : place])
    rest = cell(text[place : place + after])
    return [f"  {head}{rest}", " " * (2 + cell_len(head)) + "^"]


class ReadingBar:
    """Shows the progress of prefill: called before each chunk with the tokens read, and all.

    If no status line can be shown, -v reports one line per prompt.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._read = 0
        self._total = 0
        self._called_at = 0.0

    def __call__(self, read: int, total: int) -> None:
        now = time.monotonic()
        rate = 0.0  # unknown at the first chunk of a prompt
        if total == self._total and read > self._read:
            rate = (read - self._read) / max(now - self._called_at, 1e-6)
        self._read = read
        self._total = total
        self._called_at = now
        if read == 0 and not self._notes.wipes:
            self._notes.status(f"Reading the prompt: {counted(total, 'token')} …")
        self._notes.status(reading_line(read, total, rate))


def reading_line(read: int, total: int, rate: float) -> str:
    """Return the status of reading a prompt.

    Args:
        read: The tokens that have been read.
        total: The tokens of the prompt.
        rate: The current speed in tokens per second; 0.0 if unknown.

    >>> reading_line(0, 94, 0.0), reading_line(12_288, 30_000, 850.0)
    ('Reading ░░░░░░░░░░ 0 of 94 tokens', 'Reading ████░░░░░░ 12k of 30k tokens, 850/s, 21 s left')
    """
    line = f"Reading {progress_bar(read, total)} {short(read)} of {short(total)} tokens"
    if not rate:
        return line
    return f"{line}, {short(round(rate))}/s, {time_left((total - read) / rate)} left"
