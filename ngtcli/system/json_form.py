"""The JSON of dataclasses, as --json prints it, and its JSON Schema (draft 2020-12).

The fields of a dataclass are the keys of its object, in their order. Where the JSON differs from
the field, `json_key` says how in the field's metadata; `json_property` makes a property a key.

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
from functools import cache, reduce
from operator import or_
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
Getter = TypeVar("Getter", bound=Callable[..., Any])
_METADATA = "json"
_TYPES: dict[Any, str] = {
    str: "string", Path: "string", bool: "boolean", int: "integer", float: "number",
    type(None): "null",
}  # fmt: skip


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
    computed: dict[str, list[tuple[str, Key]]] = {}
    for name in dir(kind):
        getter = getattr(getattr(kind, name, None), "fget", None)
        if (how := getattr(getter, _METADATA, None)) is not None:
            computed.setdefault(how.after, []).append((name, how))
    found: list[tuple[str, Key]] = []
    for one in fields(kind):
        found.append((one.name, one.metadata.get(_METADATA, Key())))
        behind = [one.name]
        while behind:  # a property may follow another one
            more = computed.pop(behind.pop(), [])
            found += more
            behind += [name for name, _ in more]
    assert not computed, f"{kind.__name__}: properties behind no field: {computed}"
    return tuple((name, how) for name, how in found if not how.hidden)


def to_json(value: Any, digits: int | None = None) -> Any:
    """`value` as JSON has it: dataclasses as objects, sequences as lists, whole numbers as keys
    ascending and as strings, paths as strings; floats are rounded to `digits`, if given.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_pairs(value))
    if isinstance(value, Mapping):
        numbered = all(isinstance(key, int) for key in value)
        keys = sorted(value) if numbered else value
        return {str(key): to_json(value[key], digits) for key in keys}
    if isinstance(value, list | tuple):
        return [to_json(item, digits) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return round(value, digits) if digits is not None and isinstance(value, float) else value


def from_json(hint: Any, value: Any) -> Any:
    """What `asdict` made this JSON of: a value of the type that an annotation names.

    Raises ValueError for anything else; keys that it does not have are left out.

    >>> from_json(tuple[int, ...], [1, 2])
    (1, 2)
    """
    import msgspec  # here: what is only printed does without

    return msgspec.convert(value, hint)


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
    if kind is Counter:
        return _mapping(inner[0], int)
    if kind in (Mapping, dict):
        return _mapping(*inner)
    raise TypeError(f"no schema for {hint}")


def shape(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """The schema of an object with these keys and no others; `optional` ones may be missing."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _mapping(keys: Any, values: Any) -> Schema:
    names = {"propertyNames": {"pattern": "^[0-9]+$"}} if keys is int else {}
    return {"type": "object", **names, "additionalProperties": schema_of(values)}


def _object(kind: Any) -> Schema:
    properties: dict[str, Schema] = {}
    optional: list[str] = []
    hints = get_type_hints(kind)
    for name, how in _keys(kind):
        hint = hints.get(name) or get_type_hints(getattr(kind, name).fget)["return"]
        leaves_out = (how.flat or how.omit) and type(None) in get_args(hint)
        if leaves_out:
            hint = reduce(or_, (part for part in get_args(hint) if part is not type(None)))
        own = _of_key(how, hint)
        inner = own["properties"] if how.flat else {name: own}
        properties |= inner
        optional += [key for key in inner if leaves_out or how.flat and key not in own["required"]]
    return shape(properties, optional)


def _of_key(how: Key, hint: Any) -> Schema:
    about = {"description": how.about} if how.about else {}
    if how.choices:
        return {"enum": list(how.choices), **about}
    return {**(how.schema() if how.schema is not None else schema_of(hint)), **about}
