"""Marks of sources in an answer that is shown as it comes: [1] behind each quotation.

A quotation is marked once the answer goes on otherwise than its document does. So text is shown a
sentence at a time, and of a quotation that may still go on only what is sure to be part of it: a
mark on a terminal cannot be taken back. The marks are those of the whole answer.
"""

import re
from collections.abc import Iterable, Sequence

from ngtcli.documents.quotes.sources import Source, SourceFinder
from ngtcli.render.sinks import Run

_SENTENCE_END = re.compile(r"[.!?…][\"”’')\]]*\s|\n")


class LiveMarks:
    """Returns the runs that it is fed, with marks; `places` are the sources that are marked."""

    def __init__(self, finder: SourceFinder) -> None:
        self._finder = finder
        self._text = ""  # of the answer so far
        self._pending: list[Run] = []  # runs that are not shown yet
        self._shown = 0  # characters of the answer that are shown
        self._looked = 0  # characters in which sentences were looked for
        self._marks = 0  # quotations that have a mark
        self.places: list[Source] = []

    def feed(self, runs: Iterable[Run]) -> list[Run]:
        """Return what can be shown now."""
        runs = list(runs)
        self._pending += runs
        self._text += "".join(text for text, _ in runs)
        ends = [m.end() for m in _SENTENCE_END.finditer(self._text, self._looked)]
        if not ends:
            return []
        self._looked = ends[-1]
        sources, free_end = self._finder.find_so_far(self._text[: ends[-1]].rstrip())
        return self._take(sources, free_end)

    def flush(self) -> list[Run]:
        """Return the rest, when the answer is complete, without white space at its end."""
        text = self._text.rstrip()
        return self._take(self._finder.find(text).spans, len(text))

    def _take(self, sources: Sequence[Source], end: int) -> list[Run]:
        """Return the runs up to `end`, and behind each quotation its mark."""
        out: list[Run] = []
        for source in sources[self._marks :]:
            out += self._up_to(source.span.end)
            out.append((f" [{source.number}]", ""))
            if source.number > len(self.places):
                self.places.append(source)
        self._marks = max(self._marks, len(sources))  # fewer may be sure than before
        return [*out, *self._up_to(end)]

    def _up_to(self, end: int) -> list[Run]:
        """Take the runs up to this character of the answer off those that are pending."""
        out: list[Run] = []
        while self._pending and self._shown < end:
            text, style = self._pending.pop(0)
            part = text[: end - self._shown]
            if rest := text[len(part) :]:
                self._pending.insert(0, (rest, style))
            out.append((part, style))
            self._shown += len(part)
        return out
