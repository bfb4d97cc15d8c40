"""OpenDocument texts, sheets and slides as LibreOffice shows them.

The document is made a tree of HTML: paragraphs are `pre`, `h2` or `li`, and what is hidden is taken
out. How text looks, and the numbers of lists, are in styles, of `content.xml` and of `styles.xml`.
"""

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any
from zipfile import ZipFile

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer, comment_line, counted, row_of
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.drawing import Box, by_place
from ngtcli.documents.formats.equations import mathml
from ngtcli.documents.formats.markup import lines_of, parse_xml, write_tree
from ngtcli.documents.formats.number_format import format_general
from ngtcli.documents.formats.numerals import parse_integer
from ngtcli.documents.formats.odt_numbering import STYLE, TEXT, Numbering
from ngtcli.documents.formats.package import BROKEN
from ngtcli.documents.formats.visible import join_scripts, set_apart
from ngtcli.documents.text import Unreadable

_NAMES = "table office drawing presentation svg-compatible chart"
_TABLE, _OFFICE, _DRAW, _SHOW, _SVG, _CHART = (
    f"{{urn:oasis:names:tc:opendocument:xmlns:{name}:1.0}}" for name in _NAMES.split()
)
_LINK = "{http://www.w3.org/1999/xlink}href"
_CREATOR = "{http://purl.org/dc/elements/1.1/}creator"
_KINDS = {f"{_OFFICE}spreadsheet": "ods", f"{_OFFICE}presentation": "odp"}  # others are as texts
_OBJECT, _ANNOTATION = f"{_DRAW}object", f"{_OFFICE}annotation"
_PARAGRAPHS = (f"{TEXT}p", f"{TEXT}h")
_COLUMN = f"{_TABLE}table-column"
_CELL, _COVERED = f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"
# What elements are in HTML; "pre" keeps the spaces, "template" is not shown.
_TAGS = {
    f"{TEXT}h": "h2",
    f"{TEXT}p": "pre",
    f"{TEXT}line-break": "br",
    f"{_TABLE}table": "table",
    f"{_TABLE}table-row": "tr",
    _CELL: "td",
    _COVERED: "th",
    f"{_DRAW}a": "a",
    f"{_TABLE}shapes": "figure",
    f"{TEXT}tracked-changes": "template",
    _ANNOTATION: "template",
    f"{_SVG}title": "template",
    f"{_SVG}desc": "template",
    f"{TEXT}note": "note",
    f"{TEXT}note-citation": "template",
    f"{TEXT}ruby-text": "rt",
    f"{TEXT}ruby": "ruby",
    f"{TEXT}ruby-base": "span",
}
_PARTS = (f"{_TABLE}table", f"{_DRAW}page")
_IN_TEXT = ("h2", "pre", "li", "span", "a", "sup", "sub", "ruby")  # what is inside is inline
_HIDDEN_ROWS = ("collapse", "filter")
_COLUMNS, _ROWS = 16_384, 1_048_576  # most that sheets have
_BLANK = 1000  # most empty cells between two with text; guess
_SPACES = 1000  # most that one element stands for: guess


