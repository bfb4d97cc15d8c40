"""JSON and JSON lines: the text as it stands, or the values of one field."""

import json
from collections.abc import Iterator
from typing import Any

from ngtcli.documents.content import About, Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decode_text


def parse(source: Source) -> Extracted:
    """The texts under the key `source.field` at any depth, or without one all of it."""
    text = decode_text(source.data)
    lines = source.suffix in (".jsonl", ".ndjson")
    name = "jsonl" if lines else "json"
    values = list(_lines(text)) if lines else [_value(text, "")]
    if not source.field:
        return Extracted(text, About(name))
    writer = Writer()
    for value in values:
        for found in _texts(value, source.field):
            writer.add(found)
    if not len(writer):
        raise Unreadable(f"no text in a field {source.field[:80]!r}", "Name another with --field.")
    return Extracted(writer.text(), About(name))


def _lines(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _value(line, f", line {number}")


def _value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise Unreadable(f"JSON nested too deep{where}", "Mend it first.") from None
    except ValueError as error:
        place = where or f", line {getattr(error, 'lineno', 1)}"
        raise Unreadable(f"broken JSON{place}", "Mend it first, or name it .txt.") from None


def _texts(value: Any, field: str) -> Iterator[str]:
    """The texts and numbers under `field` in `value`, in order.

    >>> list(_texts([{"a": "x", "b": {"a": 1}}, {"a": ["y", "z"]}], "a"))
    ['x', '1', 'y', 'z']
    """
    waiting = [(value, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, dict):
            waiting += [(v, k == field) for k, v in reversed(node.items())]
        elif isinstance(node, list):
            waiting += [(v, inside) for v in reversed(node)]
        elif inside and isinstance(node, str | int | float):
            yield str(node)
