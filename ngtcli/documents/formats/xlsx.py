"""Excel workbooks: the sheets with their names, a line a row, values as Excel shows them.

Sheets are read as streams, row by row, since they may be far larger than memory. openpyxl takes
several times as long, and shows no values and no hidden rows when it reads so.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer, comment_line, counted
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
_ROW, _CELL, _VALUE, _FORMULA, _INLINE = (f"{_X}{tag}" for tag in ("row", "c", "v", "f", "is"))
_COLUMN, _SHEET_FORMAT = f"{_X}col", f"{_X}sheetFormatPr"
_TEXT, _RUN, _ITEM = f"{_X}t", f"{_X}r", f"{_X}si"
_COLUMNS = 16_384  # most that a sheet has
_TRUE = ("1", "true")
_CELL_NAME = re.compile(r"([A-Za-z]{1,3})(\d{1,7})")


def parse(source: Source) -> Extracted:
    """The text of all sheets that Excel shows."""
    book = _Book(Package.open(source).main("xl/workbook.xml"))
    writer = Writer()
    hidden = 0
    left_out = _LeftOut()
    for name, is_shown, part in book.sheets():
        if not is_shown:
            hidden += 1
        elif part is not None:
            _write_sheet(name, _Sheet(part, book, left_out), writer)
    told = [f"hidden sheets left out: {hidden}"] * bool(hidden)
    return writer.extracted("xlsx", (*told, *left_out.warnings()))


def _write_sheet(name: str, sheet: "_Sheet", writer: Writer) -> None:
    has_heading = writer.table(sheet.rows(), name)
    for text in (*sheet.drawn(), *sheet.comments()):
        if not has_heading:
            writer.heading(name)
            has_heading = True
        writer.add(text)


@dataclass(slots=True)
class _LeftOut:
    """What is not shown, or not there, in all sheets."""

    rows: int = 0
    columns: int = 0
    formulas: int = 0

    def warnings(self) -> list[str]:
        told = []
        if self.rows or self.columns:
            counts = {"row": self.rows, "column": self.columns}
            named = ", ".join(counted(count, what) for what, count in counts.items() if count)
            told.append(f"hidden rows and columns left out: {named}")
        if self.formulas:
            told.append(f"formulas without a value: {self.formulas}")
        return told


class _Book:
    """What the sheets of a workbook share: texts, number formats, and the names of persons."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._root = part.tree()
        properties = self._root.find(f"{_X}workbookPr")
        self.from_1904 = properties is not None and properties.get("date1904") in _TRUE
        self.texts = list(self._shared_texts())
        self.codes = list(self._number_formats())

    def sheets(self) -> Iterator[tuple[str, bool, Part | None]]:
        """The name of each sheet, whether it is shown, and its part."""
        for sheet in self._root.iterfind(f"{_X}sheets/{_X}sheet"):
            is_shown = sheet.get("state", "visible") == "visible"
            part = self._part.target(sheet.get(f"{RELATION}id"))
            yield sheet.get("name", ""), is_shown, part

    def persons(self) -> dict[str, str]:
        """The names of those who made comments, by their ids."""
        people = (person for part in self._part.related("person") for person in part.tree())
        return {person.get("id", ""): person.get("displayName", "") for person in people}

    def _shared_texts(self) -> Iterator[str]:
        for part in self._part.related("sharedStrings"):
            with part.package.stream(part.stored) as stream:
                for item in _elements(stream, _ITEM):
                    yield _text_of(item)
                    _forget(item)

    def _number_formats(self) -> Iterator[str]:
        """The number format of each style of cells."""
        for part in self._part.related("styles"):
            root = part.tree()
            own = {
                form.get("numFmtId", ""): form.get("formatCode", GENERAL)
                for form in root.iterfind(f"{_X}numFmts/{_X}numFmt")
            }
            for style in root.iterfind(f"{_X}cellXfs/{_X}xf"):
                number = style.get("numFmtId", "0")
                yield own.get(number, BUILT_IN.get(parse_integer(number, 0), GENERAL))
            return


