"""The text of a document with its format, pages, headings and warnings, and its writer.

Offsets are in characters of the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

BETWEEN_CELLS = " | "  # separates the cells of a table's row
Cell = str | Iterable[str]  # a cell of a table: one line, or several
# A line of Markdown, or a comment of several lines; below are patterns for the kinds of lines.
_MARKDOWN = re.compile(r"<!--.{0,20000}?-->[^\n]*\n?|[^\n]*\n|[^\n]+", re.DOTALL)
_METADATA = re.compile(r"---[ \t]*\n(?:[^\n]*\n){0,200}?(?:---|\.\.\.)[ \t]*(?:\n|$)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)$")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_FENCE = re.compile(r"[ \t]*(?:[-*+>][ \t]+)*(`{3,}|~{3,})(.*)$")
_NO_PARAGRAPH = re.compile(r" {0,3}(?:[-*_][ \t]*){3,}$|[^\n]*\|[^\n]*$")
# An item of a list, a quotation, or HTML.
_NO_PARAGRAPH_START = re.compile(r"[ \t]*(?:[-*+>]|\d{1,9}[.)])(?:[ \t]|$)|<")
MAX_OCR_PAGES = 1000  # pages of one file that OCR reads (guess)
INSTALL = "Install it: pip install 'ngtcli[{}]'"  # hint if a package of an extra is missing
_MAX_RUNS = 10  # runs of pages that a message names (guess)
_MAX_NUMBER = 10_000_000  # maximum page number or count that a parser may return (guess)


@dataclass(frozen=True, slots=True)
class Section:
    """The text from offset `start` to the next section.

    Page 0 and heading "" stand for unknown ones.
    """

    start: int
    page: int = 0
    heading: str = ""


def placed(name: str, page: int | None, heading: str | None) -> str:
    """Return the name of a document with a page or else a heading, if it has one.

    >>> placed("a.pdf", 3, "Tides"), placed("b.md", None, "Tides"), placed("c.txt", 0, "")
    ('a.pdf, page 3', 'b.md, Tides', 'c.txt')
    """
    where = f"page {page}" if page else heading
    return f"{name}, {where}" if where else name


@dataclass(frozen=True, slots=True)
class About:
    """Facts about where a text comes from.

    Attributes:
        format: Name of the format.
        pages: Number of pages; 0 for formats without pages.
        dropped: How many lines of headers and footers were left out, as most pages repeat them.
        sections: Pages and headings, in the order of the text.
        warnings: Sentences for users on what may be wrong with the text.
        secret: Whether the file needed a password.
        recognized: The pages that OCR read.
    """

    format: str = "text"
    pages: int = 0
    dropped: int = 0
    sections: tuple[Section, ...] = ()
    warnings: tuple[str, ...] = ()
    secret: bool = False
    recognized: tuple[int, ...] = ()

    def check(self, characters: int) -> None:
        """Raise ValueError unless this is plausible for a text of this many characters."""
        starts = [0, *(section.start for section in self.sections), characters]
        numbers = [self.pages, self.dropped, *self.recognized, *(s.page for s in self.sections)]
        if starts != sorted(starts) or not all(0 <= n <= _MAX_NUMBER for n in numbers):
            raise ValueError("a number out of range")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file, with facts about it."""

    text: str
    about: About = field(default_factory=About)


def markdown(text: str) -> Extracted:
    """Return a Markdown text, unchanged, with its headings as sections."""
    sections = tuple(Section(start, 0, heading) for start, heading in _find_headings(text))
    return Extracted(text, About(sections=sections))


