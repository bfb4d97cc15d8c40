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
)
from ngtcli.decoding.grammar.process import Trials
from ngtcli.errors import UsageError
from ngtcli.system.json_form import Schema
from ngtcli.system.yaml_file import shown
from ngtcli.words import shortened

__all__ = ["ITEMS", "KEY", "KEYS", "QUOTE", "STRING", "WHOLE", "bounded", "json_text", "refused"]

# Bounds of values for which a schema sets none (guess: about a paragraph).
STRING = 300  # characters
QUOTE = 400  # characters
ITEMS = 10  # of a list
KEYS = 10  # of an object
KEY = 40  # characters of a key
# Bounds of the schemas within a schema, once references are replaced (guess: about a second).
_MAX_PARTS = 1000
_MAX_DEPTH = 40
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
# Keywords whose values are a schema, a list of schemas, and schemas by name.
_SINGLE = ("items", "additionalProperties")
_LISTED = (*_EITHER, "prefixItems")
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
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "$dynamicRef",
    "$recursiveRef",
    "formatMinimum",
    "formatMaximum",
    "formatExclusiveMinimum",
    "formatExclusiveMaximum",
}
# Those that restrict nothing. What else is in a schema is ignored, as JSON Schema says.
_ABOUT = {
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
}
_MIN_LIKENESS = 0.85  # of a word that is a mistyped keyword, as minLenght is one (guess)
_IN_OTHER_WORDS = "Leave it out, or express it differently."


def bounded(schema: Schema, trials: Trials | None = None) -> Schema:
    """Return a schema with bounds. Raises UsageError with the path of what no grammar can say."""
    if schema and not {"$ref", *_ABOUT, *_SAYS, *_UNSAID} & {*schema}:
        hint = 'Give a JSON Schema, as {"type": "object", "properties": …}.'
        raise refused("$", f"{shown(next(iter(schema)))} is not a keyword of one", hint)
    parts: list[tuple[str, Schema]] = []
    bounded_schema: Schema = _Bounding(schema, parts).of(schema, "$", ())
    try:
        _try_parts(bounded_schema, parts, trials or Trials())
    except _Crash as crash:
        raise UsageError(f"schema: {crash.error}", hint=crash.error.hint) from None
    return bounded_schema


