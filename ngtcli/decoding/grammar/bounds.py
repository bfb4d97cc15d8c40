"""JSON Schemas that a grammar can say, with a bound for all that has none.

A model that goes on and on ends its answer all the same: strings, digits, lists and objects have a
length. What answers by the bounded schema is valid by the one that was given. References are
replaced by what they name; recursion is refused, and so is what no grammar can say and what no
value satisfies, each with its path, as `$.properties.total.minimum`.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

from ngtcli.decoding.grammar.matcher import library
from ngtcli.decoding.grammar.numbers import (
    NUMERIC,
    WHOLE,
    Refuse,
    digits,
    in_range,
    with_counts,
    with_range,
)  # fmt: skip
from ngtcli.decoding.grammar.process import Trials
from ngtcli.errors import UsageError
from ngtcli.system.json_form import Schema
from ngtcli.system.yaml_file import shown
from ngtcli.words import shortened

__all__ = ["ITEMS", "KEY", "KEYS", "QUOTE", "STRING", "WHOLE", "bounded", "json_text", "refused"]

# Of values without a bound of their own: characters, items, keys; guesses, of about a paragraph.
STRING, QUOTE, ITEMS, KEYS, KEY = 300, 400, 10, 10, 40
_MOST_PARTS, _MOST_DEPTH = 1000, 40  # schemas in a schema, references replaced; guesses, 1 s
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Days of the years 1000 to 2999; llguidance's own format has a 29th of February in every year.
_DAY = (
    "^(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29)$"
)
_DAY_LENGTH = 10  # of YYYY-MM-DD
QUOTES = '"format": "quote"'  # in the JSON of a part that has a quotation
_EITHER = {"anyOf", "oneOf", "allOf"}
_SINGLE, _LISTED = ("items", "additionalProperties"), (*_EITHER, "prefixItems")
_NAMED = ("properties", "patternProperties")
_OF_TYPE = {  # keywords by the type of the values that they speak of
    "object": {*_NAMED, "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {*NUMERIC},
}
_SAYS = {"type", "enum", "const", *_EITHER}.union(*_OF_TYPE.values())
_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
# Keywords of JSON Schema that restrict a value in a way that no grammar says.
_UNSAID = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "additionalItems", "$dynamicRef", "$recursiveRef", "formatMinimum",
    "formatMaximum", "formatExclusiveMinimum", "formatExclusiveMaximum",
}  # fmt: skip
# Those that restrict nothing. What else stands in a schema is ignored, as JSON Schema says.
_ABOUT = {
    "$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description",
    "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding",
    "contentMediaType",
}  # fmt: skip
_ALIKE = 0.85  # likeness from which a word is a mistyped keyword: minLenght is one; guess
_IN_OTHER_WORDS = "Leave it out, or say it in another way."


def bounded(schema: Schema, trials: Trials | None = None) -> Schema:
    """The schema with bounds. Raises UsageError with the path of what no grammar can say."""
    if schema and not {"$ref", *_ABOUT, *_SAYS, *_UNSAID} & {*schema}:
        hint = 'Give a JSON Schema, as {"type": "object", "properties": …}.'
        raise refused("$", f"{shown(next(iter(schema)))} is no keyword of one", hint)
    parts: list[tuple[str, Schema]] = []
    whole: Schema = _Bounding(schema, parts).of(schema, "$", ())
    try:
        _try_parts(whole, parts, trials or Trials())
    except _Crash as crash:
        raise UsageError(f"schema: {crash.error}", hint=crash.error.hint) from None
    return whole


class _Crash(Exception):
    """A part ends the process in which it is compiled."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(str(error))
        self.error = error


def _try_parts(whole: Schema, parts: list[tuple[str, Schema]], trials: Trials) -> None:
    """Raise UsageError with the path of a part that llguidance does not take.

    Parts without others are tried even where the whole is well, from which llguidance leaves out
    what no value satisfies.
    """
    holds = {*_NAMED, *_LISTED, "items"}
    fault = partial(_fault, trials=trials)
    tried: set[str] = set()
    if not fault(whole):
        parts = [(path, part) for path, part in parts if not holds & {*part}]
    for path, part in parts:
        text = json.dumps(part)
        if text not in tried and (why := fault(part)):
            raise refused(_place(path, part, trials), explained(why))
        tried.add(text)


