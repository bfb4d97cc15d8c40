"""The words by which passages are found."""

import re
import unicodedata
from functools import cache

from ngtcli.documents.text import UNSPACED

_ACCENTS = re.compile(r"[\u0300-\u036f]")
_INNER = re.compile(r"(?<=\w)['’](?=\w)")  # of "don't"


def words(text: str) -> list[str]:
    """The words of a text, in its order, without case and accents.

    A script without spaces between words gives each two characters in a row; a single one stands
    for itself.

    >>> words("The Café's 3 tides, 潮位表")
    ['the', 'cafes', '3', 'tides', '潮位', '位表']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    found: list[str] = []
    pattern = _ascii_words() if text.isascii() else _all_words()
    for match in pattern.finditer(_INNER.sub("", text.casefold())):
        word = match.group()
        if match.lastgroup == "unspaced" and len(word) > 1:
            found += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            found.append(word)
    return found


@cache
def _ascii_words() -> re.Pattern[str]:
    return re.compile(r"[a-z0-9_]+")


@cache
def _all_words() -> re.Pattern[str]:
    """Letters and digits with the marks that stand on them, which `\\w` leaves out."""
    marks = "".join(
        c for c in map(chr, range(0x300, 0xD800)) if unicodedata.category(c).startswith("M")
    )
    spaced = rf"(?:(?![{UNSPACED}])[\w{re.escape(marks)}])+"
    return re.compile(rf"(?P<unspaced>[{UNSPACED}]+)|{spaced}")
