"""What `ngt extract` asks of a document, and the rows that it makes of the answers.

A model that writes JSON is asked for all fields at once. Of a long document it reads passages, some
for each field, or all parts, whose rows become one. A model that only quotes is asked for each
field by itself: for the sentence that has it and then, where rules find several values of the
field's type in that, for one of them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from json import JSONDecoder
from typing import Any

from ngtcli.decoding.grammar.form import AnswerForm, Field, form_of
from ngtcli.decoding.grammar.matcher import matches
from ngtcli.documents.load import Document, Loaded
from ngtcli.documents.passages import place
from ngtcli.documents.quotes.values import (
    ValueMatch,
    find_labelled,
    find_names,
    find_truths,
    find_values,
    find_verbatim,
    is_label,
    split_sentences,
)  # fmt: skip
from ngtcli.documents.selection import Excerpt
from ngtcli.drafting.steps import Token
from ngtcli.engine.batch.run import Work
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Request, Tasks, Want
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.splitting import Part
from ngtcli.system.json_form import dump_json

TASK = "extract"
Row = dict[str, Any]  # file, values, sources, probability, read, and conflicts where there are any
Take = Callable[[Ended], object]
_NO_FIELDS = "Give one as in --schema 'sender, due date, total float', or a JSON Schema."
_MOST_PICKED = 64  # values among which a model chooses; guess
_BLANK = " \t\r\n"
# How often rules are right: behind a label, in the one sentence with a word of a field's name, and
# in the one sentence with a value of its type. These stand as probabilities.
_BY_LABEL, _BY_WORDS, _BY_TYPE = 0.99, 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a field, the probability of its tokens, and where it stands, if it does.

    `others` are what later parts of a long text say otherwise.
    """

    value: Any = None
    probability: float | None = None
    place: Any = None  # an object of JSON; of a list a list of them
    others: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The fields that are wanted of each document, by the settings of `tasks`."""

    tasks: Tasks
    form: AnswerForm

    @classmethod
    def of(cls, tasks: Tasks) -> "Extraction":
        """By the schema of the settings. Raises UsageError.

        A field of a concise one may be null, for texts do not say all; a JSON Schema stands.
        """
        settings, preset = tasks.of[TASK]
        form = form_of(settings)
        if form is None or not form.fields:
            raise UsageError("no schema says which fields are wanted", hint=_NO_FIELDS)
        name = "schema_multi" if form.multi else "schema"
        if not settings.get(name).lstrip().startswith("{"):
            own = form.schema["properties"]["items"]["items"] if form.multi else form.schema
            for of in (own := deepcopy(own))["properties"].values():  # the form is kept for others
                key, null = ("enum", None) if "enum" in of else ("type", "null")
                if null not in (kinds := of[key] if isinstance(of[key], list) else [of[key]]):
                    of[key] = [*kinds, null]
            settings = settings.replace(**{name: dump_json(own, None)})
            form = form_of(settings) or form
        return cls(Tasks({TASK: (settings, preset)}), form)

    @property
    def by_field(self) -> bool:
        """Whether each field is asked for by itself."""
        return self.tasks.of[TASK][0].answer.ask_fields

    def request(self, text: str, documents: Sequence[Document], **values: Any) -> Request:
        """A question about documents."""
        request = self.tasks.request(TASK, text, loaded=Loaded(tuple(documents)), **values)
        return replace(request, wants=frozenset({Want.PROBABILITIES}))

    def whole(self, documents: Sequence[Document], **values: Any) -> Request:
        """The question for all fields; passages, where not all fits, are read for each."""
        lines = [_listed(one) for one in self.form.fields]
        own = self.request("\n".join(lines), documents, **values)
        return replace(own, queries=tuple(_asked(one) for one in self.form.fields))


def _asked(one: Field) -> str:
    """A field as it is asked for by itself, and as passages are searched for it."""
    name = one.name.replace("_", " ").replace("-", " ").strip()
    return f"{name}: {one.description}" if one.description else name


def _listed(one: Field) -> str:
    """A field as a prompt lists it: its name, its type unless that is a text, its description."""
    kind = " or ".join(map(str, one.choices)) or one.type.removeprefix("str")
    kind = f"list of {kind or 'texts'}" if one.is_list else kind
    about = f": {one.description}" * bool(one.description)
    return f"- {one.name}{f' ({kind})' * bool(kind)}{about}"


class Asking:
    """The questions about one document, or about its `parts`, and what came of them.

    `open` are those that are not asked yet, each with what takes its answer.
    """

    def __init__(
        self, extraction: Extraction, document: Document, parts: Sequence[Part] = ()
    ) -> None:
        self.document, self._extraction = document, extraction
        self.open: list[tuple[Request, Take]] = []
        self.waiting = 0
        self._read = "parts" if parts else "whole"
        self._schemas = extraction.form.schema.get("properties", {})
        self._found: dict[int, list[dict[str, Given]]] = {}  # of the objects of each part
        if extraction.by_field:
            self._found[0] = [dict.fromkeys((f.name for f in extraction.form.fields), Given())]
            for field in extraction.form.fields:
                self._begin(field)
            return
        every = (Excerpt(0, 0, len(document.text)),)
        texts = [(part.documents, part.excerpts) for part in parts] or [((document,), every)]
        own = extraction.tasks.of[TASK][0].retrieval.overflow
        for i, (those, at) in enumerate(texts):
            request = extraction.whole(those, overflow="error" if own == "split" else own)
            self.open.append((request, partial(self._take_objects, i, at)))

    def answered(self, take: Take, answer: Ended) -> bool:
        """Take an answer; whether all is answered. Raises NgtError for one that is no row."""
        self.waiting -= 1
        if answer.selection is not None:
            self._read = "passages"
        take(answer)
        return not (self.open or self.waiting)

    def work(self, note: Callable[[Ended], object]) -> Work:
        """Ask all questions, those that follow from answers, too, and return the rows.

        `note` gets each answer. Raises NgtError for one that is no row.
        """
        while self.open:
            asked, self.open = self.open, []
            self.waiting = len(asked)
            answers = yield [request for request, _ in asked]
            for (request, take), answer in zip(asked, answers, strict=True):
                error = request.cut_off(answer.finish_reason)
                if error is not None:
                    raise error
                note(answer)
                self.answered(take, answer)
        return self.rows()

    def rows(self) -> list[Row]:
        """The rows, once all is answered."""
        parts = [self._found[i] for i in sorted(self._found)]
        if self._extraction.form.multi:
            every = _without_repeats(parts)
        else:
            every = [merged([given for part in parts for given in part])]
        return [row_of(self.document.name, self._read, given) for given in every]

    def _take_objects(self, part: int, excerpts: Sequence[Excerpt], answer: Ended) -> None:
        if answer.selection is not None:
            excerpts = answer.selection.excerpts
        tokens, form = answer.tokens, self._extraction.form
        text = "".join(token.text for token in tokens)
        try:
            at = [_solid(text, 0)]
            if form.multi:
                at = [item[2] for item in members(text, next(members(text, at[0]))[2])]
            self._found[part] = [
                given_of(form.fields, members(text, start), tokens, self.document, excerpts)
                for start in at
            ]
        except (ValueError, IndexError, StopIteration):  # as of engines that know no grammar
            raise NgtError("its answer is no JSON", hint="Name another model (-m).") from None

    # --- a question a field ---

    def _begin(self, field: Field) -> None:
        """Take the value of a field by rules where they are sure, ask the model, or leave it null.

        Null is what a label has nothing behind it for, or digits that no rule is sure of.
        """
        text = self.document.text
        labels = find_labelled(field.name, text)
        behind = [at for at in labels if _values(field, text, *at) and _is_first(field, text, at)]
        if labels and not behind and _is_void(field, text, labels):
            return
        at, p = (behind, _BY_LABEL) if behind else _likely(field, text)
        if behind and field.type == "str":
            self._take(field, ValueMatch(*behind[0], text[slice(*behind[0])]), p)
        elif len(at) == 1 and field.type != "quote":
            self._pick(field, at[0], p)
        elif at:
            body = "\n\n".join(text[start:end] for start, end in at)
            self._ask(field, body, partial(self._take_quotation, field, at), quote=True)

    def _ask(self, field: Field, text: str, take: Take, **values: Any) -> None:
        form = {"schema": "", "schema_multi": "", **values}
        document = replace(self.document, text=text)
        self.open.append((self._extraction.request(_asked(field), [document], **form), take))

    def _take_quotation(self, field: Field, at: Sequence[tuple[int, int]], answer: Ended) -> None:
        """Of a quotation the first paragraph that stands in one of the sentences counts."""
        for part in answer.text.split("\n\n"):
            for start, end in at:
                if found := find_verbatim(part, self.document.text, start, end):
                    has = _values(field, self.document.text, *found)
                    self._pick(field, found if has else (start, end), probability(answer.tokens))
                    return

    def _pick(self, field: Field, at: tuple[int, int], p: float | None) -> None:
        """Take the value that stands in a sentence, or ask which of several."""
        found = _values(field, self.document.text, *at)
        if len({str(one.value) for one in found}) == 1:
            self._take(field, found[0], p)
        elif found:
            self._choose(field, found, self.document.text[slice(*at)], p)

    def _choose(
        self, field: Field, found: Sequence[ValueMatch], text: str, p: float | None
    ) -> None:
        """Ask which of these values a text means."""
        by_text = {str(one.value): one for one in reversed(found[:_MOST_PICKED])}

        def take(answer: Ended) -> None:
            own = probability(answer.tokens)
            if (one := by_text.get(answer.text.strip())) is not None:
                self._take(field, one, own if own is None or p is None else own * p)

        self._ask(field, text, take, choices=tuple(reversed(by_text)))

    def _take(self, field: Field, one: ValueMatch, p: float | None) -> None:
        if not _fits(one.value, self._schemas[field.name], field.is_list):
            return
        at = place_at(self.document, one.start, one.end) if one.end else None
        given = Given([one.value], p, [at]) if field.is_list else Given(one.value, p, at)
        self._found[0][0][field.name] = given


def _is_void(field: Field, text: str, labels: Sequence[tuple[int, int]]) -> bool:
    """Whether labels of a field say that nothing is known: they are empty, or hold what is unsure.

    An empty one whose next line is no label may have its value there.
    """
    if any(start < end for start, end in labels):
        is_exact = field.type in ("int", "float", "date", "bool", "choice")
        said = [text[start:end] for start, end in labels]
        return is_exact and any(re.search(r"\d", one) or field.type == "choice" for one in said)
    lines = [text[end:].lstrip(" \t\r\n").partition("\n")[0] for _, end in labels]
    return all(not line.strip() or re.match(r"[^\n:]{1,40}:(?:\s|$)", line) for line in lines)


def _is_first(field: Field, text: str, at: tuple[int, int]) -> bool:
    """Whether the first digits behind a label are a number, where a number is wanted."""
    if field.type not in ("int", "float"):
        return True
    piece = text[slice(*at)]
    known = [*find_values("date", (), piece), *find_values("float", (), piece)]
    digit = re.search(r"[0-9]", piece)
    return digit is None or any(one.start <= digit.start() < one.end for one in known)


def _likely(field: Field, text: str) -> tuple[list[tuple[int, int]], float]:
    """The sentences that state a value of the field's type, and how often rules are right there.

    Where some have a word of its name, or else of what is said of it, it is they alone.
    """
    for words in (field.name.replace("_", " "), field.description, ""):
        if found := [at for at in split_sentences(text, words) if _values(field, text, *at)]:
            return found, _BY_WORDS if words else _BY_TYPE
    return [], 0.0


def _values(field: Field, text: str, start: int, end: int) -> list[ValueMatch]:
    """The values of the field's type in a stretch of text, placed in the whole text."""
    piece = text[start:end]
    is_name = field.type == "str" and bool(find_values("str", (), piece))
    if is_name:
        found = find_names(field.name.replace("_", " "), piece)
    elif field.type == "bool":
        found = find_truths(field.name.replace("_", " "), piece)
    else:
        found = find_values(field.type, field.choices, piece)
    if field.type == "int" and not found and "year" in _asked(field):
        every = find_values("date", (), piece)
        found = [replace(one, value=int(one.value[:4])) for one in every]
    is_text = field.type in ("str", "quote") and not is_name
    if not found and is_text and piece and not is_label(piece):
        found = [ValueMatch(0, len(piece), piece)]
    return [ValueMatch(start + one.start, start + one.end, one.value) for one in found]


