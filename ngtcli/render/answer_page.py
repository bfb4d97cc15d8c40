"""An answer with its documents as one HTML page, without external files.

Each stretch of the answer that stands in a document is a link to the place where it stands, in the
color of its document; accepted drafts are underlined. Hovering over a stretch, or reaching it with
the keyboard, shows the document, page and heading, the text around the place, and the steps that
wrote it. All that works without the script, which adds the Escape key: it hides what is shown, and
leads from a place back to the stretch.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import Source, Sources, source_at
from ngtcli.documents.quotes.span import Span
from ngtcli.models.recommended import described
from ngtcli.render.answer_view import short
from ngtcli.render.page import FOLDER, policy, rendered
from ngtcli.system.json_form import dump_json
from ngtcli.words import counted

if TYPE_CHECKING:
    from ngtcli.drafting.steps import Step

_LEGEND = (
    "Colored words stand in the document of that color, word for word; whether it supports what"
    " is said is for you to judge. Underlined words come from accepted drafts. A click or Enter"
    " leads to the place, Escape back."
)
_OF_TABLE = (
    "Colored values stand in the document of that color, others not in these words. What is"
    " underlined has a probability below --doubt. A click or Enter leads to the place, Escape back."
)
_FIRST_HUE = 205  # degrees: blue
_HUE = 137.5  # degrees between the hues of two documents: the golden angle, so that all lie apart
_MOST = 1_000_000  # characters of a document; of a longer one, what lies far from all stretches
# is left out. Guess: browsers lay out a few million characters within seconds.
_NEAR = 20_000  # characters kept around each stretch of such a document; guess
_MOST_OF_ALL = 5_000_000  # characters of all documents, beyond which only what lies near a stretch
# is in the page; guess
_QUOTE = 400  # characters of a quotation shown with a stretch, about; guess
_TITLE = 200  # characters of a title; guess


class Piece(NamedTuple):
    """Text of an answer, drafted or not; or of a document: it may begin a page.

    Behind it `left_out` characters of the document are missing.
    """

    text: str = ""
    drafted: bool = False
    page: int = 0
    left_out: int = 0


class Part(NamedTuple):
    """Some of an answer or a document: a stretch with its source, or what is none.

    `steps` wrote it.
    """

    pieces: Sequence[Piece]
    source: Source | None = None
    steps: str = ""


class Shown(NamedTuple):
    """A document, with what is `said` of its places; one without any is closed, or empty."""

    name: str
    places: int
    said: str
    parts: Sequence[Part]


Table = Sequence[Sequence[Part]]  # rows of cells, the heads first


def table_page(
    title: str,
    command: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    documents: Sequence[Document],
    model: str = "",
) -> str:
    """The HTML of rows of `ngt extract`, with these fields, and one place of each value."""
    index, numbers = {document.name: i for i, document in enumerate(documents)}, dict[Any, int]()
    sources, table = list[Source](), [[Part([Piece(name)]) for name in ("file", *names)]]
    for row in rows:
        cells = [Part([Piece(row["file"])])]
        for name in names:
            value, place, p = row["values"][name], row["sources"][name], row["probability"][name]
            if place is not None:
                at = index[row["file"]], place["start"], place["end"]
                number, cell = numbers.setdefault(at, len(numbers) + 1), len(sources)
                sources.append(source_at(documents[at[0]], number, Span(cell, cell, *at)))
            text = value if isinstance(value, str) else "–" if value is None else dump_json(value)
            is_doubted = name in row.get("doubt", ())  # underlined, as what was drafted is
            said = "" if p is None else f"p {p:.2f}"
            cells.append(Part([Piece(text, is_doubted)], sources[-1] if place else None, said))
        table.append(cells)
    found = Sources(0.0, (*sources,))
    return answer_page(title, command, (), found, documents, (), table, model)


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
    """The HTML, with a `table` in place of an answer.

    `title` is what was asked, `facts` what the line below an answer says, `model` the name of what
    answered.
    """
    tokens = [token for step in steps for token in step.tokens if token.thought is not None]
    is_long = sum(len(d.text) for d in documents) > _MOST_OF_ALL
    script = (FOLDER / "answer_page.js").read_text(encoding="utf-8")
    return rendered(
        "answer.html.j2",
        title=short(title, _TITLE),
        about="ngt",
        what=_OF_TABLE if table else _LEGEND,
        table=table,
        terms={"Command": command, "Model": described(model), "Answer": " · ".join(facts)},
        warnings=(),
        policy=policy(script),
        script=script,
        answer=() if table else list(_answer(steps, sources)),
        places=() if table else sources.places(),
        thought=[Piece(token.thought or "", token.drafted) for token in tokens],
        thought_tokens=counted(len(tokens), "token"),
        documents=[
            _document(document, [s for s in sources.spans if s.span.document == i], is_long)
            for i, document in enumerate(documents)
        ],
        hue=lambda document: round(_FIRST_HUE + document * _HUE) % 360,
        short=short,
        quote=partial(short, longest=_QUOTE),
    )


def _answer(steps: "Sequence[Step]", sources: Sources) -> Iterator[Part]:
    """The answer in parts, each within one stretch or none."""
    written = [(token, number) for number, step in enumerate(steps, 1) for token in step.tokens]
    starts = [0, *accumulate(len(token.text) for token, _ in written)]

    def between(start: int, end: int) -> tuple[list[Piece], list[int]]:
        """The characters from `start` to `end`, and the steps that wrote them."""
        pieces, numbers = [], []
        for (token, number), begin in zip(written, starts, strict=False):
            if begin < end and begin + len(token.text) > start:
                part = token.text[max(0, start - begin) : max(0, end - begin)]
                pieces.append(Piece(part, token.drafted))
                numbers.append(number)
        return pieces, numbers

    at = 0
    for source in sources.spans:
        yield Part(between(at, source.span.start)[0])
        pieces, numbers = between(source.span.start, source.span.end)
        first, last = numbers[0], numbers[-1]
        told = f"step {first}" if first == last else f"steps {first}–{last}"
        yield Part(pieces, source, told)
        at = source.span.end
    yield Part(between(at, starts[-1])[0])


def _document(document: Document, found: Sequence[Source], is_long: bool) -> Shown:
    """A document with its stretches marked."""
    marks: dict[tuple[int, int], Source] = {}
    for source in found:
        marks.setdefault((source.span.source_start, source.span.source_end), source)
    parts = [Part([Piece(left_out=len(document.text))])]
    if marks or not is_long:
        parts = list(_marked(document, marks, 2 * _NEAR if is_long else _MOST))
    said = counted(len(marks), "place") if marks else "not quoted"
    return Shown(document.name, len(marks), said, parts)


def _marked(
    document: Document, marks: Mapping[tuple[int, int], Source], most: int
) -> Iterator[Part]:
    """The text of a document, with a mark around each place; places may overlap.

    A place that begins within another one is marked from where the other ends. Of a document of
    more than `most` characters what lies far from all places is left out.
    """
    shown, whole = document.text, len(document.text) <= most
    pages = {section.start: section.page for section in document.about.sections if section.page}

    def paged(start: int, end: int) -> list[Piece]:
        """Text, with the number of each page that begins in it."""
        cuts = [start, *sorted(at for at in pages if start < at < end), end]
        bounds = pairwise(cuts if start < end else ())
        return [Piece(shown[low:high], page=pages.get(low, 0)) for low, high in bounds]

    def between(start: int, end: int) -> list[Piece]:
        """Text without a mark; the middle of a very long one is left out."""
        if whole or end - start <= 2 * _NEAR:
            return paged(start, end)
        low, high = start + _NEAR * bool(start), end - _NEAR * (end < len(shown))
        return [*paged(start, low), Piece(left_out=high - low), *paged(high, end)]

    at = 0
    for (start, end), source in sorted(marks.items(), key=lambda mark: mark[0]):
        yield Part(between(at, max(start, at)))
        yield Part(paged(max(start, at), end), source)
        at = max(at, end)
    yield Part(between(at, len(shown)))
