"""An answer beside its documents as one HTML page, without scripts and external files.

Each stretch of the answer that stands in a document is a link to the place where it stands, in the
colour of its document; accepted drafts are underlined. Hovering over a stretch, or reaching it with
the keyboard, shows the document, page and heading, the text around the place, and the steps that
wrote it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from ngtcli.documents.content import Section
from ngtcli.documents.load import Document
from ngtcli.render.page import page, text
from ngtcli.render.sources import Source, Sources
from ngtcli.render.terminal import visible

_STYLE = Path(__file__).parent / "answer_page.css"
_FIRST_HUE = 205  # degrees: blue
_HUE = 137.5  # degrees between the hues of two documents: the golden angle, so that all lie apart
_MOST = 1_000_000  # characters of a document; of a longer one, what lies far from all stretches
# is left out. Guess: browsers lay out a few million characters within seconds.
_NEAR = 20_000  # characters kept around each stretch of such a document; guess


@dataclass(frozen=True, slots=True)
class Written:
    """One token of the answer: its text, whether it was drafted, and the step that emitted it."""

    text: str
    drafted: bool
    step: int


def answer_page(
    title: str,
    command: str,
    written: Sequence[Written],
    sources: Sources,
    documents: Sequence[Document],
    facts: Sequence[str],
) -> str:
    """The HTML. `title` is what was asked, `facts` what the line below an answer says."""
    answer = (
        f'<section class="answer" aria-label="Answer"><h2>Answer</h2><p class="text">'
        f"{''.join(_answer(written, sources))}</p>{_list(sources)}</section>"
    )
    beside = "".join(
        _document(i, document, [s for s in sources.found if s.span.document == i])
        for i, document in enumerate(documents)
    )
    return page(
        "ngt", title, what=title, terms={"Command": command, "Answer": " · ".join(facts)},
        warnings=[],
        body=[
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>",
            f'<div class="columns">{answer}<div class="documents">{beside}</div></div>',
        ],
    )  # fmt: skip


def _answer(written: Sequence[Written], sources: Sources) -> Iterator[str]:
    """The answer in pieces of one kind each: within one stretch or none, drafted or not."""
    at = 0
    tokens = [(token, start) for token, start in zip(written, _starts(written), strict=True)]
    ends = [(s.span.start, s.span.end, s) for s in sources.found]
    for start, end, source in _ranges(ends, sum(len(t.text) for t in written)):
        pieces = [
            (token, token.text[max(0, start - begin) : max(0, end - begin)])
            for token, begin in tokens
            if begin < end and begin + len(token.text) > start
        ]
        inner = "".join(_piece(token, part) for token, part in pieces if part)
        yield inner if source is None else _stretch(source, inner, pieces[0][0], pieces[-1][0])
        at = end
    assert at == sum(len(t.text) for t in written)


def _starts(written: Sequence[Written]) -> Iterator[int]:
    at = 0
    for token in written:
        yield at
        at += len(token.text)


def _ranges(
    found: Sequence[tuple[int, int, Source]], length: int
) -> Iterator[tuple[int, int, Source | None]]:
    """The stretches, and what lies between them."""
    at = 0
    for start, end, source in found:
        if start > at:
            yield at, start, None
        yield start, end, source
        at = end
    if length > at:
        yield at, length, None


def _piece(token: Written, part: str) -> str:
    shown = escape(visible(part))
    return f"<u>{shown}</u>" if token.drafted else shown


def _stretch(source: Source, inner: str, first: Written, last: Written) -> str:
    """A stretch as a link, and behind it what is shown beside it while it is looked at."""
    steps = f"step {first.step}" if first.step == last.step else f"steps {first.step}–{last.step}"
    number = source.number
    return (
        f'<a class="stretch" style="--hue:{_hue(source.span.document)}" href="#place-{number}"'
        f' aria-describedby="about-{source.span.start}">{inner}<sup>[{number}]</sup>'
        f'<span class="about" role="tooltip" id="about-{source.span.start}">'
        f"<b>{text(source.place)}</b> <i>{steps}</i><q>{text(source.around)}</q></span></a>"
    )


def _list(sources: Sources) -> str:
    """The places by number, for print and for readers that show no colours."""
    first = {source.number: source for source in reversed(sources.found)}
    lines = "".join(
        f'<li value="{number}"><a href="#place-{number}">{text(source.place)}</a></li>'
        for number, source in sorted(first.items())
    )
    return f'<ol class="places">{lines}</ol>' if lines else ""


def _hue(document: int) -> int:
    return round(_FIRST_HUE + document * _HUE) % 360


def _document(index: int, document: Document, found: Sequence[Source]) -> str:
    """A document with its stretches marked; one without any is closed."""
    marks = {(s.span.source_start, s.span.source_end): s.number for s in found}
    body = "".join(_marked(document, marks))
    opened = " open" if found else ""
    count = f"{len(marks)} place{'s' if len(marks) != 1 else ''}" if marks else "not quoted"
    return (
        f'<details style="--hue:{_hue(index)}"{opened}><summary>{text(document.name)}'
        f' <small>{count}</small></summary><div class="text">{body}</div></details>'
    )


def _marked(document: Document, marks: dict[tuple[int, int], int]) -> Iterator[str]:
    """The text of a document, with a mark around each place; places may overlap.

    A place that begins within another one is marked from where the other ends.
    """
    borders = {section.start: section for section in document.about.sections}
    at = 0
    for (start, end), number in sorted(marks.items()):
        yield from _plain(document, at, max(start, at), borders)
        start = max(start, at)
        shown = escape(visible(document.text[start:end]))
        yield f'<mark id="place-{number}" tabindex="-1"><sup>[{number}]</sup>{shown}</mark>'
        at = max(at, end)
    yield from _plain(document, at, len(document.text), borders)


def _plain(
    document: Document, start: int, end: int, sections: Mapping[int, Section]
) -> Iterator[str]:
    """Text without a mark; where it is very long its middle is left out."""
    if len(document.text) > _MOST and end - start > 2 * _NEAR:
        yield escape(visible(document.text[start : start + _NEAR]))
        yield f'<p class="left-out">{end - start - 2 * _NEAR:,} characters are left out here.</p>'
        start = end - _NEAR
    cuts = [start, *sorted(at for at in sections if start < at < end), end]
    for low, high in pairwise(cuts):
        if low in sections and sections[low].page:
            yield f'<span class="page">page {sections[low].page}</span>'
        yield escape(visible(document.text[low:high]))
