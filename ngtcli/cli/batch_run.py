"""Many answers, for `ngt batch` and `ngt summarize -o FOLDER`: loads, answers, shows progress."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import typer

from ngtcli.batch.input import Line, Lines
from ngtcli.batch.questions import LineAnswer, Question
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import REPEATS, Notes, once, time_left
from ngtcli.cli.sessions import open_session
from ngtcli.config import Settings
from ngtcli.errors import INTERRUPTED, FailedLinesError, counted, short, unexpected
from ngtcli.system import process

_EVERY_S = 10.0  # between two lines with -v where none can be wiped; guess
_SHOWN = 5  # remarks on single lines; -v shows all


def request_of(question: Question, **more: Any) -> AnswerRequest:
    """A line's question as a request; `more` are its other fields."""
    return AnswerRequest(
        task=question.task,
        settings=question.settings,
        preset=question.preset,
        loaded=question.loaded,
        question=question.text,
        **more,
    )


class Run:
    """Answers many texts, each of which is a `what`, and shows what is done.

    On a terminal that is one line in place, elsewhere one now and then with -v. `size` texts are
    answered together, 0: as many as the engine can.
    """

    def __init__(self, settings: Settings, size: int, notes: Notes, what: str) -> None:
        is_exact = settings.exact == "on" and settings.engine != "vllm"
        self._size = size or int(is_exact)  # exact passes are over one text
        self._settings, self._notes, self._what = settings, notes, what
        self._before = self._total = 0  # done by earlier runs, and in all; 0: not known
        self._began: float | None = None
        self._shown = time.monotonic()
        self._done = self._failed = self._documents = self._tokens = 0
        self._remarks = 0
        self._warn_once = once(self._remark)

    def set_total(self, total: int, left: int, words: str) -> None:
        """How many texts there are; those that are not left were done by earlier runs."""
        self._total, self._before = total, total - left
        if self._before:
            self._notes.warn(f"{words}: {self._before} of {counted(total, self._what)}")

    def answer(
        self,
        lines: Lines,
        read: Callable[[Line], Question],
        deliver: Callable[[LineAnswer], bool],
        interrupted: str,
    ) -> None:
        """Answer all lines; `deliver` puts out what came of one, and returns whether it failed.

        The model is loaded when there is something to do; `interrupted` says what an interruption
        leaves behind. Raises NgtError for what ends the run; exits 130 when interrupted.
        """
        try:
            if not lines.wait():
                return
            session = open_session(self._settings, self._show, self.warn, size=self._size)
            from ngtcli.batch.runner import Runner  # here: it loads torch

            process.unwind_on_interrupt()
            self._began = self._shown = time.monotonic()
            size, status, warn = self._size, self._show, self.warn
            runner = Runner(session, size, lines, read, unexpected, status=status, warn=warn)
            with closing(runner.run()) as answers:
                for answer in answers:
                    self._add(answer, deliver(answer))
        except KeyboardInterrupt:
            self._conclude()
            self._notes.warn(f"interrupted; {interrupted}")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            self._notes.clear()
        self._conclude()

    def check_failed(self, failed: int, total: int, hint: str) -> None:
        """Raise FailedLinesError, exit code 7, where some failed."""
        if failed:
            raise FailedLinesError(f"{failed} of {counted(total, self._what)} failed", hint)

    def warn(self, message: str) -> None:
        """A remark on a text: each once, and without -v only the first few."""
        self._warn_once(message)

    def _remark(self, message: str) -> None:
        self._remarks += 1
        if self._notes.verbose or self._remarks <= _SHOWN:
            self._notes.warn(message)
        elif self._remarks == _SHOWN + 1:
            self._notes.warn("there are more such remarks; -v has them all")

    def _add(self, answer: LineAnswer, failed: bool) -> None:
        """A text is done."""
        self._done += 1
        self._failed += failed
        self._documents += len(answer.question.loaded.documents) if answer.question else 0
        self._tokens += answer.answer.statistics.new_tokens
        self._tokens += sum(part.new_tokens for part in answer.answer.parts)
        if answer.answer.finish_reason == "repetition":
            self.warn(f"{self._what} {answer.line.id}: the answer is cut off: {REPEATS}")
        self._show()

    def _show(self, message: str = "") -> None:
        """Show what is done, and `message` behind it; where nothing can be wiped, not too often."""
        if self._began is None:
            self._notes.status(message)
        elif self._notes.wipes:
            self._notes.status(" · ".join([*self._facts(), *([message] * bool(message))]))
        elif self._notes.verbose and time.monotonic() - self._shown >= _EVERY_S:
            self._shown = time.monotonic()
            self._notes.say(" · ".join(self._facts()))

    def _facts(self) -> list[str]:
        """What is done so far, and the time left."""
        done, seconds = self._before + self._done, self._seconds
        of_all = f"{done} of {counted(self._total, self._what)}"
        facts = [of_all if self._total else counted(done, self._what)]
        if self._failed:
            facts.append(f"{self._failed} failed")
        if self._done:
            facts.append(counted(self._documents, "document"))
            facts.append(f"{short(round(self._tokens / max(seconds, 1e-6)))} tokens/s")
        if self._done and self._total > done:
            facts.append(f"{time_left((self._total - done) * seconds / self._done)} left")
        return facts

    @property
    def _seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _conclude(self) -> None:
        """On a terminal, or with -v, what was done, and in what time."""
        self._notes.clear()
        if self._done and (self._notes.terminal or self._notes.verbose):
            self._notes.facts([*self._facts(), time_left(self._seconds)])