class _Sheet:
    """A sheet, read once: first its rows, then what is drawn on it and said of it."""

    def __init__(self, part: Part, book: _Book, left_out: _LeftOut) -> None:
        self._part = part
        self._book = book
        self._left_out = left_out
        self._hidden_columns: set[int] = set()
        self._hidden_rows: set[int] = set()
        self._before: list[int] = []  # the hidden columns in their order

    def rows(self) -> Iterator[Sequence[str]]:
        """The cells of each row that is shown, up to the last one with text."""
        if "chartsheet" in self._part.name.lower():
            return
        used_hidden: set[int] = set()
        rows_are_hidden = False
        tags = (_ROW, _COLUMN, _SHEET_FORMAT)
        number = 0
        with self._part.package.stream(self._part.stored) as stream:
            for element in _elements(stream, *tags):
                if element.tag == _COLUMN:
                    self._note_columns(element)
                    continue
                if element.tag == _SHEET_FORMAT:
                    rows_are_hidden = element.get("zeroHeight") in _TRUE
                    continue
                number = parse_integer(element.get("r"), number + 1)
                hidden = element.get("hidden")
                is_hidden = rows_are_hidden if hidden is None else hidden in _TRUE
                if is_hidden or _is_zero(element.get("ht")):
                    self._hidden_rows.add(number)
                    self._left_out.rows += element.find(f"{_CELL}/{_VALUE}") is not None
                else:
                    yield self._cells(element, used_hidden)
                _forget(element)
        self._left_out.columns += len(used_hidden)

    def _note_columns(self, element: Any) -> None:
        """Note which columns are hidden."""
        if element.get("hidden") not in _TRUE and not _is_zero(element.get("width")):
            return
        first, last = element.get("min", ""), element.get("max", "")
        if first.isdecimal() and last.isdecimal() and len(first) < 6 and len(last) < 6:
            columns = range(int(first) - 1, min(int(last), _COLUMNS))
            self._hidden_columns.update(columns)

    def _cells(self, row: Any, used_hidden: set[int]) -> list[str]:
        texts: list[str] = []
        hidden = self._hidden_columns
        column = -1
        for cell in row:
            if cell.tag != _CELL:
                continue
            column = _column_of(cell.get("r"), column)
            text = self._shown(cell)
            if not text:
                continue
            if column in hidden:
                used_hidden.add(column)
                continue
            place = self._shown_place(column) if hidden else column
            if place >= len(texts):
                texts += [""] * (place - len(texts))
                texts.append(text)
            else:  # named twice, or out of order
                texts[place] = text
        return texts

    def _shown_place(self, column: int) -> int:
        """The number of a column among those that are shown."""
        if len(self._before) != len(self._hidden_columns):
            self._before = sorted(self._hidden_columns)
        return column - bisect_left(self._before, column)

    def _shown(self, cell: Any) -> str:
        """The value of a cell as Excel shows it."""
        kind = cell.get("t", "n")
        value: str | None = None
        formula: str | None = None
        for child in cell:
            if child.tag == _VALUE:
                value = child.text or ""
            elif child.tag == _FORMULA:
                formula = child.text or ""
            elif child.tag == _INLINE:
                value = _text_of(child)
        if value is None or (not value and formula is not None and kind == "n"):
            if formula is None:
                return ""
            self._left_out.formulas += 1
            return f"={formula}" if formula else ""
        if kind == "s":
            index = parse_integer(value, -1)
            text = self._book.texts[index] if 0 <= index < len(self._book.texts) else ""
            return self._formatted_text(text, cell)
        if kind in ("str", "inlineStr"):
            return self._formatted_text(value, cell)
        if kind == "b":
            return "TRUE" if value in _TRUE else "FALSE"
        if kind == "n":
            return self._number(value, cell)
        return value.removesuffix("T00:00:00").replace("T", " ") if kind == "d" else value

    def _number(self, value: str, cell: Any) -> str:
        try:
            return format_number(float(value), self._code(cell), self._book.from_1904)
        except ValueError:  # it is no number
            return value

    def _formatted_text(self, text: str, cell: Any) -> str:
        code = self._code(cell)
        return text if code == GENERAL else format_text(text, code)

    def _code(self, cell: Any) -> str:
        index = parse_integer(cell.get("s"), 0)
        return self._book.codes[index] if index < len(self._book.codes) else GENERAL

    def drawn(self) -> Iterator[str]:
        """The text of boxes, charts and SmartArt on the sheet, in the order of their places."""
        for part in self._part.related("drawing"):
            try:
                root = part.tree(*SEEN)
            except (*BROKEN, etree.LxmlError):
                continue
            anchors = [a for a in root if isinstance(a.tag, str)]
            for anchor in sorted(anchors, key=_place_of):
                yield from _drawn_texts(anchor, part)

    def comments(self) -> Iterator[str]:
        """The comments on cells that are shown, in the order of their places."""
        found: list[tuple[int, int, str]] = []
        threads: set[str] = set()
        persons = self._book.persons()
        for part in self._part.related("threadedComment"):
            for comment in part.tree().iter(f"{_THREADED}threadedComment"):
                place = comment.get("ref", "")
                threads.add(place)
                text = comment.findtext(f"{_THREADED}text") or ""
                self._add(found, place, text, persons.get(comment.get("personId", ""), ""))
        for part in self._part.related("comments"):
            root = part.tree()
            authors = [author.text or "" for author in root.iter(f"{_X}author")]
            for comment in root.iter(f"{_X}comment"):
                place = comment.get("ref", "")
                index = parse_integer(comment.get("authorId"), -1)
                author = authors[index] if 0 <= index < len(authors) else ""
                if place not in threads:  # for which this holds a text for older Excels
                    text = "".join(_text_of(words) for words in comment.iter(f"{_X}text"))
                    self._add(found, place, text.strip().removeprefix(f"{author}:"), author)
        return (line for _, _, line in sorted(found, key=lambda one: one[:2]))

    def _add(self, found: list[tuple[int, int, str]], place: str, text: str, author: str) -> None:
        named = _CELL_NAME.fullmatch(place)
        row = int(named[2]) if named else 0
        column = _column_of(place, -1)
        words = " ".join(text.split())
        if words and row not in self._hidden_rows and column not in self._hidden_columns:
            found.append((row, column, comment_line(words, author, place)))


