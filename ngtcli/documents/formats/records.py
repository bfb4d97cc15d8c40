"""JSON, JSON lines, CSV and TSV: all of the text, or what stands in one field or column."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ngtcli.documents.content import About, Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decoded

_SAMPLE = 1 << 16  # characters in which the character between cells is looked for; guess
_ROWS = 50  # of them, at most; guess
_BETWEEN = ",;\t|"
_NOTHING = "\x1f"  # between the cells of a table with one column
_NAMED = re.compile(r"sep=(.)\n", re.IGNORECASE)  # how Excel names it in the first line
_BLANK = re.compile(r"\s*")


def parse_json(source: Source) -> Extracted:
    """The texts under the key `source.field` at any depth, or without one all of it.

    A file may have several values one after the other, as JSON lines have. Raises Unreadable.
    """
    text, warnings = decoded(source.data, source.encoding)
    name = "jsonl" if source.suffix in (".jsonl", ".ndjson") else "json"
    values = list(_values(text))
    if not source.field:
        return Extracted(text, About(name, warnings=warnings))
    writer = Writer()
    for found in _texts(values, source.field):
        writer.add(found)
    if not len(writer):
        what = f"no text in a field {source.field[:80]!r}"
        raise Unreadable(what, "Name another with --set field.")
    return writer.extracted(name, warnings)


def _values(text: str) -> Iterator[Any]:
    """The values in a text. Raises Unreadable where one is broken."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _after_blank(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            before = text[: getattr(error, "pos", at)].rstrip()
            line = before.count("\n") + 1
            advice = "Mend it first, or name it .txt."
            raise Unreadable(f"broken JSON, line {line}", advice) from None
        yield value


def _after_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


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
    """Rows as lines with " | " between their cells; with `source.field` that column alone.

    Raises Unreadable.
    """
    text, warnings = decoded(source.data, source.encoding)
    is_tsv = source.suffix == ".tsv"
    if named := _NAMED.match(text):
        text, mark = text[named.end() :], named[1]
    else:
        mark = "\t" if is_tsv else between(text)
    rows = _rows(text, mark)
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
    return writer.extracted("tsv" if is_tsv else "csv", warnings)


def _rows(text: str, mark: str) -> list[list[str]]:
    r"""The rows that have cells; `\"` is a quotation mark where the rows are more alike with it.

    >>> _rows('a,b\n"go \\"on\\", now",2\n', ",")
    [['a', 'b'], ['go "on", now', '2']]
    """
    rows = _read(text, mark)
    if '\\"' in text:
        escaped = _read(text.replace('\\"', '""'), mark)
        if _alike(escaped) > _alike(rows):
            return escaped
    return rows


def _read(text: str, mark: str) -> list[list[str]]:
    csv.field_size_limit(sys.maxsize)
    return [row for row in csv.reader(io.StringIO(text), delimiter=mark) if row]


def _alike(rows: list[list[str]]) -> float:
    """The share of the rows that have as many cells as most have."""
    counts = Counter(map(len, rows))
    return max(counts.values(), default=0) / max(len(rows), 1)


def between(text: str) -> str:
    r"""The character between cells: of those known the one by which most rows have equally many.

    >>> between("a;b;c\n1,5;2;3\n"), between("note\nyes, of course\nno\n") == _NOTHING
    (';', True)
    """
    sample = text[:_SAMPLE].split("\n")
    lines = "\n".join(sample[: _ROWS + 1] if len(sample) > 1 else sample)
    shares = {mark: _share(_read(lines, mark)[:_ROWS]) for mark in _BETWEEN}
    best = max(_BETWEEN, key=lambda mark: shares[mark])
    first = lines.split("\n", 1)[0]
    is_prose = best == "," and "," not in first and not re.search(r",(?! )", lines)
    return _NOTHING if shares[best] <= 0.5 and best not in first or is_prose else best


def _share(rows: list[list[str]]) -> float:
    """The share of the rows that have as many cells as most of those with several have."""
    counts = Counter(len(row) for row in rows if len(row) > 1)
    return max(counts.values(), default=0) / max(len(rows), 1)
