"""The requests of `ngt extract` about a document, and the rows that their answers become.

A model that writes JSON is asked for all fields at once. From a long document it reads either
passages, some for each field, or all parts, whose rows are merged into one. A model that only
quotes is asked for each field separately: first for the sentence that has the value and then, if
rules find several values of the field's type in that sentence, for one of them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from json import JSONDecoder
from typing import Any, NamedTuple

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
)
from ngtcli.documents.selection import Excerpt
from ngtcli.drafting.steps import Token
from ngtcli.engine.batch.run import Work
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Request, Tasks, Want
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.splitting import Part
from ngtcli.system.json_form import dump_json

TASK = "extract"
Row = dict[str, Any]  # file, values, sources, probability, read, and conflicts if there are any
Take = Callable[[Ended], object]
Span = tuple[int, int]  # start and end in the text of a document
_NO_FIELDS = "Give one as in --schema 'sender, due date, total float', or a JSON Schema."
_MAX_CHOICES = 64  # values among which a model chooses (guess)
_WHITE_SPACE = " \t\r\n"
_MAX_WHOLE = 1e15  # larger whole numbers stay as they are; derived: repr writes these without e
# The share of rules' values that are right: after a label, in the only sentence with a word of a
# field's name, and in the only sentence with a value of its type. They are used as probabilities.
_BY_LABEL = 0.99
_BY_WORDS = 0.9
_BY_TYPE = 0.5


@dataclass(frozen=True, slots=True)
class FieldValue:
    """The value of a field in one row.

    Attributes:
        value: The value as JSON; None if the document does not say it.
        probability: The probability of the tokens that wrote it; None if unknown.
        place: A JSON object that says where the value is in the document; a list of such objects
            for a list.
        others: Different values from later parts of a long document.
    """

    value: Any = None
    probability: float | None = None
    place: Any = None
    others: tuple[Any, ...] = ()


FieldValues = Mapping[str, FieldValue]  # by the name of the field


@dataclass(frozen=True, slots=True)
class Extraction:
    """The fields to extract from each document, and the settings of `tasks` for that."""

    tasks: Tasks
    form: AnswerForm

    @classmethod
    def of(cls, tasks: Tasks) -> "Extraction":
        """Return the extraction that the schema of the settings describes.

        Fields of a concise schema may be null, because documents do not say everything. A JSON
        Schema is used as it is.

        Raises:
            UsageError: The settings have no schema with fields.
        """
        settings, preset = tasks.by_name[TASK]
        form = form_of(settings)
        if form is None or not form.fields:
            raise UsageError("no schema says which fields to extract", hint=_NO_FIELDS)

        setting = "schema_multi" if form.multi else "schema"
        is_concise = not settings.get(setting).lstrip().startswith("{")
        if is_concise:
            nullable = _with_nullable_fields(_schema_of_row(form))
            settings = settings.replace(**{setting: dump_json(nullable, None)})
            form = form_of(settings) or form
        return cls(Tasks({TASK: (settings, preset)}), form)

    @property
    def by_field(self) -> bool:
        """Return whether the model is asked for each field separately."""
        return self.tasks.by_name[TASK][0].answer.ask_fields

    def request(self, text: str, documents: Sequence[Document], **values: Any) -> Request:
        """Return a request about documents.

        Args:
            text: The question.
            documents: The documents that it is about.
            **values: Settings of this request only.
        """
        request = self.tasks.request(TASK, text, loaded=Loaded(tuple(documents)), **values)
        return replace(request, wants=frozenset({Want.PROBABILITIES}))

    def whole(self, documents: Sequence[Document], **values: Any) -> Request:
        """Return a request for all fields at once.

        If the documents do not fit, passages are searched for each field.
        """
        text = "\n".join(_prompt_line(field) for field in self.form.fields)
        request = self.request(text, documents, **values)
        return replace(request, queries=tuple(_question(field) for field in self.form.fields))


def _schema_of_row(form: AnswerForm) -> dict[str, Any]:
    """Return the JSON Schema of one row: for an array of rows, that of its items."""
    schema: dict[str, Any] = form.schema
    if form.multi:
        schema = schema["properties"]["items"]["items"]
    return schema


def _with_nullable_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema of an object, in which each property may be null."""
    nullable = deepcopy(dict(schema))
    for field in nullable["properties"].values():
        key, null = ("enum", None) if "enum" in field else ("type", "null")
        allowed = field[key] if isinstance(field[key], list) else [field[key]]
        if null not in allowed:
            field[key] = [*allowed, null]
    return nullable


