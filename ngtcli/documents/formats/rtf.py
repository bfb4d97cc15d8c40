"""RTF: paragraphs, lists, tables by rows, headers, footers, notes, comments and text boxes.

A file is groups in braces, in which control words (`\\par`) say what follows. A group keeps what
was set in it to itself; one that begins with a word for a destination holds other things than text.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ngtcli.documents.content import (
    Extracted,
    Source,
    Writer,
    comment_line,
    counted,
    row_of,
    unknown_signs,
)
from ngtcli.documents.formats.visible import scripted
from ngtcli.documents.text import Unreadable

_TOKEN = re.compile(
    r"\\(?:(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})?[ ]?|'(?P<byte>[0-9a-fA-F]{2})|"
    r"(?P<sign>[^a-zA-Z]))|(?P<brace>[{}])|(?P<text>[^\\{}\r\n]+)|[\r\n]+|\\",
    re.DOTALL,
)
_SIGNS = {
    "tab": "\t",
    "emdash": "—",
    "endash": "–",
    "lquote": "‘",
    "rquote": "’",
    "ldblquote": "“",
    "rdblquote": "”",
    "bullet": "•",
    "line": "\n",
    "emspace": "\u2003",
    "enspace": "\u2002",
    "zwj": "\u200d",
    "zwnj": "\u200c",
    "ltrmark": "\u200e",
    "rtlmark": "\u200f",
    "~": "\xa0",
    "_": "-",
    "{": "{",
    "}": "}",
    "\\": "\\",
    "lbr": "\n",
}
_ENDS = frozenset(["par", "sect", "page", "column", "pagebb", "\n", "\r"])  # of paragraphs
# Groups without text that is shown; so are those that begin with "\*" and another word.
_SILENT = frozenset(
    "fonttbl colortbl stylesheet info pict objdata objclass objname nonshppict fldinst fontemb"
    " ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn xe tc listtable listoverridetable pn sp"
    " template operator keywords comment title author bkmkstart bkmkend filetbl rxe txe"
    " datafield atnid atntime atndate atnref atnparent atrfstart atrfend pntxta pntxtb"
    " leveltext levelnumbers listname themedata colorschememapping latentstyles rsidtbl"
    " generator panose falt private".split()
)
_READ_ALTHOUGH_MARKED = frozenset("shpinst shptxt ud annotation atnauthor nesttableprops".split())
_STORIES = {
    "header": "header",
    "headerl": "header",
    "headerr": "header",
    "headerf": "header",
    "footer": "footer",
    "footerl": "footer",
    "footerr": "footer",
    "footerf": "footer",
    "footnote": "footnote",
    "shptxt": "box",
    "annotation": "comment",
    "atnauthor": "author",
}
_CHARSETS = {  # of fonts: the code page in which their characters are
    77: "mac_roman",
    128: "cp932",
    129: "cp949",
    130: "cp1361",
    134: "cp936",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
    255: "cp437",
}
_SYMBOL = 2  # the charset of fonts that have signs of their own
_BULLETS = {0xB7: "•", 0xA7: "▪", 0xA8: "☐", 0xFE: "☑", 0xFC: "✓", 0xE0: "→"}
_NEAR = 60  # twips between edges of cells that are one; guess
_DEEP = 10_000  # most groups in groups; guess


def parse(source: Source) -> Extracted:
    """The text of a document. Raises Unreadable."""
    if not source.data.lstrip(b"\xef\xbb\xbf \r\n").startswith(b"{\\rtf"):
        raise Unreadable("not RTF", "Name it .txt to have it read as text.")
    reader = _Reader(source.data.decode("latin-1"))
    reader.read()
    writer = Writer()
    for text in reader.texts_of("header"):
        writer.add(text)
    reader.body.write(writer)
    for label, text in reader.notes:
        writer.add(f"[^{label}]: {text}", "note")
    for text in reader.texts_of("footer"):
        writer.add(text)
    told = []
    if reader.hidden_words:
        told.append(f"hidden text left out: {counted(reader.hidden_words, 'word')}")
    return writer.extracted("rtf", (*told, *unknown_signs(writer.text())))


@dataclass(slots=True)
class _State:
    """What holds in a group."""

    is_silent: bool = False
    is_hidden: bool = False  # \v, \deleted or \htmlrtf
    script: str = ""  # "sup" or "sub"
    font: int = 0
    skipped: int = 1  # characters that stand for one in Unicode, for older readers
    is_mark: bool = False  # of an item of a list
    is_in_table: bool = False
    is_font_table: bool = False
    is_heading: bool = False
    table_level: int = 1


@dataclass(slots=True)
class _Row:
    """A row of a table: the text of its cells, and where each begins, in twips."""

    cells: list[str]
    lefts: list[int]


@dataclass(slots=True)
class _Story:
    """A run of paragraphs and tables: the document's, or that of a note, a box, a header."""

    kind: str = "body"
    blocks: list[tuple[str, str]] = field(default_factory=list)  # kind and text
    line: list[tuple[str, str]] = field(default_factory=list)  # script and text
    mark: list[str] = field(default_factory=list)
    cell: list[str] = field(default_factory=list)  # paragraphs of the cell that is being read
    cells: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)  # cells of a table in a cell
    nested_rows: list[str] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)  # the right ones of the row's cells
    left: int = 0
    is_row_open: bool = False
    later: list[str] = field(default_factory=list)  # boxes and comments: behind the paragraph
    is_endnote: bool = False

    def take_line(self) -> str:
        """The paragraph so far, which is begun anew."""
        text = ""
        pieces = [(script, words) for script, words in self.line if words]
        joined: list[tuple[str, str]] = []
        for script, words in pieces:
            if joined and joined[-1][0] == script:
                joined[-1] = script, joined[-1][1] + words
            else:
                joined.append((script, words))
        for i, (script, words) in enumerate(joined):
            following = joined[i + 1][1] if i + 1 < len(joined) else ""
            text += scripted(words, script, text, following) if script else words
        text = _joined_surrogates(text)
        mark = _joined_surrogates("".join(self.mark)).strip()
        self.line.clear()
        self.mark.clear()
        if len(mark) == 1 and not mark.isalnum():
            mark = "•"
        return f"{mark} {text.lstrip()}" if mark and text.strip() else text

    def end_paragraph(self, is_in_table: bool, is_heading: bool = False) -> None:
        """Put the paragraph behind those before it, or into the cell."""
        kind = "heading" if is_heading else "li" if self.mark else ""
        text = self.take_line()
        if is_in_table:
            self.cell.append(text)
        else:
            self.end_table()
            self.blocks.append((kind, text))
            self.put_later()

    def put_later(self) -> None:
        """Put boxes and comments behind the paragraph or table at which they stand."""
        self.blocks += [("", text) for text in self.later]
        self.later.clear()

    def end_cell(self) -> None:
        """End a cell: its paragraphs and the table in it are a line."""
        self.cell.append(self.take_line())
        inner = "; ".join(self.nested_rows)
        self.nested_rows.clear()
        self.cells.append(" ".join([*self.cell, inner]))
        self.cell.clear()

    def end_row(self) -> None:
        """End a row of the table."""
        lefts = [self.left, *self.edges][: len(self.cells)]
        self.rows.append(_Row(self.cells, lefts))
        self.cells = []
        self.is_row_open = False

    def end_table(self) -> None:
        """Put the rows in a line each, their cells in the columns in which they begin."""
        if self.cells:
            self.end_row()
        self.blocks += [("", text) for text in self.cell]
        self.cell.clear()
        for cells in _aligned(self.rows):
            self.blocks.append(("row", row_of(cells)))
        if self.rows:
            self.put_later()
        self.rows = []

    def close(self) -> None:
        """End what is begun."""
        if self.line or self.mark:
            self.end_paragraph(bool(self.cells))
        self.end_table()
        self.put_later()

    def write(self, writer: Writer) -> None:
        """Write all blocks."""
        for kind, text in self.blocks:
            if kind == "heading":
                writer.heading(text)
            else:
                writer.add(text, kind)

    def text(self) -> str:
        """All its paragraphs, in a line."""
        return " ".join(" ".join(text for _, text in self.blocks).split())


