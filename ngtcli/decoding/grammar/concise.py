"""The concise form of a schema: `name, age int, bio: a short bio`, as the tool `llm` has it.

Fields are divided by commas, or stand one a line where the text has several. A field is a name, its
type, which is str where none is given, and behind a colon what it means.
"""

import re

from ngtcli.errors import UsageError
from ngtcli.system.json_form import Schema, shape
from ngtcli.system.yaml_file import shown

QUOTATION: Schema = {"type": "string", "format": "quote"}
_TYPES: dict[str, Schema] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"},
    "bool": {"type": "boolean"}, "date": {"type": "string", "format": "date"}, "quote": QUOTATION,
}  # fmt: skip
_MEANT = {  # by what other languages call them
    "string": "str", "text": "str", "integer": "int", "number": "float", "boolean": "bool",
}  # fmt: skip
_HINT = "Write fields as in: name, age int, due date?, state paid|open, tags str[], bio: a text."
_WORD = re.compile(r"(\S+?)((?:\?|\[\])*)")  # a name or a type, and the marks behind it
_NAME = re.compile(r"[\w.-]+")


def schema_of_concise(text: str) -> Schema:
    """The JSON Schema of a concise one. Raises UsageError, which names the field.

    >>> schema_of_concise("name, age int?: in years")["properties"]["age"]
    {'type': ['integer', 'null'], 'description': 'in years'}
    """
    properties: dict[str, Schema] = {}
    for part in filter(None, map(str.strip, text.split("\n" if "\n" in text.strip() else ","))):
        head, _, about = part.partition(":")
        name, field = _field(head, part)
        if name in properties:
            raise UsageError(f"schema: the field {shown(name)} stands twice", hint="Leave one out.")
        properties[name] = {**field, "description": about.strip()} if about.strip() else field
    if not properties:
        raise UsageError("schema: no field", hint=_HINT)
    return shape(properties)


def _field(head: str, part: str) -> tuple[str, Schema]:
    """The name of a field and its schema, by what stands before a colon in a part of a text."""
    words = head.split()
    if not words:
        raise UsageError(f"schema: {shown(part)} has no name before the colon", hint=_HINT)
    if len(words) > 2:
        what = f"schema: {shown(head.strip())} is more than a name and a type"
        choice = re.sub(r"\s*\|\s*", "|", head.strip())
        if choice.count(" ") < 2:
            raise UsageError(what, hint=f"A choice has no spaces: write {choice}")
        is_typed = words[-1].rstrip("?[]") in _TYPES
        name = "_".join(words[:-1] if is_typed else words)
        raise UsageError(
            what, hint=f"A name has no spaces: write {name}{is_typed * f' {words[-1]}'}"
        )
    (name, marks), (kind, more) = (
        (match[1], match[2]) if (match := _WORD.fullmatch(word)) else ("", "")
        for word in (*words, "str")[:2]
    )
    if not _NAME.fullmatch(name):
        what = f"schema: {shown(name or words[0])} is no name of a field"
        raise UsageError(
            what, hint="A name has letters, digits, _, - and dots; for others give JSON."
        )
    return name, _typed(name, kind, marks + more)


def _typed(name: str, kind: str, marks: str) -> Schema:
    """The schema of a type, or of a choice as `paid|open`; `?`: or null, `[]`: a list of it."""
    choices = kind.split("|")
    if len(choices) == 1 and kind not in _TYPES:
        types = f"Types: {', '.join(_TYPES)}, or a choice as paid|open."
        meant = _MEANT.get(kind.lower())
        hint = f"A name has no spaces: write {name}_{kind}. {types}"
        if meant:
            hint = f"Did you mean the type {meant}? {hint}"
        raise UsageError(
            f"schema: unknown type {shown(kind)} of the field {shown(name)}", hint=hint
        )
    own = {"enum": list(filter(None, choices))} if len(choices) > 1 else _TYPES[kind]
    for mark in re.findall(r"\?|\[\]", marks):
        if mark == "[]":
            own = {"type": "array", "items": own}
        elif "enum" in own:
            own = {"enum": [*own["enum"], None]}
        else:
            own = {**own, "type": [own["type"], "null"]}
    return own