def parse(source: Source) -> Extracted:
    """The text of a document; hidden sheets and slides are left out. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    return _Document(archive, source.max_bytes).read()


class _Document:
    """A document with its styles."""

    def __init__(self, archive: ZipFile, most: int) -> None:
        self._archive = archive
        self._most = most
        self._content = parse_xml(archive.read("content.xml"))
        self._body = self._content.find(f"{_OFFICE}body")[0]
        self._masters = self._member("styles.xml")
        roots = [root for root in (self._masters, self._content) if root is not None]
        self._numbering = Numbering(roots)
        self._styles = {
            style.get(f"{STYLE}name"): style
            for root in roots
            for style in root.iter(f"{STYLE}style")
        }
        self._hides: dict[str | None, bool] = {}  # whether styles hide their text
        self._notes: list[tuple[str, str]] = []
        self._hidden = {"words": 0, "rows": 0, "columns": 0}

    def read(self) -> Extracted:
        """The text, and what was left out."""
        kind, writer = _KINDS.get(self._body.tag, "odt"), Writer()
        parts = [part for part in self._body if part.tag in _PARTS]
        hidden = [part for part in parts if self._is_hidden_part(part)]
        for part in hidden:
            self._body.remove(part)
        if kind == "ods":
            self._write_sheets(writer)
        elif kind == "odp":
            self._write_slides(writer)
        else:
            for text in self._running("header"):
                writer.add(text)
            write_tree(self._as_html(self._body), writer)
        for label, note in sorted(self._notes, key=lambda note: note[0][0] == "e"):
            writer.add(f"[^{label}]: {note}", "endnote" if label[0] == "e" else "note")
        if kind == "odt":
            for text in self._running("footer"):
                writer.add(text)
        told = [f"hidden sheets or slides left out: {len(hidden)}"] * bool(hidden)
        words, rows, columns = self._hidden.values()
        if words:
            told.append(f"hidden text left out: {counted(words, 'word')}")
        if rows or columns:
            counts = [counted(rows, "row")] * bool(rows)
            counts += [counted(columns, "column")] * bool(columns)
            told.append(f"hidden rows and columns left out: {', '.join(counts)}")
        return writer.extracted(kind, tuple(told))

    def _member(self, name: str) -> Any:
        """The root of a member; None where it is missing or broken."""
        try:
            return parse_xml(self._archive.read(name))
        except (*BROKEN, etree.LxmlError):
            return None

    def _is_hidden_part(self, part: Any) -> bool:
        """Whether the style of a sheet or slide hides it."""
        style = self._styles.get(
            part.get(f"{_TABLE}style-name") or part.get(f"{_DRAW}style-name") or ""
        )
        return style is not None and any(
            e.get(f"{_TABLE}display") == "false" or e.get(f"{_SHOW}visibility") == "hidden"
            for e in style
        )

    def _write_sheets(self, writer: Writer) -> None:
        for part in self._body.iterchildren(f"{_TABLE}table"):
            comments = list(_comments_of_cells(part))
            name = part.get(f"{_TABLE}name") or ""
            self._as_html(part)
            rows = [list(map(lines_of, row)) for row in part.iter("tr")]
            drawn = [[line] for shapes in part.iter("figure") for line in lines_of(shapes)]
            writer.table([*rows, *drawn], name)
            for comment in comments:
                writer.add(comment)

    def _write_slides(self, writer: Writer) -> None:
        said: set[str] = set()
        for number, page in enumerate(self._body.iterchildren(f"{_DRAW}page"), 1):
            footers = self._words_of_master(page)
            self._sort_shapes(page)
            title = page.find(f"{_DRAW}frame[@{_SHOW}class='title']")
            comments = [_comment(note) for note in page.iterchildren(_ANNOTATION)]
            self._as_html(page)
            words = "" if title is None else row_of([lines_of(title)])
            writer.mark(0, f"slide {number}: {words}" if words else f"slide {number}")
            write_tree(page, writer)
            for text in (*(text for text in footers if text not in said), *comments):
                writer.add(text)
            said |= set(footers)

    @staticmethod
    def _sort_shapes(page: Any) -> None:
        """Put the shapes of a slide in the order of their places, the title first."""
        shapes = [c for c in page if c.tag.startswith(_DRAW)]
        placed: list[tuple[Box, Any]] = []
        box = Box(0, 0, 0, 0)
        for shape in shapes:
            box = _box_of(shape) or box
            placed.append((box, shape))
        titles = [one for one in placed if one[1].get(f"{_SHOW}class") == "title"]
        rest = [one for one in placed if one[1].get(f"{_SHOW}class") != "title"]
        others = [child for child in page if child not in shapes]
        page[:] = [shape for _, shape in (*titles, *by_place(rest))] + others

    def _words_of_master(self, page: Any) -> list[str]:
        """What the master of a slide shows on it: its own words, and the footer."""
        name = page.get(f"{_DRAW}master-page-name")
        footers = {
            e.get(f"{_SHOW}name"): "".join(e.itertext())
            for e in self._body.iter(f"{_SHOW}footer-decl")
        }
        footer = footers.get(page.get(f"{_SHOW}use-footer-name"), "")
        texts: list[str] = []
        for master in () if self._masters is None else self._masters.iter(f"{STYLE}master-page"):
            if master.get(f"{STYLE}name") != name:
                continue
            for shape in master:
                kind = shape.get(f"{_SHOW}class", "")
                if not shape.tag.startswith(_DRAW) or kind not in ("", "footer", "header"):
                    continue
                if kind == "" and shape.get(f"{_SHOW}placeholder") == "true":
                    continue
                shape = deepcopy(shape)
                for field in shape.iter(f"{_SHOW}footer"):
                    field.text = footer
                texts.append("\n".join(filter(None, lines_of(self._as_html(shape)))))
        return [text for text in texts if any(map(str.isalpha, text))]

    def _running(self, kind: str) -> list[str]:
        """The headers or footers of a text's pages, each text once; numbers alone are left out."""
        if self._masters is None:
            return []
        masters = list(self._masters.iter(f"{STYLE}master-page"))
        named = {
            e.get(f"{STYLE}master-page-name")
            for root in (self._masters, self._content)
            for e in root.iter(f"{STYLE}style")
        }
        texts: dict[str, None] = {}
        for number, master in enumerate(masters):
            name = master.get(f"{STYLE}name")
            if number and name not in named:
                continue
            named.add(master.get(f"{STYLE}next-style-name"))
            for form in ("first", "", "left"):
                for part in master.iterfind(f"{STYLE}{kind}{f'-{form}' if form else ''}"):
                    if part.get(f"{STYLE}display") != "false":
                        writer = Writer()
                        write_tree(self._as_html(deepcopy(part)), writer)
                        texts[writer.text()] = None
        return [text for text in texts if any(map(str.isalpha, text))]

    def _as_html(self, root: Any) -> Any:
        """Name elements as in HTML, and give those their text that stand for it."""
        self._drop_hidden(root)
        self._numbering.set_marks(root)
        self._show_objects(root)
        for number in root.iter(f"{TEXT}page-number"):
            if number.text == "<number>":  # what stands on masters and notes for the number
                number.text = None
        for row in reversed(list(root.iter(f"{_TABLE}table-row"))):
            _fill_values(row)
        is_sheet = self._body.tag in _KINDS
        if not is_sheet:
            _place_comments(root)
        for span in root.iter(f"{TEXT}span"):
            span.set("script", self._script_of(span))
        for column in root.iter(_COLUMN):
            column.set("column", column.get(f"{_TABLE}visibility", ""))
        for element in root.iter():
            tag, in_text = element.tag, element is not root and element.getparent().tag in _IN_TEXT
            if tag in (f"{TEXT}s", f"{TEXT}tab"):
                count = min(parse_integer(element.get(f"{TEXT}c"), 1), _SPACES)
                element.text = " " * count if tag[-1] == "s" else "\t"
            has_blocks = not in_text or next(element.iter(f"{TEXT}p"), None) is not None
            named = _TAGS.get(tag, "div" if has_blocks else "span")
            is_item = tag == f"{TEXT}p" and element.get("mark")
            element.tag = element.get("script") or ("li" if is_item else named)
        for covered in root.iter("th"):
            del covered[:]
        self._take_notes(root)
        for row in reversed(list(root.iter("tr"))):
            self._expand(row)
        self._drop_columns(root)
        join_scripts(root)
        set_apart(root)
        return root

    def _drop_hidden(self, root: Any) -> None:
        """Take out hidden text, rows and sections."""
        gone: list[Any] = []
        for element in root.iter(f"{TEXT}p", f"{TEXT}h", f"{TEXT}span", f"{TEXT}section"):
            if element.get(f"{TEXT}display") == "none" or self._is_hidden(element):
                gone.append(element)
        for field in root.iter(f"{TEXT}hidden-text", f"{TEXT}hidden-paragraph"):
            if field.tag == f"{TEXT}hidden-text":
                field.text = None
                if field.get(f"{TEXT}is-hidden") == "false":
                    field.text = field.get(f"{TEXT}string-value")
            elif field.get(f"{TEXT}is-hidden") == "true":
                gone += list(field.iterancestors(*_PARAGRAPHS))[:1]
        for element in gone:
            self._hidden["words"] += len(" ".join(element.itertext()).split())
            tail = element.tail
            element.clear()
            element.tail = tail
            element.tag = f"{_SVG}title"  # which is not shown
        for row in list(root.iter(f"{_TABLE}table-row")):
            groups = row.iterancestors(f"{_TABLE}table-row-group")
            is_folded = any(group.get(f"{_TABLE}display") == "false" for group in groups)
            if is_folded or row.get(f"{_TABLE}visibility") in _HIDDEN_ROWS:
                if "".join(row.itertext()).strip():
                    self._hidden["rows"] += parse_integer(
                        row.get(f"{_TABLE}number-rows-repeated"), 1
                    )
                row.getparent().remove(row)

    def _properties(self, element: Any) -> Iterator[Any]:
        """The properties of text that the style of an element has, the nearest first."""
        name = element.get(f"{TEXT}style-name")
        for _ in range(20):  # styles may be based on each other in a circle
            style = self._styles.get(name)
            if style is None:
                return
            yield from style.iterchildren(f"{STYLE}text-properties")
            name = style.get(f"{STYLE}parent-style-name")

    def _is_hidden(self, element: Any) -> bool:
        name = element.get(f"{TEXT}style-name")
        if name not in self._hides:
            displays = (p.get(f"{TEXT}display") for p in self._properties(element))
            self._hides[name] = next(filter(None, displays), "") == "none"
        return self._hides[name]

    def _script_of(self, span: Any) -> str:
        """Whether a span is raised ("sup") or lowered ("sub")."""
        for properties in self._properties(span):
            position = properties.get(f"{STYLE}text-position")
            if position is not None:
                first = position.split()[0] if position.split() else ""
                if first in ("super", "sub"):
                    return "sup" if first == "super" else "sub"
                number = re.match(r"(-?)\d*[1-9]", first)
                return "" if number is None else "sub" if number[1] else "sup"
        return ""

    def _show_objects(self, root: Any) -> None:
        """Put the text of charts behind their paragraph, and equations in their place."""
        for node in list(root.iter(_OBJECT)):
            target = node.get(_LINK, "").removeprefix("./").strip("/")
            inner = self._member(f"{target}/content.xml") if target else None
            if inner is None:
                inner = next(node.iterchildren(), None)  # stored in its place
            node[:] = []
            if inner is None:
                continue
            if etree.QName(inner).localname == "math":
                node.tag, node.text = f"{TEXT}span", mathml(inner)
                continue
            chart = next(inner.iter(f"{_CHART}chart"), None)
            if chart is not None:
                block = etree.Element(f"{TEXT}p")
                block.text = _chart_text(chart)
                around = next(node.iterancestors(*_PARAGRAPHS), None)
                if around is not None:
                    around.addnext(block)
                else:
                    node.append(block)

    def _take_notes(self, root: Any) -> None:
        for note in list(root.iter("note")):
            prefix = "e" if note.get(f"{TEXT}note-class") == "endnote" else ""
            number = sum(label.startswith("e") == bool(prefix) for label, _ in self._notes) + 1
            self._notes.append((f"{prefix}{number}", row_of([lines_of(note)])))
            note.clear(keep_tail=True)
            note.tag, note.text = "span", f"[^{prefix}{number}]"

    def _expand(self, row: Any) -> None:
        """Put in what cells and the row stand for several times, up to the last with text."""
        cells = list(row)
        while cells and not any(lines_of(cells[-1])):
            row.remove(cells.pop())
        times = (
            min(parse_integer(row.get(f"{_TABLE}number-rows-repeated"), 1), _ROWS) if cells else 1
        )
        for cell in cells:
            most_cells = _COLUMNS if any(lines_of(cell)) else _BLANK
            repeated = parse_integer(cell.get(f"{_TABLE}number-columns-repeated"), 1)
            for _ in range(1, min(repeated, most_cells)):
                cell.addnext(deepcopy(cell))
        if times * (len(row) + sum(map(len, row.itertext()))) > self._most:
            raise Unreadable("a spreadsheet with too much text in it", "Save it as CSV.")
        for _ in range(1, times):
            row.addnext(deepcopy(row))

    def _drop_columns(self, root: Any) -> None:
        """Take out the cells of hidden columns."""
        columns: dict[Any, list[str]] = {}  # of each table: whether each is shown
        for element in root.xpath(".//*[@column]"):
            table = next(element.iterancestors("table"), root)
            times = parse_integer(element.get(f"{_TABLE}number-columns-repeated"), 1)
            known = columns.setdefault(table, [])
            known += [element.get("column")] * min(times, _COLUMNS - len(known))
        for table, shown in columns.items():
            hidden = [i for i, how in enumerate(shown) if how in _HIDDEN_ROWS]
            used: set[int] = set()
            for row in table.iter("tr") if hidden else ():
                if next(row.iterancestors("table"), table) is not table:
                    continue
                for index in reversed(hidden):
                    if index < len(row):
                        if any(lines_of(row[index])):
                            used.add(index)
                        row.remove(row[index])
            self._hidden["columns"] += len(used)


