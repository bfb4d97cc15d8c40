"""The concise form of a schema: `name, age int, bio: a short bio`, as the tool `llm` has it.

Fields are divided by commas, or stand one a line where the text has several lines. A field is a
name, then its type, a string where none is given, and behind a colon what it means. A type is one
of TYPES or a choice, as `paid|open`; `?` behind it lets the value be null, `[]` makes a list of it.
"""

import re
from typing import Any

from ngtcli.errors import UsageError, nearest
from ngtcli.system.json_form import Schema, shape
from ngtcli.system.yaml_file import shown

TYPES: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "quote": {"type": "string", "format": "quote"},
}
_HINT = "Write fields as in: name, age int, due date?, state paid|open, tags str[], bio: a text."
_SUFFIXES = re.compile(r"(.*?)((?:\?|\[\])*)", re.DOTALL)


def schema_of_concise(text: str) -> Schema:
    """The JSON Schema of a concise one. Raises UsageError, which names the field.

    >>> schema_of_concise("name, age int?: in years")["properties"]["age"]
    {'type': ['integer', 'null'], 'description': 'in years'}
    """
    parts = text.split("\n" if "\n" in text.strip() else ",")
    properties: dict[str, Schema] = {}
    for part in parts:
        if part.strip():
            name, own = _field(part.strip())
            if name in properties:
                raise UsageError(f"schema: the field {shown(name)} stands there twice", _HINT)
            properties[name] = own
    if not properties:
        raise UsageError("schema: no field", _HINT)
    return shape(properties)


def _field(text: str) -> tuple[str, Schema]:
    """The name and the schema of a field."""
    head, _, about = text.partition(":")
    words = head.split()
    if not words or len(words) > 2:
        what = "a field without a name" if not words else f"{shown(text)} is no field"
        raise UsageError(f"schema: {what}", _HINT)
    name, marks = _suffixes(words[0])
    kind, more = _suffixes(words[1]) if len(words) > 1 else ("str", "")
    if not name:
        raise UsageError(f"schema: {shown(text)} is no field", _HINT)
    own = _typed(name, kind, marks + more)
    return name, {**own, "description": about.strip()} if about.strip() else own


def _suffixes(word: str) -> tuple[str, str]:
    """A word without the marks at its end, and these.

    >>> _suffixes("date?"), _suffixes("str[]?")
    (('date', '?'), ('str', '[]?'))
    """
    found = _SUFFIXES.fullmatch(word)
    assert found is not None  # it matches any text
    return found[1], found[2]


def _typed(name: str, kind: str, marks: str) -> Schema:
    """The schema of a type with its marks. Raises UsageError."""
    own: dict[str, Any]
    if "|" in kind:
        choices = [choice for choice in kind.split("|") if choice]
        if len(choices) < 2 or len({*choices}) < len(choices):
            raise UsageError(f"schema: {shown(kind)} is no choice for {shown(name)}", _HINT)
        own = {"enum": choices}
    elif kind in TYPES:
        own = dict(TYPES[kind])
    else:
        what = f"schema: {shown(kind)} is no type, for the field {shown(name)}"
        raise UsageError(what, nearest(kind, TYPES, _HINT))
    for mark in re.findall(r"\?|\[\]", marks):
        own = _or_null(own) if mark == "?" else {"type": "array", "items": own}
    return own


def _or_null(own: Schema) -> Schema:
    if "enum" in own:
        return {"enum": [*own["enum"], *([] if None in own["enum"] else [None])]}
    kinds = own["type"] if isinstance(own["type"], list) else [own["type"]]
    return {**own, "type": [*kinds, *([] if "null" in kinds else ["null"])]}
