"""What `ngt batch` puts out for a line, and what it says on stderr as lines are done."""

import time
from typing import TYPE_CHECKING, Any

from ngtcli.batch.lines import Id
from ngtcli.batch.work import Outcome, Work
from ngtcli.cli.answer_report import Told, answer_json
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import REPEATS, Notes, once
from ngtcli.cli.reading_bar import time_left
from ngtcli.errors import NgtError, counted
from ngtcli.prompt.counting import short
from ngtcli.render.sinks import Collector
from ngtcli.render.sources import Sources, sources_of

if TYPE_CHECKING:
    from ngtcli.decode.steps import PassesReport

_EVERY_S = 10.0  # between two lines with -v where none can be wiped; guess
_SHOWN = 5  # remarks on single lines; -v shows all


def error_row(own: Id, error: NgtError) -> dict[str, Any]:
    """What stands in the output for a line that failed."""
    told = {"message": str(error), "hint": error.hint, "exit_code": error.exit_code}
    return {"id": own, "error": told}


def request_of(work: Work, **more: Any) -> AnswerRequest:
    """The work as a request; `more` are its other fields."""
    return AnswerRequest(
        task=work.task, settings=work.settings, preset=work.preset, loaded=work.loaded,
        question=work.question, **more,
    )  # fmt: skip


def answer_parts(outcome: Outcome, passes: "PassesReport") -> tuple[Told, Collector, Sources]:
    """What was answered: what is told of it, its tokens, its sources. There is no error."""
    a = outcome.answered
    kept = Collector()
    for step in a.steps:
        kept.step(step.tokens)
    documents = outcome.work.loaded.documents if outcome.work else ()
    excerpts = a.prompt.selection.excerpts if a.prompt.selection else None
    told = Told(
        prompt=a.prompt, finish_reason=a.finish_reason, exact=a.exact, trie=a.trie,
        passes=passes, statistics=a.statistics, policy=a.policy,
    )  # fmt: skip
    return told, kept, sources_of(kept.text, documents, excerpts)


def row_of(outcome: Outcome, passes: "PassesReport") -> dict[str, Any]:
    """What stands in the output for a line: the object of --json and its id, or its error."""
    if outcome.answered.error is not None or outcome.work is None:
        return error_row(outcome.line.id, outcome.answered.error or NgtError("not answered"))
    told, kept, sources = answer_parts(outcome, passes)
    body = answer_json(request_of(outcome.work), told, kept, sources, outcome.parts)
    return {"id": outcome.line.id, **body}


class Progress:
    """Counts what is done and shows it: on a terminal one line in place, else one now and then.

    `before` lines of `total` were done by earlier runs; `total` is 0 where it is not known.
    """

    def __init__(self, notes: Notes, what: str = "line") -> None:
        self.before = self.total = 0
        self._notes, self._what = notes, what
        self._began: float | None = None
        self._told = time.monotonic()
        self._lines = self._failed = self._documents = self._tokens = 0
        self._remarks = 0
        self._warn = once(self._remark)

    def begin(self) -> None:
        """From now on time counts."""
        self._began = self._told = time.monotonic()

    def add(self, outcome: Outcome, failed: bool) -> None:
        """A line is done."""
        self._lines += 1
        self._failed += failed
        self._documents += len(outcome.work.loaded.documents) if outcome.work else 0
        self._tokens += outcome.answered.statistics.new_tokens
        self._tokens += sum(part.new_tokens for part in outcome.parts)
        if outcome.answered.finish_reason == "repetition":
            self.warn(f"{self._what} {outcome.line.id}: the answer is cut off: {REPEATS}")
        self.show()

    def show(self, message: str = "") -> None:
        """Show what is done, and `message` behind it; where nothing can be wiped, not too often."""
        if self._began is None:
            self._notes.status(message)
        elif self._notes.wipes:
            self._notes.status(" · ".join([*self.facts(), *([message] * bool(message))]))
        elif self._notes.verbose and time.monotonic() - self._told >= _EVERY_S:
            self._told = time.monotonic()
            self._notes.say(" · ".join(self.facts()))

    def facts(self) -> list[str]:
        """What is done so far, and the time left."""
        done, seconds = self.before + self._lines, self._seconds
        of_all = f"{done} of {counted(self.total, self._what)}"
        facts = [of_all if self.total else counted(done, self._what)]
        if self._failed:
            facts.append(f"{self._failed} failed")
        if self._lines:
            facts.append(counted(self._documents, "document"))
            facts.append(f"{short(round(self._tokens / max(seconds, 1e-6)))} tokens/s")
        if self._lines and self.total > done:
            facts.append(f"{time_left((self.total - done) * seconds / self._lines)} left")
        return facts

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def conclude(self) -> None:
        """On a terminal, or with -v, what was done, and in what time."""
        self._notes.clear()
        if self._lines and (self._notes.terminal or self._notes.verbose):
            self._notes.facts([*self.facts(), time_left(self._seconds)])

    def warn(self, message: str) -> None:
        """A remark on a line: each once, and without -v only the first few."""
        self._warn(message)

    def _remark(self, message: str) -> None:
        self._remarks += 1
        if self._notes.verbose or self._remarks <= _SHOWN:
            self._notes.warn(message)
        elif self._remarks == _SHOWN + 1:
            self._notes.warn("there are more such remarks; -v has them all")