_KNOWN_COLUMNS: dict[str, int] = {}  # by their letters


def _column_of(place: str | None, before: int) -> int:
    """The number, from 0, of the column of a cell; the next one where none is named."""
    if place is None:
        return before + 1
    letters = place.rstrip("0123456789")
    column = _KNOWN_COLUMNS.get(letters)
    if column is None:
        column = 0
        for letter in letters.upper()[:4]:
            column = column * 26 + ord(letter) - 64
        if not letters.isascii() or not letters.isalpha() or not 0 < column <= _COLUMNS:
            return before + 1
        column -= 1
        _KNOWN_COLUMNS[letters] = column
    return column


def _text_of(item: Any) -> str:
    """A text of parts with looks of their own, raised and lowered ones as such."""
    if len(item) == 1 and item[0].tag == _TEXT:
        return item[0].text or ""
    text = ""
    runs = [child for child in item if child.tag in (_TEXT, _RUN)]
    for number, run in enumerate(runs):
        words = (run.text if run.tag == _TEXT else run.findtext(_TEXT)) or ""
        raised = run.find(f"{_X}rPr/{_X}vertAlign")
        kind = {"superscript": "sup", "subscript": "sub"}.get(
            "" if raised is None else raised.get("val", ""), ""
        )
        if kind:
            following = runs[number + 1].findtext(_TEXT) or "" if number + 1 < len(runs) else ""
            words = scripted(words, kind, text, following)
        text += words
    return text


def _drawn_texts(anchor: Any, part: Part) -> Iterator[str]:
    for node in anchor.iter(f"{_XDR}sp", *DRAWN):
        if node.tag != f"{_XDR}sp":
            text = drawn_text(node, part)
        elif node.find(f"*/{_XDR}cNvPr[@hidden='1']") is not None:
            continue
        else:
            paragraphs = node.iterfind(f"{_XDR}txBody/{A}p")
            lines = ("".join(t.text or "" for t in p.iter(f"{A}t")) for p in paragraphs)
            text = "\n".join(line for line in lines if line.strip())
        if text:
            yield text


def _place_of(anchor: Any) -> tuple[int, int]:
    """Row and column at which a drawing begins."""
    begin = f"{_XDR}from/{_XDR}"
    row = anchor.findtext(f"{begin}row", "").strip()
    column = anchor.findtext(f"{begin}col", "").strip()
    return parse_integer(row, 0), parse_integer(column, 0)


def _is_zero(size: str | None) -> bool:
    return size is not None and re.fullmatch(r"0+(?:\.0*)?", size) is not None


def _elements(stream: Any, *tags: str) -> Iterator[Any]:
    """The elements of these tags, each when it is read whole; no entity is expanded."""
    parsed = etree.iterparse(
        stream,
        tag=tags,
        resolve_entities=False,
        remove_comments=True,
        remove_pis=True,
        huge_tree=True,  # a sheet may be long; what it unpacks to is bounded
    )
    return (element for _, element in parsed)


def _forget(element: Any) -> None:
    """Free an element that was read, and those before it."""
    element.clear()
    while element.getprevious() is not None:
        del element.getparent()[0]
