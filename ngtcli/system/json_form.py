"""The JSON of dataclasses, as --json prints it, and its JSON Schema (draft 2020-12).

The fields of a dataclass are the keys of its object, in their order. Where the JSON differs from
the field, `json_key` says how in the field's metadata; `json_property` makes a property a key.

What is sent, stored and taken from clients is msgspec's. What is printed is not: msgspec writes
`NaN` as `null` and `1e-07` as `1e-7`, leaves DEL, C1 and format characters unescaped, refuses half
a surrogate pair, and knows neither properties as keys nor rounded floats; without a hook it makes
no schema of a `Path` or a `Counter`. The printed classes would also have to import it for
`ngt --help`.

>>> from dataclasses import field
>>> @dataclass(frozen=True)
... class Reading:
...     seconds: float = field(metadata=json_key(digits=2, about="wall clock"))
...     by_size: Mapping[int, int] = field(default_factory=dict)
>>> to_json(Reading(0.125, {8: 1}))
{'seconds': 0.12, 'by_size': {'8': 1}}
>>> schema_of(Reading)["properties"]["seconds"]
{'type': 'number', 'description': 'wall clock'}
"""

import json
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial, reduce
from operator import or_
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
Getter = TypeVar("Getter", bound=Callable[..., Any])
_METADATA = "json"
_TYPES: dict[Any, str] = {
    str: "string",
    Path: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """How a field or property stands in JSON.

    Floats in it are rounded to `digits`. `hidden`: not at all. `flat`: its own keys stand in its
    place. `omit`: left out where it is None. `about` describes it; `choices` are its values, or
    `schema` makes its schema, where the type does not say all. `form` makes the JSON of its value.
    A property stands behind the field `after`.
    """

    digits: int | None = None
    hidden: bool = False
    flat: bool = False
    omit: bool = False
    about: str = ""
    choices: tuple[str | None, ...] = ()
    schema: Callable[[], Schema] | None = None
    form: Callable[[Any], Any] | None = None
    after: str = ""


def json_key(**how: Any) -> dict[str, Key]:
    """The metadata of a field, of the arguments of `Key`."""
    return {_METADATA: Key(**how)}


HIDDEN = json_key(hidden=True)


def json_property(*, after: str, **how: Any) -> Callable[[Getter], Getter]:
    """Below `@property`: the property is a key, behind that of the field `after`."""

    def mark(getter: Getter) -> Getter:
        getter.__dict__[_METADATA] = Key(after=after, **how)
        return getter

    return mark


@cache
def _keys(kind: type) -> tuple[tuple[str, Key], ...]:
    """The names of a dataclass's fields and properties that are keys, in the order of JSON."""
    found: dict[str, Key] = {one.name: one.metadata.get(_METADATA, Key()) for one in fields(kind)}
    order = list(found)
    for name, member in [pair for one in reversed(kind.__mro__) for pair in vars(one).items()]:
        if (how := getattr(getattr(member, "fget", None), _METADATA, None)) is not None:
            found[name] = how
            order.insert(order.index(how.after) + 1, name)
    return tuple((name, found[name]) for name in order if not found[name].hidden)


def to_json(value: Any, digits: int | None = None) -> Any:
    """`value` as JSON has it: dataclasses as objects, sequences as lists, whole numbers as keys
    ascending and as strings, paths as strings; floats are rounded to `digits`, if given.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_pairs(value))
    if isinstance(value, Mapping):
        keys = sorted(value) if all(isinstance(key, int) for key in value) else value
        return {str(key): to_json(value[key], digits) for key in keys}
    if isinstance(value, list | tuple):
        return [to_json(item, digits) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return round(value, digits) if digits is not None and isinstance(value, float) else value


def dump_json(value: Any, indent: int | None = 2) -> str:
    """The JSON of `value` as text: other than ASCII is kept, control characters are escaped.

    With `indent` None it is one line. Raises TypeError for what JSON does not have.
    """
    text = json.dumps(to_json(value), ensure_ascii=False, indent=indent)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    for name, how in _keys(cast(type, type(value))):
        part = getattr(value, name)
        if part is None and (how.omit or how.flat):
            continue
        part = to_json(how.form(part) if how.form is not None else part, how.digits)
        yield from part.items() if how.flat else ((name, part),)


def schema_of(hint: Any) -> Schema:
    """The schema of what `to_json` gives for values of this annotation. Raises TypeError.

    >>> schema_of(tuple[str, ...])
    {'type': 'array', 'items': {'type': 'string'}}
    """
    kind, inner = get_origin(hint), get_args(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is Any:
        return {}
    if is_dataclass(hint):
        return _object(hint)
    if kind is Literal:
        return {"const": inner[0]} if len(inner) == 1 else {"enum": list(inner)}
    if kind in (Union, types.UnionType):
        return {"anyOf": [schema_of(part) for part in inner]}
    if kind in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(inner[0])}
    if kind in (Mapping, dict, Counter):
        keys, values = (*inner, int)[:2]  # of a Counter the values have no name
        names = {"propertyNames": {"pattern": "^[0-9]+$"}} if keys is int else {}
        return {"type": "object", **names, "additionalProperties": schema_of(values)}
    raise TypeError(f"no schema for {hint}")


def shape(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """The schema of an object with these keys and no others; `optional` ones may be missing."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _object(kind: Any) -> Schema:
    properties: dict[str, Schema] = {}
    optional: list[str] = []
    hints = get_type_hints(kind)
    for name, how in _keys(kind):
        hint = hints.get(name) or get_type_hints(getattr(kind, name).fget)["return"]
        may_lack = (how.flat or how.omit) and type(None) in get_args(hint)
        if may_lack:
            hint = reduce(or_, (part for part in get_args(hint) if part is not type(None)))
        make = how.schema or partial(schema_of, hint)
        own: Schema = {"enum": list(how.choices)} if how.choices else make()
        own = {**own, "description": how.about} if how.about else own
        inner = own["properties"] if how.flat else {name: own}
        properties |= inner
        optional += [key for key in inner if may_lack or how.flat and key not in own["required"]]
    return shape(properties, optional)
