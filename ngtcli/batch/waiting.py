"""Which line is answered next: those of the same task and with the same documents together."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ngtcli.batch.lines import Id
from ngtcli.errors import NgtError


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is to be answered.

    `index` is its place in the output, from 0, `number` that in the input, from 1. Lines of one
    `kind` have the same task, those with the same `texts` the same documents. `wrong`
    is what is wrong with a line that cannot be answered. Its bytes are `raw`, or in the file from
    `start` on, `size` of them, whose `hash` tells whether they are still the same.
    """

    index: int
    number: int
    id: Id
    kind: str = ""
    texts: str = ""
    wrong: NgtError | None = None
    start: int = 0
    size: int = 0
    hash: int = 0
    raw: bytes = b""


class Waiting:
    """Lines by kind, and by texts within a kind, each in the order of its first line."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._kinds: dict[str, dict[str, deque[Line]]] = {}
        self._texts = ""  # of the line that was taken last
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Put a line behind those with its documents."""
        self._kinds.setdefault(line.kind, {}).setdefault(line.texts, deque()).append(line)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def first_kind(self) -> str:
        """The kind whose lines have waited longest. Raises StopIteration where none wait."""
        return next(iter(self._kinds))

    def take(self, kind: str) -> Line | None:
        """The next line of a kind, None where none waits; those with the last one's texts first."""
        of_kind = self._kinds.get(kind)
        if not of_kind:
            return None
        self._texts = self._texts if self._texts in of_kind else next(iter(of_kind))
        lines = of_kind[self._texts]
        line = lines.popleft()
        if not lines:
            del of_kind[self._texts]
        if not of_kind:
            del self._kinds[kind]
        return line
