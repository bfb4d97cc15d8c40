"""What `ngt extract` asks of a document, and the rows that it makes of the answers.

A model that writes JSON is asked for all fields at once. Of a long document it reads passages, some
for each field, or all parts, whose rows become one. A model that only quotes is asked for each
field by itself: for the sentence that has it, and then, where rules find several values of the
field's type in that, for one of them.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ngtcli.batch.rows import (
    Given,
    RowObject,
    given_of,
    merged,
    objects,
    place_at,
    probability,
    row_of,
)
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import NgtError, UsageError
from ngtcli.grammar.form import AnswerForm, Field, form_of
from ngtcli.grounding.values import Found, about, labelled, pieces, place_of, stated
from ngtcli.prompt.splitting import Part
from ngtcli.retrieve.selection import Excerpt
from ngtcli.session.events import Ended
from ngtcli.session.question import Question, Tasks
from ngtcli.system.json_form import Schema, dump_json

TASK = "extract"
_NO_FIELDS = "Give one as in --schema 'sender, due date, total float', or a JSON Schema."
_TYPES = {  # how a prompt calls them; a text is not named
    "int": "whole number", "float": "number", "bool": "true or false", "date": "date, YYYY-MM-DD",
    "quote": "quotation, word for word",
}  # fmt: skip
_MOST_PICKED = 64  # values among which a model chooses; guess


def form_for(tasks: Tasks) -> tuple[Tasks, AnswerForm]:
    """The form of a row, and the tasks with its schema compiled. Raises UsageError.

    A field of a concise schema may be null: texts do not say everything. A JSON Schema stands.
    """
    settings, preset = tasks.of[TASK]
    form = form_of(settings)
    if form is None or form.kind != "json" or not form.fields:
        what = "no schema says which fields are wanted" if form is None else "no object with fields"
        raise UsageError(what, _NO_FIELDS)
    name = "schema_multi" if form.multi else "schema"
    if not getattr(settings, name).lstrip().startswith("{"):
        own = form.schema["properties"]["items"]["items"] if form.multi else form.schema
        nullable = {n: _or_null(of) for n, of in own["properties"].items()}
        compiled: Any = {name: dump_json({**own, "properties": nullable}, None)}
        settings = replace(settings, **compiled)
        found = form_of(settings)
        assert found is not None
        form = found
    return Tasks({TASK: (settings, preset)}), form


def _or_null(of: Schema) -> Schema:
    if "enum" in of:
        return {**of, "enum": [*of["enum"], *([] if None in of["enum"] else [None])]}
    kinds = of["type"] if isinstance(of["type"], list) else [of["type"]]
    return {**of, "type": [*kinds, *([] if "null" in kinds else ["null"])]}


def listed(fields: Sequence[Field]) -> str:
    """The fields as a prompt lists them, one a line."""
    return "\n".join(f"- {_described(one)}" for one in fields)


def _described(one: Field) -> str:
    kind = " or ".join(map(str, one.choices)) if one.choices else _TYPES.get(one.type, "")
    kind = f"list of {kind}".removesuffix(" of ") if one.is_list else kind
    return (
        f"{one.name}{f' ({kind})' if kind else ''}{f': {one.description}' * bool(one.description)}"
    )


def asked(one: Field) -> str:
    """A field as it is asked for by itself, and as passages are searched for it."""
    name = one.name.replace("_", " ").replace("-", " ").strip()
    return f"{name}: {one.description}" if one.description else name


@dataclass(frozen=True, slots=True)
class Extraction:
    """The fields that are wanted of each document, by the settings of `tasks`."""

    tasks: Tasks
    form: AnswerForm

    @property
    def by_field(self) -> bool:
        """Whether each field is asked for by itself."""
        return self.tasks.of[TASK][0].ask_fields

    def question(
        self, text: str, documents: Sequence[Document], queries: Sequence[str] = (), **values: Any
    ) -> Question:
        """A question about documents; for each query some passages are read where not all fits."""
        own = self.tasks.question(TASK, text, loaded=Loaded(tuple(documents)), **values)
        return replace(own, queries=tuple(queries))

    def whole(self, documents: Sequence[Document], **values: Any) -> Question:
        """The question for all fields."""
        fields = self.form.fields
        return self.question(listed(fields), documents, [asked(one) for one in fields], **values)

    def begin(self, document: Document, parts: Sequence[Part] = ()) -> "Asking":
        """What is to be asked of a document; with `parts` of each of them."""
        if self.by_field:
            return _ByField(self, document)
        return _AtOnce(self, document, parts)


class Asking(ABC):
    """The questions about one document, and what came of them."""

    def __init__(self, extraction: Extraction, document: Document) -> None:
        self.extraction, self.document = extraction, document
        self.open: list[tuple[Any, Question]] = []  # not asked yet, with what it is about
        self.waiting = 0  # asked, and not answered
        self.failed = False

    def take(self) -> tuple[Any, Question]:
        """The next question, and what it is about."""
        self.waiting += 1
        return self.open.pop(0)

    def fail(self) -> None:
        """Ask nothing more of it."""
        self.failed, self.open = True, []

    def answered(self, about: Any, answer: Ended) -> bool:
        """Take an answer; whether all is answered. Raises NgtError for one that is no row."""
        self.waiting -= 1
        self._answered(about, answer)
        return not (self.open or self.waiting)

    @abstractmethod
    def _answered(self, about: Any, answer: Ended) -> None: ...

    @abstractmethod
    def rows(self) -> list[RowObject]:
        """The rows, once all is answered."""


class _AtOnce(Asking):
    """All fields of a document are one answer, or one of each part."""

    def __init__(self, extraction: Extraction, document: Document, parts: Sequence[Part]) -> None:
        super().__init__(extraction, document)
        self._read = "parts" if parts else "whole"
        self._excerpts = [part.excerpts for part in parts]
        texts = [part.documents for part in parts] or [(document,)]
        values = {"overflow": "error"} if parts else {}
        self.open = [(i, extraction.whole(text, **values)) for i, text in enumerate(texts)]
        self._found: dict[int, list[dict[str, Given]]] = {}

    def _answered(self, about: int, answer: Ended) -> None:
        if answer.finish_reason != "stop":
            what = f"its row is cut off ({answer.finish_reason})"
            raise NgtError(what, "Raise --max-tokens, or ask for less.")
        excerpts: Sequence[Excerpt] = [Excerpt(0, 0, len(self.document.text))]
        if self._excerpts:
            excerpts = self._excerpts[about]
        elif answer.selection is not None:
            excerpts, self._read = answer.selection.excerpts, "passages"
        form, tokens = self.extraction.form, answer.tokens
        try:
            every = objects(form, "".join(token.text for token in tokens))
        except (ValueError, IndexError, StopIteration, RecursionError):
            raise NgtError("its answer is no JSON", "Name another model (-m).") from None
        self._found[about] = [
            given_of(form.fields, found, tokens, self.document, excerpts) for found in every
        ]

    def rows(self) -> list[RowObject]:
        every = [row for i in sorted(self._found) for row in self._found[i]]
        if not self.extraction.form.multi:
            every = [merged(every)]
        else:  # an object that two parts tell counts once
            every = list({json.dumps([v.value for v in r.values()]): r for r in reversed(every)}
                         .values())[::-1]  # fmt: skip
        return [row_of(self.document.name, given, self._read) for given in every]


class _ByField(Asking):
    """Each field is asked for by itself: first its sentence, then the value in that."""

    def __init__(self, extraction: Extraction, document: Document) -> None:
        super().__init__(extraction, document)
        self._given: dict[str, Given] = {}
        self._read = "whole"
        for field in extraction.form.fields:
            self._begin(field)

    def _begin(self, field: Field) -> None:
        text = self.document.text
        behind, at = labelled(field.name, text), _likely(field, text)
        if field.type == "str" and behind:
            start, end = behind[0]
            self._take(field, Found(start, end, text[start:end]), None)
        elif field.type == "choice" and not at:
            self._choose(field, [Found(0, 0, one) for one in field.choices], text, None)
        elif len(at) == 1 and field.type != "quote":
            self._pick(field, at[0], None)
        elif at:
            body = "\n\n".join(text[start:end] for start, end in at)
            self._ask(field, (at, None), body, quote=True)
        else:
            self._given[field.name] = Given()

    def _ask(self, field: Field, about: Any, text: str, **values: Any) -> None:
        form = {"schema": "", "schema_multi": "", **values}
        document = replace(self.document, text=text)
        self.open.append(
            ((field, *about), self.extraction.question(asked(field), [document], **form))
        )

    def _pick(self, field: Field, at: tuple[int, int], p: float | None) -> None:
        """Take the value that stands in a sentence, or ask which of several."""
        found = _values(field, self.document.text, *at)
        if not found:
            self._given[field.name] = Given()
        elif len({str(one.value) for one in found}) == 1:
            self._take(field, found[0], p)
        else:
            self._choose(field, found, self.document.text[slice(*at)], p)

    def _choose(self, field: Field, found: Sequence[Found], text: str, p: float | None) -> None:
        """Ask which of these values a text means."""
        by_text: dict[str, Found] = {}
        for one in found[:_MOST_PICKED]:
            by_text.setdefault(str(one.value), one)
        self._ask(field, (by_text, p), text, choices=tuple(by_text))

    def _take(self, field: Field, one: Found, p: float | None) -> None:
        at = place_at(self.document, one.start, one.end) if one.end else None
        value = [one.value] if field.is_list else one.value
        self._given[field.name] = Given(value, p, [at] if field.is_list else at)

    def _answered(self, about: tuple[Field, Any, float | None], answer: Ended) -> None:
        field, among_which, before = about
        p, said = probability(answer.tokens), answer.text.strip()
        if answer.selection is not None:
            self._read = "passages"
        if isinstance(among_which, dict):
            p = p * before if p is not None and before is not None else p
            if (one := among_which.get(said)) is not None:
                self._take(field, one, p)
                return
        elif (at := _within(field, said, self.document.text, among_which)) is not None:
            self._pick(field, at, p)
            return
        self._given[field.name] = Given()

    def rows(self) -> list[RowObject]:
        given = {one.name: self._given[one.name] for one in self.extraction.form.fields}
        return [row_of(self.document.name, given, self._read)]


def _likely(field: Field, text: str) -> Sequence[tuple[int, int]]:
    """The sentences that may have a value of the field: behind its label, else of its type."""
    if behind := [at for at in labelled(field.name, text) if _values(field, text, *at)]:
        return behind
    free = field.type in ("str", "quote", "bool", "json")
    every = [at for at in pieces(text) if free or _values(field, text, *at)]
    named = about(field.name.replace("_", " "), text, every)
    return named or about(field.description, text, every) or every


def _values(field: Field, text: str, start: int, end: int) -> list[Found]:
    """The values of the field's type in a stretch of text, placed in the whole text."""
    piece = text[start:end]
    if field.type in ("quote", "bool"):
        return [Found(start, end, one) for one in _whole(field, piece)]
    found = stated(field.type, field.choices, piece)
    if field.type == "str":
        found = found or [Found(0, len(piece), piece)]
    return [Found(start + one.start, start + one.end, one.value) for one in found]


def _whole(field: Field, piece: str) -> Sequence[Any]:
    """What a stretch of text may come to as a whole."""
    return (piece,) if field.type == "quote" else (True, False)


def _within(
    field: Field, quoted: str, text: str, at: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Where a quotation stands, or its first paragraph that does; else the sentence around it.

    That is where the quotation has no value of the field.
    """
    for part in quoted.split("\n\n"):
        for start, end in at:
            if found := place_of(part, text, start, end):
                return found if _values(field, text, *found) else (start, end)
    return None
