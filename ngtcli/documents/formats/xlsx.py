"""Excel workbooks: the name of each sheet, and its rows as lines, with values as Excel shows them.

Sheets are parsed as streams, as they may be far larger than memory. openpyxl has a read-only mode
that does so, too, but it takes several times as long, does not format values, and does not report
hidden rows.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ngtcli.documents.content import (
    Extracted,
    ParserInput,
    Writer,
    comment_line,
    hidden_cells_warning,
)
from ngtcli.documents.formats.drawing import DRAWN, SEEN, A, drawn_text
from ngtcli.documents.formats.number_format import (
    BUILT_IN,
    GENERAL,
    format_number,
    format_text,
)
from ngtcli.documents.formats.numerals import parse_integer
from ngtcli.documents.formats.package import BROKEN, RELATION, Package, Part
from ngtcli.documents.formats.visible import scripted

_X = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_XDR = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"
_THREADED = "{http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments}"
_ROW = f"{_X}row"
_CELL = f"{_X}c"
_VALUE = f"{_X}v"
_FORMULA = f"{_X}f"
_INLINE_TEXT = f"{_X}is"
_COLUMN = f"{_X}col"
_SHEET_FORMAT = f"{_X}sheetFormatPr"
_TEXT = f"{_X}t"
_RUN = f"{_X}r"
_SHARED_TEXT = f"{_X}si"
_MAX_COLUMNS = 16_384  # the maximum in Excel
_TRUE = ("1", "true")
_CELL_NAME = re.compile(r"([A-Za-z]{1,3})(\d{1,7})")
_SCRIPTS = {"superscript": "sup", "subscript": "sub"}


def parse(source: ParserInput) -> Extracted:
    """Return the text of all visible sheets."""
    book = _Book(Package.open(source).main("xl/workbook.xml"))
    writer = Writer()
    hidden_sheets = 0
    left_out = _LeftOut()
    for name, is_shown, part in book.sheets():
        if not is_shown:
            hidden_sheets += 1
        elif part is not None:
            _write_sheet(name, _Sheet(part, book, left_out), writer)
    warnings = left_out.warnings()
    if hidden_sheets:
        warnings.insert(0, f"hidden sheets left out: {hidden_sheets}")
    return writer.extracted("xlsx", tuple(warnings))


def _write_sheet(name: str, sheet: "_Sheet", writer: Writer) -> None:
    has_heading = writer.table(sheet.rows(), name)
    for text in (*sheet.drawn_texts(), *sheet.comments()):
        if not has_heading:
            writer.heading(name)
            has_heading = True
        writer.add(text)


@dataclass(slots=True)
class _LeftOut:
    """Counts of what was left out of the text of all sheets.

    Attributes:
        rows: Hidden rows with values.
        columns: Hidden columns with values.
        formulas: Formulas without a stored value.
    """

    rows: int = 0
    columns: int = 0
    formulas: int = 0

    def warnings(self) -> list[str]:
        warnings = []
        if self.rows or self.columns:
            warnings.append(hidden_cells_warning(self.rows, self.columns))
        if self.formulas:
            warnings.append(f"formulas without a value: {self.formulas}")
        return warnings


class _Book:
    """Properties of a workbook that its sheets share.

    Attributes:
        from_1904: Whether dates count from 1904-01-01.
        shared_texts: The texts that cells refer to by index.
        format_codes: The number format of each style of cells.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._root = part.tree()
        properties = self._root.find(f"{_X}workbookPr")
        self.from_1904 = properties is not None and properties.get("date1904") in _TRUE
        self.shared_texts = list(self._read_shared_texts())
        self.format_codes = list(self._read_format_codes())

    def sheets(self) -> Iterator[tuple[str, bool, Part | None]]:
        """Yield the name of each sheet, whether it is visible, and its part."""
        for sheet in self._root.iterfind(f"{_X}sheets/{_X}sheet"):
            is_shown = sheet.get("state", "visible") == "visible"
            part = self._part.target(sheet.get(f"{RELATION}id"))
            yield sheet.get("name", ""), is_shown, part

    def persons(self) -> dict[str, str]:
        """Return the names of the authors of threaded comments by id."""
        names = {}
        for part in self._part.related("person"):
            for person in part.tree():
                names[person.get("id", "")] = person.get("displayName", "")
        return names

    def _read_shared_texts(self) -> Iterator[str]:
        for part in self._part.related("sharedStrings"):
            with part.package.stream(part.stored) as stream:
                for item in _elements(stream, _SHARED_TEXT):
                    yield _text_of(item)
                    _free(item)

    def _read_format_codes(self) -> Iterator[str]:
        parts = self._part.related("styles")
        if not parts:
            return
        root = parts[0].tree()
        codes = {}
        for number_format in root.iterfind(f"{_X}numFmts/{_X}numFmt"):
            codes[number_format.get("numFmtId", "")] = number_format.get("formatCode", GENERAL)
        for style in root.iterfind(f"{_X}cellXfs/{_X}xf"):
            format_id = style.get("numFmtId", "0")
            built_in = BUILT_IN.get(parse_integer(format_id, 0), GENERAL)
            yield codes.get(format_id, built_in)


