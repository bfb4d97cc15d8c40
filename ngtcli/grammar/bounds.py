"""JSON Schemas that a grammar can say, with a bound for all that has none.

A model that goes on and on ends its answer all the same: strings, digits, lists and objects have a
length. What answers by the bounded schema is valid by the one that was given. References are
replaced by what they name; recursion is refused, and so is what llguidance does not know and what
no value satisfies, each with its path, as `$.properties.total.minimum`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from ngtcli.config import KINDS
from ngtcli.errors import UsageError, shortened
from ngtcli.grammar.matcher import library
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system.json_form import Schema
from ngtcli.system.yaml_file import shown

# Of values without a bound of their own: characters, items, keys; guesses, of about a paragraph.
STRING, QUOTE, ITEMS, KEYS, KEY = 300, 400, 20, 20, 40
WHOLE = 10**15 - 1  # of numbers; derived: below 2**53 every JSON reader keeps a whole number
DECIMALS, NARROW = 6, 9  # digits behind the point, the latter in a range of less than 1; guesses
_LEVELS = 2  # of lists and objects in a value of which nothing is said; guess
_MOST_PARTS, _MOST_DEPTH = 2000, 40  # schemas in a schema, references replaced; guesses, 1 s
_TRIED = 4  # tokens of an answer; guess
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Days of the years 1000 to 2999; llguidance's own format has a 29th of February in every year.
_DAY = (
    "^(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29)$"
)
_NAMED, _LISTED = ("properties", "patternProperties"), ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_EITHER = ("anyOf", "oneOf", "allOf")
_OF_TYPE = {  # keywords by the type of the values that they speak of
    "object": (*_NAMED, "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_VALUES: dict[type, tuple[str, ...]] = {  # what keywords have, by its type
    dict: _NAMED,
    list: (*_LISTED, "required", "enum"),
    int: ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    float: _OF_TYPE["number"],
    str: ("pattern", "format"),
}
_ABOUT = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
_SAYS = {"type", "enum", "const", "not", "if", *_EITHER, *(k for v in _OF_TYPE.values() for k in v)}


def bounded(schema: Schema) -> Schema:
    """The schema with bounds. Raises UsageError with the path of what no grammar can say."""
    if not ({"$ref", *_SAYS} & {*schema} or {*schema} <= {*_ABOUT, "$defs", "definitions"}):
        what = f"{shown(next(iter(schema)))} is no keyword of a JSON Schema"
        raise refused("$", what, 'Give one, as {"type": "object", "properties": …}.')
    bounding = _Bounding(schema)
    whole: Schema = bounding.of(schema, "$", ())
    _check(whole, bounding.parts)
    return whole


def refused(path: str, what: str, hint: str = "Leave it out, or say it in another way.") -> Any:
    """The error for the part of a schema at a path."""
    return UsageError(f"schema: {shortened(path)}: {what}", hint)


class _Bounding:
    """Bounds the parts of the schema `root`; `parts` has each with its path, inner ones first."""

    def __init__(self, root: Schema) -> None:
        self._root, self._count = root, 0
        self.parts: list[tuple[str, Schema]] = []

    def of(self, schema: Any, path: str, within: tuple[str, ...], depth: int = 0) -> Any:
        """A part with bounds; `within` are the references that it stands in."""
        self._count += 1
        if self._count > _MOST_PARTS or depth > _MOST_DEPTH:
            raise refused(path, f"more than {_MOST_PARTS} parts, or {_MOST_DEPTH} levels")
        if schema is False:
            return False
        if schema is not True and not isinstance(schema, dict):
            raise refused(path, f"{shown(schema)} is no schema", "Give an object.")
        given: Schema = {} if schema is True else dict(schema)
        if isinstance(alone := given.get("allOf"), list) and len(alone) == 1:
            if isinstance(alone[0], dict) and not {*alone[0]} & _SAYS & {*given}:
                given = {**{k: v for k, v in given.items() if k != "allOf"}, **alone[0]}
        if "$ref" in given:
            return self._referred(given, path, within, depth)
        own = {k: v for k, v in given.items() if k not in ("$defs", "definitions")}
        _check_values(own, path)
        either = [name for name in _EITHER if name in own]
        if either and len(_SAYS & {*own}) > 1 or "allOf" in own:
            raise refused(f"{path}.{either[-1]}", "beside other keywords, which no grammar joins")
        own |= self._children(own, path, within, depth + 1)
        own = own if {*either, "enum", "const"} & {*own} else _with_bounds(own)
        self.parts.append((path, own))
        return own

    def _children(
        self, own: Schema, path: str, within: tuple[str, ...], depth: int
    ) -> Iterator[tuple[str, Any]]:
        """The keywords whose values hold schemas, with these bounded."""
        for name, value in [*own.items()]:
            at = f"{path}.{name}"
            if name in _NAMED:
                yield name, {k: self.of(v, f"{at}.{k}", within, depth) for k, v in value.items()}
            elif name in _LISTED:
                each = enumerate(value)
                yield name, [self.of(v, f"{at}[{i}]", within, depth) for i, v in each]
            elif name in _SINGLE:
                yield name, self.of(value, at, within, depth)

    def _referred(self, given: Schema, path: str, within: tuple[str, ...], depth: int) -> Any:
        """What a reference names, in its place. Raises UsageError for recursion."""
        name, at = given.pop("$ref"), f"{path}.$ref"
        if name == "#" or name in within:
            raise refused(at, "recursion, which has no end", "Write the levels out.")
        keys = unquote(name).split("/") if isinstance(name, str) else [""]
        keys = [key.replace("~1", "/").replace("~0", "~") for key in keys]
        target: Any = self._root if keys[0] == "#" else None
        for key in keys[1:]:
            target = target.get(key) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise refused(at, "what it names is not in the schema")
        if _SAYS & {*given}:
            raise refused(at, "it stands beside other keywords")
        return self.of({**target, **given}, ".".join(["$", *keys[1:]]), (*within, name), depth)


def _check_values(own: Schema, path: str) -> None:
    """Raise UsageError for a keyword whose value is of another type than it has."""
    kinds = own.get("type", [])
    if not all(isinstance(one, str) for one in (kinds if isinstance(kinds, list) else [kinds])):
        raise refused(f"{path}.type", f"{shown(kinds)} is no type")
    for kind, names in _VALUES.items():
        for name in {*names} & {*own}:
            numbers = (int, float) if kind is float else kind
            if not isinstance(own[name], numbers) or isinstance(own[name], bool):
                words = KINDS.get(kind, "an object")
                raise refused(f"{path}.{name}", f"{shown(own[name])} is not {words}")


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types of a part's values: those that it names, or that its keywords speak of."""
    named = schema.get("type", [k for k, names in _OF_TYPE.items() if {*names} & {*schema}])
    return named if isinstance(named, list) else [named]


