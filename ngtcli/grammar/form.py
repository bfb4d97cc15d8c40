"""The form that an answer is to have, by its settings, and the grammar of it.

A form is a JSON Schema, a regular expression, one of some texts, or quotations of the documents.
What no grammar can say is refused here, before a model is loaded.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.grammar.bounds import bounded, fault_of, json_text
from ngtcli.grammar.concise import schema_of_concise
from ngtcli.grammar.matcher import library
from ngtcli.grammar.quotations import has_quotes, json_with_quotes, plain_grammar
from ngtcli.system.json_form import Schema, shape

FORMS = ("schema", "schema_multi", "regex", "choices", "quote")  # settings, of which one is given
Kind = Literal["json", "regex", "choices", "quote"]
FieldType = Literal["str", "int", "float", "bool", "date", "choice", "quote", "json"]
_MOST_TEXT = 200_000  # characters of a schema; guess
_LONGEST = 2000  # characters of an answer by a regular expression; guess
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
    return _form(given[0], getattr(settings, given[0])) if given else None


@lru_cache(maxsize=64)  # of what many lines of a batch may ask for
def _form(name: str, value: Any) -> AnswerForm:
    if name in ("schema", "schema_multi"):
        own, multi = _schema_of(value), name == "schema_multi"
        whole = _listed(own) if multi else own
        form = AnswerForm("json", bounded(whole), multi=multi)
        own = form.schema["properties"]["items"]["items"] if multi else form.schema
        form = replace(form, fields=tuple(_fields(own)))
    elif name == "regex":
        form = AnswerForm("regex", {"type": "string", "pattern": value})
    elif name == "choices":
        form = AnswerForm("choices", {"enum": list(value)})
    else:
        return AnswerForm("quote", {"type": "string", "format": "quote"})
    if fault := fault_of(grammar_of(form, ["a"])):
        what = f"schema: {fault}" if form.kind == "json" else f"{name}: {fault}"
        raise UsageError(what, "Make it simpler.")
    return form


def grammar_of(
    form: AnswerForm, texts: Sequence[str] = (), warn: Callable[[str], object] = lambda _: None
) -> str:
    """The grammar of a form, as llguidance reads it; quotations are of `texts`.

    Raises UsageError where they are wanted and the texts are empty; of long texts a part is left
    out, which is told to `warn`.
    """
    own = library().LLMatcher
    match form.kind:
        case "json" if has_quotes(form.schema):
            lark = json_with_quotes(form.schema, texts, warn)
        case "json":
            return str(own.grammar_from_json_schema(json_text(form.schema)))
        case "regex":
            pattern = library().regex_to_lark(form.schema["pattern"], "d").replace("\n", r"\n")
            lark = f"start: ANSWER\nANSWER: /{pattern}/ & /(?s:.{{0,{_LONGEST}}})/"
        case "choices":
            lark = "start: " + " | ".join(json.dumps(one) for one in form.schema["enum"])
        case "quote":
            lark = plain_grammar(texts, warn)
    return str(own.grammar_from_lark(lark))


def _listed(schema: Schema) -> Schema:
    """{"items": [...]} of what a schema says, whose references go on to name its own parts."""
    text = json.dumps(schema)
    text = re.sub(r'("\$ref": "#)(?=[/"])', r"\1/properties/items/items", text)
    return shape({"items": {"type": "array", "items": json.loads(text)}})


def _schema_of(text: str) -> Schema:
    """The JSON Schema in a text, which is that or a concise one. Raises UsageError."""
    if len(text) > _MOST_TEXT:
        raise UsageError(f"schema: more than {_MOST_TEXT:,} characters", "Give a smaller one.")
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
    either = schema.get("anyOf", [])
    others = [one for one in either if one != {"type": "null"}]
    if len(others) == 1 < len(either) and isinstance(others[0], dict):
        own = _field(name, others[0])
        return replace(own, description=about or own.description, nullable=True)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    nullable = "null" in kinds or None in schema.get("enum", ())
    kinds = [kind for kind in kinds if kind != "null"]
    if kinds == ["array"] and isinstance(schema["items"], dict):
        inner = _field(name, schema["items"])
        kind: FieldType = "json" if inner.is_list else inner.type
        return Field(name, kind, about, inner.choices, nullable, is_list=True)
    choices = tuple(one for one in schema.get("enum", ()) if one is not None)
    kind = "choice" if choices else _OF_JSON.get(kinds[0], "json") if len(kinds) == 1 else "json"
    form = schema.get("format")
    if kind == "str" and form in ("date", "quote"):
        kind = form
    return Field(name, kind, about, choices, nullable)
