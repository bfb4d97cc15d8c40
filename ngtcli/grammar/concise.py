"""The concise form of a schema: `name, age int, bio: a short bio`, as the tool `llm` has it.

Fields are divided by commas, or stand one a line where the text has several. A field is a name, its
type, which is str where none is given, and behind a colon what it means.
"""

import re

from ngtcli.errors import UsageError, nearest
from ngtcli.system.json_form import Schema, shape
from ngtcli.system.yaml_file import shown

QUOTATION: Schema = {"type": "string", "format": "quote"}
_TYPES: dict[str, Schema] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"},
    "bool": {"type": "boolean"}, "date": {"type": "string", "format": "date"}, "quote": QUOTATION,
}  # fmt: skip
_HINT = "Write fields as in: name, age int, due date?, state paid|open, tags str[], bio: a text."
_FIELD = re.compile(r"(\S+?)((?:\?|\[\])*)(?:\s+(\S+?)((?:\?|\[\])*))?\s*(?::\s*(.*))?")


def schema_of_concise(text: str) -> Schema:
    """The JSON Schema of a concise one. Raises UsageError, which names the field.

    >>> schema_of_concise("name, age int?: in years")["properties"]["age"]
    {'type': ['integer', 'null'], 'description': 'in years'}
    """
    properties: dict[str, Schema] = {}
    for part in filter(None, map(str.strip, text.split("\n" if "\n" in text.strip() else ","))):
        found = _FIELD.fullmatch(part)
        if found is None or part.startswith(":") or found[1] in properties:
            raise UsageError(f"schema: {shown(part)} is no field, or stands twice", _HINT)
        name, marks, kind, more, about = found.groups(default="")
        own = _typed(name, kind or "str", marks + more)
        properties[name] = {**own, "description": about.strip()} if about else own
    if not properties:
        raise UsageError("schema: no field", _HINT)
    return shape(properties)


def _typed(name: str, kind: str, marks: str) -> Schema:
    """The schema of a type, or of a choice as `paid|open`; `?`: or null, `[]`: a list of it."""
    choices = kind.split("|")
    if len(choices) == 1 and kind not in _TYPES:
        what = f"schema: {shown(kind)} is no type, for the field {shown(name)}"
        raise UsageError(what, nearest(kind, _TYPES, _HINT))
    own = {"enum": list(filter(None, choices))} if len(choices) > 1 else _TYPES[kind]
    for mark in re.findall(r"\?|\[\]", marks):
        if mark == "[]":
            own = {"type": "array", "items": own}
        elif "enum" in own:
            own = {"enum": [*own["enum"], None]}
        else:
            own = {**own, "type": [own["type"], "null"]}
    return own
