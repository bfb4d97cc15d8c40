"""Marks of sources in an answer that is shown as it comes: [1] after each quotation.

A quotation is marked once the answer departs from its document. So text is shown one sentence at a
time, and of a quotation that may still continue only what is sure to be part of it: a mark on a
terminal cannot be taken back. The marks are those of the whole answer.
"""

import re
from collections.abc import Iterable, Sequence

from ngtcli.documents.quotes.sources import Source, SourceFinder
from ngtcli.render.sinks import Run

_SENTENCE_END = re.compile(r"[.!?…][\"”’')\]]*\s|\n")


class LiveMarks:
    """Adds marks to the runs that it is fed.

    Attributes:
        places: The sources that have been marked.
    """

    def __init__(self, finder: SourceFinder) -> None:
        self._finder = finder
        self._text = ""  # of the answer so far
        self._pending: list[Run] = []  # runs that have not been returned yet
        self._shown = 0  # characters of the answer that have been returned
        self._searched = 0  # characters that were searched for the ends of sentences
        self._marks = 0  # quotations that have a mark
        self.places: list[Source] = []

    def feed(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that can be shown now."""
        runs = list(runs)
        self._pending += runs
        self._text += "".join(text for text, _ in runs)
        ends = [match.end() for match in _SENTENCE_END.finditer(self._text, self._searched)]
        if not ends:
            return []
        self._searched = ends[-1]
        sources, free_end = self._finder.find_so_far(self._text[: ends[-1]].rstrip())
        return self._take(sources, free_end)

    def flush(self) -> list[Run]:
        """Return the rest once the answer is complete, without white space at its end."""
        text = self._text.rstrip()
        return self._take(self._finder.find(text).spans, len(text))

    def _take(self, sources: Sequence[Source], end: int) -> list[Run]:
        """Return the runs up to `end`, with a mark after each quotation."""
        taken: list[Run] = []
        for source in sources[self._marks :]:
            taken += self._up_to(source.span.end)
            taken.append((f" [{source.number}]", ""))
            if source.number > len(self.places):
                self.places.append(source)
        self._marks = max(self._marks, len(sources))  # fewer may be sure than before
        return [*taken, *self._up_to(end)]

    def _up_to(self, end: int) -> list[Run]:
        """Take the pending runs up to this character of the answer."""
        taken: list[Run] = []
        while self._pending and self._shown < end:
            text, style = self._pending.pop(0)
            part = text[: end - self._shown]
            rest = text[len(part) :]
            if rest:
                self._pending.insert(0, (rest, style))
            taken.append((part, style))
            self._shown += len(part)
        return taken
