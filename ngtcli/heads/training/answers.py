"""A model's own answers to train on, as ids, in a journal that grows line by line.

The first line says what was asked and of which model; each other is one prompt with its answer. A
run that was killed goes on behind the last whole line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from ngtcli.errors import UsageError, reason_of
from ngtcli.heads.training.prompts import Asked
from ngtcli.system.files import DamagedFileError, key_of, parse_json
from ngtcli.system.line_file import LineFile

ANSWERS = "answers.jsonl"  # their file in the folder of a head
_FORMAT = {"format": "ngt-training-answers", "version": 1}
_LONGEST = 100_000_000  # bytes of a line; guess: ten million ids
ELSEWHERE = "Name another folder with -o."


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt of `number` with the model's answer, as ids; `held` ones are for validation."""

    number: int
    held: bool
    prompt: Sequence[int]
    answer: Sequence[int]


def about(asked: Iterable[Asked], **more: Any) -> dict[str, Any]:
    """What the answers depend on, JSON-ready: a hash of all that is asked, and `more`."""
    texts = (text for a in asked for text in (*(d.text for d in a.documents), a.question))
    return {"asked": key_of(*texts), **more}


class Answers:
    """The journal of the answers to numbered prompts, `done` so far.

    Raises UsageError for a file that ngt did not write, and for one begun with anything else than
    what `about` says.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        try:
            self._file = LineFile(path, 0o600)
        except OSError as error:
            raise UsageError(f"{path}: {reason_of(error)}", ELSEWHERE) from None
        self.done: dict[int, Answered] = {}
        try:
            self._take_over(about, path)
        except BaseException:
            self._file.close()
            raise

    def _take_over(self, about: Mapping[str, Any], path: Path) -> None:
        """Read what is there; begin the journal where nothing is."""
        if not self._file.first_line(1):
            self._file.append(dumps({**_FORMAT, "about": about}))
            return
        for start, line in self._file.lines(_LONGEST):
            if start == 0:
                _check(line, about, path)
            elif line:
                one = _read(line, path)
                self.done[one.number] = one
            else:  # the run was killed while it was written
                self._file.truncate(start)

    def add(self, answered: Answered) -> None:
        """Keep an answer. Raises OSError."""
        a = answered
        line = {"n": a.number, "held": a.held, "prompt": [*a.prompt], "answer": [*a.answer]}
        self._file.append(dumps(line, separators=(",", ":")), sync=False)
        self.done[a.number] = answered

    def left(self, asked: Sequence[Asked]) -> Iterator[tuple[int, Asked]]:
        """What is to be answered yet, with its number."""
        return ((n, one) for n, one in enumerate(asked) if n not in self.done)

    def close(self) -> None:
        self._file.close()


def _check(line: bytes, about: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError unless the journal's first line is of this run."""
    try:
        found = parse_json(line, dict)
    except DamagedFileError:
        found = {}
    if not found.items() >= _FORMAT.items():
        raise UsageError(f"{path}: ngt did not write it", ELSEWHERE)
    then = found.get("about", {})
    if changed := [name for name in {**about, **then} if about.get(name) != then.get(name)]:
        names = {"asked": "other documents or questions"}
        what = names.get(changed[0], f"another {changed[0]}")
        raise UsageError(f"{path} was begun with {what}", ELSEWHERE)


def _read(line: bytes, path: Path) -> Answered:
    """The answer in a line. Raises UsageError."""
    try:
        found = parse_json(line, dict)
        return Answered(found["n"], found["held"], found["prompt"], found["answer"])
    except (DamagedFileError, KeyError):
        raise UsageError(f"{path}: it is damaged", "Delete it: it is made again.") from None
