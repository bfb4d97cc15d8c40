"""The form that an answer is to have, by its settings, and the grammar of it.

A form is a JSON Schema, a regular expression, one of some texts, or quotations of the documents.
What no grammar can say is refused here, before a model is loaded.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
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

_MOST_TEXT = 200_000  # characters of a schema; guess
_LONGEST = 2000  # characters of an answer by a regular expression; guess
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
    it is that of a string, which stands there without quotation marks.
    """

    kind: Literal["json", "regex", "choices", "quote"]
    schema: Schema
    fields: tuple[Field, ...] = ()
    multi: bool = False


def form_of(settings: Settings) -> AnswerForm | None:
    """The form that the settings ask for. Raises UsageError, with the place in a schema.

    Its grammar is compiled in another process first, which may crash over it: so it may come from
    a stranger.
    """
    given = [name for name in FORMS if settings.get(name)]
    if len(given) > 1:
        names = " and ".join(name.replace("_", "-") for name in given)
        raise UsageError(f"{names} together", hint="An answer has one form: give one of them.")
    return _form(given[0], settings.get(given[0])) if given else None


@lru_cache(maxsize=64)  # of what many lines of a batch may ask for
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
            own, multi = bounded(_schema_of(value), trials), name == "schema_multi"
            fields = tuple(_field(*one) for one in own.get("properties", {}).items())
            whole = own
            if multi:
                whole = bounded(shape({"items": {"type": "array", "items": own}}), trials)
            form = AnswerForm("json", whole, fields, multi)
    has_pattern = name == "regex" or '"pattern"' in str(value)
    _try(name, grammar_of(form, ["a"]), trials, words=_WORDS if has_pattern else "")
    return form


def _try(name: str, grammar: str, trials: Trials, **how: str) -> None:
    """Raise UsageError for a grammar that llguidance does not take."""
    try:
        fault = trials.error(grammar, **how)
    except UsageError as error:
        raise UsageError(f"{name}: {error}", hint=error.hint) from None
    if fault:
        raise UsageError(f"{name}: {explained(fault)}", hint="Make it simpler.")


def grammar_of(
    form: AnswerForm, texts: Sequence[str] = (), warn: Callable[[str], object] = lambda _: None
) -> str:
    """The grammar of a form, as llguidance reads it; quotations are of `texts`.

    Raises UsageError where they are wanted and the texts are empty; of long texts a part is left
    out, which is told to `warn`.
    """
    text = json_text(form.schema)
    match form.kind:
        case "json" if QUOTES in text:
            lark = json_with_quotes(form.schema, texts, warn)
        case "json":
            return str(library().LLMatcher.grammar_from_json_schema(text))
        case "regex":
            pattern = library().regex_to_lark(form.schema["pattern"], "d").replace("\n", r"\n")
            lark = f"start: ANSWER\nANSWER: /{pattern}/ & /(?s:.{{0,{_LONGEST}}})/"
        case "choices":
            lark = "start: " + " | ".join(json.dumps(one) for one in form.schema["enum"])
        case "quote":
            lark = plain_grammar(texts, warn)
    return str(library().LLMatcher.grammar_from_lark(lark))


def _schema_of(text: str) -> Schema:
    """The JSON Schema in a text, which is that or a concise one. Raises UsageError."""
    if len(text) > _MOST_TEXT:
        raise UsageError(f"schema: more than {_MOST_TEXT:,} characters", hint="Give a smaller one.")
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        if re.match(r"\s*[{\[]", text):
            raise UsageError(f"schema: not JSON ({error})", hint="Mend it.") from None
        return schema_of_concise(text)
    if not isinstance(data, dict):
        raise UsageError(f"schema: {shown(data)} is no JSON object", hint="Give a JSON Schema.")
    return data


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError where a key stands twice: one would be lost."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice in an object")
        found[key] = value
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shortened(text)} is too large")
    return value


def _field(name: str, schema: Any) -> Field:
    """A field by the bounded schema of a property."""
    own = schema if isinstance(schema, dict) else {}
    either = [one for one in own.get("anyOf", ()) if one != {"type": "null"}]
    inner = either[0] if len(either) == 1 < len(own["anyOf"]) else own  # as pydantic has it
    kinds = [kind for kind in types_of(inner) if kind != "null"]
    is_list = kinds == ["array"] and isinstance(inner["items"], dict)
    of = inner["items"] if is_list else inner
    choices = tuple(one for one in of.get("enum", ()) if one is not None)
    named = _TYPES.get("".join(kinds if not is_list else types_of(of)), "json")
    kind = "choice" if choices else of["format"] if of.get("format") in ("date", "quote") else named
    nullable = inner is not own or "null" in types_of(own) or None in own.get("enum", ())
    return Field(name, kind, str(own.get("description", "")), choices, nullable, is_list)
