"""Count the tokens of long texts piece by piece, only as far as needed.

A piece ends before white space if there is any. Near its end a few tokens may differ from those of
the whole, so these counts decide only far from a limit.
"""

import time
from collections.abc import Callable, Iterable

from ngtcli.errors import short
from ngtcli.tokens.tokenizer import Tokenizer, piece_end

Status = Callable[[str], None]

PIECE = 1 << 16  # characters, encoded in about 50 ms (measured); Ctrl-C is obeyed between pieces
_INTERVAL_S = 0.3  # between two status lines; guess


class Progress:
    """Sends a status line at intervals: "Reading 12k of 30k tokens …"."""

    def __init__(self, characters: int, status: Status) -> None:
        self._characters, self._status = characters, status
        self._read = self._tokens = 0
        self._last = time.monotonic()

    def add(self, characters: int, tokens: int) -> None:
        """Count `characters` more as read, which are `tokens` tokens."""
        self._read += characters
        self._tokens += tokens
        if time.monotonic() - self._last < _INTERVAL_S:
            return
        self._last = time.monotonic()
        whole = self._tokens * max(self._characters, self._read) // max(self._read, 1)
        self._status(f"Reading {short(self._tokens)} of {short(whole)} tokens …")


class Head:
    """The start of a text, encoded as far as `read` was called."""

    def __init__(self, text: str, tokenizer: Tokenizer, progress: Progress) -> None:
        self.text, self._tokenizer, self._progress = text, tokenizer, progress
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._at = 0

    def __len__(self) -> int:
        """The number of tokens read so far."""
        return len(self._ids)

    @property
    def done(self) -> bool:
        """Whether all of the text is read."""
        return self._at >= len(self.text)

    def read(self, size: int = PIECE) -> None:
        """Encode about `size` characters more. Raises ModelError as `Tokenizer.locate`."""
        end = piece_end(self.text, self._at, size)
        coded = self._tokenizer.locate(self.text[self._at : end])
        self._ids += coded.ids
        self._starts += [self._at + start for start in coded.starts]
        self._progress.add(end - self._at, len(coded.ids))
        self._at = end

    def cut(self, tokens: int) -> str:
        """The text of the first `tokens` tokens, or of all that were read."""
        if tokens >= len(self._ids):
            return self.text if self.done else self.text[: self._at]
        if len(self._starts) == len(self._ids):
            return self.text[: self._starts[tokens]]
        return self._tokenizer.decode(self._ids[:tokens])


def count(texts: Iterable[str], limit: int, tokenizer: Tokenizer, progress: Progress) -> int:
    """The number of tokens of `texts`, each by itself; counting stops beyond `limit`."""
    tokens = 0
    for text in texts:
        at = 0
        while at < len(text) and tokens <= limit:
            end = piece_end(text, at, PIECE)
            found = len(tokenizer.encode(text[at:end]))
            progress.add(end - at, found)
            tokens, at = tokens + found, end
        if tokens > limit:
            break
    return tokens
