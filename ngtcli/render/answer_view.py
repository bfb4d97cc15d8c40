"""An answer as a terminal shows it, with the marks and the list of its sources.

Links lead to files by their paths; no text of a document or an answer becomes a link.
"""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from ngtcli.documents.quotes.sources import Source, Sources
from ngtcli.render import terminal
from ngtcli.render.sinks import Run

_LONGEST_QUOTE = 120  # characters of a quotation in a list; guess
_LEAST_QUOTE = 16  # columns: less of a quotation is left out; guess


def with_marks(runs: Sequence[Run], sources: Sources) -> list[Run]:
    """The runs with a mark such as [1] behind each stretch, and no white space at the end.

    >>> from ngtcli.documents.quotes.span import Span
    >>> source = Source(1, Span(0, 3, 0, 0, 3), "log.txt", "", "one")
    >>> with_marks([("one, two", "")], Sources(0.5, (source,)))
    [('one', ''), (' [1]', ''), (', two', '')]
    """
    found = list(_with_marks(runs, sources))
    while found and not found[-1][0].rstrip():
        found.pop()
    return [*found[:-1], (found[-1][0].rstrip(), found[-1][1])] if found else []


def _with_marks(runs: Sequence[Run], sources: Sources) -> Iterator[Run]:
    """A run within which a stretch ends is parted there."""
    marks = [(source.span.end, f" [{source.number}]") for source in sources.spans]
    at = 0
    for text, style in runs:
        while marks and marks[0][0] <= at + len(text):
            end, mark = marks.pop(0)
            yield text[: end - at], style
            yield mark, ""
            text, at = text[end - at :], end
        yield text, style
        at += len(text)


def terminal_list(places: Sequence[Source], width: int, styled: bool) -> str:
    """The places, a line each, that fit a terminal of `width` columns; "" for none.

    With `styled`, dim and linked to the files.
    """
    lines = []
    for source in places:
        shown = _fitted(source, width - 1)
        if styled:
            shown = terminal.paint(shown, terminal.DIM)
            shown = (
                terminal.linked(shown, source.uri) if terminal.has_links() and source.uri else shown
            )
        lines.append(f"{shown}\n")
    return "".join(lines)


def _fitted(source: Source, columns: int) -> str:
    """The line of a place, with as much of the quotation as there is room for."""
    place = terminal.reveal(marked_place(source)).replace("\t", " ")
    room = columns - cell_len(place) - len(": “”")
    quote = terminal.reveal(terminal.visible(short(source.quote)))
    if cell_len(quote) > room:
        head = terminal.cut(quote, room - len(" …"))
        whole = quote[len(head) : len(head) + 1].isspace() or " " not in head
        quote = f"{head if whole else head.rpartition(' ')[0]} …"
    if room >= _LEAST_QUOTE:
        return f"{place}: “{quote}”"
    return place if cell_len(place) <= columns else terminal.cut(place, columns - 1) + "…"


def listed(source: Source) -> str:
    """The line of a list: the mark, the place and the quotation, cut where long."""
    return f"{marked_place(source)}: “{terminal.visible(short(source.quote))}”"


def marked_place(source: Source) -> str:
    """The mark and the place, on one line."""
    return f"[{source.number}] {terminal.cell(source.place)}"


def short(quote: str, longest: int = _LONGEST_QUOTE) -> str:
    """A quotation of about `longest` characters at most: of a longer one its two ends."""
    if len(quote) <= longest:
        return quote
    half = longest // 2
    return f"{quote[:half].rstrip()} … {quote[-half:].lstrip()}"
