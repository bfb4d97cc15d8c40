"""An answer as a terminal shows it, with the marks and the list of its sources.

Links lead to files by their paths; no text of a document or an answer becomes a link.
"""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from ngtcli.documents.quotes.sources import Source, Sources
from ngtcli.render import terminal
from ngtcli.render.sinks import Run

_MAX_QUOTE = 120  # characters of a quotation in a list (guess)
_MIN_QUOTE_COLUMNS = 16  # a quotation with less room is left out (guess)


def with_marks(runs: Sequence[Run], sources: Sources) -> list[Run]:
    """Return the runs with a mark such as [1] after each quotation, and no space at the end.

    >>> from ngtcli.documents.quotes.span import Span
    >>> source = Source(1, Span(0, 3, 0, 0, 3), "log.txt", "", "one")
    >>> with_marks([("one, two", "")], Sources(0.5, (source,)))
    [('one', ''), (' [1]', ''), (', two', '')]
    """
    marked = list(_insert_marks(runs, sources))
    while marked and not marked[-1][0].strip():
        marked.pop()
    if marked:
        text, style = marked[-1]
        marked[-1] = text.rstrip(), style
    return marked


def _insert_marks(runs: Sequence[Run], sources: Sources) -> Iterator[Run]:
    """Yield the runs and the marks between them; a run within which a quotation ends is split."""
    marks = [(source.span.end, f" [{source.number}]") for source in sources.spans]
    position = 0  # in the answer
    for text, style in runs:
        while marks and marks[0][0] <= position + len(text):
            end, mark = marks.pop(0)
            yield text[: end - position], style
            yield mark, ""
            text = text[end - position :]
            position = end
        yield text, style
        position += len(text)


def terminal_list(sources: Sequence[Source], width: int, styled: bool) -> str:
    """Return a list of sources for a terminal, one per line; "" for none.

    Args:
        sources: The places that were quoted.
        width: Columns of the terminal.
        styled: Whether the list is dim, and each line a link to its file.
    """
    lines: list[str] = []
    for source in sources:
        line = _fitted_line(source, width - 1)
        if styled:
            line = terminal.paint(line, terminal.DIM)
            if source.uri and terminal.has_links():
                line = terminal.linked(line, source.uri)
        lines.append(f"{line}\n")
    return "".join(lines)


def _fitted_line(source: Source, columns: int) -> str:
    """Return the line of a source, with as much of the quotation as there is room for."""
    place = terminal.reveal(marked_place(source)).replace("\t", " ")
    room = columns - cell_len(place) - len(": “”")
    if room < _MIN_QUOTE_COLUMNS:
        if cell_len(place) <= columns:
            return place
        return terminal.cut(place, columns - 1) + "…"

    quote = terminal.reveal(terminal.visible(short(source.quote)))
    if cell_len(quote) > room:
        quote = f"{_whole_words(quote, room - len(' …'))} …"
    return f"{place}: “{quote}”"


def _whole_words(text: str, columns: int) -> str:
    """Return the start of a text that fits, up to the end of a word if it has several."""
    start = terminal.cut(text, columns)
    ends_word = text[len(start) : len(start) + 1].isspace()
    if ends_word or " " not in start:
        return start
    return start.rpartition(" ")[0]


def listed(source: Source) -> str:
    """Return the line of a list: the mark, the place and the quotation, shortened if it is long."""
    return f"{marked_place(source)}: “{terminal.visible(short(source.quote))}”"


def marked_place(source: Source) -> str:
    """Return the mark and the place, on one line."""
    return f"[{source.number}] {terminal.cell(source.place)}"


def short(quote: str, max_length: int = _MAX_QUOTE) -> str:
    """Return a quotation of about `max_length` characters: of a longer one its two ends."""
    if len(quote) <= max_length:
        return quote
    half = max_length // 2
    return f"{quote[:half].rstrip()} … {quote[-half:].lstrip()}"
