"""Token ids to text and back, one token at a time where text streams."""

from collections.abc import Sequence
from typing import Any, Protocol


class Decoder(Protocol):
    """What detokenizing needs of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str: ...


class Tokenizer:
    """A `transformers` tokenizer behind the few calls that are used here."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, marks such as `<s>` that the tokenizer puts around it."""
        return list(self.backend.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.backend, "chat_template", None))

    def chat(self, messages: list[dict[str, str]]) -> str:
        """The model's own chat format, ready for the assistant's turn."""
        text: str = self.backend.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides ids: vocabulary, merges, normalisation."""
        import hashlib
        import json

        fast = getattr(self.backend, "backend_tokenizer", None)
        state = fast.to_str() if fast is not None else json.dumps(self.backend.get_vocab())
        return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


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
