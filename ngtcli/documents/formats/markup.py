"""Text from a tree of HTML elements: blocks, headings, lists, and tables as rows."""

import re
from contextlib import suppress
from copy import deepcopy
from typing import Any

from lxml import etree, html

from ngtcli.documents.content import Writer, row_of
from ngtcli.documents.text import Unreadable, guess_encoding, plausible_codec

HIDDEN = frozenset(
    "script style template noscript title svg math iframe object select textarea button video"
    " audio canvas datalist".split()
)
INLINE = frozenset(
    "a abbr acronym b bdi bdo big br cite code data del dfn em font hi i img ins kbd label mark"
    " meter output q rb ref rp rt rtc ruby s samp small span strike strong sub sup time tt u var"
    " wbr".split()
)
# Elements around a cell's only text, which do not change it.
_WRAPPERS = INLINE - {"br"} | {"p", "pre", "div"}
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_SPACE = re.compile(r"[ \t\r\n\f]+")
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML
_BREAK = "\v"  # stands for <br> until white space is collapsed
_LISTS = frozenset(["ol", "ul", "menu", "dir"])
_BULLET = "-"
_MAX_DATA_CELL = 400  # characters of a cell of data; a longer one is a block of a layout (guess)
_MAX_LIST_LEVEL = 9  # level of a list that is indented; Office has as many levels
_MAX_COLUMNS = 16_384  # cells of a row with its empty ones, as in sheets
_MAX_SPANNED_COLUMNS = 1000  # of a cell, as in browsers
_MAX_SPAN_DIGITS = 9  # longer numbers are invalid
_MAX_SPANNED_ROWS = 65_534  # of a cell, as in browsers
_AROUND_BREAK = re.compile(f" ?{_BREAK} ?")
_DECLARED = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE
)
_CODE_OR_TAG = re.compile(rb"<(?:script|style).*?</(?:script|style)|<[^>]*>", re.DOTALL | re.I)
_DECLARATION_BYTES = 4096  # at the beginning of a page, within which its encoding is declared
_UTF8 = ("utf-8", "utf8")
# What may precede the page. The parser would take entities of a document type for text.
_PROLOG = re.compile(
    r"^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>\[]*\[.*?\]\s*>)?", re.DOTALL | re.I
)