def _fits(value: Any, schema: Any, is_list: bool) -> bool:
    """Whether a value that was found by rules is valid by the schema of its field."""
    if not isinstance(schema, dict):
        return bool(schema)
    if is_list:
        return _fits(value, schema.get("items", True), False)
    if "anyOf" in schema:
        return any(_fits(value, one, False) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if schema.get("type") == "null":
        return value is None
    if isinstance(value, str):
        is_long = len(value) < schema.get("minLength", 0) or len(value) > schema.get(
            "maxLength", len(value)
        )
        if is_long or "pattern" not in schema:
            return not is_long
        bounds = ("pattern", "minLength", "maxLength")
        own = {key: schema[key] for key in bounds if key in schema}
        return matches(value, {"type": "string", **own})
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if "multipleOf" in schema and Fraction(str(value)) % Fraction(str(schema["multipleOf"])):
        return False
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


# --- rows ---


def first_place(places: Any) -> dict[str, Any] | None:
    """The place of a value; of a list the first of an item."""
    return next(filter(None, places), None) if isinstance(places, list) else places


def row_of(file: str, read: str, given: Mapping[str, Given]) -> Row:
    """The row of a file, which was read whole, in passages or in parts."""
    row: Row = {
        "file": file,
        "values": {name: one.value for name, one in given.items()},
        "sources": {name: one.place for name, one in given.items()},
        "probability": {
            n: one.probability and round(one.probability, 4) for n, one in given.items()
        },
        "read": read,
    }
    others = {name: list(one.others) for name, one in given.items() if one.others}
    return row | ({"conflicts": others} if others else {})


def _without_repeats(
    parts: Sequence[Sequence[Mapping[str, Given]]],
) -> list[Mapping[str, Given]]:
    """The rows of all parts; one that several parts have counts as often as one of them has it."""
    rows, most = list[Mapping[str, Given]](), Counter[str]()
    for part in parts:
        told = Counter[str]()
        for row in part:
            values = _key({name: one.value for name, one in row.items()})
            told[values] += 1
            if told[values] > most[values]:
                most[values] = told[values]
                rows.append(row)
    return rows


def _key(value: Any) -> str:
    """A text that is the same for equal values of JSON: 5 and 5.0 are one."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_key(one)}' for name, one in sorted(value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_key, value))}]"
    is_whole = isinstance(value, float) and value.is_integer()
    return repr(int(value) if is_whole else value)


def merged(rows: Sequence[Mapping[str, Given]]) -> dict[str, Given]:
    """One row of those of parts: of each field the first value that is not null, and the others."""
    found = {}
    for name in rows[0]:
        said = [row[name] for row in rows if row[name].value is not None] or [rows[0][name]]
        values = [one.value for one in said]  # 5 and 5.0 are one
        others = [value for i, value in enumerate(values) if value not in values[: max(i, 1)]]
        found[name] = replace(said[0], others=tuple(others))
    return found


def members(text: str, at: int = 0) -> Iterator[tuple[str, Any, int, int]]:
    """(key, value, start, end) of the members of a JSON object or, without keys, of an array.

    It begins at `at`, a value at `start`.

    >>> list(members('{"a": [1, 2], "b": "}"}'))
    [('a', [1, 2], 6, 12), ('b', '}', 19, 22)]
    """
    decoder, is_object = JSONDecoder(), text[at] == "{"
    at = _solid(text, at + 1)
    while text[at] not in "]}":
        key = ""
        if is_object:
            key, at = decoder.raw_decode(text, at)
            at = _solid(text, _solid(text, at) + 1)
        value, end = decoder.raw_decode(text, at)
        yield key, value, at, end
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
        begin, at = at, at + len(token.text)
        is_within = (at > start or begin == at == start) and (end is None or begin < end)
        if token.thought is None and is_within:
            found.append(token.probability)
    known = [p for p in found if p is not None]
    return math.prod(known) if known and len(known) == len(found) else None


def given_of(
    fields: Sequence[Field],
    found: Iterator[tuple[str, Any, int, int]],
    tokens: Sequence[Token],
    document: Document,
    excerpts: Sequence[Excerpt],
) -> dict[str, Given]:
    """The values of an object by field; places are within the excerpts."""
    given = dict.fromkeys((one.name for one in fields), Given())
    by_name = {one.name: one for one in fields}
    for key, value, start, end in found:
        if key in by_name:
            at = _where(by_name[key], value, document, excerpts)
            given[key] = Given(value, probability(tokens, start, end), at)
    return given


def _where(about: Field, value: Any, document: Document, excerpts: Sequence[Excerpt]) -> Any:
    """Where a value stands first: a text word for word, a number or a date in any form of it."""
    if isinstance(value, list):
        return [_where(about, one, document, excerpts) for one in value]
    for one in excerpts:
        at, text = one.start, document.text[one.start : one.end]
        found = find_verbatim(value, text, 0, len(text)) if isinstance(value, str) else None
        if found is None and about.type in ("int", "float", "date"):
            every = find_values(about.type, (), text)
            found = next(((f.start, f.end) for f in every if f.value == value), None)
        if found is not None:
            return place_at(document, at + found[0], at + found[1])
    return None


def place_at(document: Document, start: int, end: int) -> dict[str, Any]:
    """The place of these characters of a document."""
    at, quote = place(document, start), " ".join(document.text[start:end].split())
    where = {"page": at.page or None, "heading": at.heading or None}
    where |= {"ocr": True} if at.page in document.about.recognized else {}
    return {**where, "start": start, "end": end, "quote": quote}
