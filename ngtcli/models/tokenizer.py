"""Token ids to text and back, one token at a time where text streams."""

import codecs
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ngtcli.models.control import Coded, ControlTokens, Spans

# Characters beyond which a text is encoded in pieces, between which Ctrl-C is obeyed; a character
# takes 1.2 µs and 170 to 250 bytes of memory, measured.
WHOLE = 1 << 20
REPLACEMENT = "\ufffd"  # what decoders give for bytes that are no character
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # a byte in vocabularies of SentencePiece
_LONGEST_CHARACTER = 4  # bytes of UTF-8, and so tokens


class Tokenizer:
    """A `transformers` tokenizer, reduced to the calls that are used here.

    Text never becomes a control token: the name of one in a text is encoded as ordinary letters.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        # Many files ask for truncation or padding. No text may be cut, and the library clears both
        # when it is first called, which would change `fingerprint`.
        fast = getattr(backend, "backend_tokenizer", None)
        if fast is not None:
            fast.no_truncation()
            fast.no_padding()

    @cached_property
    def control(self) -> ControlTokens:
        """The control tokens, as which no text is encoded."""
        return ControlTokens(self.backend)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of `text`; with `special`, between marks that the tokenizer adds, such as `<s>`.

        A text of more than WHOLE characters is encoded in pieces, which bounds the memory; a few
        ids at the ends of pieces may differ from those of the whole. Raises ModelError as `locate`.
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
        """The ids of `text` and their starts. Only spans of `template` give control tokens.

        Raises ModelError if text cannot be encoded without control tokens.
        """
        return self.control.encode(text, special, template)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def decode_complete(self, ids: Sequence[int]) -> str:
        """Decode `ids` without a character at the end whose bytes are not all there.

        U+FFFD at the end stays where the bytes are those of U+FFFD itself.
        """
        text = self.decode(ids)
        if not text.endswith(REPLACEMENT):
            return text
        pending = _incomplete_bytes(self._bytes_of(ids[-_LONGEST_CHARACTER:]))
        if pending == 0:
            return text
        if not self._is_byte_level:  # each byte is a token, and decodes to a character of its own
            return self.decode(ids[:-pending])
        return text.removesuffix(REPLACEMENT)

    @cached_property
    def _is_byte_level(self) -> bool:
        """Whether every character of a token's name stands for a byte, as in GPT-2."""
        decoder = getattr(getattr(self.backend, "backend_tokenizer", None), "decoder", None)
        if decoder is None:
            return hasattr(self.backend, "byte_decoder")
        return b"ByteLevel" in decoder.__getstate__()

    def _bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes that tokens stand for; special tokens and ids without a token are left out."""
        special = set(self.backend.all_special_ids)
        found = self.backend.convert_ids_to_tokens([i for i in ids if i not in special])
        # A model may have more ids than its tokenizer.
        names = [name for name in found if name is not None]
        if self._is_byte_level:
            from transformers.convert_slow_tokenizer import bytes_to_unicode

            byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
            # Names of added tokens are plain text: as decoders do, by the characters in them.
            return b"".join(
                bytes(byte_of[character] for character in name)
                if byte_of.keys() >= set(name)
                else name.encode()
                for name in names
            )
        parts = []
        for name in names:
            byte = _BYTE_TOKEN.fullmatch(name)
            parts.append(bytes([int(byte[1], 16)]) if byte else name.encode())
        return b"".join(parts)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self.backend, "chat_template", None))

    def has_control(self, text: str) -> bool:
        """Whether the library would make a control token of `text`, or of a part of it."""
        whole = self.backend.encode(text, add_special_tokens=False)
        return list(whole) != self.encode(text)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of all that determines ids: vocabulary, merges, normalisation."""
        import hashlib
        import json

        fast = getattr(self.backend, "backend_tokenizer", None)
        state = fast.to_str() if fast is not None else json.dumps(self.backend.get_vocab())
        return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


def _incomplete_bytes(data: bytes) -> int:
    """Return how many bytes at the end begin a character of UTF-8 that is not complete.

    >>> _incomplete_bytes("a…".encode()[:-1]), _incomplete_bytes("a…".encode())
    (2, 0)
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def piece_end(text: str, at: int, size: int) -> int:
    """The end of a piece of about `size` characters from index `at`: before white space if any.

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


class Detokenizer:
    """The text of a growing sequence of ids, in pieces of whole characters.

    A token's text can depend on the token before it, and a character can span several tokens. So a
    short window is decoded with and without the new ids; the difference is the new text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: tuple[int, ...] = ()  # of the window
        self._shown = 0  # number of them whose text was returned

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is incomplete."""
        self._ids += (token,)
        before, after = self._texts()
        if after.endswith(REPLACEMENT) and len(self._ids) - self._shown < 8:
            return ""
        return self._advance(before, after)

    def flush(self) -> str:
        """The rest of the text, without a character at its end that is incomplete."""
        before, _ = self._texts()
        return self._advance(before, self._tokenizer.decode_complete(self._ids))

    def _texts(self) -> tuple[str, str]:
        """The text of the ids whose text was returned, and of all."""
        return self._tokenizer.decode(self._ids[: self._shown]), self._tokenizer.decode(self._ids)

    def _advance(self, before: str, after: str) -> str:
        if self._shown < len(self._ids):
            self._ids = self._ids[self._shown :]
            self._shown = len(self._ids)
        return after[len(before) :]


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a proper start of `mark`.

    >>> overlap("so it is <th", "<think>")
    3
    """
    return next(
        (k for k in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:k])), 0
    )
