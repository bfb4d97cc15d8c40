"""The form that an answer is to have, by its settings, and the grammar of it.

A form is a JSON Schema, a regular expression, one of some texts, or quotations of the documents.
What no grammar can say is refused here, before a model is loaded.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from ngtcli.config import FORMS, Settings
from ngtcli.decoding.grammar.bounds import QUOTES, bounded, explained, json_text, types_of
from ngtcli.decoding.grammar.concise import QUOTATION, schema_of_concise
from ngtcli.decoding.grammar.matcher import library
from ngtcli.decoding.grammar.process import Trials
from ngtcli.decoding.grammar.quotations import json_with_quotes, plain_grammar
from ngtcli.errors import UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.system.json_form import Schema, shape
from ngtcli.system.yaml_file import shown
from ngtcli.words import shortened

_MOST_TEXT = 200_000  # characters of a schema (guess)
_LONGEST = 2000  # characters of an answer by a regular expression (guess)
# Answers by a pattern are tried with the tokens of the built-in model, an example of words.
_WORDS = str(BUILTIN_PATH / "tokenizer.json")
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an answer's object: str, int, float, bool, date, choice, quote, or else json."""

    name: str
    type: str = "str"
    description: str = ""
    choices: tuple[Any, ...] = ()
    nullable: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer. With `multi` it is {"items": [...]}, a list of what `fields` say.

    `schema` is what the answer is valid by, its keys in the order asked for; of what is not "json"
    it is that of a string, which is there without quotation marks.
    """

    kind: Literal["json", "regex", "choices", "quote"]
    schema: Schema
    fields: tuple[Field, ...] = ()
    multi: bool = False


def form_of(settings: Settings) -> AnswerForm | None:
    """Return the form that the settings ask for. Raises UsageError, with the path in a schema.

    Its grammar is compiled in another process first, which may crash over it: so it may come from
    a stranger.
    """
    names = [name for name in FORMS if settings.get(name)]
    if len(names) > 1:
        flags = " and ".join(name.replace("_", "-") for name in names)
        raise UsageError(f"{flags} are mutually exclusive", hint="Give one of them.")
    return _form(names[0], settings.get(names[0])) if names else None


@lru_cache(maxsize=64)  # the lines of a batch may ask for many forms
def _form(name: str, value: Any) -> AnswerForm:
    trials = Trials()
    match name:
        case "regex":
            form = AnswerForm("regex", {"type": "string", "pattern": value})
            _try(name, value, trials, form="regex")
        case "choices":
            form = AnswerForm("choices", {"enum": list(value)})
        case "quote":
            form = AnswerForm("quote", QUOTATION)
        case _:
            schema = bounded(_schema_of(value), trials)
            properties = schema.get("properties", {})
            fields = tuple(_field(name, part) for name, part in properties.items())
            multi = name == "schema_multi"
            if multi:
                schema = bounded(shape({"items": {"type": "array", "items": schema}}), trials)
            form = AnswerForm("json", schema, fields, multi)
    has_pattern = name == "regex" or '"pattern"' in str(value)
    _try(name, grammar_of(form, ["a"]), trials, words=_WORDS if has_pattern else "")
    return form


def _try(name: str, grammar: str, trials: Trials, **options: str) -> None:
    """Raise UsageError for a grammar that llguidance does not take.

    Args:
        name: The setting that the grammar comes from.
        grammar: The grammar.
        trials: The process that tries it.
        options: As for `Trials.error`.
    """
    try:
        fault = trials.error(grammar, **options)
    except UsageError as error:
        raise UsageError(f"{name}: {error}", hint=error.hint) from None
    if fault:
        raise UsageError(f"{name}: {explained(fault)}", hint="Correct it, or make it simpler.")


def grammar_of(form: AnswerForm, texts: Sequence[str] = ()) -> str:
    """Write the grammar of a form, as llguidance reads it.

    A warning says where a part of long texts is left out.

    Args:
        form: The form.
        texts: Of the documents that quotations are from.

    Raises:
        UsageError: The form has quotations, and the texts are empty.
    """
    text = json_text(form.schema)
    match form.kind:
        case "json" if QUOTES in text:
            lark = json_with_quotes(form.schema, texts)
        case "json":
            return str(library().LLMatcher.grammar_from_json_schema(text))
        case "regex":
            pattern = library().regex_to_lark(form.schema["pattern"], "d").replace("\n", r"\n")
            lark = f"start: ANSWER\nANSWER: /{pattern}/ & /(?s:.{{0,{_LONGEST}}})/"
        case "choices":
            lark = "start: " + " | ".join(json.dumps(choice) for choice in form.schema["enum"])
        case "quote":
            lark = plain_grammar(texts)
    return str(library().LLMatcher.grammar_from_lark(lark))


def _schema_of(text: str) -> Schema:
    """Read a JSON Schema, or a concise schema. Raises UsageError."""
    if len(text) > _MOST_TEXT:
        raise UsageError(f"schema: more than {_MOST_TEXT:,} characters", hint="Give a smaller one.")
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        if re.match(r"\s*[{\[]", text):
            raise UsageError(f"schema: not JSON ({error})", hint="Correct it.") from None
        return schema_of_concise(text)
    if not isinstance(data, dict):
        raise UsageError(f"schema: {shown(data)} is not a JSON object", hint="Give a JSON Schema.")
    return data


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. Raises ValueError for a duplicate key, as one value would be lost."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"duplicate key {shown(key)} in an object")
        members[key] = value
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shortened(text)} is too large")
    return value


def _field(name: str, schema: Any) -> Field:
    """Describe the field of a property by its bounded schema."""
    if not isinstance(schema, dict):
        schema = {}
    inner = schema
    alternatives = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    if len(alternatives) == 1 < len(schema["anyOf"]):  # pydantic writes optional fields so
        inner = alternatives[0]
    kinds = [kind for kind in types_of(inner) if kind != "null"]
    is_list = kinds == ["array"] and isinstance(inner["items"], dict)
    item = inner["items"] if is_list else inner
    choices = tuple(choice for choice in item.get("enum", ()) if choice is not None)
    if choices:
        kind = "choice"
    elif item.get("format") in ("date", "quote"):
        kind = item["format"]
    else:
        kind = _TYPES.get("".join(types_of(item) if is_list else kinds), "json")
    nullable = inner is not schema or "null" in types_of(schema) or None in schema.get("enum", ())
    return Field(name, kind, str(schema.get("description", "")), choices, nullable, is_list)
