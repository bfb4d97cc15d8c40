"""Records of answers in a file, a line for each finished pass, so that a measurement can go on.

A pass is one contestant's answers to all prompts in one round: what its drafter learns lives that
long, so what was begun and not finished is measured again.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ngtcli.errors import InputError, UsageError
from ngtcli.measure.records import P, Record, Turn
from ngtcli.system.files import DamagedFileError, parse_json, read_bounded

FORMAT, VERSION = "ngt-tune", 2
MOST = 1 << 29  # bytes of a state file: a hundred thousand passes over fifty prompts; derived
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


class State:
    """Finished passes by (contestant, round); each is appended to `path` as it ends.

    `key` stands for all that makes passes comparable, each of them over `prompts` prompts. Raises
    UsageError where the file belongs to another measurement, InputError where it cannot be used.
    """

    def __init__(self, path: Path, key: str, prompts: int, fresh: bool = False) -> None:
        self.path, self._prompts = path, prompts
        self.done: dict[tuple[str, int], tuple[Figures, ...]] = {}
        self._begun: dict[tuple[str, int], list[Figures]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = read_bounded(path, MOST).decode("utf-8") if path.exists() else ""
            lines = text.split("\n")
            head = _object(lines[0])
            if text and head.get("format") != FORMAT:
                what = f"{path}: not a state file of ngt tune"
                raise UsageError(what, "Name another with --state.")
            if fresh or not text:
                self._write("w", {"format": FORMAT, "version": VERSION, "key": key})
                return
            if (head.get("version"), head.get("key")) != (VERSION, key):
                of_ngt = head.get("version") != VERSION
                other = "version of ngt" if of_ngt else "sweep, data, model or settings"
                what = f"{path}: from another {other}"
                raise UsageError(what, "Name another with --state, or start again with --fresh.")
            self._take_over(map(_object, lines[1:]))
            if not text.endswith("\n"):
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            what = f"{path}: cannot be used ({reason.lower()})"
            raise InputError(what, "Name another file with --state.") from None

    def _take_over(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            try:
                records = tuple(Figures(*values) for values in row["records"])
                if len(records) == self._prompts:
                    self.done[str(row["contestant"]), int(row["round"])] = records
            except (KeyError, TypeError, ValueError):
                continue  # cut off as the run was ended, or damaged: measured again

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
            rows = [astuple(one) for one in found]
            self._write("a", {"contestant": place[0], "round": place[1], "records": rows})

    def _write(self, mode: str, row: Mapping[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _object(line: str) -> dict[str, Any]:
    try:
        return parse_json(line, dict)
    except DamagedFileError:
        return {}