class _Sheet:
    """A sheet. Read its rows before its comments: they determine which comments are hidden."""

    def __init__(self, part: Part, book: _Book, left_out: _LeftOut) -> None:
        self._part = part
        self._book = book
        self._left_out = left_out
        self._hidden_columns: set[int] = set()  # from 0
        self._sorted_hidden_columns: list[int] = []
        self._hidden_rows: set[int] = set()  # from 1, as in the names of cells

    def rows(self) -> Iterator[Sequence[str]]:
        """Yield the cells of each visible row, up to the last cell with text."""
        if "chartsheet" in self._part.name.lower():
            return
        used_hidden_columns: set[int] = set()
        hides_by_default = False
        row_number = 0
        with self._part.package.stream(self._part.stored) as stream:
            for element in _elements(stream, _ROW, _COLUMN, _SHEET_FORMAT):
                if element.tag == _COLUMN:
                    self._add_hidden_columns(element)
                    continue
                if element.tag == _SHEET_FORMAT:
                    hides_by_default = element.get("zeroHeight") in _TRUE
                    continue
                row_number = parse_integer(element.get("r"), row_number + 1)
                if _is_hidden_row(element, hides_by_default):
                    self._hidden_rows.add(row_number)
                    if element.find(f"{_CELL}/{_VALUE}") is not None:
                        self._left_out.rows += 1
                else:
                    yield self._cells(element, used_hidden_columns)
                _free(element)
        self._left_out.columns += len(used_hidden_columns)

    def _add_hidden_columns(self, element: Any) -> None:
        """Remember the columns that an element describes, if it hides them."""
        if element.get("hidden") not in _TRUE and not _is_zero(element.get("width")):
            return
        first = parse_integer(element.get("min"), 0)
        last = parse_integer(element.get("max"), 0)
        if first > 0:
            self._hidden_columns.update(range(first - 1, min(last, _MAX_COLUMNS)))

    def _cells(self, row: Any, used_hidden_columns: set[int]) -> list[str]:
        """Return the texts of a row's cells by the index of each column among visible ones.

        Args:
            row: The row.
            used_hidden_columns: The hidden columns that have text; those of this row are added.
        """
        texts: list[str] = []
        column = -1
        for cell in row:
            if cell.tag != _CELL:
                continue
            column = _column_of(cell.get("r"), column)
            text = self._cell_text(cell)
            if not text:
                continue
            if column in self._hidden_columns:
                used_hidden_columns.add(column)
                continue
            index = self._index_among_shown(column)
            if index < len(texts):  # the file repeats the cell, or has it out of order
                texts[index] = text
            else:
                texts += [""] * (index - len(texts))
                texts.append(text)
        return texts

    def _index_among_shown(self, column: int) -> int:
        if len(self._sorted_hidden_columns) != len(self._hidden_columns):
            self._sorted_hidden_columns = sorted(self._hidden_columns)
        return column - bisect_left(self._sorted_hidden_columns, column)

    def _cell_text(self, cell: Any) -> str:
        """Return the value of a cell as Excel shows it, or its formula if it has no value."""
        kind = cell.get("t", "n")
        value: str | None = None
        formula: str | None = None
        for child in cell:
            if child.tag == _VALUE:
                value = child.text or ""
            elif child.tag == _FORMULA:
                formula = child.text or ""
            elif child.tag == _INLINE_TEXT:
                value = _text_of(child)

        if formula is not None and (value is None or (not value and kind == "n")):
            self._left_out.formulas += 1
            return f"={formula}" if formula else ""
        if value is None:
            return ""
        if kind == "s":
            index = parse_integer(value, -1)
            has_text = 0 <= index < len(self._book.shared_texts)
            return self._formatted_text(self._book.shared_texts[index] if has_text else "", cell)
        if kind in ("str", "inlineStr"):
            return self._formatted_text(value, cell)
        if kind == "b":
            return "TRUE" if value in _TRUE else "FALSE"
        if kind == "n":
            return self._formatted_number(value, cell)
        if kind == "d":
            return value.removesuffix("T00:00:00").replace("T", " ")
        return value

    def _formatted_number(self, value: str, cell: Any) -> str:
        try:
            return format_number(float(value), self._format_code(cell), self._book.from_1904)
        except ValueError:  # the file says that it is a number, but it is not
            return value

    def _formatted_text(self, text: str, cell: Any) -> str:
        code = self._format_code(cell)
        return text if code == GENERAL else format_text(text, code)

    def _format_code(self, cell: Any) -> str:
        style = parse_integer(cell.get("s"), 0)
        codes = self._book.format_codes
        return codes[style] if style < len(codes) else GENERAL

    def drawn_texts(self) -> Iterator[str]:
        """Yield the texts of boxes, charts and SmartArt on the sheet, by position."""
        for part in self._part.related("drawing"):
            try:
                root = part.tree(*SEEN)
            except (*BROKEN, etree.LxmlError):
                continue
            anchors = [child for child in root if isinstance(child.tag, str)]
            for anchor in sorted(anchors, key=_position_of):
                yield from _texts_at_anchor(anchor, part)

    def comments(self) -> Iterator[str]:
        """Return the comments on visible cells, by position."""
        comments = [*self._threaded_comments()]
        threaded_cells = {comment.cell for comment in comments}
        for comment in self._notes():
            if (
                comment.cell not in threaded_cells
            ):  # a note beside a thread repeats it for older versions
                comments.append(comment)

        shown: list[tuple[int, int, str]] = []
        for comment in comments:
            name = _CELL_NAME.fullmatch(comment.cell)
            row = int(name[2]) if name else 0
            column = _column_of(comment.cell, -1)
            text = " ".join(comment.text.split())
            is_hidden = row in self._hidden_rows or column in self._hidden_columns
            if text and not is_hidden:
                shown.append((row, column, comment_line(text, comment.author, comment.cell)))
        shown.sort(key=lambda comment: comment[:2])
        return (line for _, _, line in shown)

    def _threaded_comments(self) -> Iterator["_Comment"]:
        """Yield the threaded comments and replies, which Excel now calls comments."""
        persons = self._book.persons()
        for part in self._part.related("threadedComment"):
            for element in part.tree().iter(f"{_THREADED}threadedComment"):
                text = element.findtext(f"{_THREADED}text") or ""
                author = persons.get(element.get("personId", ""), "")
                yield _Comment(element.get("ref", ""), text, author)

    def _notes(self) -> Iterator["_Comment"]:
        """Yield the comments of older versions, which Excel now calls notes."""
        for part in self._part.related("comments"):
            root = part.tree()
            authors = [author.text or "" for author in root.iter(f"{_X}author")]
            for element in root.iter(f"{_X}comment"):
                index = parse_integer(element.get("authorId"), -1)
                author = authors[index] if 0 <= index < len(authors) else ""
                text = "".join(_text_of(words) for words in element.iter(f"{_X}text"))
                text = text.strip().removeprefix(f"{author}:")  # which Excel puts first
                yield _Comment(element.get("ref", ""), text, author)


