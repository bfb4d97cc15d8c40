"""What is known of a document's text: its format, pages and headings, and what was left out.

Offsets count characters of the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

BETWEEN_CELLS = " | "  # of a table's row
Cell = str | Iterable[str]  # of a table: its lines, or the only one
# Of Markdown: a line, or a comment over several; and what lines may be.
_MARKDOWN = re.compile(r"<!--.{0,20000}?-->[^\n]*\n?|[^\n]*\n|[^\n]+", re.DOTALL)
_METADATA = re.compile(r"---[ \t]*\n(?:[^\n]*\n){0,200}?(?:---|\.\.\.)[ \t]*(?:\n|$)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)$")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_FENCE = re.compile(r"[ \t]*(?:[-*+>][ \t]+)*(`{3,}|~{3,})(.*)$")
_NO_PARAGRAPH = re.compile(r" {0,3}(?:[-*_][ \t]*){3,}$|[^\n]*\|[^\n]*$")
_IN_LIST = re.compile(r"[ \t]*(?:[-*+>]|\d{1,9}[.)])(?:[ \t]|$)|<")
MOST_PAGES = 1000  # of a file whose text is recognized; guess
INSTALL = "Install it: pip install 'ngtcli[{}]'"  # where a package of that extra is missing
_MOST = 10_000_000  # largest page number or count taken from a parser; guess


@dataclass(frozen=True, slots=True)
class Section:
    """Text from offset `start` to the next section; page 0 and heading "" are unknown."""

    start: int
    page: int = 0
    heading: str = ""


def placed(name: str, page: int | None, heading: str | None) -> str:
    """A document, and the place in it: a page, or else the heading it stands below, if any.

    >>> placed("a.pdf", 3, "Tides"), placed("b.md", None, "Tides"), placed("c.txt", 0, "")
    ('a.pdf, page 3', 'b.md, Tides', 'c.txt')
    """
    where = f"page {page}" if page else heading
    return f"{name}, {where}" if where else name


@dataclass(frozen=True, slots=True)
class About:
    """Where a text comes from.

    `pages` is 0 for formats without pages. `dropped` counts the lines of headers and footers that
    were left out since most pages have them. `secret`: a password was needed. The text of the pages
    `recognized` was read from their pictures.
    """

    format: str = "text"
    pages: int = 0
    dropped: int = 0
    sections: tuple[Section, ...] = ()
    warnings: tuple[str, ...] = ()
    secret: bool = False
    recognized: tuple[int, ...] = ()

    def check(self, characters: int) -> None:
        """Raise ValueError unless this is of a text of that length."""
        starts = [0, *(section.start for section in self.sections), characters]
        numbers = [self.pages, self.dropped, *self.recognized, *(s.page for s in self.sections)]
        if starts != sorted(starts) or not all(0 <= number <= _MOST for number in numbers):
            raise ValueError("a number out of range")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file, and what is known of it."""

    text: str
    about: About = field(default_factory=About)


def markdown(text: str) -> Extracted:
    """A text in Markdown as it is, with its headings as sections."""
    sections = tuple(Section(start, 0, heading) for start, heading in _headings(text))
    return Extracted(text, About(sections=sections))


def _headings(text: str) -> Iterator[tuple[int, str]]:
    r"""The headings of a text in Markdown, and where each begins.

    Those of "#" and those that are underlined, but none in code between fences, in code that is
    indented, in a comment, or in the metadata at the head of a file.

    >>> list(_headings("# A #\n\n```\n# no\n```\nB\nc\n---\n"))
    [(0, 'A'), (20, 'B c')]
    """
    fence = ""  # that ends the code which is open
    start, lines = 0, list[str]()  # the paragraph that is open
    for match in _MARKDOWN.finditer(text, _after_metadata(text)):
        line, at = match[0].rstrip("\n"), match.start()
        if match[0].startswith("<!--"):
            lines = []
            continue
        marks = _FENCE.match(line)
        if fence:
            if marks and marks[1].startswith(fence) and not marks[2].strip():
                fence = ""
            continue
        if marks and not ("`" in marks[2] and marks[1][0] == "`"):
            fence, lines = marks[1], []
        elif heading := _HEADING.match(line):
            yield at, heading[1].rstrip(" \t#") or heading[1][0]
            lines = []
        elif _UNDERLINE.match(line) and lines:
            yield start, " ".join(" ".join(lines).split())
            lines = []
        elif not line.strip() or _NO_PARAGRAPH.match(line) or (not lines and line[:4].isspace()):
            lines = []
        elif lines or not _IN_LIST.match(line):
            start = start if lines else at
            lines.append(line)