def refused(path: str, what: str, hint: str = _IN_OTHER_WORDS) -> UsageError:
    """The error for the part of a schema at a path."""
    return UsageError(f"schema: {shortened(path)}: {what}", hint=hint)


class _Bounding:
    """Bounds the parts of the schema `root`; `parts` gets each with its path, inner ones first."""

    def __init__(self, root: Schema, parts: list[tuple[str, Schema]]) -> None:
        self._root, self._parts, self._count = root, parts, 0

    def of(self, schema: Any, path: str, within: tuple[str, ...], depth: int = 0) -> Any:
        """A part with bounds; `within` are the references that it stands in."""
        self._count += 1
        if self._count > _MOST_PARTS or depth > _MOST_DEPTH:
            raise refused(path, f"more than {_MOST_PARTS} parts, or {_MOST_DEPTH} levels")
        if schema is False:
            return False
        try:
            own: Schema = {} if schema is True else dict(schema)
            _check_keywords(own, path)
            joined = own.get("allOf", ())
            if (
                len(joined) == 1
                and isinstance(joined[0], dict)
                and not (_SAYS & {*own}) - {"allOf"}
            ):
                own |= own.pop("allOf")[0]
                _check_keywords(own, path)
            if name := own.pop("$ref", None):
                return self._referred(name, own, f"{path}.$ref", within, depth)
            own = {k: v for k, v in own.items() if k not in ("$defs", "definitions")}
            if (either := _EITHER & {*own}) and len(_SAYS & {*own}) > 1 or "allOf" in own:
                raise refused(f"{path}.{min(either)}", "no grammar joins it with other keywords")
            of = partial(self.of, within=within, depth=depth + 1)
            for k in [k for k in _NAMED if k in own]:
                own[k] = {name: of(v, f"{path}.{k}.{name}") for name, v in own[k].items()}
            for k in [k for k in _LISTED if k in own]:
                own[k] = [of(v, f"{path}.{k}[{i}]") for i, v in enumerate(own[k])]
            own |= {k: of(own[k], f"{path}.{k}") for k in _SINGLE if k in own}
            own = _restricted(own, path)
        except (TypeError, ValueError, AttributeError):
            raise refused(path, f"{shown(schema)} is no schema", "Mend it.") from None
        self._parts.append((path, own))
        return own

    def _referred(
        self, name: str, given: Schema, at: str, within: tuple[str, ...], depth: int
    ) -> Any:
        """What a reference to a definition names, in its place."""
        if name == "#" or name in within:
            raise refused(at, "recursion, which has no end", "Write the levels out.")
        if _SAYS & {*given}:
            raise refused(at, "it stands beside other keywords")
        steps = _steps(name)
        target: Any = self._root
        for step in steps or ():
            target = _member(target, step)
        if steps is None or not isinstance(target, dict | bool):
            raise refused(at, f"{shown(name)} names no schema in this one")
        if target is False:
            return False
        whole = given if target is True else {**target, **given}
        return self.of(whole, ".".join(("$", *steps)), (*within, name), depth)


def _steps(reference: str) -> list[str] | None:
    """The keys of a JSON pointer behind #; None for a reference of another kind (RFC 6901)."""
    start, sign, pointer = reference.partition("#")
    if start or not sign or not pointer.startswith("/"):
        return None
    return [one.replace("~1", "/").replace("~0", "~") for one in unquote(pointer[1:]).split("/")]


def _member(holder: Any, step: str) -> Any:
    """What a step of a JSON pointer leads to; None for nothing."""
    if isinstance(holder, Mapping):
        return holder.get(step)
    if isinstance(holder, list) and step.isdecimal() and int(step) < len(holder):
        return holder[int(step)]
    return None


