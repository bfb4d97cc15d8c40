"""JSON, JSON lines, CSV and TSV: the whole text, or that of one field or column."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ngtcli.documents.content import About, Extracted, ParserInput, Writer
from ngtcli.documents.text import Unreadable, decode_with_warnings

_SAMPLE_CHARACTERS = 1 << 16  # in which the delimiter is looked for (guess)
_SAMPLE_ROWS = 50  # of them, at most (guess)
_DELIMITERS = ",;\t|"
_NO_DELIMITER = "\x1f"  # for a table with one column: a character that no text has
_DECLARED_DELIMITER = re.compile(r"sep=(.)\n", re.IGNORECASE)  # as Excel writes in the first line
_BLANK = re.compile(r"\s*")


def parse_json(source: ParserInput) -> Extracted:
    """Read the texts under the key `source.field` at any depth; without a key, the whole file.

    A file may have several values one after the other, as JSON lines have.

    Raises:
        Unreadable: The JSON is broken, or has no text under the key.
    """
    text, warnings = decode_with_warnings(source.data, source.encoding)
    name = "jsonl" if source.suffix in (".jsonl", ".ndjson") else "json"
    values = list(_values(text))
    if not source.field:
        return Extracted(text, About(name, warnings=warnings))
    writer = Writer()
    for field_text in _texts(values, source.field):
        writer.add(field_text)
    if not len(writer):
        raise Unreadable(
            f"no text in a field {source.field[:80]!r}",
            "Name another with --set field.",
        )
    return writer.extracted(name, warnings)


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values in a text. Raises Unreadable if one is broken."""
    decoder = json.JSONDecoder()
    offset = _skip_blank(text, 0)
    while offset < len(text):
        try:
            value, end = decoder.raw_decode(text, offset)
        except ValueError as error:
            before = text[: getattr(error, "pos", offset)].rstrip()
            line = before.count("\n") + 1
            raise Unreadable(
                f"invalid JSON in line {line}", "Correct it, or rename the file to .txt."
            ) from None
        yield value
        offset = _skip_blank(text, end)


def _skip_blank(text: str, offset: int) -> int:
    match = _BLANK.match(text, offset)
    return match.end() if match else offset


def _texts(value: Any, field: str) -> Iterator[str]:
    """Yield the texts and numbers under `field` in a JSON value, in order.

    >>> list(_texts([{"a": "x", "b": {"a": 1}}, {"a": ["y", "z"]}], "a"))
    ['x', '1', 'y', 'z']
    """
    stack = [(value, False)]
    while stack:
        node, is_wanted = stack.pop()
        if isinstance(node, dict):
            stack += [(child, key == field) for key, child in reversed(node.items())]
        elif isinstance(node, list):
            stack += [(child, is_wanted) for child in reversed(node)]
        elif is_wanted and isinstance(node, str | int | float):
            yield str(node)


def parse_table(source: ParserInput) -> Extracted:
    """Read a table, a line for each row; with `source.field`, that column alone.

    Raises:
        Unreadable: There is no such column.
    """
    text, warnings = decode_with_warnings(source.data, source.encoding)
    is_tsv = source.suffix == ".tsv"
    declared = _DECLARED_DELIMITER.match(text)
    if declared:
        text = text[declared.end() :]
        delimiter = declared[1]
    else:
        delimiter = "\t" if is_tsv else guess_delimiter(text)
    rows = _rows(text, delimiter)
    writer = Writer()
    if source.field:
        for cell in _column(rows, source.field):
            writer.add(cell)
    else:
        writer.table(rows)
    return writer.extracted("tsv" if is_tsv else "csv", warnings)


def _column(rows: list[list[str]], name: str) -> list[str]:
    """The cells of the column of that name. Raises Unreadable if there is none."""
    names = [cell.strip() for cell in rows[0]] if rows else []
    if name not in names:
        raise Unreadable(f"no column {name[:80]!r}", f"Its columns: {', '.join(names)[:200]}")
    index = names.index(name)
    return [row[index] if index < len(row) else "" for row in rows[1:]]


def _rows(text: str, delimiter: str) -> list[list[str]]:
    r"""Split a table into cells; rows without any are left out.

    `\"` is a quotation mark if more rows have equally many cells with it.

    >>> _rows('a,b\n"go \\"on\\", now",2\n', ",")
    [['a', 'b'], ['go "on", now', '2']]
    """
    rows = _read_csv(text, delimiter)
    if '\\"' in text:
        escaped = _read_csv(text.replace('\\"', '""'), delimiter)
        if _uniform_share(escaped) > _uniform_share(rows):
            return escaped
    return rows


def _read_csv(text: str, delimiter: str) -> list[list[str]]:
    csv.field_size_limit(sys.maxsize)
    return [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]


def _uniform_share(rows: list[list[str]], min_cells: int = 1) -> float:
    """The share of the rows that have the commonest number of cells, of `min_cells` or more."""
    counts = Counter(len(row) for row in rows if len(row) >= min_cells)
    return max(counts.values(), default=0) / max(len(rows), 1)


def guess_delimiter(text: str) -> str:
    r"""Guess the character between cells: the one with which most rows have equally many.

    >>> guess_delimiter("a;b;c\n1,5;2;3\n")
    ';'
    >>> guess_delimiter("note\nyes, of course\nno\n") == _NO_DELIMITER
    True
    """
    lines = text[:_SAMPLE_CHARACTERS].split("\n")
    if len(lines) > 1:
        lines = lines[: _SAMPLE_ROWS + 1]
    sample = "\n".join(lines)
    shares = {}
    for delimiter in _DELIMITERS:
        rows = _read_csv(sample, delimiter)[:_SAMPLE_ROWS]
        shares[delimiter] = _uniform_share(rows, min_cells=2)
    best = max(_DELIMITERS, key=lambda delimiter: shares[delimiter])
    is_in_header = best in lines[0]
    is_prose = best == "," and not is_in_header and not re.search(r",(?! )", sample)
    if is_prose or (shares[best] <= 0.5 and not is_in_header):
        return _NO_DELIMITER
    return best
