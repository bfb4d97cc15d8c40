"""Values that a text states in digits, as dates, choices or names; and where a value stands.

Offsets count characters of the text. These are rules: which of several values is meant is for a
model to decide.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from ngtcli.documents.text import UNSPACED

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_MONTH = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DATES = [
    re.compile(rf"(?<![\w-]){form}(?![\w-])", re.IGNORECASE | re.ASCII)
    for form in (
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})",
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th)?[ -]+(?:of +)?{_MONTH},?[ -]+(?P<y>\d{{4}})",
        rf"{_MONTH} +(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? +(?P<y>\d{{4}})",
        r"(?P<d>\d{1,2})\. ?(?P<m>\d{1,2})\. ?(?P<y>\d{4})",
    )
]
_NUMBER = re.compile(
    r"(?<![\w.,])[-−]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d{1,18})(?:\.\d{1,18})?(?!\w|[.,]\d)", re.ASCII
)
_CAPITAL = r"(?=[^\W\d_])(?=\w)(?![a-zß-öø-ÿ])[\w.'’-]*[\w]"
_NAME = re.compile(
    rf"(?<!\w){_CAPITAL}(?:[ \t]+(?:(?:de|van|von|der|of|the|for|and)[ \t]+)*{_CAPITAL})*"
)
_SMALL = frozenset(  # of English, with which sentences begin; none begins a name here
    "a after all also although an and any are as at be because been before but by can do does each"
    " every for from had has have he her here his how i if in into is it its may most my no not of"
    " on one or our since she should so some such than that the their then there these they this"
    " those though to under until was we were what when where which while who why will with yes you"
    " your".split()
)
_STEM = 5  # letters that words of one stem share; guess
_PIECE = re.compile(
    r"\S(?:.(?!(?<=[.!?])\s+[^\W\da-z])(?!\n\s*\n)(?!\n[^\n:]{1,40}:))*.?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Found:
    """`text[start:end]` states `value`; of a date that is YYYY-MM-DD."""

    start: int
    end: int
    value: Any


def numbers(text: str) -> Iterator[Found]:
    """The numbers in digits, with commas between thousands or none.

    >>> [found.value for found in numbers("61,000 tons, 3.5 kg, v2, 1894.")]
    [61000, 3.5, 1894]
    """
    for m in _NUMBER.finditer(text):
        digits = m[0].replace(",", "").replace("−", "-")
        yield Found(*m.span(), float(digits) if "." in digits else int(digits))


def dates(text: str) -> Iterator[Found]:
    """The dates of the calendar, in their order: with the name of the month, or the year first.

    >>> [found.value for found in dates("On 5-Jul-2001, March 3rd, 2020 or 2020-13-01.")]
    ['2001-07-05', '2020-03-03']
    """
    every = [m for form in _DATES for m in form.finditer(text)]
    for m in sorted(every, key=lambda m: m.span()):
        known = m.groupdict()
        name = known.get("name")
        month = _MONTHS.index(name[:3].lower()) + 1 if name else int(known["m"])
        with suppress(ValueError):
            yield Found(*m.span(), date(int(known["y"]), month, int(known["d"])).isoformat())


def names(text: str) -> Iterator[Found]:
    """Runs of words that begin with capitals, with small words between them.

    >>> [found.value for found in names("It was written by Guido van Rossum. The Hague is near.")]
    ['Guido van Rossum', 'Hague']
    """
    for m in _NAME.finditer(text):
        start, words = m.start(), m[0]
        while (first := re.match(r"\S+\s*", words)) and first[0].strip().lower() in _SMALL:
            start, words = start + first.end(), words[first.end() :]
        if words:
            yield Found(start, m.end(), words)


def among(choices: Sequence[Any], text: str) -> list[Found]:
    """The choices that stand in a text as words, whatever their case, in its order."""
    found = []
    for choice in choices:
        words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", str(choice))))
        for m in re.finditer(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE):
            found.append(Found(*m.span(), choice))
    return sorted(found, key=lambda one: (one.start, -one.end))


def stated(kind: str, choices: Sequence[Any], text: str) -> list[Found]:
    """The values of a field's type that a text states; of a string these are names."""
    match kind:
        case "int":
            return [one for one in numbers(text) if isinstance(one.value, int)]
        case "float":
            return list(numbers(text))
        case "date":
            return list(dates(text))
        case "choice":
            return among(choices, text)
        case "str":
            return list(names(text))
    return []


def about(words: str, text: str, at: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of these stretches that have one of the words, by its first letters."""
    own = {word[:_STEM] for word in re.findall(r"\w+", words.lower()) if word not in _SMALL}
    return [
        (start, end)
        for start, end in at
        if any(w[:_STEM] in own for w in re.findall(r"\w+", text[start:end].lower()))
    ]


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Sentences, and lines that begin with a label: where each stands."""
    for m in _PIECE.finditer(text):
        yield m.start(), m.start() + len(m[0].rstrip())


def labelled(name: str, text: str) -> list[tuple[int, int]]:
    """Where a text stands behind a label of this name, or of more words that end in it, or "is".

    >>> text = "Due date: 5 May\\nSender:  A. Reed\\nThe sum of it is 5 pounds. Goodbye."
    >>> [text[slice(*labelled(name, text)[0])] for name in ("sender", "date", "sum")]
    ['A. Reed', '5 May', '5 pounds']
    """
    words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", name.strip("_- "))))
    label = rf"{words}[*_]*[ \t]*[:=|][*_]*[ \t]*(\S[^\n]*)"
    said = rf"\b{words}\b[^.:\n]{{0,60}}?\b(?:is|are|was|were)\s+(\S.*?)(?=[.;]?\s*\Z|[.;]\s)"
    for form in (rf"^[^\w\n]*{label}", rf"^[^\w\n]*(?:\w+[ \t]+){{1,3}}{label}", f"(?s:{said})"):
        found = re.finditer(form, text, re.IGNORECASE | re.MULTILINE)
        if places := [(m.start(1), m.start(1) + len(m[1].rstrip())) for m in found]:
            return places
    return []


def place_of(
    value: str, text: str, start: int = 0, end: int | None = None
) -> tuple[int, int] | None:
    """Where a value stands first, word for word: white space may differ, and words are whole.

    >>> place_of("the tide", "At the\\ntide of the tides"), place_of("ide", "the tide")
    ((3, 11), None)
    """
    words = value.split()
    if not words:
        return None
    letter = rf"(?![{UNSPACED}])\w"
    before = r"(?<!\w)" if re.match(letter, words[0]) else ""
    after = r"(?!\w)" if re.match(letter, words[-1][-1]) else ""
    form = re.compile(before + r"\s+".join(map(re.escape, words)) + after)
    m = form.search(text, start, len(text) if end is None else end)
    return m.span() if m else None