class _Crash(Exception):
    """A part ends the process in which it is compiled."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(str(error))
        self.error = error


def _try_parts(schema: Schema, parts: list[tuple[str, Schema]], trials: Trials) -> None:
    """Raise UsageError with the path of a part that llguidance does not take.

    Parts without inner parts are tried even where the whole schema is taken: llguidance leaves out
    of it what no value satisfies.
    """
    holds_parts = {*_NAMED, *_LISTED, "items"}
    tried: set[str] = set()
    if not _fault(schema, trials):
        parts = [(path, part) for path, part in parts if not holds_parts & {*part}]
    for path, part in parts:
        text = json.dumps(part)
        if text in tried:
            continue
        tried.add(text)
        fault = _fault(part, trials)
        if fault:
            raise refused(_faulty_path(path, part, trials), explained(fault))


def refused(path: str, problem: str, hint: str = _IN_OTHER_WORDS) -> UsageError:
    """Make the error for the part of a schema at a path."""
    return UsageError(f"schema: {shortened(path)}: {problem}", hint=hint)


class _Bounding:
    """Bounds the parts of a schema.

    Args:
        root: The schema.
        parts: Gets each bounded part with its path, inner ones first.
    """

    def __init__(self, root: Schema, parts: list[tuple[str, Schema]]) -> None:
        self._root = root
        self._parts = parts
        self._count = 0

    def of(self, schema: Any, path: str, within: tuple[str, ...], depth: int = 0) -> Any:
        """Return a part with bounds.

        Args:
            schema: The part.
            path: Its path, for errors.
            within: The references that it is in.
            depth: Its level in the schema.
        """
        self._count += 1
        if self._count > _MAX_PARTS or depth > _MAX_DEPTH:
            raise refused(path, f"more than {_MAX_PARTS} parts, or {_MAX_DEPTH} levels")
        if schema is False:
            return False
        try:
            part: Schema = {} if schema is True else dict(schema)
            _check_keywords(part, path)
            joined = part.get("allOf", ())
            is_alone = not (_SAYS & {*part}) - {"allOf"}
            if len(joined) == 1 and isinstance(joined[0], dict) and is_alone:
                part |= part.pop("allOf")[0]
                _check_keywords(part, path)
            if name := part.pop("$ref", None):
                return self._referred(name, part, f"{path}.$ref", within, depth)
            part = {k: value for k, value in part.items() if k not in ("$defs", "definitions")}
            either = _EITHER & {*part}
            if either and len(_SAYS & {*part}) > 1 or "allOf" in part:
                raise refused(f"{path}.{min(either)}", "it cannot be combined with other keywords")

            of = partial(self.of, within=within, depth=depth + 1)
            for keyword in [name for name in _NAMED if name in part]:
                inner = part[keyword].items()
                part[keyword] = {name: of(v, f"{path}.{keyword}.{name}") for name, v in inner}
            for keyword in [name for name in _LISTED if name in part]:
                inner = enumerate(part[keyword])
                part[keyword] = [of(v, f"{path}.{keyword}[{i}]") for i, v in inner]
            for keyword in [name for name in _SINGLE if name in part]:
                part[keyword] = of(part[keyword], f"{path}.{keyword}")
            part = _restricted(part, path)
        except (TypeError, ValueError, AttributeError):
            raise refused(path, f"{shown(schema)} is not a schema", "Correct it.") from None
        self._parts.append((path, part))
        return part

    def _referred(
        self, reference: str, beside: Schema, path: str, within: tuple[str, ...], depth: int
    ) -> Any:
        """Return the bounded schema that a reference names.

        Args:
            reference: The value of `$ref`.
            beside: The keywords beside it, which must restrict nothing.
            path: Of the reference.
            within: The references that it is in.
            depth: Its level in the schema.
        """
        if reference == "#" or reference in within:
            raise refused(path, "endless recursion", "Write the levels out.")
        if _SAYS & {*beside}:
            raise refused(path, "it cannot be combined with other keywords")
        steps = _steps(reference)
        target: Any = self._root
        for step in steps or ():
            target = _member(target, step)
        if steps is None or not isinstance(target, dict | bool):
            raise refused(path, f"{shown(reference)} does not exist in this schema")
        if target is False:
            return False
        schema = beside if target is True else {**target, **beside}
        return self.of(schema, ".".join(("$", *steps)), (*within, reference), depth)


def _steps(reference: str) -> list[str] | None:
    """Split a JSON pointer after # into keys; None for a reference of another kind (RFC 6901)."""
    start, sign, pointer = reference.partition("#")
    if start or not sign or not pointer.startswith("/"):
        return None
    return [key.replace("~1", "/").replace("~0", "~") for key in unquote(pointer[1:]).split("/")]


def _member(holder: Any, step: str) -> Any:
    """Return the member that a step of a JSON pointer leads to; None for nothing."""
    if isinstance(holder, Mapping):
        return holder.get(step)
    if isinstance(holder, list) and step.isdecimal() and int(step) < len(holder):
        return holder[int(step)]
    return None


def _check_keywords(part: Schema, path: str) -> None:
    """Raise UsageError for keywords that restrict a value in a way that no grammar says."""
    if part.get("uniqueItems"):
        raise refused(f"{path}.uniqueItems", "this is not supported")
    for name in part:
        if name in _UNSAID:
            raise refused(f"{path}.{name}", "this is not supported")
    for name in sorted({*part} - _SAYS - _ABOUT - {"$ref", "uniqueItems"}):
        similar = get_close_matches(name[:40], sorted(_SAYS), n=1, cutoff=_MIN_LIKENESS)
        if similar:
            hint = f"Did you mean {similar[0]}?"
            raise refused(f"{path}.{name}", "not a keyword of JSON Schema", hint)