def _question(field: Field) -> str:
    """Return the question for a single field, which is also the query for its passages."""
    name = field.name.replace("_", " ").replace("-", " ").strip()
    return f"{name}: {field.description}" if field.description else name


def _prompt_line(field: Field) -> str:
    """Return the line of a field in a prompt: its name, type (unless it is text) and description.

    >>> _prompt_line(Field("sum", "float", description="what is to be paid"))
    '- sum (float): what is to be paid'
    """
    kind = " or ".join(map(str, field.choices))
    if not kind and field.type != "str":
        kind = field.type
    if field.is_list:
        kind = f"list of {kind or 'texts'}"

    line = f"- {field.name}"
    if kind:
        line += f" ({kind})"
    if field.description:
        line += f": {field.description}"
    return line


class Asking:
    """The requests about one document, and the rows that their answers become.

    Attributes:
        document: The document.
        open: The requests that have not been made yet, each with the function for its answer.

    Args:
        extraction: The fields to extract.
        document: The document.
        parts: The parts of the document if it is read in parts.
    """

    def __init__(
        self, extraction: Extraction, document: Document, parts: Sequence[Part] = ()
    ) -> None:
        self.document = document
        self.open: list[tuple[Request, Take]] = []
        self._extraction = extraction
        self._read = "parts" if parts else "whole"
        self._schemas = extraction.form.schema.get("properties", {})
        self._objects: dict[int, list[dict[str, FieldValue]]] = {}  # by the number of the part
        if extraction.by_field:
            self._ask_fields()
        else:
            self._ask_objects(parts)

    def _ask_fields(self) -> None:
        fields = self._extraction.form.fields
        self._objects[0] = [dict.fromkeys((field.name for field in fields), FieldValue())]
        for field in fields:
            self._begin(field)

    def _ask_objects(self, parts: Sequence[Part]) -> None:
        """Add requests for all fields at once, one for each part or one for the whole document."""
        whole = Excerpt(0, 0, len(self.document.text))
        texts = [(part.documents, part.excerpts) for part in parts]
        if not texts:
            texts = [((self.document,), (whole,))]

        overflow = self._extraction.tasks.by_name[TASK][0].retrieval.overflow
        if overflow == "split":
            overflow = "error"
        for number, (documents, excerpts) in enumerate(texts):
            request = self._extraction.whole(documents, overflow=overflow)
            self.open.append((request, partial(self._take_objects, number, excerpts)))

    def work(self, note: Callable[[Ended], object]) -> Work:
        """Make all requests, including those that follow from answers, and return the rows.

        Args:
            note: Called with each answer.

        Raises:
            NgtError: An answer is not a row.
        """
        while self.open:
            asked = self.open
            self.open = []
            answers = yield [request for request, _ in asked]
            for (request, take), answer in zip(asked, answers, strict=True):
                error = request.incomplete_error(answer.finish_reason)
                if error is not None:
                    raise error
                note(answer)
                if answer.selection is not None:
                    self._read = "passages"
                take(answer)
        return self.rows()

    def rows(self) -> list[Row]:
        """Return the rows, after all requests were answered."""
        parts = [self._objects[number] for number in sorted(self._objects)]
        objects: Sequence[FieldValues]
        if self._extraction.form.multi:
            objects = _without_repeats(parts)
        else:
            objects = [merged([fields for part in parts for fields in part])]
        return [row_of(self.document.name, self._read, fields) for fields in objects]

    def _take_objects(self, part: int, excerpts: Sequence[Excerpt], answer: Ended) -> None:
        """Add the rows of the JSON that the model wrote about a part."""
        if answer.selection is not None:
            excerpts = answer.selection.excerpts
        form = self._extraction.form
        text = "".join(token.text for token in answer.tokens)
        try:
            start = _skip_white_space(text, 0)
            starts = [start]
            if form.multi:
                array = next(members(text, start))
                starts = [item.start for item in members(text, array.start)]
            self._objects[part] = [
                field_values(
                    form.fields, members(text, start), answer.tokens, self.document, excerpts
                )
                for start in starts
            ]
        except (ValueError, IndexError, StopIteration):  # an engine without grammars may write this
            raise NgtError("its answer is not JSON", hint="Name another model (-m).") from None

    # --- a question for each field ---

    def _begin(self, field: Field) -> None:
        """Find the value of a field by rules if they are sure, ask the model, or leave it null.

        The value is null if nothing follows its label, or only digits that no rule is sure of.
        """
        text = self.document.text
        labelled = find_labelled(field.name, text)
        with_value = [
            span
            for span in labelled
            if _values(field, text, *span) and _is_first(field, text, span)
        ]
        if labelled and not with_value and _is_unknown(field, text, labelled):
            return

        if with_value:
            spans, p = with_value, _BY_LABEL
        else:
            spans, p = _likely_sentences(field, text)

        if with_value and field.type == "str":
            start, end = with_value[0]
            self._take(field, ValueMatch(start, end, text[start:end]), p)
        elif len(spans) == 1 and field.type != "quote":
            self._pick(field, spans[0], p)
        elif spans:
            body = "\n\n".join(text[start:end] for start, end in spans)
            self._ask(field, body, partial(self._take_quotation, field, spans), quote=True)

    def _ask(self, field: Field, text: str, take: Take, **values: Any) -> None:
        """Add a request for a field in a text from the document.

        Args:
            field: The field.
            text: The text that the model reads in place of the document.
            take: Called with the answer.
            **values: Settings of the request, such as its structured output.
        """
        settings = {"schema": "", "schema_multi": "", **values}
        document = replace(self.document, text=text)
        request = self._extraction.request(_question(field), [document], **settings)
        self.open.append((request, take))

    def _take_quotation(self, field: Field, sentences: Sequence[Span], answer: Ended) -> None:
        """Use the first paragraph of a quotation that is in one of the sentences."""
        for paragraph in answer.text.split("\n\n"):
            for sentence in sentences:
                quoted = find_verbatim(paragraph, self.document.text, *sentence)
                if quoted is None:
                    continue
                has_value = bool(_values(field, self.document.text, *quoted))
                span = quoted if has_value else sentence
                self._pick(field, span, probability(answer.tokens))
                return

    def _pick(self, field: Field, span: Span, p: float | None) -> None:
        """Use the only value in a sentence, or ask the model for one of several.

        Args:
            field: The field.
            span: The sentence.
            p: The probability that the sentence is the right one.
        """
        candidates = _values(field, self.document.text, *span)
        if len({str(candidate.value) for candidate in candidates}) == 1:
            self._take(field, candidates[0], p)
        elif candidates:
            self._choose(field, candidates, self.document.text[slice(*span)], p)

    def _choose(
        self, field: Field, candidates: Sequence[ValueMatch], text: str, p: float | None
    ) -> None:
        """Ask the model which of the values in a text belongs to a field.

        Args:
            field: The field.
            candidates: The values.
            text: The text.
            p: The probability that the text is the right one.
        """
        by_text = {
            str(candidate.value): candidate for candidate in reversed(candidates[:_MAX_CHOICES])
        }

        def take(answer: Ended) -> None:
            chosen = by_text.get(answer.text.strip())
            if chosen is None:
                return
            p_of_choice = probability(answer.tokens)
            if p_of_choice is not None and p is not None:
                p_of_choice *= p
            self._take(field, chosen, p_of_choice)

        self._ask(field, text, take, choices=tuple(reversed(by_text)))

    def _take(self, field: Field, match: ValueMatch, p: float | None) -> None:
        """Set the value of a field, unless its schema forbids it."""
        if not _fits(match.value, self._schemas[field.name], field.is_list):
            return
        where = place_at(self.document, match.start, match.end) if match.end else None
        value = plain_numbers(match.value)
        if field.is_list:
            taken = FieldValue([value], p, [where])
        else:
            taken = FieldValue(value, p, where)
        self._objects[0][0][field.name] = taken


