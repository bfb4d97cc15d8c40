"""A model's own answers to train on, as ids, in a journal that grows line by line.

The first line says what was asked and of which model; each other is one prompt with its answer. A
run that was killed goes on behind the last whole line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ngtcli.heads.training.prompts import Asked
from ngtcli.system.files import key_of
from ngtcli.system.journal import Form, Journal

ANSWERS = "answers.jsonl"  # their file in the folder of a head
ELSEWHERE = "Name another folder with -o."
_LONGEST = 100_000_000  # bytes of a line; guess: ten million ids


class Answered(Struct, frozen=True, rename={"number": "n"}):
    """A prompt of `number` with the model's answer, as ids; `held` ones are for validation."""

    number: int
    held: bool
    prompt: Sequence[int]
    answer: Sequence[int]


_WORDS = {"asked": "other documents or questions"}
_FORM = Form("ngt-training-answers", 2, Answered, ELSEWHERE, _WORDS)


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
        self._journal = Journal(path, _FORM, about, _LONGEST, restart=False)
        self.close = self._journal.close
        self.done = {answered.number: answered for _, answered in self._journal}

    def add(self, answered: Answered) -> None:
        """Keep an answer. Raises OSError."""
        self._journal.add(answered)
        self.done[answered.number] = answered

    def left(self, asked: Sequence[Asked]) -> Iterator[tuple[int, Asked]]:
        """What is to be answered yet, with its number."""
        return ((n, one) for n, one in enumerate(asked) if n not in self.done)
