"""JSON, JSON lines, CSV and TSV: all of the text, or what stands in one field or column."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from typing import Any

from ngtcli.documents.content import About, Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decode_text

_SAMPLE = 1 << 16  # characters in which the character between cells is looked for; guess
_BETWEEN = ",;\t|"


def parse_json(source: Source) -> Extracted:
    """The texts under the key `source.field` at any depth, or without one all of it."""
    text = decode_text(source.data)
    is_lines = source.suffix in (".jsonl", ".ndjson")
    name = "jsonl" if is_lines else "json"
    parts = text.split("\n") if is_lines else [text]
    values = [_value(part, number) for number, part in enumerate(parts, 1) if part.strip()]
    if not source.field:
        return Extracted(text, About(name))
    writer = Writer()
    for found in _texts(values, source.field):
        writer.add(found)
    if not len(writer):
        what = f"no text in a field {source.field[:80]!r}"
        raise Unreadable(what, "Name another with --set field.")
    return writer.extracted(name)


def _value(text: str, line: int) -> Any:
    """The value that begins in this line. Raises Unreadable."""
    try:
        return json.loads(text)
    except ValueError as error:
        told = f"broken JSON, line {line - 1 + getattr(error, 'lineno', 1)}"
        raise Unreadable(told, "Mend it first, or name it .txt.") from None


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


def parse_table(source: Source) -> Extracted:
    """Rows as lines with " | " between their cells; with `source.field` that column alone."""
    text = decode_text(source.data)
    name, mark = ("tsv", "\t") if source.suffix == ".tsv" else ("csv", between(text))
    csv.field_size_limit(sys.maxsize)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=mark) if row]
    writer = Writer()
    if field := source.field:
        names = [name.strip() for name in rows[0]] if rows else []
        if field not in names:
            shown = ", ".join(names)[:200]
            raise Unreadable(f"no column {field[:80]!r}", f"Its columns: {shown}")
        at = names.index(field)
        for row in rows[1:]:
            writer.add(row[at] if at < len(row) else "")
    else:
        writer.table(rows)
    return writer.extracted(name)


def between(text: str) -> str:
    """The character between cells: of those known the one that most lines have equally often.

    >>> between("a;b;c\\n1,5;2;3\\n")
    ';'
    """
    lines = [line for line in text[:_SAMPLE].split("\n")[:50] if line]
    counts = {c: [line.count(c) for line in lines] for c in _BETWEEN}
    return max(_BETWEEN, key=lambda c: sum(n > 0 and n == counts[c][0] for n in counts[c]))