def _is_unknown(field: Field, text: str, labelled: Sequence[Span]) -> bool:
    """Return whether the labels of a field show that its value is unknown.

    They are empty, or the text after them may be a value but no rule is sure of it. If the line
    after an empty label is not a label, the value may be in that line.

    Args:
        field: The field.
        text: The text of the document.
        labelled: The text after each label of the field.
    """
    if any(start < end for start, end in labelled):
        if field.type not in ("int", "float", "date", "bool", "choice"):
            return False
        pieces = [text[start:end] for start, end in labelled]
        return any(field.type == "choice" or re.search(r"\d", piece) for piece in pieces)
    next_lines = [text[end:].lstrip(_WHITE_SPACE).partition("\n")[0] for _, end in labelled]
    return all(not line.strip() or re.match(r"[^\n:]{1,40}:(?:\s|$)", line) for line in next_lines)


def _is_first(field: Field, text: str, span: Span) -> bool:
    """Return whether the first digits after a label are a number, if the field is a number."""
    if field.type not in ("int", "float"):
        return True
    piece = text[slice(*span)]
    numbers = [*find_values("date", (), piece), *find_values("float", (), piece)]
    digit = re.search(r"[0-9]", piece)
    if digit is None:
        return True
    return any(number.start <= digit.start() < number.end for number in numbers)