def _after_metadata(text: str) -> int:
    """Where a text begins behind its metadata, which stands between lines of "---"."""
    match = _METADATA.match(text)
    return match.end() if match else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bytes that a parser reads, and what the user said of them.

    `suffix` is that of the file's name, in lower case with its dot; `most` bounds the bytes that
    anything in the file may unpack to; `encoding` is that of text which is not UTF-8. `on_page` is
    called before the text of a page is recognized.
    """

    data: bytes
    suffix: str
    most: int
    password: str = ""
    field: str = ""
    encoding: str = ""
    ocr: str = "off"
    ocr_language: str = ""
    on_page: Callable[[], None] = lambda: None


# A parser of one format. Raises Unreadable; whatever else it raises means a broken file.
Parse = Callable[[Source], Extracted]


def row_of(cells: Iterable[Cell]) -> str:
    """A table's row in one line, each cell's lines with a space between; "" where none has text.

    >>> row_of([["first line", "second line"], [], "c  d"])
    'first line second line |  | c d'
    """
    texts = [" ".join((c if isinstance(c, str) else " ".join(c)).split()) for c in cells]
    return BETWEEN_CELLS.join(texts) if any(texts) else ""


def comment_line(text: str, author: str = "", place: str = "") -> str:
    """A comment as it is written in a text.

    >>> comment_line("No.", "Ines"), comment_line("No.", place="A2")
    ('[comment by Ines: No.]', '[comment A2: No.]')
    """
    if place:
        return f"[comment {place}{f', {author}' if author else ''}: {text}]"
    return f"[comment{f' by {author}' if author else ''}: {text}]"


def unknown_signs(text: str) -> tuple[str, ...]:
    """A warning if characters of fonts that have signs of their own are in `text`."""
    count = sum("\ue000" <= c <= "\uf8ff" for c in text)
    return (f"characters of symbol fonts whose meaning is not known: {count}",) * bool(count)


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


class Writer:
    """Puts a text together from blocks with an empty line between them, and keeps sections.

    >>> writer = Writer()
    >>> writer.heading("One"); writer.add("Text.")
    >>> writer.text(), writer.sections()
    ('One\\n\\nText.', (Section(start=0, page=0, heading='One'),))
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._sections: list[Section] = []
        self._kind = ""  # of the last block

    def add(self, block: str, kind: str = "") -> None:
        """A block of text; nothing if it is only white space.

        Blocks of one `kind` in a row, as the items of a list, have no empty line between them.
        """
        is_next = kind and kind == self._kind
        self._kind = kind
        if not (block := block.strip("\n").rstrip()) or block.isspace():
            return
        if self._parts:
            block = ("\n" if is_next else "\n\n") + block
        self._parts.append(block)
        self._length += len(block)

    def stand_apart(self) -> None:
        """Put an empty line before the next block, of whatever kind it is."""
        self._kind = ""

    def table(self, rows: Iterable[Iterable[Cell]], heading: str = "") -> bool:
        """The rows of a table that have text, below its heading; whether there are any."""
        self.stand_apart()
        for line in filter(None, map(row_of, rows)):
            if self._kind != "row":
                self.heading(heading)
            self.add(line, "row")
        return self._kind == "row"

    def heading(self, words: str, page: int = 0) -> None:
        """A block that names what follows it."""
        self.stand_apart()
        if words := " ".join(words.split()):
            self.mark(page, words)
            self.add(words)

    def mark(self, page: int, heading: str = "") -> None:
        """From the next block on it is this page, below this heading or else the one before."""
        start = self._length + 2 * bool(self._parts)
        heading = heading or (self._sections[-1].heading if self._sections else "")
        if self._sections and self._sections[-1].start == start:
            self._sections.pop()
        self._sections.append(Section(start, page, heading))

    def text(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    def sections(self) -> tuple[Section, ...]:
        """The sections so far; none begins behind the text."""
        return tuple(s for s in self._sections if s.start < self._length)

    def extracted(self, form: str, warnings: tuple[str, ...] = (), **about: Any) -> Extracted:
        """The text so far, and what is known of it; `about` are other fields of `About`."""
        known = About(form, sections=self.sections(), warnings=warnings, **about)
        return Extracted(self.text(), known)

    def __len__(self) -> int:
        return self._length


def pages_named(pages: Sequence[int]) -> str:
    """Page numbers in a sentence, neighbours together.

    >>> pages_named([3]), pages_named([1, 2, 3, 7]), pages_named(range(1, 25, 2))[-29:]
    ('page 3', 'pages 1-3, 7', '15, 17, 19, and 2 more places')
    """
    neighbours = groupby(enumerate(pages), lambda numbered: numbered[1] - numbered[0])
    runs = [[page for _, page in run] for _, run in neighbours]
    shown = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:10]]
    more = [f"and {len(runs) - 10} more places"] * (len(runs) > 10)
    return f"page{'s' if len(pages) > 1 else ''} {', '.join([*shown, *more])}"
