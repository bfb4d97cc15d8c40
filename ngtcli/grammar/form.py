"""The form that an answer is to have, by its settings, and the grammar of it.

A form is a JSON Schema, a regular expression, one of some texts, or quotations of the documents.
What no grammar can say is refused here, before a model is loaded.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.grammar.concise import schema_of_concise
from ngtcli.system.json_form import Schema, shape

FORMS = ("schema", "schema_multi", "regex", "choices", "quote")  # settings, of which one is given
Kind = Literal["json", "regex", "choices", "quote"]
FieldType = Literal["str", "int", "float", "bool", "date", "choice", "quote", "json"]
_OF_JSON: dict[str, FieldType] = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an answer's object; the type "json" is any other value, an object above all."""

    name: str
    type: FieldType = "str"
    description: str = ""
    choices: tuple[Any, ...] = ()
    nullable: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer. With `multi` it is {"items": [...]}, a list of what `fields` say.

    `schema` is what the answer is valid by, its keys in the order asked for; of a regular
    expression, of choices and of quotations it is that of a string, which stands there without
    quotation marks.
    """

    kind: Kind
    schema: Schema
    fields: tuple[Field, ...] = ()
    multi: bool = False


def form_of(settings: Settings) -> AnswerForm | None:
    """The form that the settings ask for. Raises UsageError, with the place in a schema."""
    given = [name for name in FORMS if getattr(settings, name)]
    if len(given) > 1:
        names = " and ".join(name.replace("_", "-") for name in given)
        raise UsageError(f"{names} together", "An answer has one form: give one of them.")
    match given:
        case ["schema" | "schema_multi" as name]:
            own, multi = _schema_of(getattr(settings, name)), name == "schema_multi"
            whole = shape({"items": {"type": "array", "items": own}}) if multi else own
            return AnswerForm("json", whole, tuple(_fields(own)), multi)
        case ["regex"]:
            return AnswerForm("regex", {"type": "string", "pattern": settings.regex})
        case ["choices"]:
            return AnswerForm("choices", {"enum": list(settings.choices)})
        case ["quote"]:
            return AnswerForm("quote", {"type": "string", "format": "quote"})
    return None


def grammar_of(form: AnswerForm, texts: Sequence[str] = ()) -> str:
    """The grammar of a form, as llguidance reads it; quotations are of `texts`."""
    raise NotImplementedError


def _schema_of(text: str) -> Schema:
    """The JSON Schema in a text, which is that or a concise one. Raises UsageError."""
    if text.lstrip()[:1] not in ("{", "["):
        return schema_of_concise(text)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"schema: not JSON ({error})", "Mend it.") from None
    if not isinstance(data, dict):
        raise UsageError("schema: no JSON object", "Give a JSON Schema.")
    return data


def _fields(schema: Schema) -> Iterator[Field]:
    """The fields of an object's schema, as far as they are told by their properties."""
    for name, own in schema.get("properties", {}).items():
        if isinstance(own, dict):
            yield _field(name, own)


def _field(name: str, schema: Schema) -> Field:
    about = str(schema.get("description", ""))
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else [*kinds]
    nullable = "null" in kinds or None in schema.get("enum", ())
    kinds = [kind for kind in kinds if kind != "null"]
    if kinds == ["array"] and isinstance(schema.get("items"), dict):
        inner = _field(name, schema["items"])
        return Field(name, inner.type, about, inner.choices, nullable, not inner.is_list)
    choices = tuple(one for one in schema.get("enum", ()) if one is not None)
    if choices:
        return Field(name, "choice", about, choices, nullable)
    form = schema.get("format")
    if kinds == ["string"] and form in ("date", "quote"):
        return Field(name, "date" if form == "date" else "quote", about, (), nullable)
    kind = _OF_JSON.get(kinds[0], "json") if len(kinds) == 1 else "json"
    return Field(name, kind, about, (), nullable)
