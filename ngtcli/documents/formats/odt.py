"""OpenDocument texts, sheets and slides: headings, paragraphs, lists, tables as rows, notes."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any
from zipfile import ZipFile

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.archives import member, open_archive, parse_xml
from ngtcli.documents.text import Unreadable

_NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
_TEXT, _TABLE, _OFFICE, _DRAW, _STYLE, _SHOW = (
    _NAMES % name for name in "text table office drawing style presentation".split()
)
_KINDS = {f"{_OFFICE}text": "odt", f"{_OFFICE}spreadsheet": "ods", f"{_OFFICE}presentation": "odp"}
_SKIPPED = frozenset([f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_TEXT}note-citation"])
_CELLS = (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell")
_OBJECT = f"{_DRAW}object"
_REPEATED = 1000  # most spaces, cells or rows that one element stands for: guess
_OBJECTS = 100  # most charts and the like that are read: guess


def parse(source: Source) -> Extracted:
    """The text of a document; hidden sheets and slides are left out. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in member(archive, "META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    root = parse_xml(member(archive, "content.xml"))
    body = next((e for e in root.iterfind(f"{_OFFICE}body/*") if e.tag in _KINDS), None)
    if body is None:
        raise Unreadable("an OpenDocument file of a kind that is not read", "Save it as PDF.")
    blocks = _Blocks(archive, _hidden_styles(root))
    blocks.write(body)
    writer = blocks.writer
    for number, note in enumerate(blocks.notes, 1):
        writer.add(f"[^{number}]: {note}", "note")
    told = (f"hidden sheets or slides left out: {blocks.left}",) if blocks.left else ()
    return writer.extracted(_KINDS[body.tag], told)


def _hidden_styles(root: Any) -> set[str]:
    """The names of the styles that hide a sheet or a slide."""
    return {
        style.get(f"{_STYLE}name")
        for style in root.iter(f"{_STYLE}style")
        for found in style
        if found.get(f"{_TABLE}display") == "false" or found.get(f"{_SHOW}visibility") == "hidden"
    }


class _Blocks:
    """Writes blocks; `notes` are the notes in them, `left` counts what was hidden."""

    def __init__(self, archive: ZipFile, hidden: set[str]) -> None:
        self._archive, self._hidden = archive, hidden
        self.writer, self.notes, self.left = Writer(), list[str](), 0
        self._slides = self._objects = 0

    def write(self, body: Any) -> None:
        """Blocks in order; a stack of (element, whether in a list) replaces recursion."""
        waiting = [(element, False) for element in reversed(body)]
        named = body.tag == f"{_OFFICE}spreadsheet"
        self.writer.stand_apart()
        while waiting:
            element, listed = waiting.pop()
            style = element.get(f"{_TABLE}style-name") or element.get(f"{_DRAW}style-name")
            if style in self._hidden and element.tag in (f"{_TABLE}table", f"{_DRAW}page"):
                self.left += 1
            elif element.tag == f"{_TEXT}h":
                self.writer.heading(_text(element, self.notes))
            elif element.tag == f"{_TEXT}p":
                text = _text(element, self.notes)
                marked = f"- {text}" if listed and text.strip() else text
                self.writer.add(marked, "item" if listed else "")
                self._charts(element.iter(_OBJECT))
            elif element.tag == f"{_TABLE}table":
                self._table(element, (element.get(f"{_TABLE}name") or "") if named else "")
            elif element.tag == _OBJECT:
                self._charts([element])
            elif element.tag not in _SKIPPED:
                if element.tag == f"{_DRAW}page":
                    self._slide(element)
                inside = listed or element.tag == f"{_TEXT}list"
                waiting += [(child, inside) for child in reversed(element)]

    def _slide(self, page: Any) -> None:
        self._slides += 1
        title = page.find(f"{_DRAW}frame[@{_SHOW}class='title']")
        words = " ".join(" ".join(title.itertext()).split()) if title is not None else ""
        number = f"slide {self._slides}"
        self.writer.mark(0, f"{number}: {words}" if words else number)

    def _table(self, table: Any, name: str) -> None:
        """The rows, then what is drawn on a sheet: what is written in cells is read with these."""
        shapes = table.findall(f"{_TABLE}shapes")
        for shape in shapes:
            table.remove(shape)
        has_rows = self.writer.table(self._rows(table), name)
        drawn = (element for root in (table, *shapes) for element in root.iter())
        if not has_rows and any(e.tag == _OBJECT or (e.text or "").strip() for e in drawn):
            self.writer.heading(name)
        self._charts(table.iter(_OBJECT))
        for shape in shapes:
            self.write(shape)

    def _rows(self, table: Any) -> Iterator[list[str]]:
        """The texts of rows' cells up to the last that has one."""
        for row in table.iter(f"{_TABLE}table-row"):
            cells: list[str] = []
            empty = 0
            for cell in (c for c in row if c.tag in _CELLS):
                text = " ".join(_text(cell, self.notes).split()) if cell.tag == _CELLS[0] else ""
                count = _count(cell, f"{_TABLE}number-columns-repeated")
                if text:
                    cells += [""] * empty + [text] * count
                    empty = 0
                else:
                    empty = min(empty + count, _REPEATED)
            if cells:
                yield from repeat(cells, _count(row, f"{_TABLE}number-rows-repeated"))

    def _charts(self, objects: Iterable[Any]) -> None:
        """The titles and tables of charts, each a document of its own in the archive."""
        for element in objects:
            self._objects += 1
            place = element.get("{http://www.w3.org/1999/xlink}href", "").removeprefix("./")
            name = f"{place}/content.xml"
            if self._objects <= _OBJECTS and place and name in self._archive.NameToInfo:
                chart = parse_xml(member(self._archive, name)).find(f"{_OFFICE}body/{_OFFICE}chart")
                if chart is not None:
                    self.write(chart)


def _count(element: Any, name: str) -> int:
    """How many an element stands for."""
    value = element.get(name, "1")
    return min(int(value), _REPEATED) if value.isdecimal() and len(value) < 10 else 1


def _text(element: Any, notes: list[str]) -> str:
    """The text below an element; its notes are appended to `notes` and marked [^1]."""
    parts: list[str] = [element.text or ""]
    waiting: list[Any] = list(reversed(element))
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        waiting.append(node.tail or "")
        if node.tag == f"{_TEXT}s":
            parts.append(" " * _count(node, f"{_TEXT}c"))
        elif node.tag == f"{_TEXT}tab":
            parts.append("\t")
        elif node.tag == f"{_TEXT}line-break":
            parts.append("\n")
        elif node.tag == f"{_TEXT}note":
            inside = node.find(f"{_TEXT}note-body")
            words = " ".join("".join(inside.itertext()).split()) if inside is not None else ""
            notes.append(words)
            parts.append(f"[^{len(notes)}]")
        elif node.tag not in _SKIPPED:
            if node.tag == f"{_TEXT}p" and "".join(parts[-1:]).strip():
                parts.append(" ")
            parts.append(node.text or "")
            waiting += reversed(node)
    return "".join(parts)