def _find_headings(text: str) -> Iterator[tuple[int, str]]:
    r"""Find the headings of a Markdown text; yield the start and the words of each.

    Headings begin with "#" or are underlined. Fenced and indented code, comments, and the metadata
    at the beginning of a file are skipped.

    >>> list(_find_headings("# A #\n\n```\n# no\n```\nB\nc\n---\n"))
    [(0, 'A'), (20, 'B c')]
    """
    open_fence = ""  # the fence of the current code block
    # The lines of the current paragraph, which an underline makes a heading.
    paragraph: list[str] = []
    paragraph_start = 0
    for match in _MARKDOWN.finditer(text, _end_of_metadata(text)):
        if match[0].startswith("<!--"):
            paragraph = []
            continue
        line = match[0].rstrip("\n")
        fence = _FENCE.match(line)
        if open_fence:
            if fence and fence[1].startswith(open_fence) and not fence[2].strip():
                open_fence = ""
            continue
        if fence and not ("`" in fence[2] and fence[1][0] == "`"):
            open_fence = fence[1]
            paragraph = []
            continue
        heading = _HEADING.match(line)
        is_indented_code = not paragraph and line[:4].isspace()
        if heading:
            yield match.start(), heading[1].rstrip(" \t#") or heading[1][0]
            paragraph = []
        elif _UNDERLINE.match(line) and paragraph:
            yield paragraph_start, " ".join(" ".join(paragraph).split())
            paragraph = []
        elif not line.strip() or _NO_PARAGRAPH.match(line) or is_indented_code:
            paragraph = []
        elif paragraph or not _NO_PARAGRAPH_START.match(line):
            if not paragraph:
                paragraph_start = match.start()
            paragraph.append(line)


def _end_of_metadata(text: str) -> int:
    """Return the offset after the metadata between lines of "---"; 0 if there is none."""
    match = _METADATA.match(text)
    return match.end() if match else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserInput:
    """The bytes that a parser reads, and how to read them.

    Attributes:
        data: The bytes of the file.
        suffix: The suffix of its name, in lower case with the dot.
        max_bytes: The maximum size of the unpacked file and of its text.
        password: Password of an encrypted file.
        field: In formats with records, such as JSON lines: the field that has the text of a record;
            "": all fields are its text.
        encoding: The encoding of text that is not UTF-8.
        ocr: When OCR reads pages: "off", "auto" or "force".
        ocr_language: The languages for Tesseract; "": use the default OCR package instead.
        on_page: Called before OCR reads a page.
    """

    data: bytes
    suffix: str
    max_bytes: int
    password: str = ""
    field: str = ""
    encoding: str = ""
    ocr: str = "off"
    ocr_language: str = ""
    on_page: Callable[[], None] = lambda: None


# A parser of one format. It raises Unreadable; any other exception means that the file is broken.
Parse = Callable[[ParserInput], Extracted]


def row_of(cells: Iterable[Cell]) -> str:
    """Return a table's row as one line; "" if no cell has text. Spaces join the lines of a cell.

    >>> row_of([["first line", "second line"], [], "c  d"])
    'first line second line |  | c d'
    """
    texts = []
    for cell in cells:
        text = cell if isinstance(cell, str) else " ".join(cell)
        texts.append(" ".join(text.split()))
    return BETWEEN_CELLS.join(texts) if any(texts) else ""


def comment_line(text: str, author: str = "", place: str = "") -> str:
    """Return a comment as it appears in the text of a document.

    >>> comment_line("No.", "Ines"), comment_line("No.", place="A2")
    ('[comment by Ines: No.]', '[comment A2: No.]')
    """
    if place:
        label = f"comment {place}, {author}" if author else f"comment {place}"
    else:
        label = f"comment by {author}" if author else "comment"
    return f"[{label}: {text}]"


def unknown_signs(text: str) -> tuple[str, ...]:
    """Return a warning if a text has private-use characters, which only a symbol font defines."""
    count = sum("\ue000" <= c <= "\uf8ff" for c in text)
    if count == 0:
        return ()
    return (f"characters of symbol fonts whose meaning is not known: {count}",)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def hidden_text_warning(words: int) -> str:
    """Return the warning about hidden words that were left out.

    >>> hidden_text_warning(2)
    'hidden text left out: 2 words'
    """
    return f"hidden text left out: {counted(words, 'word')}"