def _fill_values(row: Any) -> None:
    """Give cells their values that have them without a text."""
    for cell in row.iterchildren(_CELL):
        kind = cell.get(f"{_OFFICE}value-type")
        if kind and next(cell.iter(f"{TEXT}p"), None) is None:
            name = {"date": "date-value", "time": "time-value", "boolean": "boolean-value"}
            text = cell.get(f"{_OFFICE}{name.get(kind, 'string-value')}") or ""
            value = cell.get(f"{_OFFICE}value")
            if value and re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", value):
                is_share = kind == "percentage"
                text = (
                    format_general(float(value) * 100) + "%"
                    if is_share
                    else format_general(float(value))
                )
            etree.SubElement(cell, f"{TEXT}p").text = text.upper() if kind == "boolean" else text


def _comment(annotation: Any, place: str = "") -> str:
    author = annotation.findtext(_CREATOR) or ""
    words = " ".join("".join(p.itertext()) for p in annotation.iter(*_PARAGRAPHS))
    return comment_line(" ".join(words.split()), author, place)


def _comments_of_cells(table: Any) -> Iterator[str]:
    """The comments of cells that are shown, with their places."""
    if next(table.iter(_ANNOTATION), None) is None:
        return
    number = 0
    for row in table.iter(f"{_TABLE}table-row"):
        column = 0
        for cell in row.iterchildren(_CELL, _COVERED):
            for annotation in cell.iterchildren(_ANNOTATION):
                if row.get(f"{_TABLE}visibility") not in _HIDDEN_ROWS:
                    yield _comment(annotation, f"{_letters(column)}{number + 1}")
            column += parse_integer(cell.get(f"{_TABLE}number-columns-repeated"), 1)
        number += parse_integer(row.get(f"{_TABLE}number-rows-repeated"), 1)


