"""The class of a token's text: the beginning of a word, its rest, a number, or a mark."""

from typing import Any

import numpy as np
import numpy.typing as npt

OTHER, WORD, REST_OF_WORD, NUMBER, MARK, BLANK = range(6)
CLASSES = 6
_SPACES = "\u2581\u0120"  # how SentencePiece and byte-level BPE write a space
_LINE = "\u010a"  # how byte-level BPE writes the end of a line
_LINE_BYTE = "<0x0A>"  # how SentencePiece writes it
_GOES_ON = "##"  # what WordPiece writes before the rest of a word


def classes_of(backend: Any) -> npt.NDArray[np.int8]:
    """Return the class of each token id of a `transformers` tokenizer, int8 (ids,).

    Control tokens are of the class OTHER, as are ids without a token.
    """
    control = set(backend.all_special_ids)
    classes = np.full(len(backend), OTHER, np.int8)
    for token_id, token in enumerate(backend.convert_ids_to_tokens(range(len(backend)))):
        if token and token_id not in control:
            classes[token_id] = class_of(token)
    return classes


def class_of(token: str) -> int:
    """Return the class of a token, by its name in a vocabulary.

    >>> [class_of(token) for token in ("\u2581tide", "tide", "7", "!", "\u0120", "<0x0A>")]
    [1, 2, 3, 4, 5, 5]
    """
    if token == _LINE_BYTE:
        return BLANK
    begins = token[0] in _SPACES or token[0].isspace()
    text = token.removeprefix(_GOES_ON).strip(_SPACES + _LINE).strip()
    if not text:
        return BLANK
    first = text[0]
    if first.isdigit():
        return NUMBER
    if first.isalpha() or not first.isascii():
        return WORD if begins else REST_OF_WORD
    return MARK
