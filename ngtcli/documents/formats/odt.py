"""OpenDocument texts, sheets and slides: headings, paragraphs, lists, tables as rows, notes."""

from copy import deepcopy
from itertools import chain
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.markup import lines_of, parse_xml, write_tree
from ngtcli.documents.text import Unreadable

_SPACES_OF = {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"
    for name in "text table office drawing style presentation svg-compatible".split()
}
_TEXT, _TABLE, _OFFICE, _DRAW, _, _SHOW, _SVG = (f"{{{space}}}" for space in _SPACES_OF.values())
_KINDS = {f"{_OFFICE}spreadsheet": "ods", f"{_OFFICE}presentation": "odp"}  # others are as texts
# What elements are in HTML; "pre" keeps the spaces, "template" is not shown.
_TAGS = {
    f"{_TEXT}h": "h2", f"{_TEXT}p": "pre", f"{_TEXT}list": "ul", f"{_TEXT}list-item": "li",
    f"{_TEXT}line-break": "br", f"{_TABLE}table": "table", f"{_TABLE}table-row": "tr",
    f"{_TABLE}table-cell": "td", f"{_TABLE}covered-table-cell": "th", f"{_DRAW}a": "a",
    f"{_TABLE}shapes": "figure", f"{_TEXT}tracked-changes": "template",
    f"{_OFFICE}annotation": "template", f"{_SVG}title": "template", f"{_SVG}desc": "template",
    f"{_TEXT}note": "sup", f"{_TEXT}note-citation": "template",
}  # fmt: skip
_PARTS = (f"{_TABLE}table", f"{_DRAW}page")
_HIDDEN = etree.XPath(  # sheets and slides whose style hides them
    "*[@table:style-name = //style:style[*/@table:display = 'false']/@style:name or"
    " @drawing:style-name = //style:style[*/@presentation:visibility = 'hidden']/@style:name]",
    namespaces=_SPACES_OF,
)
_IN_TEXT = ("h2", "pre", "span", "a")  # what is inside of these is inline
_COLUMNS, _ROWS = 16_384, 1_048_576  # most that sheets have
_BLANK = 1000  # most empty cells between two with text; guess
_SPACES = 1000  # most that one element stands for: guess


def parse(source: Source) -> Extracted:
    """The text of a document; hidden sheets and slides are left out. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    body = parse_xml(archive.read("content.xml")).find(f"{_OFFICE}body")[0]
    kind, hidden, writer = _KINDS.get(body.tag, "odt"), _HIDDEN(body), Writer()
    for part in hidden:
        body.remove(part)
    parts = list(body.iterchildren(*_PARTS))
    titles = [part.find(f"{_DRAW}frame[@{_SHOW}class='title']") for part in parts]
    notes = _as_html(body)
    for row in reversed(list(body.iter("tr"))):
        _expand(row, source.most)
    if kind == "odt":
        write_tree(body, writer)
    for number, (part, title) in enumerate(zip(parts, titles, strict=True), 1):
        if kind == "ods":
            rows = (map(lines_of, row) for row in part.iter("tr"))
            drawn = ([line] for shapes in part.iter("figure") for line in lines_of(shapes))
            writer.table(chain(rows, drawn), part.get(f"{_TABLE}name") or "")
        elif kind == "odp":
            words = "" if title is None else row_of([lines_of(title)])
            writer.mark(0, f"slide {number}: {words}" if words else f"slide {number}")
            write_tree(part, writer)
    for number, note in enumerate(notes, 1):
        writer.add(f"[^{number}]: {note}", "note")
    told = (f"hidden sheets or slides left out: {len(hidden)}",) * bool(hidden)
    return writer.extracted(kind, told)


def _as_html(body: Any) -> list[str]:
    """Name elements as in HTML, and give those their text that stand for it; the notes."""
    for element in body.iter():
        tag, in_text = element.tag, element is not body and element.getparent().tag in _IN_TEXT
        if tag in (f"{_TEXT}s", f"{_TEXT}tab"):
            element.text = " " * _count(element, f"{_TEXT}c", _SPACES) if tag[-1] == "s" else "\t"
        has_blocks = not in_text or next(element.iter(f"{_TEXT}p"), None) is not None
        element.tag = _TAGS.get(tag, "div" if has_blocks else "span")
    for covered in body.iter("th"):
        del covered[:]
    notes: list[str] = []
    for note in list(body.iter("sup")):
        notes.append(row_of([lines_of(note)]))
        note.clear(keep_tail=True)
        note.text = f"[^{len(notes)}]"
    return notes


def _expand(row: Any, most: int) -> None:
    """Put in what cells and the row stand for several times, up to the last cell with text."""
    cells = list(row)
    while cells and not any(lines_of(cells[-1])):
        row.remove(cells.pop())
    times = _count(row, f"{_TABLE}number-rows-repeated", _ROWS) if cells else 1
    for cell in cells:
        most_cells = _COLUMNS if any(lines_of(cell)) else _BLANK
        for _ in range(1, _count(cell, f"{_TABLE}number-columns-repeated", most_cells)):
            cell.addnext(deepcopy(cell))
    if times * (len(row) + sum(map(len, row.itertext()))) > most:
        raise Unreadable("a spreadsheet with too much text in it", "Save it as CSV.")
    for _ in range(1, times):
        row.addnext(deepcopy(row))


def _count(element: Any, name: str, most: int) -> int:
    """How many an element stands for, `most` at most."""
    value = element.get(name, "1")
    return min(int(value), most) if value.isdecimal() and len(value) < 10 else 1
