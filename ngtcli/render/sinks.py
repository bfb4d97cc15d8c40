"""Sinks for an answer: a pipe as plain text, or a terminal in color, wrapped between words.

A sink gets the runs of whole steps and writes once per step. It gets the answer only; all other
messages go to stderr.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from ngtcli.render.terminal import REVEALED_BEFORE, THOUGHT, drafted_style, paint, reveal, visible

if TYPE_CHECKING:
    from ngtcli.drafting.steps import Token

# Cells to the border from which a word is written before it is complete; guess.
LONG = 24
_FENCE = "```"
_LONGEST_WORD = 80  # characters, beyond which a word is not waited for; guess
_TAB = 8  # columns between the tab stops of terminals

Run = tuple[str, str]  # text, and the origin of its style; "" for unstyled


def runs_of(tokens: "Iterable[Token]", thoughts: bool = False) -> list[Run]:
    """A run for each token, or two with `thoughts`; accepted drafts are styled by their origin."""
    runs: list[Run] = []
    for token in tokens:
        if thoughts and token.thought:
            runs.append((token.thought, THOUGHT))
        runs.append((token.text, token.origin if token.drafted else ""))
    return runs


class PlainSink:
    """Writes text with control characters made visible; it ends with a line feed.

    With `color`, words of accepted drafts are underlined and in the color of their origin.
    """

    def __init__(self, stream: TextIO, color: bool = False) -> None:
        self._stream, self._colour, self._last = stream, color, "\n"
        self._words = WholeWords()

    def step(self, runs: Sequence[Run]) -> None:
        runs = [(visible(text), style) for text, style in runs]
        self._last = "".join(text for text, _ in runs)[-1:] or self._last
        self._write(self._arranged(self._words.feed(runs) if self._colour else runs))

    def _arranged(self, runs: list[Run]) -> list[Run]:
        """What is written now for these runs of a step."""
        return joined(runs)

    def _write(self, runs: list[Run]) -> None:
        if runs:
            painted = (paint(t, drafted_style(n)) if n and self._colour else t for t, n in runs)
            self._stream.write("".join(painted))
            self._stream.flush()

    def close(self) -> None:
        self._write(self._arranged(self._words.flush()))
        self._finish()
        if self._last != "\n":
            self._write([("\n", "")])

    def _finish(self) -> None:
        """Write what was delayed."""


class TerminalSink(PlainSink):
    """Writes to a terminal: lines broken between words, and no character that it does not show.

    `columns` returns the terminal's width in columns and is called each step.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int], color: bool) -> None:
        super().__init__(stream, color)
        self._columns, self._wrapper, self._before = columns, Wrapper(), ""

    def _arranged(self, runs: list[Run]) -> list[Run]:
        revealed = []
        for text, style in runs:
            revealed.append((reveal(text, self._before), style))
            self._before = (self._before + revealed[-1][0])[-REVEALED_BEFORE:]
        return self._wrapper.feed(revealed, self._columns())

    def _finish(self) -> None:
        self._write(self._wrapper.flush(self._columns()))


class WholeWords:
    """Returns the runs that it is fed with one style for each word: that of most of its characters.

    A model's tokens may end within words, and a line that begins within one looks like a mistake.
    A word is delayed until it is complete. Spaces have a style where the next word has it, too.
    """

    def __init__(self) -> None:
        self._gap: list[Run] = []  # spaces before the word
        self._word: list[Run] = []
        self._out: list[Run] = []

    def feed(self, runs: Iterable[Run]) -> list[Run]:
        """The runs of all words that are complete."""
        for text, style in runs:
            for character in text:
                self._add(character, style)
        return self._take_output()

    def flush(self) -> list[Run]:
        """The runs that were delayed."""
        self._end_word()
        return self._take_output()

    def _add(self, character: str, style: str) -> None:
        if character.isspace():
            self._end_word()
            self._gap.append((character, style))
            return
        is_end = self._word and _breaks_before(self._word[-1][0], character)
        if is_end or len(self._word) >= _LONGEST_WORD:
            self._end_word()
        self._word.append((character, style))

    def _end_word(self) -> None:
        style = ""
        if self._word:
            ((style, _),) = Counter(style for _, style in self._word).most_common(1)
        self._out += [(space, own if own == style else "") for space, own in self._gap]
        self._out += [(character, style) for character, _ in self._word]
        self._gap, self._word = [], []

    def _take_output(self) -> list[Run]:
        out, self._out = joined(self._out), []
        return out


