"""OpenDocument texts, sheets and slides as LibreOffice shows them.

The document is turned into a tree of HTML: paragraphs become `pre`, `h2` or `li`, and hidden text
is removed. The styles in `content.xml` and `styles.xml` say how text looks, what is hidden, and how
lists are numbered.
"""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from zipfile import ZipFile

from lxml import etree

from ngtcli.documents.content import (
    Extracted,
    ParserInput,
    Writer,
    comment_line,
    hidden_cells_warning,
    hidden_text_warning,
    row_of,
)
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

_NAMESPACE = "{{urn:oasis:names:tc:opendocument:xmlns:{}:1.0}}"
_TABLE = _NAMESPACE.format("table")
_OFFICE = _NAMESPACE.format("office")
_DRAW = _NAMESPACE.format("drawing")
_PRESENTATION = _NAMESPACE.format("presentation")
_SVG = _NAMESPACE.format("svg-compatible")
_CHART = _NAMESPACE.format("chart")
_LINK = "{http://www.w3.org/1999/xlink}href"
_CREATOR = "{http://purl.org/dc/elements/1.1/}creator"
_SHEET_OR_SLIDE = (f"{_TABLE}table", f"{_DRAW}page")
_OBJECT = f"{_DRAW}object"
_ANNOTATION = f"{_OFFICE}annotation"
_PARAGRAPHS = (f"{TEXT}p", f"{TEXT}h")
_COLUMN = f"{_TABLE}table-column"
_ROW = f"{_TABLE}table-row"
_CELL = f"{_TABLE}table-cell"
_COVERED = f"{_TABLE}covered-table-cell"
_VALUE_ATTRIBUTES = {"date": "date-value", "time": "time-value", "boolean": "boolean-value"}
# The formats of bodies; that of all others, such as drawings, is "odt".
_FORMATS = {f"{_OFFICE}spreadsheet": "ods", f"{_OFFICE}presentation": "odp"}
# The HTML elements that stand for those of OpenDocument. Spaces count in "pre"; "template" is not
# shown, and "th" is a cell that another one covers.
_TAGS = {
    f"{TEXT}h": "h2",
    f"{TEXT}p": "pre",
    f"{TEXT}line-break": "br",
    f"{_TABLE}table": "table",
    _ROW: "tr",
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
_INLINE_PARENTS = ("h2", "pre", "li", "span", "a", "sup", "sub", "ruby")
_HIDDEN_VISIBILITIES = ("collapse", "filter")  # of rows and columns
_MAX_COLUMNS = 16_384  # of a sheet in LibreOffice
_MAX_ROWS = 1_048_576
_MAX_EMPTY_CELLS = 1000  # between two cells with text (guess)
_MAX_SPACES = 1000  # that one element stands for (guess)
_MAX_STYLE_DEPTH = 20  # styles on which one is based; they may be based on each other in a circle
_CENTIMETRES = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72, "pc": 2.54 / 6, "px": 2.54 / 96}


