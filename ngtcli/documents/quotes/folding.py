"""Fold texts for comparison: characters that are written in several ways become one of them.

Documents have ligatures, soft hyphens and curly quotation marks, where models write plain
characters. Differences in meaning stay: accents, upper and lower case, raised numbers.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Replaced one by one: apostrophes, quotation marks, dashes.
_ALIKE = {
    "'": "\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4`\u2039\u203a",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
}
# Replaced by several: ligatures, ellipses. By none: soft hyphens and characters without width.
_LIGATURES = {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
_LIGATURES |= {"\u2026": "..."}
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDE_CHARACTER = re.compile("[\uff01-\uff5e]")
_INVISIBLE = "\u00ad\u200b\u2060\ufeff"
_CHANGED = "".join([*_LIGATURES, _INVISIBLE])
_MARKS = "\u0300-\u036f\u0653-\u0655\u3099\u309a"  # combining marks with composed letters


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text, and for each of its characters the range of the original; None: the same."""

    text: str
    starts: npt.NDArray[np.integer[Any]] | None = None
    ends: npt.NDArray[np.integer[Any]] | None = None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The range of the original text that `text[start:end]`, which is not empty, stands for."""
        if self.starts is None or self.ends is None:
            return start, end
        return int(self.starts[start]), int(self.ends[end - 1])


def folded(text: str) -> Folded:
    """Fold a text for comparison.

    >>> office = folded("“o\ufb03ce” cafe\u0301")
    >>> office.text, office.original(1, 7)
    ('"office" café', (1, 5))
    """
    if text.isascii():
        return Folded(text.replace("`", "'"))
    for plain, variants in _ALIKE.items():
        for variant in variants:
            text = text.replace(variant, plain)
    if _WIDE_CHARACTER.search(text):
        text = text.translate(_WIDE)
    pattern = f"[{_CHANGED}]"
    if not unicodedata.is_normalized("NFC", text):
        pattern = f"{pattern}|[^\\W\\d_][{_MARKS}]+"
    matches = list(re.compile(pattern).finditer(text))
    if not matches:
        return Folded(text)
    return _replace_all(text, matches)


def _replace_all(text: str, matches: Sequence[re.Match[str]]) -> Folded:
    """Replace each match by its plain form, and record where every character came from."""
    parts = list[str]()
    copied = 0  # characters of the text that are in `parts`
    folded_size = 0
    shifts = list[tuple[int, int]]()  # from which folded offset on the original is how much further
    replaced = list[tuple[slice, int, int]]()  # folded range; start and end in the original
    for match in matches:
        start, end = match.span()
        plain = _plain(match[0])
        parts += [text[copied:start], plain]
        folded_size += start - copied
        replaced.append((slice(folded_size, folded_size + len(plain)), start, end))
        folded_size += len(plain)
        shifts.append((folded_size, end - start - len(plain)))
        copied = end
    parts.append(text[copied:])
    folded_text = "".join(parts)

    shift = np.zeros(len(folded_text) + 1, np.int64)
    for offset, difference in shifts:
        shift[offset] += difference
    starts = np.arange(len(folded_text)) + np.cumsum(shift)[:-1]
    ends = starts + 1
    for folded_range, start, end in replaced:
        starts[folded_range] = start
        ends[folded_range] = end
    return Folded(folded_text, starts, ends)


def _plain(characters: str) -> str:
    if characters in _LIGATURES:
        return _LIGATURES[characters]
    if characters in _INVISIBLE:
        return ""
    return unicodedata.normalize("NFC", characters)
