"""Text from a tree of HTML elements: blocks, headings, lists, and tables as rows."""

import re
from contextlib import suppress
from typing import Any

from lxml import etree, html

from ngtcli.documents.content import Writer, row_of
from ngtcli.documents.text import Unreadable, checked_encoding, guess_encoding

HIDDEN = frozenset(
    "script style template noscript title svg math iframe object select textarea button".split()
)
INLINE = frozenset(
    "a abbr acronym b bdi bdo big br cite code data del dfn em font hi i img ins kbd label mark"
    " meter output q ref rp rt ruby s samp small span strike strong sub sup time tt u var"
    " wbr".split()
)
_PLAIN = INLINE - {"br"} | {"p", "pre", "div"}
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_SPACE = re.compile(r"[ \t\r\n\f]+")
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML
_BREAK = "\v"  # stands for <br> until white space is collapsed
_STARTS = {"br": _BREAK, "li": "- "}
_AROUND_BREAK = re.compile(f" ?{_BREAK} ?")
_DECLARED = re.compile(
    rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE
)
_TAG = re.compile(rb"<(?:script|style).*?</(?:script|style)|<[^>]*>", re.DOTALL | re.I)
_UTF8 = ("utf-8", "utf8")
# What may stand before the page; the parser takes a document type's own entities for text.
_HEAD = re.compile(r"^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>\[]*\[.*?\]\s*>)?", re.DOTALL | re.I)


def decode_page(data: bytes) -> tuple[str, tuple[str, ...]]:
    """The text of a page, and a warning if its encoding is not the one that it declares.

    It is decoded by its mark, as UTF-8, in the encoding that it declares, or in a likely one.
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
    elif encoding := checked_encoding(words, declared):
        return data.decode(encoding, "replace"), ()
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
    """The lines of the visible text of `root`, as of a cell."""
    while len(root) == 1 and root[0].tag in _PLAIN and is_blank(root.text, root[0].tail):
        root = root[0]
    if not len(root):  # as most cells of large sheets are: this is ten times as fast
        return [root.text or ""]
    writer = Writer()
    write_tree(root, writer)
    return writer.text().split("\n")


def is_blank(*texts: str | None) -> bool:
    """Whether there is white space alone in all of them."""
    return not any(text and not text.isspace() for text in texts)


class _Walk:
    """The block that is being read, and the kind of the one before it."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._line: list[str] = []
        self._kind = ""  # "li" or "tr": lines of one list or table stay together
        self._preformatted = 0

    def run(self, root: Any) -> None:
        walker = etree.iterwalk(root, events=("start", "end"))
        for event, element in walker:
            tag = element.tag
            if event == "end" and tag in _HEADINGS:
                self._writer.heading("".join(self._line).removeprefix(_STARTS["li"]))
                self._line.clear()
            if tag not in INLINE and tag not in HIDDEN:
                self._flush()
                if event == "end" and tag == "li":
                    self._line.clear()  # of an item without text
                if tag == "pre":
                    self._preformatted += 1 if event == "start" else -1
            if event == "end":
                self._line.append((element.tail or "") if element is not root else "")
            elif tag in HIDDEN:
                walker.skip_subtree()
            elif tag == "tr" and element.find(".//table") is None:
                cells = (cell for cell in element if cell.tag not in HIDDEN)
                self._line = [row_of(map(lines_of, cells))]
                self._kind = "tr"
                walker.skip_subtree()
            else:
                self._kind = "li" if tag == "li" else self._kind
                self._line += [_STARTS.get(tag, ""), element.text or ""]
        self._flush()

    def _flush(self) -> None:
        raw = "".join(self._line)
        if self._kind == "li" and raw.strip() == "-":  # its text stands in blocks of its own
            return
        self._line.clear()
        block = raw.replace(_BREAK, "\n")
        if not self._preformatted:
            block = _AROUND_BREAK.sub("\n", _SPACE.sub(" ", raw)).strip(" \n")
        if block.strip(" -\n"):
            self._writer.add(block, self._kind)
        self._kind = ""
