"""JSON Schemas of values by their annotations: of dataclasses, mappings, sequences."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TYPES: dict[Any, str] = {
    str: "string", Path: "string", bool: "boolean", int: "integer", float: "number",
    type(None): "null",
}  # fmt: skip


def shape(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """The schema of an object with these keys and no others; `optional` ones may be missing."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def rows(items: Schema) -> Schema:
    """The schema of an array of `items`."""
    return {"type": "array", "items": items}


def by_number(values: Schema) -> Schema:
    """The schema of an object from whole numbers, as strings, to `values`."""
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": values,
    }


def by_name(values: Schema) -> Schema:
    """The schema of an object from any names to `values`."""
    return {"type": "object", "additionalProperties": values}


def of_type(hint: Any) -> Schema:
    """The schema of a value with this annotation. Raises TypeError for annotations without one.

    >>> of_type(tuple[str, ...])
    {'type': 'array', 'items': {'type': 'string'}}
    """
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is Any:
        return {}
    if is_dataclass(hint):
        return shape(of_dataclass(cast(type, hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return {"anyOf": [of_type(part) for part in get_args(hint)]}
    if get_origin(hint) in (tuple, list, Sequence):
        return rows(of_type(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        keys, values = get_args(hint)
        return by_number(of_type(values)) if keys is int else by_name(of_type(values))
    raise TypeError(f"no schema for {hint}")


def of_dataclass(kind: type, leave_out: Sequence[str] = ()) -> dict[str, Schema]:
    """The schemas of a dataclass's fields by name, without those in `leave_out`."""
    hints = get_type_hints(kind)
    return {f.name: of_type(hints[f.name]) for f in fields(kind) if f.name not in leave_out}
