"""The JSON of dataclasses that --json prints, and its JSON Schema (draft 2020-12).

The fields of a dataclass are the keys of an object, in the same order. `json_key` in the metadata
of a field changes its JSON; `json_property` adds a property as a key.

msgspec encodes what is sent and stored, and decodes what clients send. It does not encode what is
printed: it writes `NaN` as `null` and `1e-07` as `1e-7`, leaves DEL, C1 and format characters
unescaped, refuses lone surrogates, does not round floats and has no properties as keys. Without a
hook it makes no schema of a `Path` or a `Counter`. `ngt --help` would also have to import it.

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
    str: "string",
    Path: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The JSON of a field or property.

    Attributes:
        digits: Floats are rounded to this many decimals.
        hidden: The field is left out.
        flat: The keys of its value take the place of the field.
        omit: The field is left out if it is None.
        about: The description in the schema.
        choices: All values, if the type does not name them.
        schema: Makes the schema, if it does not follow from the type.
        form: Converts the value before it is encoded.
        after: The field that a property follows.
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


def json_key(**options: Any) -> dict[str, Key]:
    """Return the metadata of a field; `options` are those of `Key`."""
    return {_METADATA: Key(**options)}


HIDDEN = json_key(hidden=True)


def json_property(*, after: str, **options: Any) -> Callable[[Getter], Getter]:
    """Make a property a key, below `@property`.

    Args:
        after: The field that it follows.
        options: Those of `Key`.
    """

    def mark(getter: Getter) -> Getter:
        getter.__dict__[_METADATA] = Key(after=after, **options)
        return getter

    return mark


@cache
def _keys(dataclass_type: type) -> tuple[tuple[str, Key], ...]:
    """List the keys of a dataclass, fields and properties, in the order of its JSON."""
    keys: dict[str, Key] = {}
    for dataclass_field in fields(dataclass_type):
        keys[dataclass_field.name] = dataclass_field.metadata.get(_METADATA, Key())
    order = list(keys)
    for base in reversed(dataclass_type.__mro__):
        for name, member in vars(base).items():
            getter = getattr(member, "fget", None)
            key = getattr(getter, _METADATA, None)
            if key is not None:
                keys[name] = key
                order.insert(order.index(key.after) + 1, name)
    return tuple((name, keys[name]) for name in order if not keys[name].hidden)


def to_json(value: Any, digits: int | None = None) -> Any:
    """Convert a value to dicts, lists, strings and numbers.

    Dataclasses become dicts, sequences lists, and paths strings. Keys become strings; integers
    among them are sorted before.

    Args:
        value: The value.
        digits: Floats are rounded to this many decimals; None: they are not rounded.
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
    if digits is not None and isinstance(value, float):
        return round(value, digits)
    return value


def dump_json(value: Any, indent: int | None = 2) -> str:
    """Encode a value as JSON; control characters are escaped, other text is not.

    Args:
        value: The value; see `to_json`.
        indent: Spaces for each level; None: all on one line.

    Raises:
        TypeError: JSON has no such value.
    """
    text = json.dumps(to_json(value), ensure_ascii=False, indent=indent)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a dataclass and their values, converted."""
    for name, key in _keys(cast(type, type(value))):
        field_value = getattr(value, name)
        if field_value is None and (key.omit or key.flat):
            continue
        if key.form is not None:
            field_value = key.form(field_value)
        converted = to_json(field_value, key.digits)
        if key.flat:
            yield from converted.items()
        else:
            yield name, converted


def schema_of(hint: Any) -> Schema:
    """Return the schema of values with this annotation, as `to_json` converts them.

    >>> schema_of(tuple[str, ...])
    {'type': 'array', 'items': {'type': 'string'}}

    Raises:
        TypeError: The annotation is not supported.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is Any:
        return {}
    if is_dataclass(hint):
        return _object_schema(hint)
    if origin is Literal:
        if len(arguments) == 1:
            return {"const": arguments[0]}
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part) for part in arguments]}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is Counter:
        return _mapping_schema(arguments[0], int)
    if origin in (Mapping, dict):
        return _mapping_schema(*arguments)
    raise TypeError(f"no schema for {hint}")


def _mapping_schema(key_type: Any, value_type: Any) -> Schema:
    schema: Schema = {"type": "object"}
    if key_type is int:
        schema["propertyNames"] = {"pattern": "^[0-9]+$"}
    schema["additionalProperties"] = schema_of(value_type)
    return schema


def shape(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Return the schema of an object with these keys and no others.

    Args:
        properties: The schemas of its values.
        optional: The keys that may be missing.
    """
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _object_schema(dataclass_type: Any) -> Schema:
    properties: dict[str, Schema] = {}
    optional: list[str] = []
    hints = get_type_hints(dataclass_type)
    for name, key in _keys(dataclass_type):
        hint = hints.get(name)
        if hint is None:  # It is a property.
            hint = get_type_hints(getattr(dataclass_type, name).fget)["return"]
        may_lack = (key.flat or key.omit) and type(None) in get_args(hint)
        if may_lack:
            hint = reduce(or_, (part for part in get_args(hint) if part is not type(None)))

        schema: Schema
        if key.choices:
            schema = {"enum": list(key.choices)}
        elif key.schema is not None:
            schema = key.schema()
        else:
            schema = schema_of(hint)
        if key.about:
            schema = {**schema, "description": key.about}

        if not key.flat:
            properties[name] = schema
            if may_lack:
                optional.append(name)
            continue
        properties |= schema["properties"]
        for inner_name in schema["properties"]:
            if may_lack or inner_name not in schema["required"]:
                optional.append(inner_name)
    return shape(properties, optional)
