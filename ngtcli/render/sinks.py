"""Where an answer goes: a terminal in colour, a pipe as plain text, or one JSON object.

A sink gets whole steps and writes once a step. Only the answer passes through here; whatever else
there is to say goes to stderr.
"""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol, TextIO

from ngtcli.render.terminal import drafted_style, paint, reveal, visible
from ngtcli.render.wrapping import Run, Wrapper


class ShownToken(Protocol):
    """What a sink reads of a token."""

    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def origin(self) -> str: ...


class Sink(Protocol):
    """Receives the tokens of each step, then the end."""

    def step(self, tokens: Sequence[ShownToken]) -> None: ...
    def close(self) -> None: ...


class PlainSink:
    """Text only, control characters made visible; ends with one line feed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last = stream, "\n"

    def step(self, tokens: Sequence[ShownToken]) -> None:
        self._write("".join(t.text for t in tokens), self.styled(tokens))

    def styled(self, tokens: Sequence[ShownToken]) -> str:
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
    """Accepted drafts underlined and in their origin's colour, the model's own as they are."""

    def styled(self, tokens: Sequence[ShownToken]) -> str:
        parts = []
        for (drafted, origin), run in groupby(tokens, key=lambda t: (t.drafted, t.origin)):
            text = visible("".join(t.text for t in run))
            parts.append(paint(text, drafted_style(origin)) if drafted else text)
        return "".join(parts)


class TerminalSink(PlainSink):
    """For a terminal: lines broken between words, and nothing that it would not show.

    `columns` tells the terminal's width, asked each step; `origin`s are coloured where wanted.
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


class Collector:
    """Keeps the text and the tokens; writes nothing."""

    def __init__(self) -> None:
        self.tokens: list[ShownToken] = []

    def step(self, tokens: Sequence[ShownToken]) -> None:
        self.tokens += tokens

    def close(self) -> None:
        pass

    @property
    def text(self) -> str:
        return "".join(t.text for t in self.tokens)


def dump_json(value: Any) -> str:
    """JSON for people and pipes: UTF-8 as it is, every control character escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
