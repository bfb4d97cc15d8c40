"""Sinks for an answer: a terminal in colour, a pipe as plain text, or a JSON object.

A sink gets the tokens of whole steps and writes once per step. It gets the answer only; all other
messages go to stderr.
"""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol, TextIO

from ngtcli.render.terminal import drafted_style, paint, reveal, visible
from ngtcli.render.wrapping import Run, Wrapper


class ShownToken(Protocol):
    """The part of a token that sinks read."""

    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def origin(self) -> str: ...


class Sink(Protocol):
    """Gets the tokens of each step, then `close`. Both raise OSError if writing fails."""

    def step(self, tokens: Sequence[ShownToken]) -> None: ...
    def close(self) -> None: ...


class PlainSink:
    """Writes text with control characters made visible; it ends with a line feed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last = stream, "\n"

    def step(self, tokens: Sequence[ShownToken]) -> None:
        self._write("".join(t.text for t in tokens), self.styled(tokens))

    def styled(self, tokens: Sequence[ShownToken]) -> str:
        """The text of `tokens` as it is written."""
        return visible("".join(t.text for t in tokens))

    def _write(self, text: str, styled: str) -> None:
        if text:
            self._stream.write(styled)
            self._stream.flush()
            self._last = text[-1]

    def close(self) -> None:
        if self._last != "\n":
            self._stream.write("\n")
            self._stream.flush()


class ColourSink(PlainSink):
    """Writes accepted drafts underlined and in the colour of their origin, other tokens plainly."""

    def styled(self, tokens: Sequence[ShownToken]) -> str:
        parts = []
        for (drafted, origin), run in groupby(tokens, key=lambda t: (t.drafted, t.origin)):
            text = visible("".join(t.text for t in run))
            parts.append(paint(text, drafted_style(origin)) if drafted else text)
        return "".join(parts)


class TerminalSink(PlainSink):
    """Writes to a terminal: lines broken between words, and no character that it does not show.

    `columns` returns the terminal's width in columns and is called each step; with `colour`,
    accepted drafts are in the colour of their origin.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int], colour: bool) -> None:
        super().__init__(stream)
        self._columns, self._colour = columns, colour
        self._wrapper, self._before = Wrapper(), ""

    def styled(self, tokens: Sequence[ShownToken]) -> str:
        runs = []
        for token in tokens:
            text = reveal(visible(token.text), self._before)
            self._before = text[-1:] or self._before
            runs.append((text, token.origin if token.drafted else ""))
        return self._painted(self._wrapper.feed(runs, self._columns()))

    def _painted(self, runs: Sequence[Run]) -> str:
        styled = (paint(text, drafted_style(name)) if name else text for text, name in runs)
        return "".join(styled if self._colour else (text for text, _ in runs))

    def close(self) -> None:
        rest = self._painted(self._wrapper.flush(self._columns()))
        if rest:
            self._stream.write(rest)
        super().close()


def dump_json(value: Any, indent: int | None = 2) -> str:
    """`value` as indented JSON: other than ASCII is kept, control characters are escaped.

    With `indent` None it is one line. Raises TypeError for what JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
