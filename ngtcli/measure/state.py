"""Records of answers in a journal, one for each finished pass, so that a measurement can go on.

A pass is one contestant's answers to all prompts in one round: what its drafter learns lives that
long, so what was begun and not finished is measured again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from ngtcli.errors import UsageError
from ngtcli.measure.records import P, Record, Turn
from ngtcli.system.journal import Form, Journal, errors_named

VERSION = 4
_LONGEST = 10_000_000  # bytes of a pass, which has some hundred a prompt; guess
_LARGEST = 1e15  # count, or seconds, in it: more is no measurement; guess


@dataclass(frozen=True, slots=True)
class Figures:
    """One answer in numbers, counts and seconds; None for a trie where none was built.

    `decode_s` is decoding alone, `wall_s` all that was done for the answer. Raises ValueError for
    other values.
    """

    new_tokens: int
    steps: int
    decode_s: float
    wall_s: float
    trie_build_s: float | None = None
    trie_bytes: int | None = None

    def __post_init__(self) -> None:
        counts = (self.new_tokens, self.steps, self.trie_bytes or 0)
        seconds = (self.decode_s, self.wall_s, self.trie_build_s or 0.0)
        kinds = {type(c) for c in counts} == {int} and {type(s) for s in seconds} <= {int, float}
        if not kinds or not all(0 <= value < _LARGEST for value in (*counts, *seconds)):
            raise ValueError("figures are counts and seconds")


def figures(record: Record) -> Figures:
    """What is stored of a record."""
    g = record.generation
    return Figures(
        len(g.ids), g.steps, g.decode_s or 0.0, record.seconds, g.trie_build_s, g.trie_bytes
    )


class _Pass(Struct, frozen=True):
    contestant: str
    round: int
    records: tuple[Figures, ...]


_HINT = "Name another with --state, or start again with --fresh."
_FORM = Form("ngt-tune", VERSION, _Pass, _HINT, {"key": "another sweep, data, model or settings"})


class State:
    """Finished passes by (contestant, round); each is appended to `path` as it ends. `close` it.

    `key` stands for all that makes passes comparable, each of them over `prompts` prompts. Raises
    UsageError where the file belongs to another measurement or cannot be used.
    """

    def __init__(self, path: Path, key: str, prompts: int, fresh: bool = False) -> None:
        self.path, self._prompts = path, prompts
        self._begun: dict[tuple[str, int], list[Figures]] = {}
        with errors_named(path, _HINT, UsageError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path.resolve(), _FORM, {"key": key}, _LONGEST, restart=fresh)
        self.close = self._journal.close
        known = (one for _, one in self._journal)
        self.done = {(p.contestant, p.round): p.records for p in known if len(p.records) == prompts}

    def rounds(self, contestant: str, most: int) -> list[tuple[Figures, ...]]:
        """The finished passes of a contestant in the first `most` rounds."""
        places = ((contestant, number) for number in range(most))
        return [self.done[place] for place in places if place in self.done]

    def left(self, turns: Iterable[Turn[P]]) -> Iterator[Turn[P]]:
        """Those of `turns` that are still to be taken."""
        return (t for t in turns if (t.contestant.key, t.round) not in self.done)

    def add(self, record: Record) -> None:
        """Take in one answer; with the last one of its pass the pass is written."""
        place = record.contestant, record.round
        found = self._begun.setdefault(place, [])
        found.append(figures(record))
        if len(found) == self._prompts:
            self.done[place] = tuple(self._begun.pop(place))
            self._journal.add(_Pass(*place, self.done[place]))
