"""Token ids to text and back, one token at a time where text streams."""

import codecs
import re
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from ngtcli.models.control import ControlTokens, Encoding, Spans

# Longer texts, in characters, are encoded in pieces, between which Ctrl-C works. A character takes
# 1.2 µs and 170 to 250 bytes of memory (measured).
MAX_CHARACTERS = 1 << 20
REPLACEMENT = "\ufffd"  # decoders return it for bytes that are no character
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # a byte in vocabularies of SentencePiece
_MAX_CHARACTER_BYTES = 4  # of a character in UTF-8; each may be a token
_MAX_WAITING_TOKENS = 8  # that may wait for the end of a character before they are shown


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
        """Return the control tokens; text is never encoded as one of them."""
        return ControlTokens(self.backend)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Encode text.

        A text of more than MAX_CHARACTERS is encoded in pieces, which bounds the memory. A few ids
        at the ends of pieces may differ from those of the whole text.

        Args:
            text: The text.
            special: Whether the tokenizer adds its marks, such as `<s>`.

        Raises:
            ModelError: The tokenizer cannot encode the text without control tokens.
        """
        if len(text) <= MAX_CHARACTERS or special:
            return self.locate(text, special).ids
        ids: list[int] = []
        start = 0
        while start < len(text):
            end = piece_end(text, start, MAX_CHARACTERS // 4)
            ids += self.locate(text[start:end]).ids
            start = end
        return ids

    def locate(self, text: str, special: bool = False, template: Spans = ()) -> Encoding:
        """Encode text, with the start of each token. See ControlTokens.encode."""
        return self.control.encode(text, special, template)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens."""
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def decode_complete(self, ids: Sequence[int]) -> str:
        """Decode `ids` without an incomplete character at the end.

        U+FFFD at the end stays if the tokens encode U+FFFD itself.
        """
        text = self.decode(ids)
        if not text.endswith(REPLACEMENT):
            return text
        pending = _incomplete_bytes(self._bytes_of(ids[-_MAX_CHARACTER_BYTES:]))
        if pending == 0:
            return text
        if not self._is_byte_level:  # each byte is a token, and decodes to a character of its own
            return self.decode(ids[:-pending])
        return text.removesuffix(REPLACEMENT)

    @cached_property
    def _is_byte_level(self) -> bool:
        """Return whether every character of a token's name represents a byte, as in GPT-2."""
        decoder = getattr(getattr(self.backend, "backend_tokenizer", None), "decoder", None)
        if decoder is None:
            return hasattr(self.backend, "byte_decoder")
        return b"ByteLevel" in decoder.__getstate__()

    def _bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return the bytes that tokens encode, without special tokens and ids of no token."""
        special = set(self.backend.all_special_ids)
        names = self.backend.convert_ids_to_tokens([i for i in ids if i not in special])
        # A model may have more ids than its tokenizer; their names are None.
        return b"".join(self._token_bytes(name) for name in names if name is not None)

    def _token_bytes(self, name: str) -> bytes:
        """Return the bytes that a token encodes, by its name in the vocabulary."""
        if not self._is_byte_level:
            byte = _BYTE_TOKEN.fullmatch(name)
            return bytes([int(byte[1], 16)]) if byte else name.encode()
        byte_values = _gpt2_byte_values()
        if byte_values.keys() >= set(name):
            return bytes(byte_values[character] for character in name)
        return name.encode()  # the name of an added token is plain text

    @property
    def has_chat_template(self) -> bool:
        """Return whether the tokenizer has a chat template."""
        return bool(getattr(self.backend, "chat_template", None))

    def has_control(self, text: str) -> bool:
        """Return whether the library would encode a part of `text` as a control token."""
        library_ids = self.backend.encode(text, add_special_tokens=False)
        return list(library_ids) != self.encode(text)

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 in hex of what ids depend on: vocabulary, merges, normalization."""
        import hashlib
        import json

        fast = getattr(self.backend, "backend_tokenizer", None)
        state = fast.to_str() if fast is not None else json.dumps(self.backend.get_vocab())
        return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _gpt2_byte_values() -> dict[str, int]:
    """Map the characters that represent bytes in byte-level vocabularies to these bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _incomplete_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete character of UTF-8.

    >>> _incomplete_bytes("a…".encode()[:-1]), _incomplete_bytes("a…".encode())
    (2, 0)
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def piece_end(text: str, start: int, size: int) -> int:
    """Return where a piece of at most `size` characters ends: before white space if possible.

    >>> piece_end("one two three", 0, 10), piece_end("onetwothree", 0, 4)
    (7, 4)
    """
    end = start + size
    if end >= len(text):
        return len(text)
    for space in ("\n", " "):
        index = text.rfind(space, start + size // 2, end)
        if index > start and not text[index - 1].isspace():
            return index
    return end


class Detokenizer:
    """A decoder of a growing sequence of ids to text, in pieces of whole characters.

    A token's text can depend on the token before it, and a character can span several tokens. So a
    short window is decoded with and without the new ids; the difference is the new text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: tuple[int, ...] = ()  # the window
        self._shown = 0  # number of its ids whose text was returned

    def push(self, token: int) -> str:
        """Return the text that `token` completes; "" while a character is incomplete."""
        self._ids += (token,)
        before, after = self._texts()
        waiting = len(self._ids) - self._shown
        if after.endswith(REPLACEMENT) and waiting < _MAX_WAITING_TOKENS:
            return ""
        return self._advance(before, after)

    def flush(self) -> str:
        """Return the remaining text, without an incomplete character at its end."""
        before, _ = self._texts()
        return self._advance(before, self._tokenizer.decode_complete(self._ids))

    def _texts(self) -> tuple[str, str]:
        """Decode the ids of the window whose text was returned, and all of them."""
        return self._tokenizer.decode(self._ids[: self._shown]), self._tokenizer.decode(self._ids)

    def _advance(self, before: str, after: str) -> str:
        if self._shown < len(self._ids):
            self._ids = self._ids[self._shown :]
            self._shown = len(self._ids)
        return after[len(before) :]


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that is a proper start of `mark`.

    >>> overlap("so it is <th", "<think>")
    3
    """
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
