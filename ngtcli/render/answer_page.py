"""An answer with its documents as one HTML page, without external files.

Each quotation in the answer is a link to its place in a document, in the color of the document;
accepted drafts are underlined. Hovering over a quotation, or reaching it with the keyboard, shows
the document, page and heading, the text around the place, and the steps that wrote it. All of this
works without the script, which adds the Escape key: it hides the box, and leads from a place back
to the quotation.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import Source, Sources, source_at
from ngtcli.documents.quotes.span import Span
from ngtcli.models.recommended import described
from ngtcli.render.answer_view import short
from ngtcli.render.page import FOLDER, policy, rendered
from ngtcli.render.sinks import WholeWords, runs_of
from ngtcli.system.json_form import dump_json
from ngtcli.words import counted

if TYPE_CHECKING:
    from ngtcli.drafting.steps import Step

_LEGEND = (
    "Colored words are in the document of that color, word for word; whether it supports what"
    " is said is for you to judge. Underlined words come from accepted drafts. A click or Enter"
    " leads to the place, Escape back."
)
_TABLE_LEGEND = (
    "Colored values are verbatim in the document of that color; others are not. Underlined"
    " values have a probability below --doubt. A click or Enter leads to the place, Escape back."
)
_FIRST_HUE = 205  # degrees: blue
_HUE_STEP = 137.5  # degrees between two documents: the golden angle, which keeps all hues apart
# Characters of a document. If it has more, text far from all quotations is left out (guess:
# browsers lay out a few million characters within seconds).
_MAX_DOCUMENT = 1_000_000
_CONTEXT = 20_000  # characters shown around each quotation of such a document (guess)
# Characters of all documents. After so many, the page has only the text near a quotation (guess).
_MAX_DOCUMENTS = 5_000_000
_MAX_QUOTE = 400  # characters, about, of a quotation in its box (guess)
_MAX_TITLE = 200  # characters (guess)


class Piece(NamedTuple):
    """Text of an answer or a document.

    Attributes:
        text: The text.
        drafted: Whether an answer's text comes from accepted drafts.
        page: The page of a document that begins with it; 0 for none.
        left_out: Characters of a document that are left out after it.
    """

    text: str = ""
    drafted: bool = False
    page: int = 0
    left_out: int = 0


class Part(NamedTuple):
    """A quotation with its source, or the text between two quotations.

    Attributes:
        pieces: The text.
        source: The source of a quotation; None between quotations.
        steps: The steps that wrote a quotation, in words.
    """

    pieces: Sequence[Piece]
    source: Source | None = None
    steps: str = ""


class ShownDocument(NamedTuple):
    """A document on the page; one without quotations is closed, or empty.

    Attributes:
        name: Its name.
        places: The number of places that are quoted.
        summary: That number in words.
        parts: Its text.
    """

    name: str
    places: int
    summary: str
    parts: Sequence[Part]


Table = Sequence[Sequence[Part]]  # rows of cells, the headings first


def table_page(
    title: str,
    command: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    documents: Sequence[Document],
    model: str = "",
) -> str:
    """Return the HTML of a table of `ngt extract`.

    Args:
        title: The schema.
        command: The command.
        names: The fields.
        rows: The rows of the table, as `ngt extract` writes them.
        documents: The documents of these rows, by their names.
        model: The name of the model.
    """
    document_numbers = {document.name: number for number, document in enumerate(documents)}
    number_of_place: dict[tuple[int, int, int], int] = {}
    sources: list[Source] = []
    table = [[Part([Piece(name)]) for name in ("file", *names)]]
    for row in rows:
        cells = [Part([Piece(row["file"])])]
        for name in names:
            source = None
            place = row["sources"][name]
            if place is not None:
                document_number = document_numbers[row["file"]]
                where = document_number, place["start"], place["end"]
                number = number_of_place.setdefault(where, len(number_of_place) + 1)
                cell = len(sources)  # a position of its own, as in an answer
                source = source_at(documents[document_number], number, Span(cell, cell, *where))
                sources.append(source)
            cells.append(_table_cell(row, name, source))
        table.append(cells)
    all_sources = Sources(0.0, tuple(sources))
    return answer_page(title, command, (), all_sources, documents, (), table, model)


def _table_cell(row: Mapping[str, Any], name: str, source: Source | None) -> Part:
    """Return the value of a field, underlined where it is doubted."""
    value = row["values"][name]
    if isinstance(value, str):
        text = value
    elif value is None:
        text = "–"
    else:
        text = dump_json(value)
    probability = row["probability"][name]
    details = "" if probability is None else f"p {probability:.2f}"
    is_doubted = name in row.get("doubt", ())
    return Part([Piece(text, drafted=is_doubted)], source, details)


def answer_page(
    title: str,
    command: str,
    steps: "Sequence[Step]",
    sources: Sources,
    documents: Sequence[Document],
    facts: Sequence[str],
    table: Table = (),
    model: str = "",
) -> str:
    """Return the HTML of an answer.

    Args:
        title: The question.
        command: The command.
        steps: The answer.
        sources: The quotations in it.
        documents: Its documents.
        facts: Those of the line below an answer.
        table: Shown instead of an answer.
        model: The name of the model.
    """
    reasoning = [token for step in steps for token in step.tokens if token.thought is not None]
    is_long = sum(len(document.text) for document in documents) > _MAX_DOCUMENTS
    shown_documents = [
        _shown_document(document, [s for s in sources.spans if s.span.document == number], is_long)
        for number, document in enumerate(documents)
    ]
    script = (FOLDER / "answer_page.js").read_text(encoding="utf-8")
    return rendered(
        "answer.html.j2",
        title=short(title, _MAX_TITLE),
        about="ngt",
        what=_TABLE_LEGEND if table else _LEGEND,
        table=table,
        terms={"Command": command, "Model": described(model), "Answer": " · ".join(facts)},
        warnings=(),
        policy=policy(script),
        script=script,
        answer=() if table else list(_answer_parts(steps, sources)),
        places=() if table else sources.places(),
        reasoning=[Piece(token.thought or "", token.drafted) for token in reasoning],
        reasoning_tokens=counted(len(reasoning), "token"),
        documents=shown_documents,
        hue=lambda document: round(_FIRST_HUE + document * _HUE_STEP) % 360,
        short=short,
        quote=partial(short, max_length=_MAX_QUOTE),
    )


def _answer_parts(steps: "Sequence[Step]", sources: Sources) -> Iterator[Part]:
    """Yield the quotations of an answer, and the text between them."""
    written = [(token, number) for number, step in enumerate(steps, 1) for token in step.tokens]
    starts = [0, *accumulate(len(token.text) for token, _ in written)]
    answer = "".join(token.text for token, _ in written)
    words = WholeWords()
    runs = words.feed(runs_of(token for token, _ in written))
    runs += words.flush()
    is_drafted = [style != "" for text, style in runs for _ in text]  # by character

    def between(start: int, end: int) -> tuple[list[Piece], list[int]]:
        """Return the characters from `start` to `end`, and the steps that wrote them."""
        numbers = [
            number
            for (token, number), token_start in zip(written, starts, strict=False)
            if token_start < end and token_start + len(token.text) > start
        ]
        pieces = []
        for drafted, group in groupby(range(start, end), is_drafted.__getitem__):
            places = list(group)
            pieces.append(Piece(answer[places[0] : places[-1] + 1], drafted))
        return pieces, numbers

    position = 0
    for source in sources.spans:
        yield Part(between(position, source.span.start)[0])
        pieces, numbers = between(source.span.start, source.span.end)
        first, last = numbers[0], numbers[-1]
        step_words = f"step {first}" if first == last else f"steps {first}–{last}"
        yield Part(pieces, source, step_words)
        position = source.span.end
    yield Part(between(position, starts[-1])[0])


def _shown_document(document: Document, sources: Sequence[Source], is_long: bool) -> ShownDocument:
    """Return a document with its quoted places marked.

    Args:
        document: The document.
        sources: The quotations from it.
        is_long: Whether the documents are too long to show their whole text.
    """
    marks: dict[tuple[int, int], Source] = {}
    for source in sources:
        marks.setdefault((source.span.source_start, source.span.source_end), source)
    if is_long and not marks:
        parts = [Part([Piece(left_out=len(document.text))])]
    else:
        parts = list(_marked_parts(document, marks, 2 * _CONTEXT if is_long else _MAX_DOCUMENT))
    summary = counted(len(marks), "place") if marks else "not quoted"
    return ShownDocument(document.name, len(marks), summary, parts)


def _marked_parts(
    document: Document, marks: Mapping[tuple[int, int], Source], max_length: int
) -> Iterator[Part]:
    """Yield the text of a document, with each quoted place as a part of its own.

    Places may overlap: one that begins within another is marked from the end of the other.

    Args:
        document: The document.
        marks: The source of each place, by its start and end.
        max_length: Characters; of a longer document, text far from all places is left out.
    """
    text = document.text
    is_whole = len(text) <= max_length
    pages = {section.start: section.page for section in document.about.sections if section.page}

    def paged(start: int, end: int) -> list[Piece]:
        """Return text, with the number of each page that begins in it."""
        if start >= end:
            return []
        cuts = [start, *sorted(page_start for page_start in pages if start < page_start < end), end]
        return [Piece(text[low:high], page=pages.get(low, 0)) for low, high in pairwise(cuts)]

    def between(start: int, end: int) -> list[Piece]:
        """Return text without places; the middle of a very long one is left out."""
        if is_whole or end - start <= 2 * _CONTEXT:
            return paged(start, end)
        low = start if start == 0 else start + _CONTEXT
        high = end if end == len(text) else end - _CONTEXT
        return [*paged(start, low), Piece(left_out=high - low), *paged(high, end)]

    position = 0
    for (start, end), source in sorted(marks.items(), key=lambda mark: mark[0]):
        yield Part(between(position, max(start, position)))
        yield Part(paged(max(start, position), end), source)
        position = max(position, end)
    yield Part(between(position, len(text)))
