"""CSV and TSV: a line a row, or the cells of one column."""

import csv
import sys

from ngtcli.documents.content import BETWEEN_CELLS, About, Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decode_text

_SAMPLE = 1 << 16  # characters in which the character between cells is looked for; guess
_BETWEEN = ",;\t|"


def parse(source: Source) -> Extracted:
    """Rows as lines with " | " between their cells; with `source.field` that column alone."""
    text = decode_text(source.data)
    tabs = source.suffix == ".tsv"
    csv.field_size_limit(sys.maxsize)
    try:
        rows = [
            row
            for row in csv.reader(text.split("\n"), delimiter="\t" if tabs else between(text))
            if row
        ]
    except csv.Error as error:
        raise Unreadable(f"a broken table ({error})", "Mend it first, or name it .txt.") from None
    writer = Writer()
    if source.field:
        _write_column(rows, source.field, writer)
    else:
        for row in rows:
            cells = [" ".join(cell.split()) for cell in row]
            writer.add(BETWEEN_CELLS.join(cells) if any(cells) else "", "\n")
    return Extracted(writer.text(), About("tsv" if tabs else "csv"))


def between(text: str) -> str:
    """The character between cells: of those known the one that most lines have equally often.

    >>> between("a;b;c\\n1,5;2;3\\n")
    ';'
    """
    lines = [line for line in text[:_SAMPLE].split("\n")[:50] if line]
    counts = {c: [line.count(c) for line in lines] for c in _BETWEEN}
    return max(_BETWEEN, key=lambda c: sum(n > 0 and n == counts[c][0] for n in counts[c]))


def _write_column(rows: list[list[str]], field: str, writer: Writer) -> None:
    names = [name.strip() for name in rows[0]] if rows else []
    if field not in names:
        shown = ", ".join(names)[:200]
        raise Unreadable(f"no column {field[:80]!r}", f"Its columns: {shown}")
    at = names.index(field)
    for row in rows[1:]:
        writer.add(row[at] if at < len(row) else "")
