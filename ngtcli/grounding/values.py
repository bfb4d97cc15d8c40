"""Values that a text states, found by rules: numbers, dates, choices, names; and where they stand.

Offsets count characters of the text. Which of several values is meant a model decides.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from ngtcli.documents.text import UNSPACED

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})[a-z]*\.?"
_DATES = [
    re.compile(rf"(?<![\w-]){form}(?![\w-])", re.IGNORECASE | re.ASCII)
    for form in (
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})",
        r"(?P<d>\d{1,2})\. ?(?P<m>\d{1,2})\. ?(?P<y>\d{4})",
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th)?[ -]+(?:of +)?{_MONTH},?[ -]+(?P<y>\d{{4}})",
        rf"{_MONTH} +(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? +(?P<y>\d{{4}})",
    )
]
_NUMBER = re.compile(
    r"(?<![\w.,])[-−]?(?:[1-9]\d{0,2}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,18})?(?!\w|[.,]\d)",
    re.ASCII,
)
_CAPITAL = r"(?=[^\W\d_])(?![a-zß-öø-ÿ])[\w.'’-]*\w"
_NAME = re.compile(
    rf"(?<!\w){_CAPITAL}(?:[ \t]+(?:(?:de|van|von|der|of|the|for|and)[ \t]+)*{_CAPITAL})*"
)
_SMALL = frozenset(  # words of English with which sentences begin; none begins a name here
    "a after all also although an and any are as at be because been before but by can do does each"
    " every for from had has have he her here his how i if in into is it its may most my no not of"
    " on one or our since she should so some such than that the their then there these they this"
    " those though to under until was we were what when where which while who why will with yes you"
    " your".split()
)
_STEM = 5  # letters that words of one stem share; guess
# A sentence, or a line behind which one with a label or an empty one follows.
_PIECE = re.compile(
    r"\S(?:.(?!(?<=[.!?])\s+[^\W\da-z])(?!\n\s*\n)(?!\n[^\n:]{1,40}:))*.?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Found:
    """`text[start:end]` states `value`; of a date that is YYYY-MM-DD."""

    start: int
    end: int
    value: Any


def stated(kind: str, choices: Sequence[Any], text: str) -> list[Found]:
    """The values of a field's type that a text states, in its order; of a string these are names.

    What is part of a date is neither number nor name.

    >>> text = "It was built by Guido van Rossum. The 61,000 tons were paid on March 3rd, 2020."
    >>> [[one.value for one in stated(kind, (), text)] for kind in ("str", "date", "int")]
    [['Guido van Rossum'], ['2020-03-03'], [61000]]
    """
    dates = sorted(_dates(text), key=lambda one: one.start)
    match kind:
        case "int" | "float":
            every = [one for one in _numbers(text) if kind == "float" or isinstance(one.value, int)]
        case "date":
            return dates
        case "choice":
            every = [one for choice in choices for one in _choices(choice, text)]
            return sorted(every, key=lambda one: (one.start, -one.end))
        case _:
            every = [*_names(text)] if kind == "str" else []
    within = {at for one in dates for at in range(one.start, one.end)}
    return [one for one in every if one.start not in within]


def _numbers(text: str) -> Iterator[Found]:
    for m in _NUMBER.finditer(text):
        digits = m[0].replace(",", "").replace("−", "-")
        yield Found(*m.span(), float(digits) if "." in digits else int(digits))


def _dates(text: str) -> Iterator[Found]:
    for m in (m for form in _DATES for m in form.finditer(text)):
        name, month = m.groupdict().get("name"), m.groupdict().get("m")
        number = _MONTHS.index(name.lower()) + 1 if name else int(month or 0)
        with suppress(ValueError):  # no day of the calendar
            yield Found(*m.span(), date(int(m["y"]), number, int(m["d"])).isoformat())


def _choices(choice: Any, text: str) -> Iterator[Found]:
    for m in re.finditer(rf"(?<!\w){_words(str(choice))}(?!\w)", text, re.IGNORECASE):
        yield Found(*m.span(), choice)


def _names(text: str) -> Iterator[Found]:
    """Runs of capitalized words, without small ones that begin a sentence; no labels."""
    for m in _NAME.finditer(text):
        large = (one for one in re.finditer(r"\S+", m[0]) if one[0].lower() not in _SMALL)
        if (first := next(large, None)) and not text.startswith(":", m.end()):
            yield Found(m.start() + first.start(), m.end(), m[0][first.start() :])


def _words(text: str) -> str:
    """A pattern of a text's words, whatever stands between them."""
    return r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", text.strip("_- "))))


def labelled(name: str, text: str) -> list[tuple[int, int]]:
    """Where a text stands behind a label of this name, or of more words that end in it, or "is".

    >>> text = "Due date: 5 May\\nSender:  A. Reed\\nThe sum of it is 5 pounds. Goodbye."
    >>> [text[slice(*labelled(name, text)[0])] for name in ("sender", "date", "sum")]
    ['A. Reed', '5 May', '5 pounds']
    """
    label = rf"{_words(name)}[*_]*[ \t]*[:=|][*_]*[ \t]*(\S[^\n]*)"
    said = rf"\b{_words(name)}\b[^.:\n]{{0,60}}?\b(?:is|are|was|were)\s+"
    ends = r"(\S.*?)(?=[.;]?\s*\Z|[.;]\s)"
    for form in (
        rf"^[^\w\n]*{label}",
        rf"^[^\w\n]*(?:\w+[ \t]+){{1,3}}{label}",
        f"(?s:{said}{ends})",
    ):
        found = re.finditer(form, text, re.IGNORECASE | re.MULTILINE)
        if places := [(m.start(1), m.start(1) + len(m[1].rstrip())) for m in found]:
            return places
    return []


def pieces(text: str, words: str = "") -> list[tuple[int, int]]:
    """Sentences, and lines with a label: those with one of `words`, by its beginning, or all."""
    own = {word[:_STEM] for word in re.findall(r"[^\W_]+", words.lower()) if word not in _SMALL}
    return [
        (m.start(), m.start() + len(m[0].rstrip()))
        for m in _PIECE.finditer(text)
        if not words or any(w[:_STEM] in own for w in re.findall(r"[^\W_]+", m[0].lower()))
    ]


def place_of(value: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where a value stands first, word for word: white space may differ, and words are whole.

    >>> place_of("the tide", "At the\\ntide of the tides", 0, 25), place_of("ide", "tide", 0, 4)
    ((3, 11), None)
    """
    if not (words := value.split()):
        return None
    letter = rf"(?![{UNSPACED}])\w"
    before = r"(?<!\w)" if re.match(letter, words[0]) else ""
    after = r"(?!\w)" if re.match(letter, words[-1][-1]) else ""
    form = re.compile(before + r"\s+".join(map(re.escape, words)) + after)
    m = form.search(text, start, end)
    return m.span() if m else None