def _check_keywords(own: Schema, path: str) -> None:
    """Raise UsageError for keywords that restrict a value in a way that no grammar says."""
    if own.get("uniqueItems"):
        raise refused(f"{path}.uniqueItems", "no grammar can say it")
    if name := next((name for name in own if name in _UNSAID), None):
        raise refused(f"{path}.{name}", "no grammar can say it")
    for name in sorted({*own} - _SAYS - _ABOUT - {"$ref", "uniqueItems"}):
        meant = get_close_matches(name[:40], sorted(_SAYS), n=1, cutoff=_ALIKE)
        if meant:
            hint = f"Did you mean {meant[0]}?"
            raise refused(f"{path}.{name}", "no keyword of JSON Schema", hint)


def types_of(schema: Schema) -> list[str]:
    """The types of a part's values: those that it names, or that its keywords speak of."""
    named = schema.get("type", [kind for kind, names in _OF_TYPE.items() if names & {*schema}])
    return named if isinstance(named, list) else [named]


def _restricted(own: Schema, path: str) -> Schema:
    """A part whose values are bounded, and whose numbers are exact."""

    def refuse(keyword: str, what: str) -> NoReturn:
        raise refused(f"{path}.{keyword}", what)

    for kind in types_of(own) if "type" in own else ():
        if kind not in _TYPES:
            refuse("type", f"unknown type {shown(kind)}")
    own = with_counts(own, refuse)
    if _EITHER & {*own}:
        return own
    if {"enum", "const"} & {*own}:
        return _listed(own, refuse)
    return _with_bounds(own, refuse)


def _listed(own: Schema, refuse: Refuse) -> Schema:
    """A part with the values that its bounds allow of those that it lists."""
    if "enum" in own:
        values = [one for one in own["enum"] if in_range(one, own, refuse)]
        if not values:
            refuse("enum", "no value of it is allowed" if own["enum"] else "it has no value")
        own = {**own, "enum": values}
    if "const" in own and not in_range(own["const"], own, refuse):
        refuse("const", "its bounds do not allow it")
    return {key: value for key, value in own.items() if key not in NUMERIC}


def _nobody(keyword: str, what: str) -> NoReturn:
    raise AssertionError(f"{keyword}: {what}")  # of schemas that are made here


def _with_bounds(own: Schema, refuse: Refuse = _nobody) -> Schema:
    """A part with the bounds that its types lack."""
    if not (kinds := types_of(own)):
        return {**own, **(_anything() if not _SAYS & {*own} else {})}
    own = {**own, "type": own.get("type", kinds if len(kinds) > 1 else kinds[0])}
    if own.get("format") == "date" and "string" in kinds:
        if own.get("minLength", 0) > _DAY_LENGTH or own.get("maxLength", 99) < _DAY_LENGTH:
            name = "minLength" if own.get("minLength", 0) > _DAY_LENGTH else "maxLength"
            refuse(name, f"a date has {_DAY_LENGTH} characters")
        own = {**own, "pattern": _DAY, **own}
    elif "string" in kinds:
        # What a pattern says of the length is not known.
        most = QUOTE if own.get("format") == "quote" else STRING * (10 if "pattern" in own else 1)
        own = {**own, "maxLength": max(most, own.get("minLength", 0)), **own}
    if {"number", "integer"} & {*kinds}:
        own = with_range(own, "number" not in kinds, refuse)
    else:  # they say nothing of other values
        own = {key: value for key, value in own.items() if key not in NUMERIC}
    if "array" in kinds:
        first = own.get("prefixItems", ())
        most = max(ITEMS + len(first), own.get("minItems", 0))
        own = {**own, "maxItems": most, "items": not first and _anything(0), **own}
    return _closed(own, refuse) if "object" in kinds else own


def _closed(own: Schema, refuse: Refuse) -> Schema:
    """An object's part with a bound for its keys: those that are named, or some of any name."""
    properties, needed = own.get("properties", {}), own.get("required", [])
    more = own.get("additionalProperties", True)
    if properties or needed or more is False:
        free = {key: _of_key(key, own, refuse) for key in needed if key not in properties}
        return {**own, "properties": {**properties, **free}, "additionalProperties": False}
    any_key = {f"^.{{1,{KEY}}}$": _anything(0) if more is True else more}
    most = max(KEYS, own.get("minProperties", 0))
    own = {**own, "maxProperties": most, "patternProperties": any_key, **own}
    return {**own, "additionalProperties": False}