def _likely_sentences(field: Field, text: str) -> tuple[list[Span], float]:
    """Return the sentences with a value of the field's type, and how often such ones are right.

    If some of them have a word of the field's name, or else of its description, return only these.
    """
    for words in (field.name.replace("_", " "), field.description, ""):
        sentences = [span for span in split_sentences(text, words) if _values(field, text, *span)]
        if sentences:
            return sentences, _BY_WORDS if words else _BY_TYPE
    return [], 0.0


def _values(field: Field, text: str, start: int, end: int) -> list[ValueMatch]:
    """Return the values of the field's type in text[start:end], with their spans in `text`."""
    piece = text[start:end]
    is_name = field.type == "str" and bool(find_values("str", (), piece))
    if is_name:
        matched = find_names(field.name.replace("_", " "), piece)
    elif field.type == "bool":
        matched = find_truths(field.name.replace("_", " "), piece)
    else:
        matched = find_values(field.type, field.choices, piece)

    if not matched and field.type == "int" and "year" in _question(field):
        dates = find_values("date", (), piece)
        matched = [replace(date, value=int(date.value[:4])) for date in dates]

    is_text = field.type in ("str", "quote") and not is_name
    if not matched and is_text and piece and not is_label(piece):
        matched = [ValueMatch(0, len(piece), piece)]
    return [ValueMatch(start + m.start, start + m.end, m.value) for m in matched]


