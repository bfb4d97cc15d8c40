"""What commands say on stderr: the status line, also a bar, notes, and what went wrong."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len

from ngtcli.cli.streams import styles, terminal_width
from ngtcli.errors import GrammarError, NgtError
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

LONGEST_LINE = 2000  # characters of a line of an error; guess
CUT_OFF = {  # by the finish reason of an answer
    "length": "the answer is cut off: it reached --max-tokens",
    "context": "the answer is cut off: the context is full",
}
_WIPE = "\r\x1b[K"  # to the line's start, then clear to its end


_is_quiet = False  # whether -q was given
_with_status: TextIO | None = None  # the stream whose last line is a status line


def silence(quiet: bool) -> None:
    """Say nothing from now on but what went wrong and what was asked for, or everything again."""
    global _is_quiet
    _is_quiet = quiet


def is_silent() -> bool:
    """Return whether only what went wrong and what was asked for is said."""
    return _is_quiet


class Notes(Reporter):
    """What goes to stderr: a reporter, and more. On a terminal a status line is shown and wiped.

    After -q only errors and replies are written.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.terminal = sys.stderr.isatty()
        self.verbose = verbose
        self.said = False
        self.wipes = self.terminal and not is_plain()  # whether a status line is shown
        self._last_status = ""  # that -v reported
        self._part = ""
        self._reading_bar = ReadingBar(self)
        self._heartbeat: progress.Heartbeat | None = None
        self._warned = set[str]()  # by warn_once
        self._named = set[str]()  # what was said of the built-in model

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Report the status once a minute in here, where no status line can be shown.

        Long commands run in this, so that a pipe or a log file shows that they continue.
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
        """Put this before every passing line from now on; "" for nothing."""
        process.unwind_on_interrupt()  # what is finished is said
        self._part = f"{words}: " if words else ""

    def reading(self, read: int, total: int) -> None:
        """Show how many tokens of a prompt are read."""
        self._reading_bar(read, total)

    def status(self, message: str, words: str = "") -> None:
        """A passing line: what is being done right now; dim and after it the last of `words`."""
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
        """Before the answer's first words: no status line, and below other lines an empty one."""
        self.clear()
        if self.said and self.terminal and sys.stdout.isatty():
            _write("\n")
        self.said = False

    def say(self, message: str, dim: bool = False) -> None:
        """A message that stays."""
        if not _is_quiet:
            self.reply(message, dim)

    def reply(self, message: str, dim: bool = False) -> None:
        """What was asked for: one line, which a terminal breaks between words."""
        text = reveal(one_line(message))
        for line in lines_between_words(text) if self.terminal else [text]:
            self.styled(paint(line, DIM) if dim and styles(sys.stderr) else line)

    def styled(self, styled: str) -> None:
        """A line that has its control sequences."""
        self.clear()
        self.said = True
        _write(f"{styled}\n")

    def remark(self, message: str) -> None:
        """A dim sentence."""
        self.say(message, dim=True)

    def warn(self, message: str) -> None:
        """What the user should know and may change."""
        self.say(f"ngt: {message}")

    def warn_once(self, message: str) -> None:
        """What holds for many prompts or rounds, and is said for the first."""
        if message not in self._warned:
            self._warned.add(message)
            self.warn(message)

    def demonstration(self, model: str, limit: str = "") -> None:
        """Say once that the built-in model is a demonstration, and what it cannot do.

        Nothing is said of another model.

        Args:
            model: The model that answers.
            limit: What it cannot do of what is asked; each limit is said once.
        """
        note = demonstration_note(model, limit)
        if note and note not in self._named and (limit or not self._named):
            self.remark(note)
            self._named.add(note)

    def legend(self, origins: Sequence[str]) -> None:
        """What the colors of an answer mean: the names of what its drafts may come from."""
        if _is_quiet:
            return
        painted, drafted = styles(sys.stderr), origins or ["drafted"]
        width = terminal_width(sys.stderr) - len("Sources: ")
        for line in lines_of([*drafted, "the model's own"], width):
            words = [paint(w, drafted_style(w)) if painted and w in drafted else w for w in line]
            self.styled(f"Sources: {' · '.join(words)}")

    def facts(self, parts: list[str]) -> None:
        """Short facts with dots between them, broken between facts at the terminal's width."""
        for line in lines_of(parts, terminal_width(sys.stderr)):
            self.say(" · ".join(line), dim=True)


@dataclass(frozen=True, slots=True)
class EachWarningOnce(Reporter):
    """A reporter that shows reports in `notes`, a warning of many prompts or rounds once."""

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
    """The lines of a message on the terminal of stderr; an indented one is left as it is."""
    wrapper, width = Wrapper(), terminal_width(sys.stderr)
    runs = [*wrapper.feed([(message, "")], width), *wrapper.flush(width)]
    return "".join(text for text, _ in runs).split("\n")


def _show_status(is_shown: bool) -> None:
    global _with_status
    _with_status = sys.stderr if is_shown else None


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def lines_of(parts: Sequence[str], width: int) -> list[list[str]]:
    """Lines of parts that stay below `width` with " · " between them, as far as parts do.

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
    """One line for what happened, one for what to do; between them the text that is wrong."""
    if sys.stderr.isatty() and not is_plain():
        sys.stderr.write(_WIPE)  # there may be a status line
    shown = pointed(error.text, error.place) if isinstance(error, GrammarError) else []
    begin = process.FAILED if process.KEPT_WARM in os.environ else "ngt: "
    for line in (f"{begin}{error}", *shown, error.hint):
        if line:
            if len(line) > LONGEST_LINE:  # by a name in it: its middle is left out
                line = f"{line[: LONGEST_LINE // 2]} … {line[-200:]}"
            text = reveal(one_line(line))
            broken = lines_between_words(text) if sys.stderr.isatty() else [text]
            sys.stderr.write("".join(f"{part}\n" for part in broken))


def pointed(text: str, place: int, before: int = 40, after: int = 14) -> list[str]:
    """The part of `text` about `place`, and a line with a caret under that character.

    >>> pointed("n=8..x", 5)
    ['  n=8..x', '       ^']
    """
    first = max(0, place - before)
    head, rest = cell(text[first:place]), cell(text[place : place + after])
    return [f"  {head}{rest}", " " * (2 + cell_len(head)) + "^"]


class ReadingBar:
    """Called before each chunk with the tokens read and those of the prompt; shown by `notes`.

    Where nothing can be wiped, `notes` with -v says one line a prompt.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._read, self._total, self._since = 0, 0, 0.0

    def __call__(self, read: int, total: int) -> None:
        now = time.monotonic()
        known = total == self._total and read > self._read  # else it is a prompt's first
        rate = (read - self._read) / max(now - self._since, 1e-6) if known else 0.0
        self._read, self._total, self._since = read, total, now
        if read == 0 and not self._notes.wipes:
            self._notes.status(f"Reading the prompt: {counted(total, 'token')} …")
        self._notes.status(reading_line(read, total, rate))


def reading_line(read: int, total: int, rate: float) -> str:
    """The line for so many tokens read, at `rate` tokens a second of late; 0.0 where unknown.

    >>> reading_line(0, 94, 0.0), reading_line(12_288, 30_000, 850.0)
    ('Reading ░░░░░░░░░░ 0 of 94 tokens', 'Reading ████░░░░░░ 12k of 30k tokens, 850/s, 21 s left')
    """
    line = f"Reading {progress_bar(read, total)} {short(read)} of {short(total)} tokens"
    if not rate:
        return line
    return f"{line}, {short(round(rate))}/s, {time_left((total - read) / rate)} left"