def _of_key(key: str, own: Schema, refuse: Refuse) -> Any:
    """The schema of a key that is required, but not among the properties."""
    for pattern, schema in own.get("patternProperties", {}).items():
        if _may_backtrack(pattern):
            refuse("patternProperties", f"{shown(pattern)} beside a key that must be there")
        try:
            if re.search(pattern, key):
                return schema  # what else it matches llguidance joins with it
        except re.error:
            refuse("patternProperties", f"{shown(pattern)} beside a key that must be there")
    more = own.get("additionalProperties", True)
    if more is False:
        refuse("required", f"{shown(key)} must be there, and may not")
    return _anything(0) if more is True else more


def _may_backtrack(pattern: str) -> bool:
    """Return whether Python could search for a pattern for very long: this errs on the safe side.

    Steps grow exponentially with the text only where a group repeats, and as a power of it with the
    number of repetitions.

    >>> _may_backtrack("^x-[a-z]+$"), _may_backtrack("^(a+)+$")
    (False, True)
    """
    return bool(re.search(r"\)[*+?{]", pattern)) or len(re.findall(r"[*+{]", pattern)) > 2


def _anything(levels: int = 1) -> Schema:
    """A schema of any value, with lists and objects in it down to so many levels."""
    plain = _with_bounds({"type": ["string", "number", "boolean", "null"]})
    deep = [_with_bounds({"type": kind}) for kind in ("array", "object") if levels]
    return {"anyOf": [plain, *deep]} if levels else plain


def json_text(schema: Schema) -> str:
    """A bounded schema as llguidance takes it, also behind `%json` in Lark."""
    return json.dumps({**_said(schema), "x-guidance": _OPTIONS})


def _said(part: Any) -> Any:
    """A part as llguidance takes it, without keywords that restrict nothing.

    It gets a bound for the digits behind the point, which validators would miscalculate.
    """
    if not isinstance(part, dict):
        return part
    own = {key: value for key, value in part.items() if key in _SAYS}
    for key in [key for key in _NAMED if key in own]:
        own[key] = {name: _said(value) for name, value in own[key].items()}
    for key in [key for key in _LISTED if key in own]:
        own[key] = [_said(one) for one in own[key]]
    for key in [key for key in _SINGLE if key in own]:
        own[key] = _said(own[key])
    if "number" in types_of(own) and {"minimum", "maximum"} <= {*own}:
        own = {"multipleOf": digits(own["minimum"], own["maximum"]), **own}
    return own


def _fault(schema: Any, trials: Trials) -> str:
    if not isinstance(schema, dict):
        return ""
    text = json_text(schema).replace(QUOTES, '"title": ""')  # a quotation is like any other text
    try:
        return trials.error(str(library().LLMatcher.grammar_from_json_schema(text)))
    except UsageError as error:
        raise _Crash(error) from None


_TOO_LARGE = re.compile("fuel exhausted|too many|.*too (large|complex)|Parser|Unable to determine")


def explained(fault: str) -> str:
    """What llguidance has against a schema or a pattern, in words of JSON Schema."""
    fault = fault.removeprefix("Unsatisfiable schema: ").removeprefix("lexer error: ")
    if re.match(
        r"fuel exhausted|too many|.*too large|.*too complex|Parser|Unable to determine", fault
    ):
        return "its grammar would be too large"
    if fault.startswith(("Regex is empty", "nothing matches")):
        return "no value satisfies it"
    if fault.startswith("Failed to generate regex"):
        return "no grammar can say its range"
    if fault.startswith("Unimplemented keys"):
        return "no grammar can say it"
    return fault


def _place(path: str, part: Schema, trials: Trials) -> str:
    """The path of the keyword without which llguidance takes a part, else that of the part."""
    for name in sorted(part, key="type".__eq__):  # the order is kept but for the type, the last
        if name in _SAYS and not _fault({k: v for k, v in part.items() if k != name}, trials):
            return f"{path}.{name}"
    return path