def _fits(value: Any, schema: Any, is_list: bool) -> bool:
    """Return whether a value that rules matched is valid by the schema of its field.

    Args:
        value: The value, or an item of it if the field is a list.
        schema: The JSON Schema of the field.
        is_list: Whether the field is a list.
    """
    if not isinstance(schema, dict):
        return bool(schema)
    if is_list:
        return _fits(value, schema.get("items", True), False)
    if "anyOf" in schema:
        return any(_fits(value, option, False) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if schema.get("type") == "null":
        return value is None
    if isinstance(value, str):
        return _text_fits(value, schema)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if "multipleOf" in schema and Fraction(str(value)) % Fraction(str(schema["multipleOf"])):
        return False
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _text_fits(value: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a text is valid by a schema for strings."""
    if len(value) < schema.get("minLength", 0):
        return False
    if len(value) > schema.get("maxLength", len(value)):
        return False
    if "pattern" not in schema:
        return True
    bounds = ("pattern", "minLength", "maxLength")
    return matches(value, {"type": "string", **{k: schema[k] for k in bounds if k in schema}})


# --- rows ---


def first_place(places: Any) -> dict[str, Any] | None:
    """Return the place of a value; for a list, that of its first item that has one."""
    where: dict[str, Any] | None = places
    if isinstance(places, list):
        where = next(filter(None, places), None)
    return where


def row_of(file: str, read: str, fields: FieldValues) -> Row:
    """Return a row of a file.

    Args:
        file: The name of the file.
        read: How it was read: "whole", "passages" or "parts".
        fields: The values.
    """
    probabilities: dict[str, float | None] = {}
    for name, field in fields.items():
        p = field.probability
        probabilities[name] = None if p is None else round(p, 4)
    row: Row = {
        "file": file,
        "values": {name: field.value for name, field in fields.items()},
        "sources": {name: field.place for name, field in fields.items()},
        "probability": probabilities,
        "read": read,
    }
    conflicts = {name: list(field.others) for name, field in fields.items() if field.others}
    if conflicts:
        row["conflicts"] = conflicts
    return row


def plain_numbers(value: Any) -> Any:
    """Return a JSON value in which whole numbers have no decimal point.

    >>> plain_numbers([12.0, 12.5, {"total": 3.0}])
    [12, 12.5, {'total': 3}]
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_WHOLE:
        return int(value)
    if isinstance(value, list):
        return [plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: plain_numbers(item) for name, item in value.items()}
    return value


def _without_repeats(parts: Sequence[Sequence[FieldValues]]) -> list[FieldValues]:
    """Return the rows of all parts; keep as many equal rows as the part with the most of them."""
    rows: list[FieldValues] = []
    max_counts = Counter[str]()
    for part in parts:
        counts = Counter[str]()
        for row in part:
            key = _key({name: field.value for name, field in row.items()})
            counts[key] += 1
            if counts[key] > max_counts[key]:
                max_counts[key] = counts[key]
                rows.append(row)
    return rows


def _key(value: Any) -> str:
    """Return a string that is the same for equal JSON values, such as 5 and 5.0."""
    if isinstance(value, dict):
        pairs = [f"{name!r}:{_key(item)}" for name, item in sorted(value.items())]
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_key, value))}]"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return repr(value)


def merged(rows: Sequence[FieldValues]) -> dict[str, FieldValue]:
    """Merge the rows of parts into one row: of each field, the first value that is not null.

    The other values go to `others`; 5 and 5.0 are equal.
    """
    fields: dict[str, FieldValue] = {}
    for name in rows[0]:
        stated = [row[name] for row in rows if row[name].value is not None]
        if not stated:
            stated = [rows[0][name]]
        values = [stated[0].value]
        for field in stated[1:]:
            if field.value not in values:
                values.append(field.value)
        fields[name] = replace(stated[0], others=tuple(values[1:]))
    return fields


class Member(NamedTuple):
    """A member of a JSON object or, with "" as its key, of an array.

    Its value is text[start:end] of the text that was read.
    """

    key: str
    value: Any
    start: int
    end: int