def hidden_cells_warning(rows: int, columns: int) -> str:
    """Return the warning about hidden rows and columns of tables that were left out.

    >>> hidden_cells_warning(1, 0)
    'hidden rows and columns left out: 1 row'
    """
    counts: list[str] = []
    if rows:
        counts.append(counted(rows, "row"))
    if columns:
        counts.append(counted(columns, "column"))
    return f"hidden rows and columns left out: {', '.join(counts)}"


class Writer:
    """Builds a text from blocks, which empty lines separate, with its sections.

    >>> writer = Writer()
    >>> writer.heading("One"); writer.add("Text.")
    >>> writer.text(), writer.sections()
    ('One\\n\\nText.', (Section(start=0, page=0, heading='One'),))
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._sections: list[Section] = []
        self._last_kind = ""

    def add(self, block: str, kind: str = "") -> None:
        """Add a block of text, unless it is blank.

        No empty line separates consecutive blocks of the same `kind`, such as items of a list.
        """
        continues = kind and kind == self._last_kind
        self._last_kind = kind
        block = block.strip("\n").rstrip()
        if not block or block.isspace():
            return
        if self._parts:
            block = ("\n" if continues else "\n\n") + block
        self._parts.append(block)
        self._length += len(block)

    def stand_apart(self) -> None:
        """Put an empty line before the next block, whatever its kind."""
        self._last_kind = ""

    def table(self, rows: Iterable[Iterable[Cell]], heading: str = "") -> bool:
        """Add the rows of a table that have text, below a heading; return whether any has text."""
        self.stand_apart()
        has_rows = False
        for row in rows:
            line = row_of(row)
            if not line:
                continue
            if not has_rows:
                self.heading(heading)
            self.add(line, "row")
            has_rows = True
        return has_rows

    def heading(self, words: str, page: int = 0) -> None:
        """Add a heading, and begin a section with it."""
        self.stand_apart()
        heading = " ".join(words.split())
        if heading:
            self.mark(page, heading)
            self.add(heading)

    def mark(self, page: int, heading: str = "") -> None:
        """Let the next block begin a section on a page, with this heading or else the last one."""
        separator = 2 if self._parts else 0  # characters of the empty line before the block
        start = self._length + separator
        if not heading and self._sections:
            heading = self._sections[-1].heading
        if self._sections and self._sections[-1].start == start:
            self._sections.pop()
        self._sections.append(Section(start, page, heading))

    def text(self) -> str:
        """Return the text so far."""
        return "".join(self._parts)

    def sections(self) -> tuple[Section, ...]:
        """Return the sections so far, except those without text."""
        return tuple(s for s in self._sections if s.start < self._length)

    def extracted(
        self, format_name: str, warnings: tuple[str, ...] = (), **other_facts: Any
    ) -> Extracted:
        """Return the text so far, with facts about it; `other_facts` are more fields of `About`."""
        about = About(format_name, sections=self.sections(), warnings=warnings, **other_facts)
        return Extracted(self.text(), about)

    def __len__(self) -> int:
        return self._length


def pages_named(pages: Sequence[int]) -> str:
    """Return page numbers for a sentence, with ranges for consecutive pages.

    >>> pages_named([3]), pages_named([1, 2, 3, 7]), pages_named(range(1, 25, 2))[-29:]
    ('page 3', 'pages 1-3, 7', '15, 17, 19, and 2 more places')
    """
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][-1] + 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    shown = []
    for run in runs[:_MAX_RUNS]:
        shown.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    if len(runs) > _MAX_RUNS:
        shown.append(f"and {len(runs) - _MAX_RUNS} more places")
    noun = "pages" if len(pages) > 1 else "page"
    return f"{noun} {', '.join(shown)}"
