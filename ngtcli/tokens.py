"""Token ids to text and back, one token at a time where text streams."""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from ngtcli.control import Coded, ControlTokens, Spans

LONG = 1 << 18  # characters that take about 0.3 s to encode, measured with the built-in tokenizer
WHOLE = 1 << 22  # characters; encoding takes 170 to 250 bytes of memory for each, measured
T = TypeVar("T")


class Decoder(Protocol):
    """What detokenizing needs of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Tokenizer:
    """A `transformers` tokenizer behind the few calls that are used here.

    Text is never control: what looks like a control token in it is encoded as the letters it is.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @cached_property
    def control(self) -> ControlTokens:
        """The tokens that text must not become."""
        return ControlTokens(self.backend)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, marks such as `<s>` that the tokenizer puts around it.

        A text of more than WHOLE characters is encoded in pieces, which bounds the memory; at a
        piece's end a few ids may then differ from those of the whole.
        """
        if len(text) <= WHOLE or special:
            return self.locate(text, special).ids
        ids: list[int] = []
        at = 0
        while at < len(text):
            end = piece_end(text, at, WHOLE // 4)
            ids += self.locate(text[at:end]).ids
            at = end
        return ids

    def locate(self, text: str, special: bool = False, template: Spans = ()) -> Coded:
        """Ids of `text` and where each starts. Control tokens are read in the spans of `template`.

        A long text is encoded beside the main thread, which Ctrl-C can thus interrupt at once.
        """
        if len(text) < LONG:
            return self.control.encode(text, special, template)
        return interruptibly(lambda: self.control.encode(text, special, template))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.backend, "chat_template", None))

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides ids: vocabulary, merges, normalisation."""
        import hashlib
        import json

        fast = getattr(self.backend, "backend_tokenizer", None)
        state = fast.to_str() if fast is not None else json.dumps(self.backend.get_vocab())
        return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


def piece_end(text: str, at: int, size: int) -> int:
    """Where a piece of about `size` characters from `at` ends: before a white space if it can.

    >>> piece_end("one two three", 0, 10), piece_end("onetwothree", 0, 4)
    (7, 4)
    """
    end = at + size
    if end >= len(text):
        return len(text)
    for space in ("\n", " "):
        found = text.rfind(space, at + size // 2, end)
        if found > at and not text[found - 1].isspace():
            return found
    return end


def interruptibly(work: Callable[[], T]) -> T:
    """What `work` returns or raises; Ctrl-C is obeyed while it runs and it is then left behind.

    Only for work that lets other threads run, as tokenizers do, and that nothing depends on.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised again where it is waited for
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failed:
        raise failed[0]
    return done[0]


class Detokenizer:
    """Text of a growing id sequence, in pieces that never split a character.

    A token's text can depend on its left neighbour, and a character can take several tokens; so a
    short window is decoded with and without the new ids and the difference is the new text.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # the window of context that is decoded again
        self._shown = 0  # ids whose text has been given out

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is unfinished."""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._start : self._shown])
        after = self._tokenizer.decode(self._ids[self._start :])
        if after.endswith("�") and len(self._ids) - self._shown < 8:
            return ""
        return self._advance(before, after)

    def flush(self) -> str:
        """What is left at the end, unfinished characters as U+FFFD."""
        before = self._tokenizer.decode(self._ids[self._start : self._shown])
        return self._advance(before, self._tokenizer.decode(self._ids[self._start :]))

    def _advance(self, before: str, after: str) -> str:
        if self._shown < len(self._ids):
            self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]