class Wrapper:
    """Returns the runs of text that it is fed, with line feeds between words.

    The start of a word near the border is delayed until the word is complete. A line feed replaces
    the spaces between two words. Lines that start with a space, a tab, `|` or a backquote, and
    fenced code, are not wrapped, since they are code or tables.
    """

    def __init__(self) -> None:
        self._column = 0  # cells on the line so far
        self._gap: list[Run] = []  # spaces that are written when a word follows on the same line
        self._word: list[Run] = []
        self._begun = False  # whether the word's start is written already
        self._head = ""  # the line's first characters
        self._fenced = False
        self._out: list[Run] = []

    def feed(self, runs: Iterable[Run], width: int) -> list[Run]:
        """The runs that can be written now, to a terminal of `width` columns."""
        for text, style in runs:
            for character in text:
                self._add(character, style, width)
        if not self._breaks() or self._column + _cells(self._gap) + LONG <= width:
            self._write_word(width)
        return self._take_output()

    def flush(self, width: int) -> list[Run]:
        """The runs that were delayed."""
        self._end_line(width)
        return self._take_output()

    def _add(self, character: str, style: str, width: int) -> None:
        if character == "\n":
            self._end_line(width)
            self._out.append((character, style))
            if self._head == _FENCE:
                self._fenced = not self._fenced
            self._column, self._head = 0, ""
            return
        if len(self._head) < len(_FENCE):
            self._head += character
        if character.isspace():
            self._end_word(width)
            self._gap.append((character, style))
            return
        if self._word and _breaks_before(self._word[-1][0], character):
            self._end_word(width)
        self._word.append((character, style))

    def _breaks(self) -> bool:
        """Whether this line is wrapped."""
        return not (self._fenced or self._head[:1] in (" ", "\t", "|", "`"))

    def _end_word(self, width: int) -> None:
        self._write_word(width)
        self._begun = False

    def _end_line(self, width: int) -> None:
        self._end_word(width)
        self._out += self._gap
        self._gap = []

    def _write_word(self, width: int) -> None:
        if not self._word:
            return
        cells, gap = _cells(self._word), _cells(self._gap)
        fits = self._begun or self._column + gap + cells <= width
        if not fits and self._column and self._breaks():
            self._out.append(("\n", ""))
            self._column = 0
        else:
            self._out += self._gap
            self._column += gap
        self._out += self._word
        self._gap, self._word, self._begun = [], [], True
        self._column += cells
        if self._column > width:  # the terminal has wrapped it
            self._column %= width

    def _take_output(self) -> list[Run]:
        out, self._out = joined(self._out), []
        return out


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same text with adjacent runs of one style joined.

    >>> joined([("a", ""), ("b", ""), ("c", "prompt")])
    [('ab', ''), ('c', 'prompt')]
    """
    out: list[Run] = []
    for text, style in runs:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + text, style)
        else:
            out.append((text, style))
    return out


def _cells(runs: Iterable[Run]) -> int:
    return sum(_TAB if text == "\t" else cell_len(text) for text, _ in runs)


def _breaks_before(before: str, character: str) -> bool:
    """Whether a line may break between two characters without a space: between wide ones."""
    if before == "\u200d" or unicodedata.category(character) in ("Pe", "Pf", "Po"):
        return False
    return cell_len(character) == 2 or (cell_len(before) == 2 and character.isalnum())
