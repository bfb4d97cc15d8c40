"""OpenDocument texts, sheets and slides: headings, paragraphs, lists, tables as rows, notes."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.archives import bounded, member, open_archive, parse_xml
from ngtcli.documents.text import Unreadable

_NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
_TEXT, _TABLE, _OFFICE, _DRAW, _STYLE, _SHOW = (
    _NAMES % name for name in "text table office drawing style presentation".split()
)
_KINDS = {f"{_OFFICE}text": "odt", f"{_OFFICE}spreadsheet": "ods", f"{_OFFICE}presentation": "odp"}
_SKIPPED = frozenset([f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_TEXT}note-citation"])
_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_CELLS = (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell")
_ROW = f"{_TABLE}table-row"
_AROUND_ROWS = {f"{_TABLE}table-{name}" for name in ("header-rows", "row-group", "rows")}
_COLUMNS, _ROWS = 16_384, 1_048_576  # most that sheets have
_SPACES = 1000  # most that one element stands for: guess


def parse(source: Source) -> Extracted:
    """The text of a document; hidden sheets and slides are left out. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in member(archive, "META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    root = parse_xml(member(archive, "content.xml"))
    body = next((e for e in root.iterfind(f"{_OFFICE}body/*") if e.tag in _KINDS), None)
    if body is None:
        raise Unreadable("an OpenDocument file of a kind that is not read", "Save it as PDF.")
    blocks = _Blocks(_hidden_styles(root), source.most)
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

    def __init__(self, hidden: set[str], most: int) -> None:
        self._hidden, self._most = hidden, most
        self.writer, self.notes, self.left = Writer(), list[str](), 0
        self._slides = 0

    def write(self, root: Any) -> None:
        """The blocks below `root`, in order."""
        self.writer.stand_apart()
        for element, text in self._below(root, f"{_TABLE}table", f"{_DRAW}page"):
            style = element.get(f"{_TABLE}style-name") or element.get(f"{_DRAW}style-name")
            if element.tag == f"{_TEXT}h":
                self.writer.heading(text)
            elif element.tag == f"{_TEXT}p":
                around = next(element.iterancestors(f"{_TEXT}list", f"{_DRAW}text-box"), root)
                listed = around.tag == f"{_TEXT}list" and bool(text.strip())
                self.writer.add(f"- {text}" if listed else text, "item" if listed else "")
            elif style in self._hidden:
                self.left += 1
            elif element.tag == f"{_DRAW}page":
                self._slide(element)
            else:
                self._table(element, root)

    def _below(self, root: Any, *tags: str) -> Iterator[tuple[Any, str]]:
        """The paragraphs below `root` with their texts, and the elements with these tags.

        What is drawn in a paragraph follows it.
        """
        waiting = list(reversed(root))
        while waiting:
            node = waiting.pop()
            if node.tag in _PARAGRAPHS:
                drawn: list[Any] = []
                yield node, self._text(node, drawn)
                waiting += reversed(drawn)
            elif node.tag in tags:
                yield node, ""
            elif node.tag not in _SKIPPED:
                waiting += reversed(node)

    def _slide(self, page: Any) -> None:
        self._slides += 1
        title = page.find(f"{_DRAW}frame[@{_SHOW}class='title']")
        words = " ".join(" ".join(title.itertext()).split()) if title is not None else ""
        number = f"slide {self._slides}"
        self.writer.mark(0, f"{number}: {words}" if words else number)
        self.write(page)

    def _table(self, table: Any, root: Any) -> None:
        """The rows, then what is drawn on a sheet, below the sheet's name."""
        name = (table.get(f"{_TABLE}name") or "") if root.tag == f"{_OFFICE}spreadsheet" else ""
        shapes = table.find(f"{_TABLE}shapes")
        has_rows = self.writer.table(bounded(self._rows(table), self.writer, self._most), name)
        if shapes is not None:
            if not has_rows and next(self._below(shapes), None):
                self.writer.heading(name)
            self.write(shapes)

    def _rows(self, table: Any) -> Iterator[list[list[str]]]:
        """The cells, as lines, of rows up to the last that has text; those without are left out."""
        for element in table:
            if element.tag in _AROUND_ROWS:
                yield from self._rows(element)
            cells: list[list[str]] = []
            empty = 0
            for cell in element.iterchildren(*_CELLS) if element.tag == _ROW else ():
                lines = [text for _, text in self._below(cell)] if cell.tag == _CELLS[0] else []
                count = _count(cell, f"{_TABLE}number-columns-repeated", _COLUMNS)
                if any(map(str.strip, lines)):
                    cells += [[]] * empty + [lines] * count
                    empty = 0
                else:
                    empty += count
            if cells:
                yield from repeat(cells, _count(element, f"{_TABLE}number-rows-repeated", _ROWS))

    def _text(self, element: Any, drawn: list[Any]) -> str:
        """The text of a paragraph; its notes get marks [^1], drawings go to `drawn`."""
        parts = [element.text or ""]
        for child in element:
            parts += [self._inline(child, drawn), child.tail or ""]
        return "".join(parts)

    def _inline(self, element: Any, drawn: list[Any]) -> str:
        if element.tag == f"{_TEXT}s":
            return " " * _count(element, f"{_TEXT}c", _SPACES)
        if element.tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            return "\t" if element.tag == f"{_TEXT}tab" else "\n"
        if element.tag == f"{_TEXT}note":
            words = " ".join(text for _, text in self._below(element))
            self.notes.append(" ".join(words.split()))
            return f"[^{len(self.notes)}]"
        if element.tag.startswith(_DRAW) and element.tag != f"{_DRAW}a":
            drawn.append(element)
            return ""
        return "" if element.tag in _SKIPPED else self._text(element, drawn)


def _count(element: Any, name: str, most: int) -> int:
    """How many an element stands for, `most` at most."""
    value = element.get(name, "1")
    return min(int(value), most) if value.isdecimal() and len(value) < 10 else 1
