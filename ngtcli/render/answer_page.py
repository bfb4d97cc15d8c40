"""An answer with its documents as one HTML page, without external files.

Each stretch of the answer that stands in a document is a link to the place where it stands, in the
colour of its document; accepted drafts are underlined. Hovering over a stretch, or reaching it with
the keyboard, shows the document, page and heading, the text around the place, and the steps that
wrote it. All that works without the script, which adds the Escape key: it hides what is shown, and
leads from a place back to the stretch.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.documents.load import Document
from ngtcli.errors import counted
from ngtcli.grounding.sources import Source, Sources
from ngtcli.render.answer_view import short
from ngtcli.render.page import page, text
from ngtcli.render.terminal import visible

if TYPE_CHECKING:
    from ngtcli.draft.steps import Step

_STYLE = Path(__file__).parent / "answer_page.css"
_SCRIPT = Path(__file__).parent / "answer_page.js"
_LEGEND = (
    "Coloured words stand in the document of that colour, word for word; whether it supports what"
    " is said is for you to judge. Underlined words come from accepted drafts. A click or Enter"
    " leads to the place, Escape back."
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


def answer_page(
    title: str,
    command: str,
    steps: "Sequence[Step]",
    sources: Sources,
    documents: Sequence[Document],
    facts: Sequence[str],
) -> str:
    """The HTML. `title` is what was asked, `facts` what the line below an answer says."""
    answer = (
        '<section class="answer" aria-label="Answer"><h2>Answer</h2><p class="text" dir="auto">'
        f"{''.join(_answer(steps, sources))}</p>{_list(sources)}{_thought(steps)}</section>"
    )
    is_long = sum(len(d.text) for d in documents) > _MOST_OF_ALL
    shown = "".join(
        _document(i, document, [s for s in sources.spans if s.span.document == i], is_long)
        for i, document in enumerate(documents)
    )
    return page(
        short(title, _TITLE), "ngt", what=_LEGEND,
        terms={"Command": command, "Answer": " · ".join(facts)}, warnings=[],
        body=[
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>",
            f'<div class="columns">{answer}<section class="documents" aria-label="Documents">'
            f"<h2>Documents</h2>{shown}</section></div>",
        ],
        script=_SCRIPT.read_text(encoding="utf-8"),
    )  # fmt: skip


def _answer(steps: "Sequence[Step]", sources: Sources) -> Iterator[str]:
    """The answer in pieces of one kind each: within one stretch or none, drafted or not."""
    written = [(token, number) for number, step in enumerate(steps, 1) for token in step.tokens]
    starts = [0, *accumulate(len(token.text) for token, _ in written)]

    def between(start: int, end: int) -> tuple[str, list[int]]:
        """The characters from `start` to `end`, and the steps that wrote them."""
        pieces, numbers = [], []
        for (token, number), begin in zip(written, starts, strict=False):
            if begin < end and begin + len(token.text) > start:
                part = token.text[max(0, start - begin) : max(0, end - begin)]
                pieces.append(_piece(token.drafted, part))
                numbers.append(number)
        return "".join(pieces), numbers

    at = 0
    for source in sources.spans:
        yield between(at, source.span.start)[0]
        inner, numbers = between(source.span.start, source.span.end)
        yield _stretch(source, inner, numbers[0], numbers[-1])
        at = source.span.end
    yield between(at, starts[-1])[0]


def _thought(steps: "Sequence[Step]") -> str:
    """What the model thought before the answer, closed; "" for nothing."""
    tokens = [token for step in steps for token in step.tokens if token.thought is not None]
    pieces = "".join(_piece(token.drafted, token.thought or "") for token in tokens)
    if not pieces:
        return ""
    return (
        f'<details class="thought"><summary>Thought <small>{counted(len(tokens), "token")}</small>'
        f'</summary><div class="text" dir="auto">{pieces}</div></details>'
    )


def _piece(drafted: bool, part: str) -> str:
    shown = escape(visible(part))
    return f"<u>{shown}</u>" if drafted and part else shown


def _stretch(source: Source, inner: str, first: int, last: int) -> str:
    """A stretch as a link, and what is shown with it while it is looked at.

    It was written by the steps from number `first` to `last`.
    """
    steps = f"step {first}" if first == last else f"steps {first}–{last}"
    number, at = source.number, source.span.start
    return (
        f'<a class="stretch" style="--hue:{_hue(source.span.document)}" href="#place-{number}"'
        f' id="stretch-{at}" aria-describedby="about-{at}">{inner}<sup>[{number}]</sup></a>'
        f'<span class="about" role="tooltip" id="about-{at}"><b>{_isolated(source.place)}</b>'
        f" <i>{steps}</i><q>{text(source.before)}<b>{text(short(source.quote, _QUOTE))}</b>"
        f"{text(source.after)}</q></span>"
    )


def _isolated(name: str) -> str:
    """A name, which cannot turn the direction of the text around it."""
    return f"<bdi>{text(name)}</bdi>"


def _list(sources: Sources) -> str:
    """The places by number, for print and for readers that show no colours."""
    lines = "".join(
        f'<li value="{source.number}"><a href="#place-{source.number}">{_isolated(source.place)}'
        f"</a><q>{text(short(source.quote))}</q></li>"
        for source in sources.places()
    )
    return f'<ol class="places">{lines}</ol>' if lines else ""


def _hue(document: int) -> int:
    return round(_FIRST_HUE + document * _HUE) % 360


def _document(index: int, document: Document, found: Sequence[Source], is_long: bool) -> str:
    """A document with its stretches marked; one without any is closed, or empty."""
    marks: dict[tuple[int, int], Source] = {}
    for source in found:
        marks.setdefault((source.span.source_start, source.span.source_end), source)
    body = _left_out(len(document.text))
    if marks or not is_long:
        body = "".join(_marked(document, marks, 2 * _NEAR if is_long else _MOST))
    opened = " open" if found else ""
    count = counted(len(marks), "place") if marks else "not quoted"
    return (
        f'<details style="--hue:{_hue(index)}"{opened}><summary>{_isolated(document.name)}'
        f' <small>{count}</small></summary><div class="text" dir="auto">{body}</div></details>'
    )


def _marked(
    document: Document, marks: Mapping[tuple[int, int], Source], most: int
) -> Iterator[str]:
    """The text of a document, with a mark around each place; places may overlap.

    A place that begins within another one is marked from where the other ends. Of a document of
    more than `most` characters what lies far from all places is left out.
    """
    shown, whole = document.text, len(document.text) <= most
    pages = {section.start: section.page for section in document.about.sections if section.page}

    def paged(start: int, end: int) -> str:
        """Text, with the number of each page that begins in it."""
        pieces = []
        cuts = [start, *sorted(at for at in pages if start < at < end), end]
        for low, high in pairwise(cuts if start < end else ()):
            if low in pages:
                pieces.append(f'<span class="page">page {pages[low]}</span>')
            pieces.append(escape(visible(shown[low:high])))
        return "".join(pieces)

    def between(start: int, end: int) -> str:
        """Text without a mark; the middle of a very long one is left out."""
        if whole or end - start <= 2 * _NEAR:
            return paged(start, end)
        low, high = start + _NEAR * bool(start), end - _NEAR * (end < len(shown))
        return paged(start, low) + _left_out(high - low) + paged(high, end)

    at = 0
    for (start, end), source in sorted(marks.items(), key=lambda mark: mark[0]):
        yield between(at, max(start, at))
        number, back = source.number, source.span.start
        yield (
            f'<mark id="place-{number}" tabindex="-1"><sup><a href="#stretch-{back}"'
            f' aria-label="[{number}], back to the answer">[{number}]</a></sup>'
            f"{paged(max(start, at), end)}</mark>"
        )
        at = max(at, end)
    yield between(at, len(shown))


def _left_out(characters: int) -> str:
    return f'<p class="left-out">{characters:,} characters are left out here.</p>'