@dataclass(frozen=True, slots=True)
class _Comment:
    """A comment on a cell, such as A2."""

    cell: str
    text: str
    author: str


def _is_hidden_row(row: Any, hides_by_default: bool) -> bool:
    if _is_zero(row.get("ht")):
        return True
    hidden = row.get("hidden")
    return hides_by_default if hidden is None else hidden in _TRUE


_column_cache: dict[str, int] = {}  # by letters; a sheet names each column once per row


def _column_of(cell_name: str | None, previous: int) -> int:
    """Return the column of a cell, from 0; without a valid name, the one after `previous`."""
    if cell_name is None:
        return previous + 1
    letters = cell_name.rstrip("0123456789")
    column = _column_cache.get(letters)
    if column is None:
        if not letters.isascii() or not letters.isalpha():
            return previous + 1
        number = 0
        for letter in letters.upper()[:4]:
            number = number * 26 + ord(letter) - ord("A") + 1
        if number > _MAX_COLUMNS:
            return previous + 1
        column = number - 1
        _column_cache[letters] = column
    return column


def _text_of(item: Any) -> str:
    """Return the text of the runs of an item, with superscripts and subscripts marked."""
    if len(item) == 1 and item[0].tag == _TEXT:
        return item[0].text or ""
    text = ""
    runs = [child for child in item if child.tag in (_TEXT, _RUN)]
    for index, run in enumerate(runs):
        run_text = (run.text if run.tag == _TEXT else run.findtext(_TEXT)) or ""
        alignment = run.find(f"{_X}rPr/{_X}vertAlign")
        script = "" if alignment is None else _SCRIPTS.get(alignment.get("val", ""), "")
        if script:
            following = ""
            if index + 1 < len(runs):
                following = runs[index + 1].findtext(_TEXT) or ""
            run_text = scripted(run_text, script, text, following)
        text += run_text
    return text