def types_of(schema: Schema) -> list[str]:
    """List the types of a part's values: those that it names, or that its keywords are for."""
    named = schema.get("type", [kind for kind, names in _OF_TYPE.items() if names & {*schema}])
    return named if isinstance(named, list) else [named]


def _restricted(part: Schema, path: str) -> Schema:
    """Return a part whose values are bounded, and whose numbers are exact."""

    def refuse(keyword: str, problem: str) -> NoReturn:
        raise refused(f"{path}.{keyword}", problem)

    if "type" in part:
        for kind in types_of(part):
            if kind not in _TYPES:
                refuse("type", f"unknown type {shown(kind)}")
    part = with_counts(part, refuse)
    if _EITHER & {*part}:
        return part
    if {"enum", "const"} & {*part}:
        return _listed(part, refuse)
    return _with_bounds(part, refuse)


def _listed(part: Schema, refuse: Refuse) -> Schema:
    """Return a part that lists its values, with those of them that its bounds allow."""
    if "enum" in part:
        values = [value for value in part["enum"] if in_range(value, part, refuse)]
        if not values:
            refuse("enum", "no value of it is allowed" if part["enum"] else "it has no value")
        part = {**part, "enum": values}
    if "const" in part and not in_range(part["const"], part, refuse):
        refuse("const", "its bounds do not allow it")
    return {key: value for key, value in part.items() if key not in NUMERIC}


def _refuse_nothing(keyword: str, problem: str) -> NoReturn:
    """Raise AssertionError: schemas that are made here have no faults."""
    raise AssertionError(f"{keyword}: {problem}")


def _with_bounds(part: Schema, refuse: Refuse = _refuse_nothing) -> Schema:
    """Return a part with the bounds that its types lack."""
    kinds = types_of(part)
    if not kinds:
        return dict(part) if _SAYS & {*part} else {**part, **_anything()}
    part = {**part, "type": part.get("type", kinds if len(kinds) > 1 else kinds[0])}
    if part.get("format") == "date" and "string" in kinds:
        if part.get("minLength", 0) > _DAY_LENGTH:
            refuse("minLength", f"a date has {_DAY_LENGTH} characters")
        if part.get("maxLength", 99) < _DAY_LENGTH:
            refuse("maxLength", f"a date has {_DAY_LENGTH} characters")
        part.setdefault("pattern", _DAY)
    elif "string" in kinds:
        if part.get("format") == "quote":
            max_length = QUOTE
        elif "pattern" in part:  # what it says of the length is not known
            max_length = 10 * STRING
        else:
            max_length = STRING
        part.setdefault("maxLength", max(max_length, part.get("minLength", 0)))
    if {"number", "integer"} & {*kinds}:
        part = with_range(part, "number" not in kinds, refuse)
    else:  # bounds of numbers say nothing of other values
        part = {key: value for key, value in part.items() if key not in NUMERIC}
    if "array" in kinds:
        first_items = part.get("prefixItems", ())
        part.setdefault("maxItems", max(ITEMS + len(first_items), part.get("minItems", 0)))
        part.setdefault("items", False if first_items else _anything(0))
    return _closed(part, refuse) if "object" in kinds else part


def _closed(part: Schema, refuse: Refuse) -> Schema:
    """Bound the keys of an object: to those that are named, or to a few of any name."""
    properties = part.get("properties", {})
    required = part.get("required", [])
    additional = part.get("additionalProperties", True)
    if properties or required or additional is False:
        unnamed = {key: _of_key(key, part, refuse) for key in required if key not in properties}
        return {**part, "properties": {**properties, **unnamed}, "additionalProperties": False}
    any_key = {f"^.{{1,{KEY}}}$": _anything(0) if additional is True else additional}
    part = dict(part)
    part.setdefault("maxProperties", max(KEYS, part.get("minProperties", 0)))
    part.setdefault("patternProperties", any_key)
    part["additionalProperties"] = False
    return part


