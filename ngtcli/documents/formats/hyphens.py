"""Whether a hyphen at the end of a line belongs to the word, by the words of English."""

import lzma
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from importlib.resources import files

_TENS = frozenset("twenty thirty forty fifty sixty seventy eighty ninety".split())
_ONES = frozenset(
    "one two three four five six seven eight nine first second third fourth fifth sixth seventh"
    " eighth ninth".split()
)
# What stands before a hyphen in compounds that anybody may form, and behind one.
_HEADS = frozenset("self well ex half non quasi so ill vice cross".split())
_TAILS = frozenset(
    "based driven oriented dependent specific related known aware free friendly like level scale"
    " term quality speed made owned led old year month week day hour minute in-law".split()
)


def is_compound(head: str, tail: str, words: Collection[str] = ()) -> bool:
    """Whether `head` and `tail` are written with a hyphen; `words` are others that are known.

    >>> is_compound("long", "term"), is_compound("twenty", "one"), is_compound("mother-in", "law")
    (True, True, True)
    >>> is_compound("rail", "way"), is_compound("well-estab", "lished")
    (False, False)
    """
    head, tail = head.lower(), tail.lower()
    known = _words()
    first, last = head.rsplit("-", 1)[-1], tail.split("-", 1)[0]
    if first + last in known or first + last in words:
        return False
    if f"{head}-{tail}" in known or (first in _TENS and last in _ONES):
        return True
    is_known = last in known or last in words
    if "-" in head:  # it is one already
        return is_known and (first in known or first in words)
    return is_known and (first in _HEADS or (last in _TAILS and (first in known or first in words)))


@cache
def _words() -> frozenset[str]:
    """The words of the phrases that ship with this program; none where these cannot be read."""
    with suppress(OSError, lzma.LZMAError, UnicodeDecodeError):
        packed = (files("ngtcli.drafting.background") / "english.phrases.xz").read_bytes()
        lines = lzma.decompress(packed).decode().split("\n")
        singles = (line[1:].split("\t")[0].strip().lower() for line in lines if line[:1] == "1")
        return frozenset(singles)
    return frozenset()
