"""How many of a question's words the best passage has: whether documents can have the answer.

A question is compared with each passage by the words that carry its meaning, in any inflection. A
rare word counts more than a frequent one, and a name or a number counts twice. A word that the
nearest passage lacks counts in part where another passage of its document has it.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ngtcli.documents.selection import Coverage
from ngtcli.documents.text import UNSPACED
from ngtcli.retrieval.index import words

if TYPE_CHECKING:
    from ngtcli.retrieval.index import Index

# Below this share of a question's weight the documents are taken not to have its answer. Chosen and
# measured by `python -m tests.tools.answerable`: see there.
MIN_SHARE = 0.32
_SMOOTHING = 20  # passages that are added, so that a few passages do not decide (guess)
_NAME = 2.0  # weight of a name or a number beside that of another word; swept from 1 to 3
_ELSEWHERE = 0.3  # of a word's weight where only other passages of a document have it; 0 to 1 tried
_CACHED_WORDS = 1 << 12  # whose inflections are remembered (guess)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")

# Words that do not say what a question is about. Some are those of questions about any text.
_EMPTY = frozenset(
    """
    a about above according after again against all also am among an and any anyone anything are
    as at be became because become been before being below between both but by came can cannot come
    comes could did do does doing done down during each either else ever every everyone everything
    few for from further get given gives go goes going got had has have having he her here hers
    herself him himself his how however i if in into is it its itself just kind kinds know known let
    like list made make makes many may me might mine more most much must my myself name named names
    no nor not of off often on once one only or other our ours out over own per please said same say
    says shall she should show since so some someone something such take tell than that the their
    theirs them themselves then there these they thing things this those through to too type types
    under until up upon us use used uses using very was way we well went were what when where
    whether which while who whom whose why will with within without would year years you your yours
    arent couldnt didnt doesnt dont hasnt havent isnt wasnt werent wont wouldnt
    agree agreed answer answers article articles author authors brief briefly called conclude
    conclusion conclusions content contents decide decided decision decisions describe described
    detail details discuss discussed discusses discussing discussion discussions document documents
    example examples exactly explain explained file files find found group happen happened happens
    information located main meeting meetings mention mentioned mentions opinion opinions overall
    people person point points presented purpose question questions reason reasons segment
    summarise summarize summary talk talked talking team text texts think thinks thought thoughts
    topic topics whole
    """.split()
)
# Endings of English words, and what may replace them in the base of a word.
_ENDINGS = {
    "ies": ("y",),
    "ied": ("y",),
    "es": ("", "e"),
    "s": ("",),
    "ed": ("", "e"),
    "ing": ("", "e"),
    "ly": ("",),
    "ers": ("", "e"),
    "er": ("", "e"),
    "ions": ("", "e"),
    "ion": ("", "e"),
}
_MIN_BASE = 3  # letters of a base (guess)


def coverage(index: "Index", question: str) -> Coverage | None:
    """Compare a question with the passages of an index.

    Returns:
        None if they cannot be compared: no word of the question carries meaning, there is no
        passage, or the question is in a script that does not separate words.
    """
    asked = _question_words(question)
    if not asked or not len(index) or any(_UNSPACED.search(word) for word in asked):
        return None
    total_weight = 0.0
    weights = np.zeros(len(index))  # of the question's words that each passage has
    compared: dict[str, tuple[float, npt.NDArray[np.bool_]]] = {}
    for word, shown in asked.items():
        having = index.having(_inflections(word))
        count = int(having.sum())
        weight = log(1 + (len(index) + _SMOOTHING - count + 0.5) / (count + 0.5))
        weight *= _NAME if _is_name(shown, question) else 1.0
        near = index.of_same_documents(having)
        weights += weight * np.where(having, 1.0, _ELSEWHERE * near)
        total_weight += weight
        compared[shown] = weight, having

    nearest = int(weights.argmax())
    lacking = {shown: weight for shown, (weight, having) in compared.items() if not having[nearest]}
    missing = sorted(lacking, key=lambda shown: -lacking[shown])
    share = float(weights[nearest]) / total_weight
    return Coverage(share, share >= MIN_SHARE, tuple(missing))


def _question_words(question: str) -> dict[str, str]:
    """Return the words that carry a question's meaning: as they are compared, and as written."""
    asked: dict[str, str] = {}
    for match in _WORD.finditer(question):
        for word in words(match.group()):
            if len(word) > 1 and word not in _EMPTY:
                asked.setdefault(word, match.group())
    return asked


def _is_name(word: str, question: str) -> bool:
    """Return whether a word has a digit, or a capital letter that is not that of a sentence."""
    if any(character.isdigit() for character in word):
        return True
    begins_sentence = (
        re.search(rf"(?:^|[.!?:]\s+)[^\w\s]*{re.escape(word)}\b", question) is not None
    )
    return word[:1].isupper() and not begins_sentence


@lru_cache(_CACHED_WORDS)
def _inflections(word: str) -> tuple[str, ...]:
    """Return a word with other endings; not all of them are words.

    >>> {"dig", "digs", "digging"} <= set(_inflections("digging"))
    True
    """
    if not word.isalpha():
        return (word,)
    bases = {word, *_bases(word)}
    forms = set(bases)
    for base in bases:
        forms |= {base + ending for ending in ("s", "es", "d", "ed", "ing", "ly", "er", "ion")}
        forms |= {f"{base}{base[-1]}ed", f"{base}{base[-1]}ing"}
        if base.endswith("e"):
            forms |= {f"{base[:-1]}ing", f"{base[:-1]}ion"}
        if base.endswith("y"):
            forms |= {f"{base[:-1]}ies", f"{base[:-1]}ied"}
    return tuple(sorted(forms))


def _bases(word: str) -> Iterator[str]:
    """Yield the bases that a word may have without its ending."""
    for ending, replacements in _ENDINGS.items():
        stem = word.removesuffix(ending)
        if stem == word or len(stem) < _MIN_BASE:
            continue
        for replacement in replacements:
            yield stem + replacement
        if stem[-1] == stem[-2]:
            yield stem[:-1]
