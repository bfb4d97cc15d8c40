"""JSON Schemas that a grammar can say, with a bound for all that has none.

A model that goes on and on ends its answer all the same: strings, digits, lists and objects have a
length. What answers by the bounded schema is valid by the one that was given. References are
replaced by what they name; recursion is refused, and so is what llguidance does not know and what
no value satisfies, each with its path, as `$.properties.total.minimum`.
"""

import json
from functools import cache, partial
from typing import Any

from ngtcli.errors import UsageError, shortened
from ngtcli.grammar.matcher import library
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system.json_form import Schema
from ngtcli.system.yaml_file import shown

# Of values without a bound of their own: characters, items, keys; guesses, of about a paragraph.
STRING, QUOTE, ITEMS, KEYS, KEY = 300, 400, 10, 10, 40
WHOLE = 10**15 - 1  # of numbers; derived: below 2**53 every JSON reader keeps a whole number
_MOST_PARTS, _MOST_DEPTH = 1000, 40  # schemas in a schema, references replaced; guesses, 1 s
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Days of the years 1000 to 2999; llguidance's own format has a 29th of February in every year.
_DAY = (
    "^(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29)$"
)
QUOTES = '"format": "quote"'  # in the JSON of a part that has a quotation
_EITHER = {"anyOf", "oneOf", "allOf"}
_SINGLE, _LISTED = ("items", "additionalProperties"), (*_EITHER, "prefixItems")
_NAMED = ("properties", "patternProperties")
_OF_TYPE = {  # keywords by the type of the values that they speak of
    "object": {*_NAMED, "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_SAYS = {"type", "enum", "const", "not", "if", *_EITHER}.union(*_OF_TYPE.values())


def bounded(schema: Schema) -> Schema:
    """The schema with bounds. Raises UsageError with the path of what no grammar can say."""
    if schema and not {"$ref", "$defs", "title", "description", *_SAYS} & {*schema}:
        hint = 'Give a JSON Schema, as {"type": "object", "properties": …}.'
        raise refused("$", f"{shown(next(iter(schema)))} is no keyword of one", hint)
    parts: list[tuple[str, Schema]] = []
    whole: Schema = _Bounding(schema, parts).of(schema, "$", ())
    # Parts without others are tried even where the whole is well, from which llguidance leaves out
    # what no value satisfies.
    holds = {*_NAMED, *_LISTED, "items"}
    tried: set[str] = set()
    for path, part in parts if _fault(whole) else [p for p in parts if not holds & {*p[1]}]:
        if (text := json.dumps(part)) not in tried and (fault := _fault(part)):
            raise refused(_place(path, part), fault.removeprefix("Unsatisfiable schema: "))
        tried.add(text)
    return whole


def refused(path: str, what: str, hint: str = "Leave it out, or say it in another way.") -> Any:
    """The error for the part of a schema at a path."""
    return UsageError(f"schema: {shortened(path)}: {what}", hint)


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
            given: Schema = {} if schema is True else dict(schema)
            if len(given.get("allOf", ())) == 1 and not _SAYS - {"allOf"} & {*given}:
                given |= given.pop("allOf")[0]
            if name := given.pop("$ref", None):
                return self._referred(name, given, f"{path}.$ref", within, depth)
            own = {k: v for k, v in given.items() if k not in ("$defs", "definitions")}
            if (either := _EITHER & {*own}) and len(_SAYS & {*own}) > 1 or "allOf" in own:
                raise refused(f"{path}.{min(either)}", "no grammar joins it with other keywords")
            of = partial(self.of, within=within, depth=depth + 1)
            for k in [k for k in _NAMED if k in own]:
                own[k] = {name: of(v, f"{path}.{k}.{name}") for name, v in own[k].items()}
            for k in [k for k in _LISTED if k in own]:
                own[k] = [of(v, f"{path}.{k}[{i}]") for i, v in enumerate(own[k])]
            own |= {k: of(own[k], f"{path}.{k}") for k in _SINGLE if k in own}
            own = own if {*_EITHER, "enum", "const"} & {*own} else _with_bounds(own)
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
        start, place, key = (*name.split("/", 2), "", "")[:3]
        if start != "#" or place not in ("$defs", "definitions") or _SAYS & {*given}:
            raise refused(at, "it names no definition, or stands beside other keywords")
        target = self._root.get(place, {}).get(key, key)
        return self.of({**target, **given}, f"$.{place}.{key}", (*within, name), depth)


def types_of(schema: Schema) -> list[str]:
    """The types of a part's values: those that it names, or that its keywords speak of."""
    named = schema.get("type", [kind for kind, names in _OF_TYPE.items() if names & {*schema}])
    return named if isinstance(named, list) else [named]


def _with_bounds(own: Schema) -> Schema:
    """A part with the bounds that its types lack."""
    if not (kinds := types_of(own)):
        return {**own, **(_anything() if not _SAYS & {*own} else {})}
    own = {**own, "type": own.get("type", kinds if len(kinds) > 1 else kinds[0])}
    if own.get("format") == "date":
        own = {**own, "pattern": _DAY, **own}
    elif "string" in kinds:
        # What a pattern says of the length is not known.
        most = QUOTE if own.get("format") == "quote" else STRING * (10 if "pattern" in own else 1)
        own = {**own, "maxLength": max(most, own.get("minLength", 0)), **own}
    if {"number", "integer"} & {*kinds}:
        low = own.get("minimum", own.get("exclusiveMinimum"))
        high = own.get("maximum", own.get("exclusiveMaximum"))
        low, high = (
            min(-WHOLE, 10 * (high or 0)) if low is None else low,
            max(WHOLE, 10 * (low or 0)) if high is None else high,
        )
        own = {**own, "minimum": low, "maximum": high, **own}
    if "array" in kinds:
        first = own.get("prefixItems", ())
        most = max(ITEMS + len(first), own.get("minItems", 0))
        own = {**own, "maxItems": most, "items": not first and _anything(0), **own}
    return _closed(own) if "object" in kinds else own


def _closed(own: Schema) -> Schema:
    """An object's part with a bound for its keys: those that are named, or some of any name."""
    properties, needed = own.get("properties", {}), own.get("required", [])
    more = own.get("additionalProperties", True)
    if properties or needed or more is False:
        free = {k: _anything(0) for k in needed if k not in properties and more is not False}
        return {**own, "properties": {**properties, **free}, "additionalProperties": False}
    any_key = {f"^.{{1,{KEY}}}$": _anything(0) if more is True else more}
    most = max(KEYS, own.get("minProperties", 0))
    own = {**own, "maxProperties": most, "patternProperties": any_key, **own}
    return {**own, "additionalProperties": False}


def _anything(levels: int = 1) -> Schema:
    """A schema of any value, with lists and objects in it down to so many levels."""
    plain = _with_bounds({"type": ["string", "number", "boolean", "null"]})
    deep = [_with_bounds({"type": kind}) for kind in ("array", "object") if levels]
    return {"anyOf": [plain, *deep]} if levels else plain


def json_text(schema: Schema) -> str:
    """A bounded schema as llguidance takes it, also behind `%json` in Lark."""
    return json.dumps({**_with_digits(schema), "x-guidance": _OPTIONS})


def _with_digits(part: Any) -> Any:
    """A part with a bound for the digits behind the point, which validators would miscalculate."""
    if isinstance(part, list):
        return [_with_digits(one) for one in part]
    if not isinstance(part, dict):
        return part
    own = {k: v if k in ("enum", "const") else _with_digits(v) for k, v in part.items()}
    low, high = own.get("minimum"), own.get("maximum")
    if "number" in types_of(own) and isinstance(low, int | float) and isinstance(high, int | float):
        own = {"multipleOf": 1e-6 if high - low >= 1 else 1e-9, **own}
    return own


_bytes = cache(lambda: library().LLTokenizer("byte"))


@cache
def _words() -> Any:
    """The words of the built-in model, as an example; 60 ms to make (measured)."""
    return library().LLTokenizer((BUILTIN_PATH / "tokenizer.json").read_text("utf-8"))


def fault_of(grammar: str, by_words: bool = False) -> str:
    """What llguidance has against a grammar, in one line; "" for nothing.

    Some expressions are too large only where tokens are looked for, or behind a bracket; of these
    most for long tokens alone, which are tried `by_words`.
    """
    matcher = library().LLMatcher(_words() if by_words else _bytes(), grammar, log_level=0)
    matcher.compute_bitmask()
    if matcher.try_consume_tokens(matcher.compute_ff_tokens()):
        matcher.compute_bitmask()
    lines = matcher.get_error().partition("<state>")[0].splitlines() or [""]
    line = next((one for one in lines if one.startswith("error: ")), lines[0])
    return shortened(line.replace("NoExtensionBias", "nothing matches it").strip(), 160)


def _fault(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    text = json_text(schema).replace(QUOTES, '"title": ""')  # a quotation is like any other text
    return fault_of(library().LLMatcher.grammar_from_json_schema(text))


def _place(path: str, part: Schema) -> str:
    """The path of the keyword without which llguidance takes a part, else that of the part."""
    for name in sorted(part, key="type".__eq__):  # the order is kept but for the type, the last
        if not _fault({key: value for key, value in part.items() if key != name}):
            return f"{path}.{name}"
    return path
