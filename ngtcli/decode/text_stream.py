"""The text of emitted tokens, cut off at the first stop string. Knows no torch."""

from collections.abc import Sequence

from ngtcli.tokens.tokenizer import Detokenizer


class TextStream:
    """Returns the text of tokens as they come, except an end that may begin a stop string."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer, self._stop = detokenizer, [s for s in stop if s]
        self._kept_back = ""

    def push(self, token: int) -> tuple[str, bool]:
        """(text to show, whether a stop string was completed and cut off)."""
        return self._release(self._detokenizer.push(token))

    def flush(self) -> str:
        """The rest of the text when there are no more tokens."""
        text, stopped = self._release(self._detokenizer.flush())
        return text if stopped else text + self._kept_back

    def _release(self, text: str) -> tuple[str, bool]:
        text = self._kept_back + text
        ends = [at for s in self._stop if (at := text.find(s)) >= 0]
        if ends:
            self._kept_back = ""
            return text[: min(ends)], True
        longest = max((_overlap(text, s) for s in self._stop), default=0)
        self._kept_back = text[len(text) - longest :]
        return text[: len(text) - longest], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    return next(
        (k for k in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:k])), 0
    )