def _letters(column: int) -> str:
    """The name of a column by its number from 0.

    >>> _letters(0), _letters(25), _letters(26), _letters(702)
    ('A', 'Z', 'AA', 'AAA')
    """
    letters = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def _place_comments(root: Any) -> None:
    """Put comments behind the paragraph or table that they stand in."""
    for annotation in reversed(list(root.iter(_ANNOTATION))):
        block = None
        for around in annotation.iterancestors(*_PARAGRAPHS, f"{_TABLE}table"):
            block = around
        if block is not None and block is not root and block.getparent() is not None:
            written = etree.Element(f"{TEXT}p")
            written.text = _comment(annotation)
            block.addnext(written)


def _box_of(shape: Any) -> Box | None:
    """Where a shape is, in centimetres; None where it does not say so."""
    numbers = [_length(shape.get(f"{_SVG}{name}")) for name in ("x", "y", "width", "height")]
    if numbers[0] is None or numbers[1] is None:
        boxes = [box for child in shape if child.tag.startswith(_DRAW) and (box := _box_of(child))]
        if not boxes:
            return None
        return Box(
            min(box.left for box in boxes),
            min(box.top for box in boxes),
            max(box.right for box in boxes),
            max(box.bottom for box in boxes),
        )
    left, top = numbers[0], numbers[1]
    return Box(left, top, left + (numbers[2] or 0), top + (numbers[3] or 0))


_UNITS = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72, "pc": 2.54 / 6, "px": 2.54 / 96}


def _length(text: str | None) -> float | None:
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)(cm|mm|in|pt|pc|px)", text or "")
    return float(found[1]) * _UNITS[found[2]] if found else None


def _chart_text(chart: Any) -> str:
    """The titles of a chart, and its values in rows."""
    titles: Iterable[Any] = chart.iter(f"{_CHART}title", f"{_CHART}subtitle")
    lines = [" ".join("".join(title.itertext()).split()) for title in titles]
    for row in chart.iter(f"{_TABLE}table-row"):
        cells = ["".join(cell.itertext()).strip() for cell in row.iterchildren(_CELL)]
        lines.append(row_of(cells))
    return "\n".join(filter(None, lines))