def _with_bounds(own: Schema) -> Schema:
    """A part with the bounds that its types lack."""
    if not (kinds := _types(own)):
        return {**own, **(_anything(_LEVELS) if not _SAYS & {*own} else {})}
    own = {**own, "type": own.get("type", kinds if len(kinds) > 1 else kinds[0])}
    if "string" in kinds and own.get("format") != "date":
        most = QUOTE if own.get("format") == "quote" else STRING
        # What a pattern says of the length is not known.
        own = _at_most(own, "maxLength", "minLength", 10 * most if "pattern" in own else most)
    if {"number", "integer"} & {*kinds}:
        low, high = _ends(own)
        own = own if low is not None else {**own, "minimum": min(-WHOLE, 10 * (high or 0))}
        own = own if high is not None else {**own, "maximum": max(WHOLE, 10 * (low or 0))}
    if "array" in kinds:
        first = own.get("prefixItems", ())
        own = {**own, "items": own.get("items", not first and _anything(_LEVELS - 1))}
        own = _at_most(own, "maxItems", "minItems", ITEMS + len(first))
    return _closed(own) if "object" in kinds else own


def _at_most(own: Schema, name: str, least: str, most: int) -> Schema:
    return {**own, name: own.get(name, max(most, own.get(least, 0)))}


def _ends(own: Schema) -> tuple[Any, Any]:
    """The least and the greatest number of a part, None where it does not say."""
    low = own.get("minimum", own.get("exclusiveMinimum"))
    return low, own.get("maximum", own.get("exclusiveMaximum"))