def members(text: str, start: int = 0) -> Iterator[Member]:
    """Yield the members of the JSON object or array that begins at `start`.

    >>> [tuple(member) for member in members('{"a": [1, 2], "b": "}"}')]
    [('a', [1, 2], 6, 12), ('b', '}', 19, 22)]

    Raises:
        ValueError: The text is not JSON.
        IndexError: The text ends within the object or array.
    """
    decoder = JSONDecoder()
    is_object = text[start] == "{"
    at = _skip_white_space(text, start + 1)
    while text[at] not in "]}":
        key = ""
        if is_object:
            key, at = decoder.raw_decode(text, at)
            colon = _skip_white_space(text, at)
            at = _skip_white_space(text, colon + 1)
        value, end = decoder.raw_decode(text, at)
        yield Member(key, value, at, end)
        at = _skip_white_space(text, end)
        if text[at] == ",":
            at = _skip_white_space(text, at + 1)


def _skip_white_space(text: str, at: int) -> int:
    """Return the next index, from `at` on, that has no white space. Raise IndexError at the end."""
    while text[at] in _WHITE_SPACE:
        at += 1
    return at


def probability(tokens: Sequence[Token], start: int = 0, end: int | None = None) -> float | None:
    """Return the product of the probabilities of the tokens that wrote a part of an answer.

    Args:
        tokens: The tokens of the answer.
        start: The first character of the part.
        end: The end of the part; None for the end of the answer.

    Returns:
        The product; None if a probability is unknown, or if no token wrote the part.
    """
    product = 1.0
    count = 0
    token_end = 0
    for token in tokens:
        token_start = token_end
        token_end += len(token.text)
        is_behind_start = token_end > start or token_start == token_end == start
        is_before_end = end is None or token_start < end
        if token.thought is not None or not (is_behind_start and is_before_end):
            continue
        if token.probability is None:
            return None
        product *= token.probability
        count += 1
    return product if count else None


def field_values(
    fields: Sequence[Field],
    json_members: Iterator[Member],
    tokens: Sequence[Token],
    document: Document,
    excerpts: Sequence[Excerpt],
) -> dict[str, FieldValue]:
    """Return the values of the fields in a JSON object that a model wrote.

    Args:
        fields: The fields to extract.
        json_members: The members of the object.
        tokens: The tokens of the whole answer.
        document: The document that the answer is about.
        excerpts: The parts of the document that the model read; values are searched only in these.
    """
    values = dict.fromkeys((field.name for field in fields), FieldValue())
    by_name = {field.name: field for field in fields}
    for key, value, start, end in json_members:
        field = by_name.get(key)
        if field is not None:
            where = _place_of_value(field, value, document, excerpts)
            values[key] = FieldValue(plain_numbers(value), probability(tokens, start, end), where)
    return values


def _place_of_value(
    field: Field, value: Any, document: Document, excerpts: Sequence[Excerpt]
) -> Any:
    """Return the first place of a value: text word for word, a number or date in any notation.

    Args:
        field: The field.
        value: Its value.
        document: The document.
        excerpts: The parts of the document to search.

    Returns:
        A place as from `place_at`; None if the value is not found; a list of places for a list.
    """
    if isinstance(value, list):
        return [_place_of_value(field, item, document, excerpts) for item in value]
    for excerpt in excerpts:
        text = document.text[excerpt.start : excerpt.end]
        span = None
        if isinstance(value, str):
            span = find_verbatim(value, text, 0, len(text))
        if span is None and field.type in ("int", "float", "date"):
            matched = find_values(field.type, (), text)
            span = next(((m.start, m.end) for m in matched if m.value == value), None)
        if span is not None:
            start, end = span
            return place_at(document, excerpt.start + start, excerpt.start + end)
    return None


def place_at(document: Document, start: int, end: int) -> dict[str, Any]:
    """Return the place of document characters [start, end) as a JSON object."""
    about = place(document, start)
    where: dict[str, Any] = {"page": about.page or None, "heading": about.heading or None}
    if about.page in document.about.recognized:
        where["ocr"] = True
    quote = " ".join(document.text[start:end].split())
    return {**where, "start": start, "end": end, "quote": quote}
