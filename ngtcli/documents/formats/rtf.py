"""RTF: paragraphs, lists, tables as rows, headers, footers, notes, comments and text boxes.

A file consists of groups in braces and of control words such as `\\par`. Formatting that is set in
a group ends with it. A group that begins with the control word of a "destination" does not hold
text of the document, but a note, a font table, a picture.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ngtcli.documents.content import (
    Extracted,
    ParserInput,
    Writer,
    comment_line,
    hidden_text_warning,
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
# Control words and symbols that stand for a character.
_CHARACTERS = {
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
_PARAGRAPH_ENDS = frozenset(["par", "sect", "page", "column", "pagebb", "\n", "\r"])
# Destinations without text that is shown.
_SILENT = frozenset(
    "fonttbl colortbl stylesheet info pict objdata objclass objname nonshppict fldinst fontemb"
    " ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn xe tc listtable listoverridetable pn sp"
    " template operator keywords comment title author bkmkstart bkmkend filetbl rxe txe"
    " datafield atnid atntime atndate atnref atnparent atrfstart atrfend pntxta pntxtb"
    " leveltext levelnumbers listname themedata colorschememapping latentstyles rsidtbl"
    " generator panose falt private".split()
)
# Destinations after "\*" that are read; all others may be ignored, as "\*" says.
_READ_IF_OPTIONAL = frozenset("shpinst shptxt ud annotation atnauthor nesttableprops".split())
# Destinations with a text of their own, and its kind.
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
# The code pages of the character sets of fonts (`\fcharset`).
_CODE_PAGES = {
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
_SYMBOL_CHARSET = 2  # of fonts that have signs of their own
_SYMBOLS = {0xB7: "•", 0xA7: "▪", 0xA8: "☐", 0xFE: "☑", 0xFC: "✓", 0xE0: "→"}
_EDGE_TOLERANCE = 60  # twips by which edges of one column may differ (guess)
_MAX_DEPTH = 10_000  # groups within groups (guess)


def parse(source: ParserInput) -> Extracted:
    """The text of a document. Raises Unreadable."""
    if not source.data.lstrip(b"\xef\xbb\xbf \r\n").startswith(b"{\\rtf"):
        raise Unreadable("not RTF", "Name it .txt to have it read as text.")
    reader = _Reader(source.data.decode("latin-1"))
    reader.read()
    writer = Writer()
    for text in reader.headers:
        writer.add(text)
    reader.body.write(writer)
    for label, text in reader.notes:
        writer.add(f"[^{label}]: {text}", "note")
    for text in reader.footers:
        writer.add(text)
    warnings = []
    if reader.hidden_words:
        warnings.append(hidden_text_warning(reader.hidden_words))
    return writer.extracted("rtf", (*warnings, *unknown_signs(writer.text())))


@dataclass(slots=True)
class _State:
    """The formatting in a group.

    Attributes:
        is_silent: Whether the text of the group is not shown.
        is_hidden: Whether text is hidden, deleted, or HTML that the RTF was made from.
        script: "sup" for raised text, "sub" for lowered text.
        font: Number of the font.
        fallback_length: The number of characters after a Unicode character that are for readers
            without Unicode.
        is_mark: Whether the text is the number or bullet of a list.
        is_in_table: Whether paragraphs belong to a cell.
        is_font_table: Whether this is the font table.
        is_heading: Whether paragraphs are headings.
        table_level: The number of tables around, 2 or more within a cell of another table.
    """

    is_silent: bool = False
    is_hidden: bool = False
    script: str = ""
    font: int = 0
    fallback_length: int = 1
    is_mark: bool = False
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
    """A sequence of paragraphs and tables: the body, a header, a note, a comment or a box.

    Attributes:
        kind: "body", or a value of `_STORIES`.
        is_endnote: Whether a note is an endnote.
        blocks: What is complete: the kind and the text of each block.
        later_blocks: Boxes and comments, which follow the paragraph or table they are at.
        runs: The paragraph so far: the script and the text of each run.
        mark: The number or bullet of the paragraph so far.
        cell: The paragraphs of the cell so far.
        cells: The cells of the row so far.
        rows: The rows of the table so far.
        inner_cells: The cells so far of a row of a table in a cell.
        inner_rows: The rows so far of that table.
        row_left: Where the row begins, in twips.
        right_edges: Where its cells end.
        is_row_open: Whether a row has begun.
    """

    kind: str = "body"
    is_endnote: bool = False
    blocks: list[tuple[str, str]] = field(default_factory=list)
    later_blocks: list[str] = field(default_factory=list)
    runs: list[tuple[str, str]] = field(default_factory=list)
    mark: list[str] = field(default_factory=list)
    cell: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    inner_cells: list[str] = field(default_factory=list)
    inner_rows: list[str] = field(default_factory=list)
    row_left: int = 0
    right_edges: list[int] = field(default_factory=list)
    is_row_open: bool = False

    def take_paragraph(self) -> str:
        """Return the paragraph so far with its mark, and begin another one."""
        text = _join_surrogates(_join_runs(self.runs))
        mark = _join_surrogates("".join(self.mark)).strip()
        self.runs.clear()
        self.mark.clear()
        if len(mark) == 1 and not mark.isalnum():
            mark = "•"
        return f"{mark} {text.lstrip()}" if mark and text.strip() else text

    def end_paragraph(self, is_in_table: bool, is_heading: bool = False) -> None:
        """Add the paragraph to the blocks, or to the cell."""
        kind = ""
        if is_heading:
            kind = "heading"
        elif self.mark:
            kind = "li"
        text = self.take_paragraph()
        if is_in_table:
            self.cell.append(text)
        else:
            self.end_table()
            self.blocks.append((kind, text))
            self._add_later_blocks()

    def _add_later_blocks(self) -> None:
        self.blocks += [("", text) for text in self.later_blocks]
        self.later_blocks.clear()

    def end_cell(self) -> None:
        """Join the paragraphs of a cell and the table in it to one line."""
        self.cell.append(self.take_paragraph())
        inner_table = "; ".join(self.inner_rows)
        self.inner_rows.clear()
        self.cells.append(" ".join([*self.cell, inner_table]))
        self.cell.clear()

    def end_inner_cell(self) -> None:
        """End a cell of a table in a cell."""
        self.inner_cells.append(" ".join(self.take_paragraph().split()))

    def end_inner_row(self) -> None:
        """End a row of a table in a cell."""
        self.inner_rows.append(", ".join(filter(None, self.inner_cells)))
        self.inner_cells.clear()

    def begin_row(self) -> None:
        """Begin a row, whose edges follow."""
        self.row_left = 0
        self.right_edges = []
        self.is_row_open = True

    def end_row(self) -> None:
        """End a row of the table."""
        lefts = [self.row_left, *self.right_edges][: len(self.cells)]
        self.rows.append(_Row(self.cells, lefts))
        self.cells = []
        self.is_row_open = False

    def end_table(self) -> None:
        """Add the rows of the table, if any, with their cells in columns."""
        if self.cells:
            self.end_row()
        self.blocks += [("", text) for text in self.cell]
        self.cell.clear()
        for cells in _align_columns(self.rows):
            self.blocks.append(("row", row_of(cells)))
        if self.rows:
            self._add_later_blocks()
        self.rows = []

    def close(self) -> None:
        """End the paragraph and the table that are open."""
        if self.runs or self.mark:
            self.end_paragraph(is_in_table=bool(self.cells))
        self.end_table()
        self._add_later_blocks()

    def write(self, writer: Writer) -> None:
        """Write all blocks."""
        for kind, text in self.blocks:
            if kind == "heading":
                writer.heading(text)
            else:
                writer.add(text, kind)

    def text(self) -> str:
        """All blocks in one line."""
        return " ".join(" ".join(text for _, text in self.blocks).split())


def _join_runs(runs: Iterable[tuple[str, str]]) -> str:
    """The text of runs, in which raised and lowered ones are marked as such."""
    merged: list[tuple[str, str]] = []  # with neighbours of one script as one
    for script, run_text in runs:
        if not run_text:
            continue
        if merged and merged[-1][0] == script:
            merged[-1] = (script, merged[-1][1] + run_text)
        else:
            merged.append((script, run_text))

    text = ""
    for index, (script, run_text) in enumerate(merged):
        if script:
            following = merged[index + 1][1] if index + 1 < len(merged) else ""
            run_text = scripted(run_text, script, text, following)
        text += run_text
    return text


def _align_columns(rows: list[_Row]) -> Iterator[list[str]]:
    """The cells of each row, with empty ones where a cell covers several columns.

    Rows stay as they are if their edges do not show the columns.
    """
    columns: list[int] = []  # where each begins
    for left in sorted({left for row in rows for left in row.lefts}):
        if not columns or left - columns[-1] > _EDGE_TOLERANCE:
            columns.append(left)
    max_cells = max((len(row.cells) for row in rows), default=0)
    for row in rows:
        if len(columns) != max_cells or len(row.lefts) != len(row.cells):
            yield row.cells
            continue
        cells: list[str] = []
        for left, text in zip(row.lefts, row.cells, strict=True):
            column = bisect_right(columns, left) - 1
            cells += [""] * (column - len(cells))
            cells.append(text)
        yield cells


class _Reader:
    """Reads a file from its start to its end.

    Attributes:
        body: The text of the document.
        notes: The label and the text of each footnote and endnote.
        headers: The texts of headers, each once.
        footers: The texts of footers, each once.
        hidden_words: The number of words that are not shown.
    """

    def __init__(self, source: str) -> None:
        """Read a file that is decoded as Latin-1, which keeps its bytes."""
        self.body = _Story()
        self.notes: list[tuple[str, str]] = []
        self.headers: dict[str, None] = {}
        self.footers: dict[str, None] = {}
        self.hidden_words = 0
        self._source = source
        self._story = self.body
        self._state = _State()
        # The groups around: the formatting of each, and the story if the next group began another.
        self._groups: list[tuple[_State, _Story | None]] = []
        self._is_group_start = False
        self._is_optional = False  # whether the group began with "\*"
        self._charsets: dict[int, int] = {}  # by the number of the font
        self._code_page = "cp1252"
        self._pending_bytes = bytearray()  # not yet decoded: a character may have two bytes
        self._characters_to_skip = 0
        self._footnote_count = 0
        self._endnote_count = 0
        self._comment_author = ""

    def read(self) -> None:
        """Read the file. Raises Unreadable if its groups are nested too deep."""
        position = 0
        while (match := _TOKEN.match(self._source, position)) is not None:
            position = match.end()
            kind = match.lastgroup
            if kind in ("word", "number"):
                number = int(match["number"]) if match["number"] else None
                if match["word"] == "bin":
                    position += max(0, number or 0)  # the bytes of a picture
                else:
                    self._read_word(match["word"], number)
            elif kind == "byte":
                self._read_byte(int(match["byte"], 16))
            elif kind == "sign":
                self._read_symbol(match["sign"])
            elif kind == "brace" and match["brace"] == "{":
                self._begin_group()
            elif kind == "brace":
                self._end_group()
            elif kind == "text":
                self._read_text(match["text"])
        while self._groups:
            self._end_group()
        self._decode_pending()
        self.body.close()

    def _begin_group(self) -> None:
        self._decode_pending()
        if len(self._groups) >= _MAX_DEPTH:
            raise Unreadable("RTF nested too deep", "Save its text from a word processor.")
        self._groups.append((self._state, None))
        self._state = replace(self._state)
        self._is_group_start = True
        self._is_optional = False
        self._characters_to_skip = 0

    def _end_group(self) -> None:
        self._decode_pending()
        self._characters_to_skip = 0
        if not self._groups:
            return
        self._state, outer_story = self._groups.pop()
        self._is_group_start = False
        if outer_story is not None:
            story = self._story
            self._story = outer_story
            story.close()
            self._end_story(story)

    def _begin_story(self, kind: str) -> None:
        outer_state, _ = self._groups[-1]
        self._groups[-1] = (outer_state, self._story)
        self._story = _Story(kind)
        self._state.script = ""
        self._state.is_in_table = False
        self._state.table_level = 1

    def _end_story(self, story: _Story) -> None:
        """Put the text of a story where it is shown."""
        text = story.text()
        if story.kind == "author":
            self._comment_author = text
        elif not text:
            return
        elif story.kind in ("header", "footer"):
            texts = self.headers if story.kind == "header" else self.footers
            if any(map(str.isalpha, text)):  # a page number alone is left out
                texts[text] = None
        elif story.kind == "footnote":
            label = self._next_label(story.is_endnote)
            self.notes.append((label, text))
            self._story.runs.append(("", f"[^{label}]"))
        elif story.kind == "comment":
            self._story.later_blocks.append(comment_line(text, self._comment_author))
            self._comment_author = ""
        else:
            writer = Writer()
            story.write(writer)
            self._story.later_blocks.append(writer.text())

    def _next_label(self, is_endnote: bool) -> str:
        if is_endnote:
            self._endnote_count += 1
            return f"e{self._endnote_count}"
        self._footnote_count += 1
        return f"{self._footnote_count}"

    def _read_word(self, word: str, number: int | None) -> None:
        """Follow a control word, such as `\\fs24`.

        Args:
            word: Its letters.
            number: Its number, if it has one.
        """
        self._decode_pending()
        is_group_start = self._is_group_start
        self._is_group_start = False
        if word == "u":
            self._read_unicode(number or 0)
            return
        if self._characters_to_skip:
            self._characters_to_skip -= 1
            return
        if is_group_start and self._groups and self._begin_destination(word):
            return
        if self._state.is_font_table:
            self._read_font_word(word, number)
        elif not self._state.is_silent and not self._set_format(word, number):
            self._read_structure(word, number)

    def _begin_destination(self, word: str) -> bool:
        """Begin the destination that the first word of a group names; return whether it does."""
        is_optional = self._is_optional
        self._is_optional = False
        state = self._state
        if word == "fonttbl":
            state.is_font_table = True
            return False
        if word in _SILENT or (is_optional and word not in _READ_IF_OPTIONAL):
            state.is_silent = True
            return True
        if word == "ud":  # the Unicode text in `\\upr`
            state.is_silent = False
            return True
        if state.is_silent:
            return False
        if word == "upr":  # has its text twice: in a code page, and in `\\ud`
            state.is_silent = True
            return True
        if word in _STORIES:
            self._begin_story(_STORIES[word])
            return True
        if word in ("pntext", "listtext"):
            state.is_mark = True
            return True
        return False

    def _read_font_word(self, word: str, number: int | None) -> None:
        if word == "f" and number is not None:
            self._state.font = number
        elif word == "fcharset" and number is not None:
            self._charsets[self._state.font] = number

    def _set_format(self, word: str, number: int | None) -> bool:
        """Set the formatting of the text that follows; return whether the word is about that."""
        state = self._state
        is_off = number == 0
        if word == "f":
            state.font = number or 0
        elif word == "uc":
            state.fallback_length = max(0, number or 0)
        elif word in ("v", "deleted", "htmlrtf"):
            state.is_hidden = not is_off
        elif word == "plain":
            state.is_hidden = False
            state.script = ""
        elif word == "super":
            state.script = "" if is_off else "sup"
        elif word == "sub":
            state.script = "" if is_off else "sub"
        elif word == "nosupersub":
            state.script = ""
        elif word in ("up", "dn"):  # by half-points; 6 unless they say otherwise
            script = "sup" if word == "up" else "sub"
            state.script = script if number is None or number > 0 else ""
        elif word == "ansicpg" and number:
            self._code_page = _codec_name(f"cp{number}") or self._code_page
        elif word == "mac":
            self._code_page = "mac_roman"
        elif word == "pc":
            self._code_page = "cp437"
        elif word == "pca":
            self._code_page = "cp850"
        else:
            return False
        return True

    def _read_structure(self, word: str, number: int | None) -> None:
        """Follow a word that is a character, or about a paragraph, a table or a note."""
        state = self._state
        story = self._story
        if word in _CHARACTERS:
            self._write(_CHARACTERS[word])
        elif word in _PARAGRAPH_ENDS:
            is_in_table = state.is_in_table or story.is_row_open or bool(story.cells)
            story.end_paragraph(is_in_table, state.is_heading)
        elif word == "pard":
            state.is_in_table = False
            state.is_heading = False
            state.table_level = 1
        elif word == "outlinelevel":
            state.is_heading = number is not None and number < 9
        elif word == "intbl":
            state.is_in_table = True
        elif word == "itap":
            state.table_level = number or 0
            state.is_in_table = state.table_level > 0
        elif word == "trowd":
            story.begin_row()
        elif word == "trleft":
            story.row_left = number or 0
        elif word == "cellx" and state.table_level < 2:
            story.right_edges.append(number or 0)
        elif word == "cell":
            story.end_cell()
        elif word == "row":
            story.end_row()
            state.is_in_table = False
        elif word == "nestcell":
            story.end_inner_cell()
        elif word == "nestrow":
            story.end_inner_row()
        elif word == "ftnalt":
            story.is_endnote = True

    def _read_symbol(self, symbol: str) -> None:
        """Follow a control symbol, such as `\\~`."""
        self._decode_pending()
        if symbol == "*":
            self._is_optional = self._is_group_start  # elsewhere it has no meaning
            return
        self._is_group_start = False
        if self._characters_to_skip:
            self._characters_to_skip -= 1
        elif symbol in _PARAGRAPH_ENDS and not self._state.is_silent:
            self._story.end_paragraph(self._state.is_in_table)
        elif symbol in _CHARACTERS:
            self._write(_CHARACTERS[symbol])

    def _read_unicode(self, number: int) -> None:
        if self._state.is_silent and self._groups and not self._state.is_font_table:
            return
        code = number % 0x10000 if number < 0 else number  # RTF has signed 16-bit numbers
        if code <= 0x10FFFF:
            self._write(chr(code))
        self._characters_to_skip = self._state.fallback_length

    def _read_byte(self, value: int) -> None:
        self._is_group_start = False
        if self._characters_to_skip:
            self._characters_to_skip -= 1
        elif self._charsets.get(self._state.font) == _SYMBOL_CHARSET:
            self._write(_SYMBOLS.get(value, chr(0xF000 + value)))
        else:
            self._pending_bytes.append(value)

    def _read_text(self, text: str) -> None:
        self._is_group_start = False
        if self._characters_to_skip:
            skipped = min(self._characters_to_skip, len(text))
            self._characters_to_skip -= skipped
            text = text[skipped:]
        if self._pending_bytes and text and text.isascii() and self._is_character_incomplete():
            self._pending_bytes.append(ord(text[0]))  # the second byte of a character
            text = text[1:]
        if text.isascii():
            self._decode_pending()
            self._write(text)
        else:
            self._pending_bytes += text.encode("latin-1")

    def _is_character_incomplete(self) -> bool:
        try:
            self._pending_bytes.decode(self._codec())
        except UnicodeDecodeError as error:
            return error.end == len(self._pending_bytes)
        return False

    def _codec(self) -> str:
        """The codec of the font."""
        charset = self._charsets.get(self._state.font, 0)
        return _CODE_PAGES.get(charset) or self._code_page

    def _decode_pending(self) -> None:
        if self._pending_bytes:
            text = self._pending_bytes.decode(self._codec(), "replace")
            self._pending_bytes.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        state = self._state
        if state.is_silent or state.is_font_table:
            return
        if state.is_hidden:
            self.hidden_words += len(text.split())
        elif state.is_mark:
            self._story.mark.append(text)
        else:
            self._story.runs.append((state.script, text))


def _codec_name(code_page: str) -> str:
    """The name of Python's codec for a code page; "" if there is none."""
    name = {"cp10000": "mac_roman", "cp65001": "utf-8"}.get(code_page, code_page)
    try:
        codecs.lookup(name)
    except LookupError:
        return ""
    return name


def _join_surrogates(text: str) -> str:
    """Make one character of each pair of surrogates, and U+FFFD of a single one.

    RTF writes a character above U+FFFF as two.

    >>> _join_surrogates(chr(0xD83D) + chr(0xDE00) + chr(0xD83D)) == chr(0x1F600) + chr(0xFFFD)
    True
    """
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
