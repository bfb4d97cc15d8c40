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
_PLAIN = INLINE - {"br"} | {"p", "pre", "div"}
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_SPACE = re.compile(r"[ \t\r\n\f]+")
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML
_BREAK = "\v"  # stands for <br> until white space is collapsed
_LISTS = frozenset(["ol", "ul", "menu", "dir"])
_BULLET = "-"
_LONG = 400  # characters of a cell, from which it is no cell of data; guess
_DEEPEST = 9  # level of a list that is written as such: Office has as many
_COLUMNS = 16_384  # most that a row has with its empty cells; those of a sheet
_ROWS = 65_534  # most that a cell spans, in HTML
_AROUND_BREAK = re.compile(f" ?{_BREAK} ?")
_DECLARED = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE
)
_TAG = re.compile(rb"<(?:script|style).*?</(?:script|style)|<[^>]*>", re.DOTALL | re.I)
_UTF8 = ("utf-8", "utf8")
# What may stand before the page; the parser takes a document type's own entities for text.
_HEAD = re.compile(r"^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>\[]*\[.*?\]\s*>)?", re.DOTALL | re.I)


def decode_page(data: bytes, otherwise: str = "") -> tuple[str, tuple[str, ...]]:
    """The text of a page, and a warning if its encoding is not the one that it declares.

    It is decoded by its mark, as UTF-8, in the encoding that it declares, in the one that the user
    names `otherwise`, or in a likely one.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), ()
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig"), ()
    found = _DECLARED.search(data[:4096])
    declared = found[1].decode().lower() if found else ""
    page, words = data.decode("utf-8", "replace"), _TAG.sub(b" ", data)
    if declared in _UTF8:
        broken = page.count("\ufffd")
        if sum(c > "\x7f" for c in page) > 2 * broken:  # more are whole
            return page, (f"declared {declared}, but characters that are not: {broken}",)
    elif encoding := plausible_codec(words, declared):
        return data.decode(encoding, "replace"), ()
    if otherwise:
        return data.decode(otherwise, "replace"), ()
    guess = guess_encoding(words) or "windows-1252"
    return data.decode(guess, "replace"), (f"declared {declared}, read as {guess}",) * bool(
        declared
    )


def parse_xml(data: str | bytes) -> Any:
    """The root element; entities are expanded within bounds, but for those that are elsewhere.

    Raises etree.XMLSyntaxError.
    """
    parser = etree.XMLParser(resolve_entities="internal", remove_comments=True, remove_pis=True)
    return etree.fromstring(data, parser)


def tree_of(page: str) -> Any:
    """The root element of an HTML page; nothing is fetched, no entity of its own is expanded.

    Raises etree.ParserError where there is no element, and Unreadable.
    """
    parser = html.HTMLParser(remove_comments=True, remove_pis=True)
    # lxml takes no str that declares an encoding, and no null characters.
    page = _CONTROL.sub(" ", _HEAD.sub("", page).replace("\0", ""))
    root = html.document_fromstring(page, parser=parser)
    if any("xcessive depth" in entry.message for entry in parser.error_log):
        raise Unreadable("HTML nested too deep", "Save its text, as from a browser.")
    for more in list(root.itersiblings("*")):  # which the parser leaves behind the page
        more.tag = "div"
        root.append(more)
    return root


def write_tree(root: Any, writer: Writer) -> None:
    """Add the visible text of `root` to `writer`, each block by itself."""
    writer.stand_apart()  # from the chapter before
    _Walk(writer).run(root)


def lines_of(root: Any) -> list[str]:
    """The lines of the visible text of `root`, as of a cell; a table in it is one line.

    >>> lines_of(etree.fromstring("<td>Boats<table><tr><td>a</td><td>1</td></tr></table></td>"))
    ['Boats', '', 'a, 1']
    """
    while len(root) == 1 and root[0].tag in _PLAIN and is_blank(root.text, root[0].tail):
        root = root[0]
    if not len(root):  # as most cells of large sheets are: this is ten times as fast
        return [root.text or ""]
    if root.find(".//table") is not None:
        root = _with_flat_tables(root)
    writer = Writer()
    write_tree(root, writer)
    return writer.text().split("\n")


def _with_flat_tables(cell: Any) -> Any:
    """A copy of a cell in which each table is a line: "a, b; c, d"."""
    cell = deepcopy(cell)
    for table in reversed(list(cell.iter("table"))):
        if table is cell:
            continue
        rows = (", ".join(filter(None, map(_line_of, row))) for row in table.iter("tr"))
        text = "; ".join(filter(None, rows))
        table.clear(keep_tail=True)
        table.tag, table.text = "p", text
    return cell


def _line_of(cell: Any) -> str:
    return "" if cell.tag in HIDDEN else " ".join(" ".join(lines_of(cell)).split())


def is_blank(*texts: str | None) -> bool:
    """Whether there is white space alone in all of them."""
    return not any(text and not text.isspace() for text in texts)


class _Walk:
    """The block that is being read, and where it stands."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._line: list[str] = []
        self._kind = ""  # "li" or "tr": lines of one list or table stay together
        self._mark: str | None = None  # what stands before the next block: it begins an item
        self._preformatted = 0
        self._lists = 0  # in which this is
        self._spans: list[dict[int, int]] = []  # of each table: rows that a column is covered for

    def run(self, root: Any) -> None:
        walker = etree.iterwalk(root, events=("start", "end"))
        for event, element in walker:
            tag = element.tag
            if event == "end" and tag in _HEADINGS:
                number = element.get("mark") or (self._mark or "").strip()
                self._line[:0] = [f"{number} "] if number not in ("", _BULLET) else []
                self._mark = None
                self._writer.heading("".join(self._line))
                self._line.clear()
            if tag not in INLINE and tag not in HIDDEN:
                self._flush()
                self._enter_or_leave(event, element)
            if event == "end":
                self._line.append((element.tail or "") if element is not root else "")
            elif tag in HIDDEN:
                walker.skip_subtree()
            elif tag == "tr" and not _is_layout(element):
                self._line = [self._row(element)]
                self._kind = "tr"
                walker.skip_subtree()
            else:
                self._line += [_BREAK if tag == "br" else "", element.text or ""]
        self._flush()

    def _enter_or_leave(self, event: str, element: Any) -> None:
        """Keep account of the elements around the block that follows."""
        step = 1 if event == "start" else -1
        if element.tag == "pre":
            self._preformatted += step
        elif element.tag in _LISTS:
            if not self._lists:
                self._writer.stand_apart()  # from a list before
            self._lists += step
        elif element.tag == "table":
            self._writer.stand_apart()
            if step > 0:
                self._spans.append({})
            else:
                self._spans.pop()
        elif element.tag == "li":
            level = int(element.get("level") or max(self._lists - 1, 0))
            number = element.get("mark", _BULLET)
            # At the end of an item whose mark is left there was no text.
            self._mark = f"{'  ' * min(level, _DEEPEST)}{number}" if step > 0 and number else None

    def _row(self, row: Any) -> str:
        """A row in a line, with empty cells where its cells, and those above it, go on."""
        spans = self._spans[-1] if self._spans else {}
        cells: list[list[str]] = []
        left = {column: rows - 1 for column, rows in spans.items() if rows > 1}
        filled = 0
        for cell in row:
            if cell.tag in HIDDEN:
                continue
            while len(cells) in spans:
                cells.append([])
            columns = min(_span(cell, "colspan"), max(1, _COLUMNS - len(cells)))
            rows = _span(cell, "rowspan")
            if rows > 1:
                left |= dict.fromkeys(range(len(cells), len(cells) + columns), rows - 1)
            cells.append(lines_of(cell))
            filled = len(cells)
            cells += [[] for _ in range(columns - 1)]
        spans.clear()
        spans.update(left)
        return row_of(cells[:filled])

    def _flush(self) -> None:
        """Write the block that ends here."""
        raw = "".join(self._line)
        self._line.clear()
        block = raw.replace(_BREAK, "\n")
        if not self._preformatted and self._kind != "tr":
            block = _AROUND_BREAK.sub("\n", _SPACE.sub(" ", raw)).strip(" \n")
        if block.strip(" \n") and self._mark is not None:
            self._writer.add(f"{self._mark} {block.lstrip()}", self._kind or "li")
            self._mark = None
        elif block.strip(" \n"):
            self._writer.add(block, self._kind)
        self._kind = ""


def _span(cell: Any, name: str) -> int:
    """How many columns or rows a cell covers, as browsers take it."""
    value = (cell.get(name) or "1").strip()
    if not value.isdecimal() or len(value) > 9:
        return 1
    if int(value) == 0:
        return _ROWS if name == "rowspan" else 1  # to the end of its table
    return min(int(value), 1000 if name == "colspan" else _ROWS)


def _is_layout(row: Any) -> bool:
    """Whether a row places blocks on a page, so that it is no row of data."""
    if row.find(".//table") is None:
        return False
    filled = [cell for cell in row if cell.tag not in HIDDEN and not is_blank(*cell.itertext())]
    if len(filled) < 2 or row.find(".//h1") is not None or row.find(".//h2") is not None:
        return True
    return any(sum(map(len, cell.itertext())) > _LONG for cell in filled)
