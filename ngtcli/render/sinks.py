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

# With at least this many cells to the border, a word is written before it is complete (guess).
LONG = 24
_FENCE = "```"
_MAX_WORD = 80  # characters; the end of a longer word is not awaited (guess)
_TAB = 8  # columns between the tab stops of terminals

Run = tuple[str, str]  # text, and the origin of its style; "" for unstyled


def runs_of(tokens: "Iterable[Token]", thoughts: bool = False) -> list[Run]:
    """Return the runs of tokens; accepted drafts are styled by their origin.

    Args:
        tokens: The tokens of a step.
        thoughts: Whether to include the text of reasoning.
    """
    runs: list[Run] = []
    for token in tokens:
        if thoughts and token.thought:
            runs.append((token.thought, THOUGHT))
        runs.append((token.text, token.origin if token.drafted else ""))
    return runs


class PlainSink:
    """Writes text with control characters made visible, and a line feed at the end.

    With `color`, words of accepted drafts are underlined and have the color of their origin.
    """

    def __init__(self, stream: TextIO, color: bool = False) -> None:
        self._stream = stream
        self._color = color
        self._last_character = "\n"
        self._words = WholeWords()

    def step(self, runs: Sequence[Run]) -> None:
        """Write the runs of a step."""
        runs = [(visible(text), style) for text, style in runs]
        for text, _ in runs:
            if text:
                self._last_character = text[-1]
        if self._color:
            runs = self._words.feed(runs)
        self._write(self._arranged(runs))

    def _arranged(self, runs: list[Run]) -> list[Run]:
        """Return what to write now of the runs of a step."""
        return joined(runs)

    def _write(self, runs: list[Run]) -> None:
        """Write runs by one call, in color where that is wanted."""
        if not runs:
            return
        texts: list[str] = []
        for text, style in runs:
            if style and self._color:
                text = paint(text, drafted_style(style))
            texts.append(text)
        self._stream.write("".join(texts))
        self._stream.flush()

    def close(self) -> None:
        """Write what was delayed, and a line feed unless the text ends with one."""
        self._write(self._arranged(self._words.flush()))
        self._finish()
        if self._last_character != "\n":
            self._write([("\n", "")])

    def _finish(self) -> None:
        """Write what was delayed by `_arranged`."""


class TerminalSink(PlainSink):
    """Writes to a terminal: wraps lines between words, and makes invisible characters visible.

    `columns` returns the width of the terminal, and is called in each step.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int], color: bool) -> None:
        super().__init__(stream, color)
        self._columns = columns
        self._wrapper = Wrapper()
        self._before = ""  # the last characters written

    def _arranged(self, runs: list[Run]) -> list[Run]:
        revealed: list[Run] = []
        for text, style in runs:
            text = reveal(text, self._before)
            revealed.append((text, style))
            self._before = (self._before + text)[-REVEALED_BEFORE:]
        return self._wrapper.feed(revealed, self._columns())

    def _finish(self) -> None:
        self._write(self._wrapper.flush(self._columns()))


class WholeWords:
    """Gives each word of the runs that it is fed one style: that of most of its characters.

    Tokens may end within words, and an underline that begins within a word looks like a mistake.
    A word is delayed until it is complete. Spaces have a style if the words on both sides have it,
    too.
    """

    def __init__(self) -> None:
        self._gap: list[Run] = []  # spaces before the word
        self._word: list[Run] = []
        self._last_style = ""  # of the word before the spaces
        self._out: list[Run] = []

    def feed(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs of all words that are complete."""
        for text, style in runs:
            for character in text:
                self._add(character, style)
        return self._take_output()

    def flush(self) -> list[Run]:
        """Return the runs that were delayed."""
        self._end_word()
        return self._take_output()

    def _add(self, character: str, style: str) -> None:
        if character.isspace():
            self._end_word()
            self._gap.append((character, style))
            return
        is_end = self._word and _breaks_before(self._word[-1][0], character)
        if is_end or len(self._word) >= _MAX_WORD:
            self._end_word()
        self._word.append((character, style))

    def _end_word(self) -> None:
        style = ""
        if self._word:
            ((style, _),) = Counter(style for _, style in self._word).most_common(1)
        is_within = style == self._last_style
        for space, space_style in self._gap:
            self._out.append((space, style if is_within and space_style == style else ""))
        for character, _ in self._word:
            self._out.append((character, style))
        if self._word:
            self._last_style = style
        self._gap = []
        self._word = []

    def _take_output(self) -> list[Run]:
        taken = joined(self._out)
        self._out = []
        return taken


