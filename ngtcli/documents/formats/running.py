"""Running heads: lines at the top or foot of pages that most pages have."""

import re
from collections import Counter
from collections.abc import Sequence

from ngtcli.documents.formats.layout import Line

_DEEP = 3  # lines from the top and the foot of a page that may be running heads; guess
_APART = 0.7  # least white space between a running head and the text, in line heights; guess
_PAGES = 3  # fewest pages of which it can be told; guess
_MOST = 0.5  # share of the pages that have the line; guess
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")


def without_running_lines(pages: Sequence[Sequence[Line]]) -> tuple[list[list[Line]], int]:
    """The pages without their running heads, and the number of lines left out.

    Page numbers count as one and the same, so "Page 3 of 9" is the same line on every page.
    """
    filled = sum(bool(page) for page in pages)
    if filled < _PAGES:
        return [list(page) for page in pages], 0
    counts = Counter(key for page in pages for key in {_key(*edge) for edge in _edges(page)})
    running = {key for key, count in counts.items() if count > _MOST * filled}
    kept = [_without(page, running) for page in pages]
    return kept, sum(len(a) - len(b) for a, b in zip(pages, kept, strict=True))


def _without(page: Sequence[Line], running: set[tuple[str, str]]) -> list[Line]:
    gone = [id(line) for where, line in _edges(page) if _key(where, line) in running]
    return [line for line in page if id(line) not in gone]


def _edges(page: Sequence[Line]) -> list[tuple[str, Line]]:
    """The lines at the top and at the foot of a page that stand apart from what comes next."""
    lines = sorted(page, key=lambda line: line.top)
    pairs = list(zip(lines, lines[1:], strict=False))
    edges: list[tuple[str, Line]] = []
    for upper, lower in pairs[:_DEEP]:
        if not _is_apart(upper, lower):
            break
        edges.append(("top", upper))
    for upper, lower in pairs[: len(edges) - 1 if edges else None : -1][:_DEEP]:
        if not _is_apart(upper, lower):
            break
        edges.append(("foot", lower))
    return edges if pairs else [("foot", line) for line in lines]


def _is_apart(upper: Line, lower: Line) -> bool:
    return lower.top - upper.bottom > _APART * min(upper.height, lower.height)


def _key(where: str, line: Line) -> tuple[str, str]:
    return where, _NUMBER.sub("#", line.text.lower())
