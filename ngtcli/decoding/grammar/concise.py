"""The concise form of a schema: `name, age int, bio: a short bio`, as the tool `llm` has it.

Fields are divided by commas, or stand one a line where the text has several. A field is a name, its
type, which is str where none is given, and after a colon what it means.
"""

import re
from difflib import get_close_matches

from ngtcli.errors import UsageError
from ngtcli.system.json_form import Schema, shape
from ngtcli.system.yaml_file import shown

QUOTATION: Schema = {"type": "string", "format": "quote"}
_TYPES: dict[str, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "quote": QUOTATION,
}
# Our types by their names in other languages.
_TYPE_BY_FOREIGN_NAME = {
    "string": "str",
    "text": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
}
_HINT = "Write fields as in: name, age int, born date?, state paid|open, tags str[], bio: a text."
_WORD = re.compile(r"(\S+?)((?:\?|\[\])*)")  # a name or a type, and the marks after it
_NAME = re.compile(r"[\w.-]+")


def schema_of_concise(text: str) -> Schema:
    """Make the JSON Schema of a concise schema. Raises UsageError, which names the field.

    >>> schema_of_concise("name, age int?: in years")["properties"]["age"]
    {'type': ['integer', 'null'], 'description': 'in years'}
    """
    properties: dict[str, Schema] = {}
    for part in filter(None, map(str.strip, text.split("\n" if "\n" in text.strip() else ","))):
        head, _, about = part.partition(":")
        name, field = _field(head, part)
        if name in properties:
            raise UsageError(f"schema: duplicate field {shown(name)}", hint="Leave one out.")
        properties[name] = {**field, "description": about.strip()} if about.strip() else field
    if not properties:
        raise UsageError("schema: no field", hint=_HINT)
    return shape(properties)


def _field(head: str, part: str) -> tuple[str, Schema]:
    """Read a field before its colon; return its name and its schema.

    Args:
        head: The text before the colon.
        part: The whole field, for errors.
    """
    words = head.split()
    if not words:
        raise UsageError(f"schema: {shown(part)} has no name before the colon", hint=_HINT)
    if len(words) > 2:
        problem = f"schema: {shown(head.strip())} is more than a name and a type"
        choice = re.sub(r"\s*\|\s*", "|", head.strip())
        if choice.count(" ") < 2:
            raise UsageError(problem, hint=f"A choice has no spaces: write {choice}")
        if words[-1].rstrip("?[]") in _TYPES:
            corrected = f"{'_'.join(words[:-1])} {words[-1]}"
        else:
            corrected = "_".join(words)
        raise UsageError(problem, hint=f"A name has no spaces: write {corrected}")
    (name, marks), (kind, more) = (
        (match[1], match[2]) if (match := _WORD.fullmatch(word)) else ("", "")
        for word in (*words, "str")[:2]
    )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"schema: {shown(name or words[0])} is not a name for a field",
            hint="A name has letters, digits, _, - and dots; for others, give a JSON Schema.",
        )
    return name, _typed(name, kind, marks + more)


def _typed(name: str, kind: str, marks: str) -> Schema:
    """Make the schema of a type, or of a choice such as `paid|open`.

    Of the marks after it, `?` allows null, and `[]` makes a list of it.
    """
    choices = kind.split("|")
    if len(choices) == 1 and kind not in _TYPES:
        types = f"Types: {', '.join(_TYPES)}, or a choice such as paid|open."
        close = get_close_matches(kind.lower()[:40], _TYPES, n=1)
        similar = _TYPE_BY_FOREIGN_NAME.get(kind.lower(), close[0] if close else "")
        hint = f"A name has no spaces: write {name}_{kind}. {types}"
        if similar:
            hint = f"Did you mean the type {similar}? {hint}"
        raise UsageError(
            f"schema: unknown type {shown(kind)} of the field {shown(name)}", hint=hint
        )
    schema = {"enum": list(filter(None, choices))} if len(choices) > 1 else _TYPES[kind]
    for mark in re.findall(r"\?|\[\]", marks):
        if mark == "[]":
            schema = {"type": "array", "items": schema}
        elif "enum" in schema:
            schema = {"enum": [*schema["enum"], None]}
        else:
            schema = {**schema, "type": [schema["type"], "null"]}
    return schema