class Wrapper:
    """Wraps the lines of the runs that it is fed between words.

    The start of a word near the border is delayed until the word is complete. A line feed replaces
    the spaces between two words. Lines that start with a space, a tab, `|` or a backquote, and
    fenced code, are not wrapped, since they are code or tables.
    """

    def __init__(self) -> None:
        self._column = 0  # cells on the line so far
        self._gap: list[Run] = []  # spaces, to be written if a word follows on the same line
        self._word: list[Run] = []
        self._is_begun = False  # whether the start of the word has been written
        self._head = ""  # the line's first characters
        self._is_fenced = False
        self._out: list[Run] = []

    def feed(self, runs: Iterable[Run], width: int) -> list[Run]:
        """Return the runs that can be written now, to a terminal of `width` columns."""
        for text, style in runs:
            for character in text:
                self._add(character, style, width)
        if not self._breaks() or self._column + _cells(self._gap) + LONG <= width:
            self._write_word(width)
        return self._take_output()

    def flush(self, width: int) -> list[Run]:
        """Return the runs that were delayed."""
        self._end_line(width)
        return self._take_output()

    def _add(self, character: str, style: str, width: int) -> None:
        if character == "\n":
            self._end_line(width)
            self._out.append((character, style))
            if self._head == _FENCE:
                self._is_fenced = not self._is_fenced
            self._column = 0
            self._head = ""
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
        """Return whether this line is wrapped."""
        return not (self._is_fenced or self._head[:1] in (" ", "\t", "|", "`"))

    def _end_word(self, width: int) -> None:
        self._write_word(width)
        self._is_begun = False

    def _end_line(self, width: int) -> None:
        self._end_word(width)
        self._out += self._gap
        self._gap = []

    def _write_word(self, width: int) -> None:
        if not self._word:
            return
        cells = _cells(self._word)
        gap = _cells(self._gap)
        fits = self._is_begun or self._column + gap + cells <= width
        if not fits and self._column and self._breaks():
            self._out.append(("\n", ""))
            self._column = 0
        else:
            self._out += self._gap
            self._column += gap
        self._out += self._word
        self._gap = []
        self._word = []
        self._is_begun = True
        self._column += cells
        if self._column > width:  # the terminal has wrapped it
            self._column %= width

    def _take_output(self) -> list[Run]:
        taken = joined(self._out)
        self._out = []
        return taken


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with adjacent runs of one style joined.

    >>> joined([("a", ""), ("b", ""), ("c", "prompt")])
    [('ab', ''), ('c', 'prompt')]
    """
    result: list[Run] = []
    for text, style in runs:
        if result and result[-1][1] == style:
            result[-1] = (result[-1][0] + text, style)
        else:
            result.append((text, style))
    return result


def _cells(runs: Iterable[Run]) -> int:
    """Return the cells that runs take on a terminal."""
    return sum(_TAB if text == "\t" else cell_len(text) for text, _ in runs)


def _breaks_before(before: str, character: str) -> bool:
    """Return whether a line may break between two characters without a space: if they are wide."""
    if before == "\u200d" or unicodedata.category(character) in ("Pe", "Pf", "Po"):
        return False
    return cell_len(character) == 2 or (cell_len(before) == 2 and character.isalnum())