def _aligned(rows: list[_Row]) -> Iterator[list[str]]:
    """The cells of each row with empty ones where cells are wider than those of other rows.

    Rows whose edges have nothing in common stay as they are.
    """
    edges: list[int] = []
    for left in sorted({left for row in rows for left in row.lefts}):
        if not edges or left - edges[-1] > _NEAR:
            edges.append(left)
    widest = max((len(row.cells) for row in rows), default=0)
    for row in rows:
        if len(edges) != widest or len(row.lefts) != len(row.cells):
            yield row.cells
            continue
        cells: list[str] = []
        for left, text in zip(row.lefts, row.cells, strict=True):
            column = bisect_right(edges, left) - 1
            cells += [""] * (column - len(cells))
            cells.append(text)
        yield cells


class _Reader:
    """Reads a file from its start to its end."""

    def __init__(self, marked: str) -> None:
        self._marked = marked
        self._state = _State()
        self._states: list[tuple[_State, _Story | None]] = []
        self._fonts: dict[int, int] = {}  # their charsets
        self._code_page = "cp1252"
        self._bytes = bytearray()  # characters of a code page that are being read
        self._to_skip = 0
        self._is_first = False  # in its group
        self._is_marked = False  # by "\*"
        self._story = self.body = _Story()
        self._running: dict[str, dict[str, None]] = {"header": {}, "footer": {}}
        self.notes: list[tuple[str, str]] = []
        self._counts = {"": 0, "e": 0}
        self._author = ""
        self.hidden_words = 0

    def texts_of(self, kind: str) -> list[str]:
        """The texts of headers or footers, each once."""
        return list(self._running[kind])

    def read(self) -> None:
        """Read all. Raises Unreadable for groups nested too deep."""
        position = 0
        while (found := _TOKEN.match(self._marked, position)) is not None:
            position = found.end()
            kind = found.lastgroup
            if kind == "number" or kind == "word":
                word, number = found["word"], found["number"]
                if word == "bin":
                    position += max(0, int(number or 0))
                else:
                    self._word(word, int(number) if number else None)
            elif kind == "byte":
                self._byte(int(found["byte"], 16))
            elif kind == "sign":
                self._sign(found["sign"])
            elif kind == "brace":
                self._open() if found["brace"] == "{" else self._close()
            elif kind == "text":
                self._plain(found["text"])
        while self._states:
            self._close()
        self._decode()
        self.body.close()

    def _open(self) -> None:
        self._decode()
        if len(self._states) >= _DEEP:
            raise Unreadable("RTF nested too deep", "Save its text, as from a word processor.")
        self._states.append((self._state, None))
        self._state = replace(self._state)
        self._is_first, self._is_marked, self._to_skip = True, False, 0

    def _close(self) -> None:
        self._decode()
        self._to_skip = 0
        if not self._states:
            return
        self._state, outer = self._states.pop()
        self._is_first = False
        if outer is not None:
            story, self._story = self._story, outer
            story.close()
            self._end_story(story)

    def _begin_story(self, kind: str) -> None:
        self._states[-1] = (self._states[-1][0], self._story)
        self._story = _Story(kind)
        self._state.script = ""
        self._state.is_in_table = False
        self._state.table_level = 1

    def _end_story(self, story: _Story) -> None:
        text = story.text()
        if story.kind == "author":
            self._author = text
        elif not text:
            return
        elif story.kind in self._running:
            if any(map(str.isalpha, text)):
                self._running[story.kind][text] = None
        elif story.kind == "footnote":
            prefix = "e" if story.is_endnote else ""
            self._counts[prefix] += 1
            label = f"{prefix}{self._counts[prefix]}"
            self.notes.append((label, text))
            self._story.line.append(("", f"[^{label}]"))
        elif story.kind == "comment":
            self._story.later.append(comment_line(text, self._author))
            self._author = ""
        else:
            writer = Writer()
            story.write(writer)
            self._story.later.append(writer.text())

    def _word(self, word: str, number: int | None) -> None:
        self._decode()
        is_first, self._is_first = self._is_first, False
        if word == "u":
            self._unicode(number or 0)
            return
        if self._to_skip:
            self._to_skip -= 1
            return
        if is_first and self._states and self._destination(word):
            return
        if self._state.is_font_table:
            self._font_word(word, number)
        elif not self._state.is_silent and not self._format(word, number):
            self._structure(word, number)

    def _destination(self, word: str) -> bool:
        """Whether a word that begins a group says what it holds, which is noted."""
        is_marked, self._is_marked = self._is_marked, False
        state = self._state
        if word == "fonttbl":
            state.is_font_table = True
        elif word in _SILENT or (is_marked and word not in _READ_ALTHOUGH_MARKED):
            state.is_silent = True
        elif word == "ud":
            state.is_silent = False
        elif state.is_silent:
            return False
        elif word in _STORIES:
            self._begin_story(_STORIES[word])
        elif word in ("pntext", "listtext"):
            state.is_mark = True
        elif word == "upr":
            state.is_silent = True  # but for the group in it that has the text in Unicode
            return True
        else:
            return False
        return word != "fonttbl"

    def _font_word(self, word: str, number: int | None) -> None:
        if word == "f" and number is not None:
            self._state.font = number
        elif word == "fcharset" and number is not None:
            self._fonts[self._state.font] = number

    def _format(self, word: str, number: int | None) -> bool:
        """Note how the text that follows looks; whether this is such a word."""
        state = self._state
        if word == "f":
            state.font = number or 0
        elif word == "uc":
            state.skipped = max(0, number or 0)
        elif word in ("v", "deleted", "htmlrtf"):
            state.is_hidden = number != 0
        elif word == "plain":
            state.is_hidden, state.script = False, ""
        elif word in ("super", "sub"):
            state.script = {"super": "sup", "sub": "sub"}[word] if number != 0 else ""
        elif word == "nosupersub":
            state.script = ""
        elif word in ("up", "dn"):
            raised = number is None or number > 0
            state.script = {"up": "sup", "dn": "sub"}[word] if raised else ""
        elif word == "ansicpg" and number:
            self._code_page = _codec(f"cp{number}") or self._code_page
        elif word == "mac":
            self._code_page = "mac_roman"
        elif word in ("pc", "pca"):
            self._code_page = "cp437" if word == "pc" else "cp850"
        else:
            return False
        return True

    def _structure(self, word: str, number: int | None) -> None:
        """Text, and ends of paragraphs, cells and rows."""
        state, story = self._state, self._story
        if word in _SIGNS:
            self._write(_SIGNS[word])
        elif word in _ENDS:
            is_in_table = state.is_in_table or story.is_row_open or bool(story.cells)
            story.end_paragraph(is_in_table, state.is_heading)
        elif word == "pard":
            state.is_in_table, state.is_heading, state.table_level = False, False, 1
        elif word == "outlinelevel":
            state.is_heading = number is not None and number < 9
        elif word == "intbl":
            state.is_in_table = True
        elif word == "itap":
            state.table_level = number or 0
            state.is_in_table = state.table_level > 0
        elif word == "trowd":
            story.edges, story.left, story.is_row_open = [], 0, True
        elif word == "trleft":
            story.left = number or 0
        elif word == "cellx" and state.table_level < 2:
            story.edges.append(number or 0)
        elif word == "cell":
            story.end_cell()
        elif word == "row":
            story.end_row()
            state.is_in_table = False
        elif word == "nestcell":
            story.nested.append(" ".join(story.take_line().split()))
        elif word == "nestrow":
            story.nested_rows.append(", ".join(filter(None, story.nested)))
            story.nested.clear()
        elif word == "ftnalt":
            story.is_endnote = True

    def _sign(self, sign: str) -> None:
        self._decode()
        if sign == "*":
            self._is_marked = self._is_first  # in the midst of a group it says nothing
            return
        self._is_first = False
        if self._to_skip:
            self._to_skip -= 1
        elif sign in _ENDS and not self._state.is_silent:
            self._story.end_paragraph(self._state.is_in_table)
        elif sign in _SIGNS:
            self._write(_SIGNS[sign])

    def _unicode(self, number: int) -> None:
        if self._state.is_silent and self._states and not self._state.is_font_table:
            return
        code = number % 0x10000 if number < 0 else number
        if code <= 0x10FFFF:
            self._write(chr(code))
        self._to_skip = self._state.skipped

    def _byte(self, value: int) -> None:
        self._is_first = False
        if self._to_skip:
            self._to_skip -= 1
        elif self._fonts.get(self._state.font) == _SYMBOL:
            self._write(_BULLETS.get(value, chr(0xF000 + value)))
        else:
            self._bytes.append(value)

    def _plain(self, text: str) -> None:
        self._is_first = False
        if self._to_skip:
            skipped = min(self._to_skip, len(text))
            self._to_skip -= skipped
            text = text[skipped:]
        if self._bytes and text and text.isascii() and self._is_incomplete():
            self._bytes.append(ord(text[0]))  # the second byte of a character of two
            text = text[1:]
        if text.isascii():
            self._decode()
            self._write(text)
        else:
            self._bytes += text.encode("latin-1")

    def _is_incomplete(self) -> bool:
        try:
            self._bytes.decode(self._codec())
        except UnicodeDecodeError as error:
            return error.end == len(self._bytes)
        return False

    def _codec(self) -> str:
        charset = self._fonts.get(self._state.font, 0)
        return _CHARSETS.get(charset) or self._code_page

    def _decode(self) -> None:
        """Write the characters of a code page that were read so far."""
        if self._bytes:
            text = self._bytes.decode(self._codec(), "replace")
            self._bytes.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        state, story = self._state, self._story
        if state.is_silent or state.is_font_table:
            return
        if state.is_hidden:
            self.hidden_words += len(text.split())
        elif state.is_mark:
            story.mark.append(text)
        else:
            story.line.append((state.script, text))


def _codec(name: str) -> str:
    """The name if Python knows that code page, else ""."""
    name = {"cp10000": "mac_roman", "cp65001": "utf-8"}.get(name, name)
    try:
        codecs.lookup(name)
    except LookupError:
        return ""
    return name


def _joined_surrogates(text: str) -> str:
    """The text with each pair of surrogates as one character; a lone one becomes U+FFFD.

    RTF writes a character beyond U+FFFF as two words.

    >>> _joined_surrogates(chr(0xD83D) + chr(0xDE00) + chr(0xD83D)) == chr(0x1F600) + chr(0xFFFD)
    True
    """
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
