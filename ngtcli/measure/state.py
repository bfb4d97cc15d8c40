"""Records in a journal, a line for each finished pass, so that a measurement can go on.

A pass is one cell's answers to all prompts in one round: what its drafter learns lives that long,
so what was begun and not finished is measured again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ngtcli.errors import UsageError
from ngtcli.measure.records import Record, Turn
from ngtcli.system.journal import Form, Journal, errors_named

VERSION = 4
_LONGEST = 100_000_000  # bytes of a pass, which has some thousand a prompt; guess
_HINT = "Name another with --state, or start again with --fresh."
_KIND: Any = list[Record]
_FORM: Form[list[Record]] = Form(
    "ngt-tune", VERSION, _KIND, _HINT, {"key": "another sweep, data, model or settings"}
)


class State:
    """Finished passes by (cell, round); each is appended to `path` as it ends. `close` it.

    `key` stands for all that makes passes comparable, each of them over `prompts` prompts. Raises
    UsageError where the file belongs to another measurement or cannot be used.
    """

    def __init__(self, path: Path, key: str, prompts: int, fresh: bool = False) -> None:
        self.path, self._prompts = path, prompts
        self._begun: list[Record] = []
        with errors_named(path, _HINT, UsageError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path.resolve(), _FORM, {"key": key}, _LONGEST, restart=fresh)
        self.close = self._journal.close
        self.done = {place: one for _, one in self._journal if (place := self._place(one))}

    def _place(self, records: list[Record]) -> tuple[str, int] | None:
        """Which pass these records are; None where they are not a whole one."""
        places = {(one.cell, one.round) for one in records}
        whole = [one.prompt for one in records] == list(range(self._prompts))
        return places.pop() if whole and len(places) == 1 else None

    def rounds(self, cell: str, most: int) -> list[list[Record]]:
        """The finished passes of a cell in the first `most` rounds."""
        places = ((cell, number) for number in range(most))
        return [self.done[place] for place in places if place in self.done]

    def left(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """Those of `turns` that are still to be taken."""
        return (turn for turn in turns if (turn.cell.key, turn.round) not in self.done)

    def add(self, record: Record) -> None:
        """Take in one answer; with the last one of its pass the pass is written."""
        own = replace(record.generation, nodes=None, draft_us=None)  # by far the longest
        self._begun = [*(self._begun if record.prompt else []), replace(record, generation=own)]
        if place := self._place(self._begun):
            self.done[place] = self._begun
            self._journal.add(self._begun)