def _closed(own: Schema) -> Schema:
    """An object's part with a bound for its keys: those that are named, or some of any name."""
    properties, needed = own.get("properties", {}), own.get("required", [])
    more, names = own.get("additionalProperties", True), {*properties, *needed}
    if names or more is False:
        free = {k: _anything(1) for k in needed if k not in properties and more is not False}
        return {**own, "properties": {**properties, **free}, "additionalProperties": False}
    own = _at_most(own, "maxProperties", "minProperties", KEYS)
    value = _anything(_LEVELS - 1) if more is True else more
    keys = own.get("patternProperties", {f'^[^"\\\\]{{1,{KEY}}}$': value})
    return {**own, "patternProperties": keys, "additionalProperties": False}


def _anything(levels: int) -> Schema:
    """A schema of any value, with lists and objects in it down to so many levels."""
    plain = _with_bounds({"type": ["string", "number", "boolean", "null"]})
    if not levels:
        return plain
    inner = _anything(levels - 1)
    listed = {"type": "array", "items": inner, "maxItems": ITEMS}
    return {"anyOf": [plain, listed, _closed({"type": "object", "additionalProperties": inner})]}


def sharpened(schema: Any) -> Any:
    """A bounded schema as the grammar has it: with days that there are, and digits that end.

    Quotations are any string in it.
    """
    if not isinstance(schema, dict):
        return schema
    own = {k: sharpened(v) if k in _SINGLE else v for k, v in schema.items()}
    own |= {k: {n: sharpened(v) for n, v in own[k].items()} for k in _NAMED if k in own}
    own |= {k: [sharpened(v) for v in own[k]] for k in _LISTED if k in own}
    if own.get("format") in ("quote", "date"):
        if own.pop("format") == "date":
            own.setdefault("pattern", _DAY)
    if "number" in _types(own) and "multipleOf" not in own and None not in (ends := _ends(own)):
        own["multipleOf"] = float(f"1e-{DECIMALS if ends[1] - ends[0] >= 1 else NARROW}")
    return own


def json_text(schema: Schema) -> str:
    """A bounded schema as the grammar has it, in a text that `%json` of Lark takes as well."""
    return json.dumps({**sharpened(schema), "x-guidance": _OPTIONS})


@cache
def _tokens() -> Any:
    """Tokens to try a grammar with, before those of its model are known."""
    return library().LLTokenizer(str(BUILTIN_PATH / "tokenizer.json"))


def fault_of(grammar: str) -> str:
    """What llguidance has against a grammar, in one line; "" for nothing.

    A few tokens are tried as well: some expressions are too large only then.
    """
    own = library()
    fault = own.LLMatcher.validate_grammar(grammar)
    if not fault:
        matcher = own.LLMatcher(_tokens(), grammar, log_level=0)
        for _ in range(_TRIED):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_stopped() or not mask or not matcher.consume_token(mask.bit_length() - 1):
                break
        fault = matcher.get_error()
    lines = fault.partition("<state>")[0].splitlines() or [""]
    line = next((one for one in lines if one.startswith("error: ")), lines[0])
    return shortened(line.replace("NoExtensionBias", "nothing matches it").strip(), 160)


def _fault(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    return fault_of(library().LLMatcher.grammar_from_json_schema(json_text(schema)))


def _check(whole: Any, parts: list[tuple[str, Schema]]) -> None:
    """Raise UsageError for the innermost part that llguidance refuses.

    Parts without others in them are tried even where the whole is well: what no value satisfies
    may be left out of that.
    """
    holds = {*_NAMED, *_LISTED, "items"}
    suspects = parts if _fault(whole) else [one for one in parts if not holds & {*one[1]}]
    tried: set[str] = set()
    for path, part in suspects:
        text = json.dumps(part)
        if text not in tried and (fault := _fault(part)):
            raise refused(_place(path, part), _words(fault))
        tried.add(text)


def _place(path: str, part: Schema) -> str:
    """The path of the keyword without which llguidance takes a part, else that of the part."""
    for name in sorted(part, key="type".__eq__):  # the order is kept but for the type, the last
        if not _fault({key: value for key, value in part.items() if key != name}):
            return f"{path}.{name}"
    return path


def _words(fault: str) -> str:
    """llguidance's words in ours.

    >>> _words('Unimplemented keys: ["not"]')
    'no grammar says this (not)'
    """
    found = re.fullmatch(r"Unimplemented keys: \[(.*)\]", fault)
    quoted = f"no grammar says this ({found[1]})".replace('"', "") if found else fault
    return quoted.removeprefix("Unsatisfiable schema: ")
