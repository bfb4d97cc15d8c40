"""The sources of an answer: its quotations of documents, and where they stand."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from ngtcli.documents.content import placed
from ngtcli.documents.load import Document
from ngtcli.documents.quotes.span import Span
from ngtcli.documents.selection import Excerpt
from ngtcli.system.json_form import HIDDEN, json_key
from ngtcli.words import counted

_SPACE = re.compile(r"\s+")
_CONTEXT_CHARACTERS = 160  # shown before and after a quotation (guess)
_CLAUSE_END = re.compile(r"[.!?…;:,—–|]+[\"'”’»)\]]*(?=\s)|\n|[。！？；：，、]")
_MAX_SKIPPED = 200  # characters between quotations of one passage, if words are left out (guess)
_SPANS = "document is an index of documents; ranges count characters of their texts"


@dataclass(frozen=True, slots=True)
class Source:
    """A quotation in an answer, and its place in a document.

    Attributes:
        number: The number of its mark, from 1; the same for all quotations of one place.
        span: Where it is in the answer and in the document.
        name: Name of the document.
        path: Path of the document's file; "" if it is not a file.
        quote: The words of the document.
        before: The text before them.
        after: The text after them.
        page: Number of the page; None if the document has no pages.
        heading: Last heading before the quotation; None if there is none.
        ocr: Whether OCR read the page.
    """

    number: int = field(metadata=HIDDEN)
    span: Span = field(metadata=json_key(flat=True))
    name: str
    path: str = field(metadata=HIDDEN)
    quote: str = field(metadata=HIDDEN)
    before: str = field(default="", metadata=HIDDEN)
    after: str = field(default="", metadata=HIDDEN)
    page: int | None = None
    heading: str | None = None
    ocr: bool = False

    @property
    def place(self) -> str:
        """The document, and in it the page, or else the heading."""
        place = placed(self.name, self.page, self.heading)
        return f"{place} (OCR)" if self.ocr else place

    @property
    def uri(self) -> str:
        """A link to the file, at its page; "" for a text that is not a file."""
        if not self.path:
            return ""
        page = f"#page={self.page}" if self.page else ""
        return Path(self.path).absolute().as_uri() + page


@dataclass(frozen=True, slots=True)
class Sources:
    """All quotations in an answer, in its order.

    Attributes:
        verbatim_share: Share of the answer's characters that are quoted, see `share_copied`.
        spans: The quotations.
    """

    verbatim_share: float = field(metadata=json_key(digits=4))
    spans: tuple[Source, ...] = field(metadata=json_key(about=_SPANS))

    @property
    def documents(self) -> int:
        """Number of documents that are quoted."""
        return len({source.span.document for source in self.spans})

    def places(self) -> list[Source]:
        """The first quotation of each place, by number."""
        first_by_number = {source.number: source for source in reversed(self.spans)}
        return [first_by_number[number] for number in sorted(first_by_number)]

    def among(self, documents: Sequence[int]) -> "Sources":
        """Number the documents anew: by their place in a selection that has all quoted ones."""
        index_of = {document: index for index, document in enumerate(documents)}
        sources = []
        for source in self.spans:
            document = index_of[source.span.document]
            sources.append(replace(source, span=replace(source.span, document=document)))
        return Sources(self.verbatim_share, tuple(sources))


def sources_of(
    answer: str, documents: Sequence[Document], excerpts: Sequence[Excerpt] | None = None
) -> Sources:
    """Find the quotations of documents in an answer; with `excerpts`, only of those."""
    return SourceFinder(documents, excerpts).find(answer)


class SourceFinder:
    """Finds sources in documents, or within excerpts of them, that are indexed only once."""

    def __init__(
        self, documents: Sequence[Document], excerpts: Sequence[Excerpt] | None = None
    ) -> None:
        from ngtcli.documents.quotes.find import QuoteFinder  # lazy: it imports numpy

        if excerpts is None:
            excerpts = [Excerpt(i, 0, len(document.text)) for i, document in enumerate(documents)]
        self._documents = documents
        self._excerpts = excerpts
        self._quotes = QuoteFinder([documents[e.document].text[e.start : e.end] for e in excerpts])

    def find(self, answer: str) -> Sources:
        """Find the quotations in `answer`, and number their places."""
        sources = self._sources_at(self._quotes.spans(answer))
        share = share_copied(answer, [source.span for source in sources])
        return Sources(share, tuple(sources))

    def find_so_far(self, answer: str) -> tuple[list[Source], int]:
        """Find those sources of an incomplete answer that do not depend on its rest.

        Returns:
            The sources, and the offset up to which no other source of the answer ends.
        """
        so_far = self._quotes.spans_so_far(answer)
        return self._sources_at(so_far.spans), so_far.free_end

    def _sources_at(self, spans: Sequence[Span]) -> list[Source]:
        numbers: dict[tuple[int, int, int], int] = {}
        sources = []
        for span in spans:
            excerpt = self._excerpts[span.document]
            document = self._documents[excerpt.document]
            source_range = (
                excerpt.document,
                span.source_start + excerpt.start,
                span.source_end + excerpt.start,
            )
            number = numbers.setdefault(source_range, len(numbers) + 1)
            source_span = Span(span.start, span.end, *source_range)
            sources.append(source_at(document, number, source_span))
        return sources


def source_at(document: Document, number: int, span: Span) -> Source:
    """Describe the place of a span in a document."""
    from ngtcli.documents.passages import place  # lazy: showing sources does not need it

    text = document.text
    start = span.source_start
    end = span.source_end
    section = place(document, start)
    before, after = _context(text, start, end)
    return Source(
        number=number,
        span=span,
        name=document.name,
        path=document.path,
        quote=" ".join(text[start:end].split()),
        before=before,
        after=after,
        page=section.page or None,
        heading=section.heading or None,
        ocr=section.page in document.about.recognized,
    )


def _context(text: str, start: int, end: int) -> tuple[str, str]:
    """The text before and after a quotation, in one line, with an ellipsis where it is cut."""
    first = max(0, start - _CONTEXT_CHARACTERS)
    last = end + _CONTEXT_CHARACTERS
    before = text[first:start]
    after = text[end:last]
    space = _SPACE.search(before)
    if first and space:
        before = f"… {before[space.end() :]}"
    words = after.rsplit(None, 1)
    if last < len(text) and words:
        after = f"{words[0]} …"
    return _SPACE.sub(" ", before).lstrip(), _SPACE.sub(" ", after).rstrip()


def copied_fact(sources: Sources, is_selection: bool = False) -> str:
    """Say how much of an answer is quoted, for the line below it.

    Args:
        sources: The sources of the answer.
        is_selection: Whether only passages of the documents were read and compared.
    """
    if not sources.spans:
        return "nothing quoted from the passages read" if is_selection else "nothing quoted"
    share = max(1, int(100 * sources.verbatim_share))  # rounded down: 100% is all of it
    return f"{share}% quoted from {counted(sources.documents, 'document')}"


def share_copied(answer: str, spans: Sequence[Span]) -> float:
    """Compute the share of the answer's characters, without white space, that are quoted.

    A clause that is put together from several places counts as the answer's own.

    >>> share_copied("ab cd", [Span(0, 2, 0, 0, 2)])
    0.5
    >>> share_copied("ab cd ef; gh", [Span(0, 2, 0, 0, 2), Span(3, 8, 1, 0, 5)])
    0.0
    """
    size = len("".join(answer.split()))
    bounds = [0, *(match.end() for match in _CLAUSE_END.finditer(answer)), len(answer)]
    copied = 0
    for start, end in pairwise(bounds):
        within = [span for span in spans if span.start < end and span.end > start]
        if all(_goes_on(before, after) for before, after in pairwise(within)):
            parts = (answer[max(s.start, start) : min(s.end, end)] for s in within)
            copied += sum(len("".join(part.split())) for part in parts)
    return copied / size if size else 0.0


def _goes_on(before: Span, after: Span) -> bool:
    """Return whether two quotations in a row are near one another in the document, too."""
    distance = abs(after.source_start - before.source_end)
    return before.document == after.document and distance <= _MAX_SKIPPED
