"""The sources of an answer: its stretches that stand in documents, as text and as JSON."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.documents.passages import place
from ngtcli.errors import counted
from ngtcli.grounding.span import Span, share_copied
from ngtcli.prompt.build import Excerpt
from ngtcli.render.tables import cell
from ngtcli.render.terminal import visible

_LONGEST_QUOTE = 120  # characters of a quotation in a list; guess
_SPACE = re.compile(r"\s+")
_AROUND = 160  # characters before and behind a quotation that are shown with it; guess


@dataclass(frozen=True, slots=True)
class Source:
    """One stretch of an answer and where it stands; `number` is its mark, from 1.

    Stretches that stand at the same place have one number. `before` and `after` are the text on
    either side of the quotation. `page` is 0 and `heading` "" where the document has none.
    """

    number: int
    span: Span
    name: str
    path: str
    quote: str
    before: str = ""
    after: str = ""
    page: int = 0
    heading: str = ""

    @property
    def place(self) -> str:
        """The document, and in it the page, or else the heading."""
        where = f"page {self.page}" if self.page else self.heading
        return f"{self.name}, {where}" if where else self.name

    @property
    def uri(self) -> str:
        """A link to the file, at its page; "" for a text that is no file."""
        if not self.path:
            return ""
        page = f"#page={self.page}" if self.page else ""
        return Path(self.path).absolute().as_uri() + page

    def as_json(self) -> dict[str, Any]:
        """The stretch, in characters of the answer and of the document's text, and its place."""
        return {
            **asdict(self.span), "name": self.name, "page": self.page or None,
            "heading": self.heading or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sources:
    """All stretches of an answer that stand in its documents, in the answer's order.

    `verbatim` is their share of the answer's characters, white space left out.
    """

    found: tuple[Source, ...]
    verbatim: float

    @property
    def documents(self) -> int:
        """How many documents the stretches stand in."""
        return len({source.span.document for source in self.found})

    def places(self) -> list[Source]:
        """The first stretch of each place, by number."""
        first = {source.number: source for source in reversed(self.found)}
        return [first[number] for number in sorted(first)]

    def as_json(self) -> dict[str, Any]:
        """The share, and the stretches."""
        return {
            "verbatim_share": round(self.verbatim, 4),
            "spans": [source.as_json() for source in self.found],
        }

    def among(self, documents: Sequence[int]) -> "Sources":
        """The same stretches, with documents counted among these alone, which have them all."""
        number = {document: i for i, document in enumerate(documents)}
        found = [
            replace(s, span=replace(s.span, document=number[s.span.document])) for s in self.found
        ]
        return Sources(tuple(found), self.verbatim)

    def fact(self) -> str:
        """What the line below an answer says."""
        if not self.found:
            return "nothing stands in the documents word for word"
        share = max(1, int(100 * self.verbatim))  # rounded down: 100% is all of it
        return f"{share}% stands in {counted(self.documents, 'document')} word for word"


def sources_of(
    answer: str, documents: Sequence[Document], excerpts: Sequence[Excerpt] | None = None
) -> Sources:
    """Where the stretches of `answer` stand in `documents`; with `excerpts`, only within those."""
    found = _spans(answer, documents, excerpts)
    numbers: dict[tuple[int, int, int], int] = {}
    sources = []
    for span in found:
        key = (span.document, span.source_start, span.source_end)
        number = numbers.setdefault(key, len(numbers) + 1)
        document = documents[span.document]
        start, end = span.source_start, span.source_end
        section = place(document, span.source_start)
        sources.append(
            Source(
                number,
                span,
                document.name,
                document.path,
                quote=_line(document.text[start:end]),
                before=_before(document.text, start),
                after=_after(document.text, end),
                page=section.page,
                heading=section.heading,
            )
        )
    return Sources(tuple(sources), share_copied(answer, found))


def _spans(
    answer: str, documents: Sequence[Document], excerpts: Sequence[Excerpt] | None
) -> list[Span]:
    from ngtcli.grounding.find import spans  # here: it loads numpy

    if excerpts is None:
        return spans(answer, [d.text for d in documents])
    texts = [documents[e.document].text[e.start : e.end] for e in excerpts]
    return [
        replace(
            span,
            document=excerpts[span.document].document,
            source_start=span.source_start + excerpts[span.document].start,
            source_end=span.source_end + excerpts[span.document].start,
        )
        for span in spans(answer, texts)
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def _before(text: str, start: int) -> str:
    """What precedes `start` on one line; after an ellipsis where more text does."""
    first = max(0, start - _AROUND)
    words = text[first:start]
    if first and (space := re.search(r"\s", words)):
        words = "… " + words[space.end() :]
    return _SPACE.sub(" ", words).lstrip()


def _after(text: str, end: int) -> str:
    """What follows from `end` on, on one line; before an ellipsis where more text does."""
    words = text[end : end + _AROUND]
    if end + _AROUND < len(text) and (cut := words.rsplit(None, 1)):
        words = cut[0] + " …"
    return _SPACE.sub(" ", words).rstrip()


def listed(source: Source) -> str:
    """The line of a list: the mark, the place and the quotation, cut where long."""
    return f"{marked_place(source)}: “{visible(short(source.quote))}”"


def marked_place(source: Source) -> str:
    """The mark and the place, on one line."""
    return f"[{source.number}] {cell(source.place)}"


def short(quote: str, longest: int = _LONGEST_QUOTE) -> str:
    """A quotation of about `longest` characters at most: of a longer one its two ends."""
    if len(quote) <= longest:
        return quote
    half = longest // 2
    return f"{quote[:half].rstrip()} … {quote[-half:].lstrip()}"
