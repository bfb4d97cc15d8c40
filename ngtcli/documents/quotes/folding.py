"""Texts as quotations are compared: a character that is written in several ways in one of them.

Documents have what typesetting makes of a text (ligatures, soft hyphens, curly marks), and models
write it plainly. What differs in meaning stays apart: letters with and without accent, large and
small ones, raised numbers.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# One character for one other: apostrophes, quotation marks, dashes.
_ALIKE = {
    "'": "\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4`\u2039\u203a",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
}
# Several for one, and none: ligatures, ellipses, wide forms; soft hyphens and what has no width.
_LIGATURES = {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
_LIGATURES |= {"\u2026": "..."}
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDE_ONE = re.compile("[\uff01-\uff5e]")
_UNSEEN = "\u00ad\u200b\u2060\ufeff"
_CHANGED = "".join([*_LIGATURES, _UNSEEN])
_MARKS = "\u0300-\u036f\u0653-\u0655\u3099\u309a"  # that letters with them have a form for


@dataclass(frozen=True, slots=True)
class Folded:
    """A text as it is compared; for each of its characters where the original one is."""

    text: str
    starts: npt.NDArray[np.integer[Any]] | None = None  # None: at the same places
    ends: npt.NDArray[np.integer[Any]] | None = None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The range of the original text that stands for `text[start:end]`, which is not empty."""
        if self.starts is None or self.ends is None:
            return start, end
        return int(self.starts[start]), int(self.ends[end - 1])


def folded(text: str) -> Folded:
    """A text as it is compared.

    >>> found = folded("“o\ufb03ce” cafe\u0301")
    >>> found.text, found.original(1, 7)
    ('"office" café', (1, 5))
    """
    if text.isascii():
        return Folded(text.replace("`", "'"))
    for plain, others in _ALIKE.items():
        for other in others:
            text = text.replace(other, plain)
    if _WIDE_ONE.search(text):
        text = text.translate(_WIDE)
    pattern = f"[{_CHANGED}]"
    if not unicodedata.is_normalized("NFC", text):
        pattern = f"{pattern}|[^\\W\\d_][{_MARKS}]+"
    parts, at, shown = list[str](), 0, 0
    moves, replaced = list[tuple[int, int]](), list[tuple[int, int, int, int]]()
    for match in re.compile(pattern).finditer(text):
        start, end = match.span()
        new = _plain(match[0])
        parts += [text[at:start], new]
        shown += start - at
        replaced.append((shown, shown + len(new), start, end))
        shown += len(new)
        moves.append((shown, end - start - len(new)))
        at = end
    if not moves:
        return Folded(text)
    parts.append(text[at:])
    plain_text = "".join(parts)
    shift = np.zeros(len(plain_text) + 1, np.int64)
    for place, by in moves:
        shift[place] += by
    starts = np.arange(len(plain_text)) + np.cumsum(shift)[:-1]
    ends = starts + 1
    for first, last, start, end in replaced:
        starts[first:last], ends[first:last] = start, end
    return Folded(plain_text, starts, ends)


def _plain(characters: str) -> str:
    if characters in _LIGATURES:
        return _LIGATURES[characters]
    return "" if characters in _UNSEEN else unicodedata.normalize("NFC", characters)
