"""Decide by the words of English whether a hyphen at the end of a line belongs to its word."""

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
# First and last parts of compounds that anybody may form.
_HEADS = frozenset("self well ex half non quasi so ill vice cross".split())
_TAILS = frozenset(
    "based driven oriented dependent specific related known aware free friendly like level scale"
    " term quality speed made owned led old year month week day hour minute in-law".split()
)


def is_compound(head: str, tail: str, words: Collection[str] = ()) -> bool:
    """Whether `head` and `tail` are written with a hyphen between them.

    Args:
        head: The part before the line's end, without the hyphen.
        tail: The part after it.
        words: Further words that exist, in lower case.

    >>> is_compound("long", "term"), is_compound("twenty", "one"), is_compound("mother-in", "law")
    (True, True, True)
    >>> is_compound("rail", "way"), is_compound("well-estab", "lished")
    (False, False)
    """
    head = head.lower()
    tail = tail.lower()
    english = _english_words()
    first = head.rsplit("-", 1)[-1]
    last = tail.split("-", 1)[0]

    def exists(word: str) -> bool:
        return word in english or word in words

    if exists(first + last):
        return False
    if f"{head}-{tail}" in english or (first in _TENS and last in _ONES):
        return True
    if not exists(last):
        return False
    if "-" in head:  # it is a compound already
        return exists(first)
    return first in _HEADS or (last in _TAILS and exists(first))


@cache
def _english_words() -> frozenset[str]:
    """The single words of the phrases that ship with ngt; none if these cannot be read."""
    with suppress(OSError, lzma.LZMAError, UnicodeDecodeError):
        packed = (files("ngtcli.drafting.background") / "english.phrases.xz").read_bytes()
        lines = lzma.decompress(packed).decode().split("\n")
        return frozenset(
            line[1:].split("\t")[0].strip().lower() for line in lines if line.startswith("1")
        )
    return frozenset()