def _of_key(key: str, part: Schema, refuse: Refuse) -> Any:
    """Return the schema of a key that is required, but not among the properties."""
    for pattern, schema in part.get("patternProperties", {}).items():
        if _may_backtrack(pattern):
            refuse("patternProperties", f"{shown(pattern)} beside a key that must be there")
        try:
            if re.search(pattern, key):
                return schema  # what else it matches llguidance joins with it
        except re.error:
            refuse("patternProperties", f"{shown(pattern)} beside a key that must be there")
    additional = part.get("additionalProperties", True)
    if additional is False:
        refuse("required", f"{shown(key)} is both required and forbidden")
    return _anything(0) if additional is True else additional


def _may_backtrack(pattern: str) -> bool:
    """Return whether Python could search for a pattern for very long: this errs on the safe side.

    Steps grow exponentially with the text only where a group repeats, and as a power of it with the
    number of repetitions.

    >>> _may_backtrack("^x-[a-z]+$"), _may_backtrack("^(a+)+$")
    (False, True)
    """
    return bool(re.search(r"\)[*+?{]", pattern)) or len(re.findall(r"[*+{]", pattern)) > 2


def _anything(levels: int = 1) -> Schema:
    """Make a schema of any value, with lists and objects in it down to so many levels."""
    plain = _with_bounds({"type": ["string", "number", "boolean", "null"]})
    if not levels:
        return plain
    return {"anyOf": [plain, *(_with_bounds({"type": kind}) for kind in ("array", "object"))]}


def json_text(schema: Schema) -> str:
    """Write a bounded schema as llguidance takes it, also after `%json` in Lark."""
    return json.dumps({**_for_llguidance(schema), "x-guidance": _OPTIONS})


def _for_llguidance(part: Any) -> Any:
    """Return a part as llguidance takes it, without keywords that restrict nothing.

    It gets a bound for the digits after the point, which validators would miscalculate.
    """
    if not isinstance(part, dict):
        return part
    restricting = {key: value for key, value in part.items() if key in _SAYS}
    for key, value in restricting.items():
        if key in _NAMED:
            restricting[key] = {name: _for_llguidance(inner) for name, inner in value.items()}
        elif key in _LISTED:
            restricting[key] = [_for_llguidance(inner) for inner in value]
        elif key in _SINGLE:
            restricting[key] = _for_llguidance(value)
    if "number" in types_of(restricting) and {"minimum", "maximum"} <= {*restricting}:
        multiple = digits(restricting["minimum"], restricting["maximum"])
        restricting = {"multipleOf": multiple, **restricting}
    return restricting


def _fault(schema: Any, trials: Trials) -> str:
    """Return what llguidance has against a schema; "" if it takes it. Raises _Crash."""
    if not isinstance(schema, dict):
        return ""
    text = json_text(schema).replace(QUOTES, '"title": ""')  # a quotation is like any other text
    try:
        return trials.error(str(library().LLMatcher.grammar_from_json_schema(text)))
    except UsageError as error:
        raise _Crash(error) from None


_TOO_LARGE = re.compile("fuel exhausted|too many|.*too (large|complex)|Parser|Unable to determine")


def explained(fault: str) -> str:
    """Say a fault that llguidance finds in a schema or a pattern in words of JSON Schema."""
    fault = fault.removeprefix("Unsatisfiable schema: ").removeprefix("lexer error: ")
    if _TOO_LARGE.match(fault):
        return "its grammar would be too large"
    if fault.startswith(("Regex is empty", "nothing matches")):
        return "no value satisfies it"
    if fault.startswith("Failed to generate regex"):
        return "its range is not supported"
    if fault.startswith("Unimplemented keys"):
        return "this is not supported"
    return fault


def _faulty_path(path: str, part: Schema, trials: Trials) -> str:
    """Return the path of the keyword without which llguidance takes a part, else the part's."""
    names = [name for name in part if name in _SAYS and name != "type"]
    if "type" in part:
        names.append("type")  # the last one: without it other keywords may mean nothing
    for name in names:
        without = {key: value for key, value in part.items() if key != name}
        if not _fault(without, trials):
            return f"{path}.{name}"
    return path
