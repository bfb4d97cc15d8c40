"""Tokens of long texts, counted piece by piece and only as far as anyone asks.

A piece ends before a white space where there is one. Beside such an end the tokens may differ from
those of the whole by a few, so what is counted here decides only what is far from a limit.
"""

import time
from collections.abc import Callable, Iterable

from ngtcli.tokens import Tokenizer, piece_end

Status = Callable[[str], None]

PIECE = 1 << 16  # characters, encoded in about 50 ms (measured); Ctrl-C is obeyed between pieces
_EVERY = 0.3  # seconds between two status lines; guessed


class Progress:
    """Says how far reading has come, now and then: "Reading 12k of 30k tokens …"."""

    def __init__(self, characters: int, status: Status) -> None:
        self._characters, self._status = characters, status
        self._read = self._tokens = 0
        self._last = time.monotonic()

    def add(self, characters: int, tokens: int) -> None:
        """`characters` more have been read, which are `tokens` tokens."""
        self._read += characters
        self._tokens += tokens
        if time.monotonic() - self._last < _EVERY:
            return
        self._last = time.monotonic()
        whole = self._tokens * max(self._characters, self._read) // max(self._read, 1)
        self._status(f"Reading {short(self._tokens)} of {short(whole)} tokens …")


def short(tokens: int) -> str:
    """A count as a status line shows it.

    >>> short(812), short(12_345), short(12_345_678)
    ('812', '12k', '12.3M')
    """
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens // 1000}k" if tokens < 1_000_000 else f"{tokens / 1e6:.1f}M"


class Head:
    """The beginning of a text in tokens, as far as it has been read."""

    def __init__(self, text: str, tokenizer: Tokenizer, progress: Progress) -> None:
        self.text, self._tokenizer, self._progress = text, tokenizer, progress
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._at = 0

    def __len__(self) -> int:
        """Tokens read so far."""
        return len(self._ids)

    @property
    def done(self) -> bool:
        return self._at >= len(self.text)

    def read(self, size: int = PIECE) -> None:
        """Read about `size` characters more."""
        end = piece_end(self.text, self._at, size)
        coded = self._tokenizer.locate(self.text[self._at : end])
        self._ids += coded.ids
        self._starts += [self._at + start for start in coded.starts]
        self._progress.add(end - self._at, len(coded.ids))
        self._at = end

    def cut(self, tokens: int) -> str:
        """The text of the first `tokens` tokens, of those read."""
        if tokens >= len(self._ids):
            return self.text if self.done else self.text[: self._at]
        if len(self._starts) == len(self._ids):
            return self.text[: self._starts[tokens]]
        return self._tokenizer.decode(self._ids[:tokens])


def count(texts: Iterable[str], limit: int, tokenizer: Tokenizer, progress: Progress) -> int:
    """Tokens of `texts`, each by itself; counting stops when there are more than `limit`."""
    tokens = 0
    for text in texts:
        at = 0
        while at < len(text) and tokens <= limit:
            end = piece_end(text, at, PIECE)
            found = len(tokenizer.encode(text[at:end]))
            progress.add(end - at, found)
            tokens, at = tokens + found, end
    return tokens