def _texts_at_anchor(anchor: Any, part: Part) -> Iterator[str]:
    """Yield the texts of the shapes, charts and SmartArt at an anchor."""
    for node in anchor.iter(f"{_XDR}sp", *DRAWN):
        if node.tag != f"{_XDR}sp":
            text = drawn_text(node, part)
        elif node.find(f"*/{_XDR}cNvPr[@hidden='1']") is not None:
            text = ""
        else:
            text = _shape_text(node)
        if text:
            yield text


def _shape_text(shape: Any) -> str:
    lines = []
    for paragraph in shape.iterfind(f"{_XDR}txBody/{A}p"):
        line = "".join(run.text or "" for run in paragraph.iter(f"{A}t"))
        if line.strip():
            lines.append(line)
    return "\n".join(lines)


def _position_of(anchor: Any) -> tuple[int, int]:
    """Return the row and the column of the top left corner of a drawing."""
    start = f"{_XDR}from/{_XDR}"
    row = anchor.findtext(f"{start}row", "").strip()
    column = anchor.findtext(f"{start}col", "").strip()
    return parse_integer(row, 0), parse_integer(column, 0)


def _is_zero(size: str | None) -> bool:
    return size is not None and re.fullmatch(r"0+(?:\.0*)?", size) is not None


def _elements(stream: Any, *tags: str) -> Iterator[Any]:
    """Yield each element with one of these tags as soon as it is complete."""
    events = etree.iterparse(
        stream,
        tag=tags,
        resolve_entities=False,
        remove_comments=True,
        remove_pis=True,
        huge_tree=True,  # a sheet may be long; `Package.open` bounds what it unpacks to
    )
    return (element for _, element in events)


def _free(element: Any) -> None:
    """Free the memory of an element and of its siblings before it."""
    element.clear()
    while element.getprevious() is not None:
        del element.getparent()[0]