def parse(source: ParserInput) -> Extracted:
    """The text of a document; hidden sheets and slides are left out. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    return _Document(archive, source.max_bytes).read()


@dataclass(slots=True)
class _LeftOut:
    """Counts what is hidden and has text."""

    parts: int = 0  # sheets or slides
    words: int = 0
    rows: int = 0
    columns: int = 0

    def warnings(self) -> tuple[str, ...]:
        warnings = []
        if self.parts:
            warnings.append(f"hidden sheets or slides left out: {self.parts}")
        if self.words:
            warnings.append(hidden_text_warning(self.words))
        if self.rows or self.columns:
            warnings.append(hidden_cells_warning(self.rows, self.columns))
        return tuple(warnings)


class _Document:
    """A document with its styles."""

    def __init__(self, archive: ZipFile, max_characters: int) -> None:
        self._archive = archive
        self._max_characters = max_characters  # of a row of a sheet, with its repetitions
        self._content = parse_xml(archive.read("content.xml"))
        self._body = self._content.find(f"{_OFFICE}body")[0]
        self._format = _FORMATS.get(self._body.tag, "odt")
        self._shared = self._parse_member("styles.xml")  # shared styles, and masters of pages
        roots = [root for root in (self._shared, self._content) if root is not None]
        self._numbering = Numbering(roots)
        self._styles = {}
        for root in roots:
            for style in root.iter(f"{STYLE}style"):
                self._styles[style.get(f"{STYLE}name")] = style
        self._style_hides: dict[str | None, bool] = {}  # cache, by the name of a style
        self._footnotes: list[str] = []
        self._endnotes: list[str] = []
        self._left_out = _LeftOut()

    def read(self) -> Extracted:
        """The text, with warnings of what is left out."""
        self._drop_hidden_parts()
        writer = Writer()
        if self._format == "ods":
            self._write_sheets(writer)
        elif self._format == "odp":
            self._write_slides(writer)
        else:
            for text in self._page_texts("header"):
                writer.add(text)
            write_tree(self._as_html(self._body), writer)
        for number, note in enumerate(self._footnotes, 1):
            writer.add(f"[^{number}]: {note}", "note")
        for number, note in enumerate(self._endnotes, 1):
            writer.add(f"[^e{number}]: {note}", "endnote")
        if self._format == "odt":
            for text in self._page_texts("footer"):
                writer.add(text)
        return writer.extracted(self._format, self._left_out.warnings())

    def _parse_member(self, name: str) -> Any:
        """The root of a member of the archive; None if it is missing or broken."""
        try:
            return parse_xml(self._archive.read(name))
        except (*BROKEN, etree.LxmlError):
            return None

    def _drop_hidden_parts(self) -> None:
        """Remove the sheets and slides that are hidden."""
        for part in list(self._body.iterchildren(*_SHEET_OR_SLIDE)):
            if self._is_hidden_part(part):
                self._body.remove(part)
                self._left_out.parts += 1

    def _is_hidden_part(self, part: Any) -> bool:
        """Whether the style of a sheet or slide hides it."""
        name = part.get(f"{_TABLE}style-name") or part.get(f"{_DRAW}style-name") or ""
        style = self._styles.get(name)
        if style is None:
            return False
        for properties in style:
            if properties.get(f"{_TABLE}display") == "false":
                return True
            if properties.get(f"{_PRESENTATION}visibility") == "hidden":
                return True
        return False

    def _write_sheets(self, writer: Writer) -> None:
        for sheet in self._body.iterchildren(f"{_TABLE}table"):
            name = sheet.get(f"{_TABLE}name") or ""
            comments = list(_cell_comments(sheet))
            self._as_html(sheet)
            rows: list[list[list[str]]] = []
            for row in sheet.iter("tr"):
                rows.append([lines_of(cell) for cell in row])
            for shapes in sheet.iter("figure"):
                rows += [[[line]] for line in lines_of(shapes)]
            writer.table(rows, name)
            for comment in comments:
                writer.add(comment)

    def _write_slides(self, writer: Writer) -> None:
        written: set[str] = set()  # the texts of masters that earlier slides had
        for number, page in enumerate(self._body.iterchildren(f"{_DRAW}page"), 1):
            texts_of_master = self._texts_of_master(page)
            _sort_shapes(page)
            title_frame = page.find(f"{_DRAW}frame[@{_PRESENTATION}class='title']")
            comments = [_comment(note) for note in page.iterchildren(_ANNOTATION)]
            self._as_html(page)
            title = "" if title_frame is None else row_of([lines_of(title_frame)])
            writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
            write_tree(page, writer)
            for text in texts_of_master:
                if text not in written:
                    writer.add(text)
            for comment in comments:
                writer.add(comment)
            written.update(texts_of_master)

    def _texts_of_master(self, page: Any) -> list[str]:
        """The texts that the master of a slide shows on it, with the footer."""
        if self._shared is None:
            return []
        footer = self._footer_of(page)
        texts: list[str] = []
        for master in self._shared.iter(f"{STYLE}master-page"):
            if master.get(f"{STYLE}name") != page.get(f"{_DRAW}master-page-name"):
                continue
            for shape in master:
                if _is_shown_on_slides(shape):
                    copy = deepcopy(shape)
                    for field in copy.iter(f"{_PRESENTATION}footer"):
                        field.text = footer
                    lines = lines_of(self._as_html(copy))
                    texts.append("\n".join(filter(None, lines)))
        return [text for text in texts if any(map(str.isalpha, text))]

    def _footer_of(self, page: Any) -> str:
        """The footer that a slide names."""
        name = page.get(f"{_PRESENTATION}use-footer-name")
        footer = ""
        for declaration in self._body.iter(f"{_PRESENTATION}footer-decl"):
            if declaration.get(f"{_PRESENTATION}name") == name:
                footer = "".join(declaration.itertext())
        return footer

    def _page_texts(self, kind: str) -> list[str]:
        """The headers or footers of the pages of a text, each once; not those without letters.

        Args:
            kind: "header" or "footer".
        """
        if self._shared is None:
            return []
        used_masters = set()
        for root in (self._shared, self._content):
            for style in root.iter(f"{STYLE}style"):
                used_masters.add(style.get(f"{STYLE}master-page-name"))

        texts: dict[str, None] = {}
        for number, master in enumerate(self._shared.iter(f"{STYLE}master-page")):
            is_default = number == 0
            if not is_default and master.get(f"{STYLE}name") not in used_masters:
                continue
            used_masters.add(master.get(f"{STYLE}next-style-name"))
            for tag in (f"{kind}-first", kind, f"{kind}-left"):
                for element in master.iterfind(f"{STYLE}{tag}"):
                    if element.get(f"{STYLE}display") != "false":
                        writer = Writer()
                        write_tree(self._as_html(deepcopy(element)), writer)
                        texts[writer.text()] = None
        return [text for text in texts if any(map(str.isalpha, text))]

    def _as_html(self, root: Any) -> Any:
        """Turn a tree into HTML, in place, and return it."""
        self._drop_hidden(root)
        self._numbering.set_marks(root)
        self._show_objects(root)
        for number in root.iter(f"{TEXT}page-number"):
            if number.text == "<number>":  # the placeholder that masters and notes have
                number.text = None
        for row in reversed(list(root.iter(_ROW))):
            _fill_values(row)
        if self._format == "odt":
            _place_comments(root)
        for span in root.iter(f"{TEXT}span"):
            span.set("script", self._script_of(span))
        for column in root.iter(_COLUMN):
            column.set("visibility", column.get(f"{_TABLE}visibility", ""))
        _rename_elements(root)
        for covered in root.iter("th"):
            del covered[:]
        self._take_notes(root)
        for row in reversed(list(root.iter("tr"))):
            self._expand(row)
        self._drop_hidden_columns(root)
        join_scripts(root)
        set_apart(root)
        return root

    def _drop_hidden(self, root: Any) -> None:
        """Remove hidden text, sections and rows."""
        hidden: list[Any] = []
        for element in root.iter(*_PARAGRAPHS, f"{TEXT}span", f"{TEXT}section"):
            if element.get(f"{TEXT}display") == "none" or self._is_hidden_by_style(element):
                hidden.append(element)
        for field in root.iter(f"{TEXT}hidden-text", f"{TEXT}hidden-paragraph"):
            is_hidden = field.get(f"{TEXT}is-hidden")
            if field.tag == f"{TEXT}hidden-text":
                field.text = field.get(f"{TEXT}string-value") if is_hidden == "false" else None
            elif is_hidden == "true":
                paragraph = next(field.iterancestors(*_PARAGRAPHS), None)
                if paragraph is not None:
                    hidden.append(paragraph)
        for element in hidden:
            self._left_out.words += len(" ".join(element.itertext()).split())
            element.clear(keep_tail=True)
            element.tag = f"{_SVG}title"  # an element that is not shown

        for row in list(root.iter(_ROW)):
            groups = row.iterancestors(f"{_TABLE}table-row-group")
            is_folded = any(group.get(f"{_TABLE}display") == "false" for group in groups)
            if is_folded or row.get(f"{_TABLE}visibility") in _HIDDEN_VISIBILITIES:
                if "".join(row.itertext()).strip():
                    count = parse_integer(row.get(f"{_TABLE}number-rows-repeated"), 1)
                    self._left_out.rows += count
                row.getparent().remove(row)

    def _text_properties(self, element: Any) -> Iterator[Any]:
        """The properties of text in the styles of an element, the most specific first."""
        name = element.get(f"{TEXT}style-name")
        for _ in range(_MAX_STYLE_DEPTH):
            style = self._styles.get(name)
            if style is None:
                return
            yield from style.iterchildren(f"{STYLE}text-properties")
            name = style.get(f"{STYLE}parent-style-name")

    def _is_hidden_by_style(self, element: Any) -> bool:
        name = element.get(f"{TEXT}style-name")
        if name not in self._style_hides:
            displays = (p.get(f"{TEXT}display") for p in self._text_properties(element))
            self._style_hides[name] = next(filter(None, displays), "") == "none"
        return self._style_hides[name]

    def _script_of(self, span: Any) -> str:
        """Return "sup" for a raised span, "sub" for a lowered one, and "" for any other."""
        for properties in self._text_properties(span):
            position = properties.get(f"{STYLE}text-position")
            if position is not None:
                return _script_at(position)
        return ""

    def _show_objects(self, root: Any) -> None:
        """Write equations as text, and charts as text after their paragraph."""
        for node in list(root.iter(_OBJECT)):
            path = node.get(_LINK, "").removeprefix("./").strip("/")
            content = self._parse_member(f"{path}/content.xml") if path else None
            if content is None:
                content = next(node.iterchildren(), None)  # some files have it in place
            node[:] = []
            if content is None:
                continue
            if etree.QName(content).localname == "math":
                node.tag = f"{TEXT}span"
                node.text = mathml(content)
                continue
            chart = next(content.iter(f"{_CHART}chart"), None)
            if chart is not None:
                block = etree.Element(f"{TEXT}p")
                block.text = _chart_text(chart)
                paragraph = next(node.iterancestors(*_PARAGRAPHS), None)
                if paragraph is not None:
                    paragraph.addnext(block)
                else:
                    node.append(block)

    def _take_notes(self, root: Any) -> None:
        """Replace footnotes and endnotes by their labels, and remember their text."""
        for note in list(root.iter("note")):
            is_endnote = note.get(f"{TEXT}note-class") == "endnote"
            notes = self._endnotes if is_endnote else self._footnotes
            notes.append(row_of([lines_of(note)]))
            label = f"e{len(notes)}" if is_endnote else f"{len(notes)}"
            note.clear(keep_tail=True)
            note.tag = "span"
            note.text = f"[^{label}]"

    def _expand(self, row: Any) -> None:
        """Repeat cells and a row as often as they stand for, up to the last cell with text.

        Raises Unreadable if that is too much text.
        """
        cells = list(row)
        while cells and not any(lines_of(cells[-1])):
            row.remove(cells.pop())
        row_count = 1
        if cells:
            repeated = parse_integer(row.get(f"{_TABLE}number-rows-repeated"), 1)
            row_count = min(repeated, _MAX_ROWS)
        for cell in cells:
            max_count = _MAX_COLUMNS if any(lines_of(cell)) else _MAX_EMPTY_CELLS
            repeated = parse_integer(cell.get(f"{_TABLE}number-columns-repeated"), 1)
            for _ in range(1, min(repeated, max_count)):
                cell.addnext(deepcopy(cell))

        characters = sum(len(text) for text in row.itertext())
        if row_count * (len(row) + characters) > self._max_characters:
            raise Unreadable("a spreadsheet with too much text in it", "Save it as CSV.")
        for _ in range(1, row_count):
            row.addnext(deepcopy(row))

    def _drop_hidden_columns(self, root: Any) -> None:
        """Remove the cells of hidden columns."""
        visibilities: dict[Any, list[str]] = {}  # of the columns of each table
        for column in root.xpath(".//*[@visibility]"):
            table = next(column.iterancestors("table"), root)
            columns = visibilities.setdefault(table, [])
            repeated = parse_integer(column.get(f"{_TABLE}number-columns-repeated"), 1)
            count = min(repeated, _MAX_COLUMNS - len(columns))
            columns += [column.get("visibility")] * count
        for table, columns in visibilities.items():
            hidden = [i for i, column in enumerate(columns) if column in _HIDDEN_VISIBILITIES]
            if hidden:
                self._left_out.columns += len(_drop_columns(table, hidden))


def _sort_shapes(page: Any) -> None:
    """Put the shapes of a slide into reading order, the title first."""
    shapes = [child for child in page if child.tag.startswith(_DRAW)]
    others = [child for child in page if child not in shapes]
    titles: list[Any] = []
    placed: list[tuple[Box, Any]] = []
    box = Box(0, 0, 0, 0)
    for shape in shapes:
        box = _box_of(shape) or box  # a shape without a position follows the one before it
        if shape.get(f"{_PRESENTATION}class") == "title":
            titles.append(shape)
        else:
            placed.append((box, shape))
    page[:] = [*titles, *(shape for _, shape in by_place(placed)), *others]


def _is_shown_on_slides(shape: Any) -> bool:
    """Whether a shape of a master is text on its slides: not a placeholder, a date or a number."""
    if not shape.tag.startswith(_DRAW):
        return False
    kind = shape.get(f"{_PRESENTATION}class", "")
    if kind == "":
        is_placeholder = shape.get(f"{_PRESENTATION}placeholder") == "true"
        return not is_placeholder
    return kind in ("footer", "header")


def _rename_elements(root: Any) -> None:
    """Give the elements of a tree their names in HTML, and write tabs and repeated spaces."""
    for element in root.iter():
        tag = element.tag
        if tag == f"{TEXT}tab":
            element.text = "\t"
        elif tag == f"{TEXT}s":
            count = parse_integer(element.get(f"{TEXT}c"), 1)
            element.text = " " * min(count, _MAX_SPACES)

        if element.get("script"):
            element.tag = element.get("script")
        elif tag == f"{TEXT}p" and element.get("mark"):
            element.tag = "li"
        elif tag in _TAGS:
            element.tag = _TAGS[tag]
        else:
            is_inline = element is not root and element.getparent().tag in _INLINE_PARENTS
            has_paragraphs = next(element.iter(f"{TEXT}p"), None) is not None
            element.tag = "span" if is_inline and not has_paragraphs else "div"


def _script_at(position: str) -> str:
    """Return "sup" or "sub" for a position such as "super 58%", and "" on the base line."""
    words = position.split()
    if not words:
        return ""
    if words[0] == "super":
        return "sup"
    if words[0] == "sub":
        return "sub"
    percentage = re.match(r"(-?)\d*[1-9]", words[0])
    if percentage is None:
        return ""
    return "sub" if percentage[1] else "sup"


def _drop_columns(table: Any, hidden: Sequence[int]) -> set[int]:
    """Remove the cells of hidden columns, and return the columns that had text.

    Args:
        table: A table in HTML.
        hidden: The hidden columns in order, from 0.
    """
    with_text: set[int] = set()
    for row in table.iter("tr"):
        is_of_inner_table = next(row.iterancestors("table"), table) is not table
        if is_of_inner_table:
            continue
        for column in reversed(hidden):
            if column < len(row):
                if any(lines_of(row[column])):
                    with_text.add(column)
                row.remove(row[column])
    return with_text


def _fill_values(row: Any) -> None:
    """Write the values of cells that have no text of their own."""
    for cell in row.iterchildren(_CELL):
        kind = cell.get(f"{_OFFICE}value-type")
        if kind and next(cell.iter(f"{TEXT}p"), None) is None:
            etree.SubElement(cell, f"{TEXT}p").text = _value_text(cell, kind)


def _value_text(cell: Any, kind: str) -> str:
    value: str = cell.get(f"{_OFFICE}value") or ""
    if re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", value):
        if kind == "percentage":
            text = f"{format_general(float(value) * 100)}%"
        else:
            text = format_general(float(value))
    else:
        text = cell.get(f"{_OFFICE}{_VALUE_ATTRIBUTES.get(kind, 'string-value')}") or ""
    return text.upper() if kind == "boolean" else text


def _comment(annotation: Any, place: str = "") -> str:
    author = annotation.findtext(_CREATOR) or ""
    paragraphs = ["".join(paragraph.itertext()) for paragraph in annotation.iter(*_PARAGRAPHS)]
    return comment_line(" ".join(" ".join(paragraphs).split()), author, place)


def _cell_comments(sheet: Any) -> Iterator[str]:
    """The comments on cells that are shown, with the names of the cells."""
    if next(sheet.iter(_ANNOTATION), None) is None:
        return
    row_number = 1
    for row in sheet.iter(_ROW):
        column = 0
        for cell in row.iterchildren(_CELL, _COVERED):
            for annotation in cell.iterchildren(_ANNOTATION):
                if row.get(f"{_TABLE}visibility") not in _HIDDEN_VISIBILITIES:
                    yield _comment(annotation, f"{_column_name(column)}{row_number}")
            column += parse_integer(cell.get(f"{_TABLE}number-columns-repeated"), 1)
        row_number += parse_integer(row.get(f"{_TABLE}number-rows-repeated"), 1)


def _column_name(column: int) -> str:
    """The name of a column by its number from 0.

    >>> _column_name(0), _column_name(25), _column_name(26), _column_name(702)
    ('A', 'Z', 'AA', 'AAA')
    """
    name = ""
    number = column + 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _place_comments(root: Any) -> None:
    """Put comments after the outermost paragraph or table around them."""
    for annotation in reversed(list(root.iter(_ANNOTATION))):
        outermost = None
        for block in annotation.iterancestors(*_PARAGRAPHS, f"{_TABLE}table"):
            outermost = block
        if outermost is None or outermost is root or outermost.getparent() is None:
            continue
        paragraph = etree.Element(f"{TEXT}p")
        paragraph.text = _comment(annotation)
        outermost.addnext(paragraph)


def _box_of(shape: Any) -> Box | None:
    """Where a shape is, in centimetres; None if it does not say so."""
    left = _length(shape.get(f"{_SVG}x"))
    top = _length(shape.get(f"{_SVG}y"))
    if left is None or top is None:
        return _box_of_group(shape)
    width = _length(shape.get(f"{_SVG}width")) or 0
    height = _length(shape.get(f"{_SVG}height")) or 0
    return Box(left, top, left + width, top + height)


def _box_of_group(group: Any) -> Box | None:
    """The smallest box around the shapes of a group."""
    boxes = []
    for child in group:
        box = _box_of(child) if child.tag.startswith(_DRAW) else None
        if box is not None:
            boxes.append(box)
    if not boxes:
        return None
    return Box(
        min(box.left for box in boxes),
        min(box.top for box in boxes),
        max(box.right for box in boxes),
        max(box.bottom for box in boxes),
    )


def _length(text: str | None) -> float | None:
    """A length such as "2.5cm" in centimetres; None if it is missing or has another unit."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(cm|mm|in|pt|pc|px)", text or "")
    return float(match[1]) * _CENTIMETRES[match[2]] if match else None


def _chart_text(chart: Any) -> str:
    """The titles of a chart, and its values in rows."""
    lines = []
    for title in chart.iter(f"{_CHART}title", f"{_CHART}subtitle"):
        lines.append(" ".join("".join(title.itertext()).split()))
    for row in chart.iter(_ROW):
        lines.append(row_of(["".join(cell.itertext()).strip() for cell in row.iterchildren(_CELL)]))
    return "\n".join(filter(None, lines))
