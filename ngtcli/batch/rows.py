"""The rows of `ngt extract`: each value with its probability and the place where it stands."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.documents.passages import place
from ngtcli.draft.steps import Token
from ngtcli.grammar.form import AnswerForm, Field
from ngtcli.grounding.values import place_of, stated
from ngtcli.retrieve.selection import Excerpt
from ngtcli.system.json_form import json_key

READS = ("whole", "passages", "parts")  # how a document may have been read
_NULLABLE = "the text does not say it, or it does not stand there in these words"
_PARTS = "other values of a field in later parts of a long text"
_DOUBT = "the fields whose probability is below --doubt"
_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: `text[start:end]` of the document's text is the quotation."""

    page: int | None
    heading: str | None
    start: int
    end: int
    quote: str


Places = Place | Sequence[Place | None] | None  # of a value; of a list that of each item


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a field, the probability of its tokens, and where it stands, if it does.

    `others` are what later parts of a long text say otherwise.
    """

    value: Any = None
    probability: float | None = None
    place: Places = None
    others: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowObject:
    """A row: the values by field, and of each its place and its probability."""

    file: str
    values: Mapping[str, Any]
    sources: Mapping[str, Places] = field(metadata=json_key(about=_NULLABLE))
    probability: Mapping[str, float | None] = field(metadata=json_key(digits=4))
    read: str = field(metadata=json_key(choices=READS))
    conflicts: Mapping[str, Sequence[Any]] | None = field(
        default=None, metadata=json_key(omit=True, about=_PARTS)
    )
    doubt: Sequence[str] | None = field(default=None, metadata=json_key(omit=True, about=_DOUBT))


def row_of(file: str, given: Mapping[str, Given], read: str) -> RowObject:
    """The row of a file."""
    return RowObject(
        file=file,
        values={name: one.value for name, one in given.items()},
        sources={name: one.place for name, one in given.items()},
        probability={name: one.probability for name, one in given.items()},
        read=read,
        conflicts={n: list(one.others) for n, one in given.items() if one.others} or None,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A value of a JSON text, which has it in `text[start:end]`; of an array the key is ""."""

    key: str
    value: Any
    start: int
    end: int


def members(text: str, at: int = 0) -> Iterator[Member]:
    """The members of the JSON object, or the items of the array, that begins at `at`.

    >>> [(member.key, member.value) for member in members('{"a": [1, 2], "b": "}"}')]
    [('a', [1, 2]), ('b', '}')]
    """
    decoder, is_object = JSONDecoder(), text[at] == "{"
    at = _solid(text, at + 1)
    while text[at] not in "]}":
        key = ""
        if is_object:
            key, at = decoder.raw_decode(text, at)
            at = _solid(text, _solid(text, at) + 1)
        value, end = decoder.raw_decode(text, at)
        yield Member(key, value, at, end)
        at = _solid(text, end)
        at = _solid(text, at + 1) if text[at] == "," else at


def _solid(text: str, at: int) -> int:
    """Where the white space at a place ends."""
    while text[at] in _BLANK:
        at += 1
    return at


def probability(tokens: Sequence[Token], start: int = 0, end: int | None = None) -> float | None:
    """The product of the probabilities of the tokens that wrote these characters of an answer.

    None where they are not known.
    """
    found, at = [], 0
    for token in tokens:
        behind = at + len(token.text)
        is_inside = behind > start or (not token.text and at >= start)
        if token.thought is None and is_inside and (end is None or at < end):
            found.append(token.probability)
        at = behind
    known = [p for p in found if p is not None]
    return math.prod(known) if known and len(known) == len(found) else None


def objects(form: AnswerForm, text: str) -> list[list[Member]]:
    """The members of each object of an answer, several where the form is `multi`."""
    start = _solid(text, 0)
    if not form.multi:
        return [list(members(text, start))]
    every = next(members(text, start))
    return [list(members(text, item.start)) for item in members(text, every.start)]


def given_of(
    fields: Sequence[Field],
    found: Sequence[Member],
    tokens: Sequence[Token],
    document: Document,
    excerpts: Sequence[Excerpt],
) -> dict[str, Given]:
    """The values of an object by field, which the text of `excerpts` may have word for word."""
    by_name = {member.key: member for member in found}
    given = dict.fromkeys((one.name for one in fields), Given())
    for one in fields:
        if (member := by_name.get(one.name)) is not None:
            at = where(one, member.value, document, excerpts)
            given[one.name] = Given(member.value, probability(tokens, member.start, member.end), at)
    return given


def where(about: Field, value: Any, document: Document, excerpts: Sequence[Excerpt]) -> Places:
    """Where a value stands first: a text word for word, a number or a date in any form of it."""
    if isinstance(value, list):
        return [_place(about, one, document, excerpts) for one in value]
    return _place(about, value, document, excerpts)


def _place(
    about: Field, value: Any, document: Document, excerpts: Sequence[Excerpt]
) -> Place | None:
    for one in excerpts:
        at = _within(about, value, document.text, one.start, one.end)
        if at is not None:
            return place_at(document, *at)
    return None


def _within(about: Field, value: Any, text: str, start: int, end: int) -> tuple[int, int] | None:
    if value is None or isinstance(value, bool | list | dict):
        return None
    if about.type == "quote" and (at := text.find(value, start, end)) >= 0:
        return at, at + len(value)
    if isinstance(value, str) and (found := place_of(value, text, start, end)):
        return found
    if about.type not in ("int", "float", "date"):
        return None
    every = stated(about.type, (), text[start:end])
    return next(((start + f.start, start + f.end) for f in every if f.value == value), None)


def place_at(document: Document, start: int, end: int) -> Place:
    """The place of these characters of a document."""
    section, quote = place(document, start), " ".join(document.text[start:end].split())
    return Place(section.page or None, section.heading or None, start, end, quote)


def merged(rows: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    """One row of those of a text's parts: of each field the first value that is not null.

    What later parts say otherwise is kept beside it.
    """
    found = {}
    for name in rows[0]:
        said = [row[name] for row in rows if row[name].value is not None] or [rows[0][name]]
        others: list[Any] = []
        for one in said[1:]:
            if one.value not in (said[0].value, *others):
                others.append(one.value)
        first = said[0]
        found[name] = Given(first.value, first.probability, first.place, tuple(others))
    return found