def decode_page(data: bytes, user_encoding: str = "") -> tuple[str, tuple[str, ...]]:
    """Decode an HTML or XML page.

    Its byte-order mark decides, then UTF-8 is tried, then the encoding that it declares, then the
    one that the user named, and last a likely one.

    Args:
        data: The bytes of the page.
        user_encoding: The encoding that the user named, or "".

    Returns:
        The page, and a warning if its encoding is not the declared one.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), ()
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig"), ()
    declaration = _DECLARED.search(data[:_DECLARATION_BYTES])
    declared = declaration[1].decode().lower() if declaration else ""
    words = _CODE_OR_TAG.sub(b" ", data)
    if declared in _UTF8:
        page = data.decode("utf-8", "replace")
        damaged = page.count("\ufffd")
        non_ascii = sum(c > "\x7f" for c in page)
        if non_ascii > 2 * damaged:  # more characters are undamaged than damaged
            return page, (f"declared {declared}, but characters that are not: {damaged}",)
    else:
        codec = plausible_codec(words, declared)
        if codec:
            return data.decode(codec, "replace"), ()
    if user_encoding:
        return data.decode(user_encoding, "replace"), ()
    guess = guess_encoding(words) or "windows-1252"
    page = data.decode(guess, "replace")
    return page, (f"declared {declared}, read as {guess}",) if declared else ()


def parse_xml(data: str | bytes) -> Any:
    """Parse XML; return the root element.

    Entities that the file declares are expanded within bounds, and external ones are not fetched.

    Raises etree.XMLSyntaxError.
    """
    parser = etree.XMLParser(resolve_entities="internal", remove_comments=True, remove_pis=True)
    return etree.fromstring(data, parser)


def tree_of(page: str) -> Any:
    """Parse an HTML page; return its root element.

    Nothing is fetched, and entities that the page declares are not expanded.

    Raises Unreadable if it nests too deep, and etree.ParserError if it has no element.
    """
    parser = html.HTMLParser(remove_comments=True, remove_pis=True)
    # lxml accepts no str that declares an encoding, and no null characters.
    page = _PROLOG.sub("", page).replace("\0", "")
    page = _CONTROL.sub(" ", page)
    root = html.document_fromstring(page, parser=parser)
    if any("xcessive depth" in entry.message for entry in parser.error_log):
        raise Unreadable("HTML nested too deep", "Save its text, for example from a browser.")
    # The parser leaves elements that follow the end of the page beside its root.
    for sibling in list(root.itersiblings("*")):
        sibling.tag = "div"
        root.append(sibling)
    return root


def write_tree(root: Any, writer: Writer) -> None:
    """Write the visible text of an element, block by block."""
    writer.stand_apart()  # from a previous chapter
    _TreeWriter(writer).run(root)


def lines_of(root: Any) -> list[str]:
    """Split the visible text of a cell into lines; a table within it is one line.

    >>> lines_of(etree.fromstring("<td>Boats<table><tr><td>a</td><td>1</td></tr></table></td>"))
    ['Boats', '', 'a, 1']
    """
    while len(root) == 1 and root[0].tag in _WRAPPERS and is_blank(root.text, root[0].tail):
        root = root[0]
    if not len(root):  # like most cells of large sheets: this is ten times as fast (measured)
        return [root.text or ""]
    if root.find(".//table") is not None:
        root = _with_flat_tables(root)
    writer = Writer()
    write_tree(root, writer)
    return writer.text().split("\n")


def _with_flat_tables(cell: Any) -> Any:
    """Copy a cell, with each table in it as a line: "a, b; c, d"."""
    cell = deepcopy(cell)
    # The inner tables come first, because an outer one takes their text.
    for table in reversed(list(cell.iter("table"))):
        if table is cell:
            continue
        rows = []
        for row in table.iter("tr"):
            row_text = ", ".join(filter(None, map(_text_in_one_line, row)))
            if row_text:
                rows.append(row_text)
        table.clear(keep_tail=True)
        table.tag = "p"
        table.text = "; ".join(rows)
    return cell


def _text_in_one_line(cell: Any) -> str:
    return "" if cell.tag in HIDDEN else " ".join(" ".join(lines_of(cell)).split())


def is_blank(*texts: str | None) -> bool:
    """Return whether all texts are empty or only white space."""
    return not any(text and not text.isspace() for text in texts)


class _TreeWriter:
    """Walks through a tree and writes its blocks."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._block: list[str] = []  # parts of the block that is being read
        self._kind = ""  # "li" or "tr": blocks of one list or table stay together
        # The bullet or number, with its indent, of the item whose first block comes next.
        self._item_mark: str | None = None
        self._preformatted_depth = 0  # in how many <pre> the block is
        self._list_depth = 0  # in how many lists the block is
        # For each open table: the columns that cells of earlier rows cover, and for how many rows.
        self._covered: list[dict[int, int]] = []

    def run(self, root: Any) -> None:
        walker = etree.iterwalk(root, events=("start", "end"))
        for event, element in walker:
            tag = element.tag
            if event == "end" and tag in _HEADINGS:
                self._write_heading(element)
            if tag not in INLINE and tag not in HIDDEN:
                self._flush()
                self._enter_or_leave(event, element)
            if event == "end":
                if element is not root:
                    self._block.append(element.tail or "")
            elif tag in HIDDEN:
                walker.skip_subtree()
            elif tag == "tr" and not _is_layout(element):
                self._block = [self._row(element)]
                self._kind = "tr"
                walker.skip_subtree()
            else:
                if tag == "br":
                    self._block.append(_BREAK)
                self._block.append(element.text or "")
        self._flush()

    def _write_heading(self, element: Any) -> None:
        """Write the block as a heading, after its number if it has one."""
        number = element.get("mark") or (self._item_mark or "").strip()
        if number not in ("", _BULLET):
            self._block.insert(0, f"{number} ")
        self._item_mark = None
        self._writer.heading("".join(self._block))
        self._block.clear()

    def _enter_or_leave(self, event: str, element: Any) -> None:
        """Record which elements are around the block that follows."""
        is_start = event == "start"
        step = 1 if is_start else -1
        if element.tag == "pre":
            self._preformatted_depth += step
        elif element.tag in _LISTS:
            if self._list_depth == 0:
                self._writer.stand_apart()  # from a previous list
            self._list_depth += step
        elif element.tag == "table":
            self._writer.stand_apart()
            if is_start:
                self._covered.append({})
            else:
                self._covered.pop()
        elif element.tag == "li":
            level = int(element.get("level") or max(self._list_depth - 1, 0))
            mark = element.get("mark", _BULLET)
            # The mark of an item without text must not go to the next item.
            self._item_mark = None
            if is_start and mark:
                indent = "  " * min(level, _MAX_LIST_LEVEL)
                self._item_mark = f"{indent}{mark}"

    def _row(self, row: Any) -> str:
        """Read a row into a line, with empty cells where its cells or earlier ones extend."""
        covered = self._covered[-1] if self._covered else {}
        next_covered = {column: rows - 1 for column, rows in covered.items() if rows > 1}
        cells: list[list[str]] = []
        last_cell_end = 0
        for cell in row:
            if cell.tag in HIDDEN:
                continue
            while len(cells) in covered:
                cells.append([])
            columns = min(_span(cell, "colspan"), max(1, _MAX_COLUMNS - len(cells)))
            rows = _span(cell, "rowspan")
            if rows > 1:
                next_covered |= dict.fromkeys(range(len(cells), len(cells) + columns), rows - 1)
            cells.append(lines_of(cell))
            last_cell_end = len(cells)
            cells += [[] for _ in range(columns - 1)]
        covered.clear()
        covered.update(next_covered)
        return row_of(cells[:last_cell_end])

    def _flush(self) -> None:
        """Write the block that ends here."""
        text = "".join(self._block)
        self._block.clear()
        if self._preformatted_depth or self._kind == "tr":
            text = text.replace(_BREAK, "\n")
        else:
            text = _AROUND_BREAK.sub("\n", _SPACE.sub(" ", text)).strip(" \n")
        if text.strip(" \n"):
            if self._item_mark is None:
                self._writer.add(text, self._kind)
            else:
                self._writer.add(f"{self._item_mark} {text.lstrip()}", self._kind or "li")
                self._item_mark = None
        self._kind = ""


def _span(cell: Any, attribute: str) -> int:
    """How many columns ("colspan") or rows ("rowspan") a cell covers, as in browsers."""
    value = (cell.get(attribute) or "1").strip()
    if not value.isdecimal() or len(value) > _MAX_SPAN_DIGITS:
        return 1
    is_row_span = attribute == "rowspan"
    if int(value) == 0:
        return _MAX_SPANNED_ROWS if is_row_span else 1  # 0 rows: to the end of the table
    return min(int(value), _MAX_SPANNED_ROWS if is_row_span else _MAX_SPANNED_COLUMNS)


def _is_layout(row: Any) -> bool:
    """Return whether a row arranges blocks on a page, instead of being a row of data."""
    if row.find(".//table") is None:
        return False
    cells = [cell for cell in row if cell.tag not in HIDDEN and not is_blank(*cell.itertext())]
    if len(cells) < 2 or row.find(".//h1") is not None or row.find(".//h2") is not None:
        return True
    return any(sum(map(len, cell.itertext())) > _MAX_DATA_CELL for cell in cells)
