"""Answers the lines of a batch: those of one task together, each line with its own settings.

A summary of what does not fit is made from summaries of its parts, which the session answers
itself; this is done while no other line is being answered.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from ngtcli.batch.input import InputLine, Lines
from ngtcli.batch.questions import Outcome
from ngtcli.config import IN_PARTS, Settings
from ngtcli.errors import NgtError, UsageError, unexpected
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.splitting import fits
from ngtcli.session.answering import predicting
from ngtcli.session.parts import Splitting
from ngtcli.session.question import Question
from ngtcli.session.session import FinishedAnswer, NumberedPrompt, Session
from ngtcli.system import process

P = ParamSpec("P")
T = TypeVar("T")
_LONG = 8  # lines that do not fit and wait, with their documents, to be split; guess
_SESSIONS = 4  # with other settings, and drafters of their own, that are kept; guess


@dataclass(frozen=True, slots=True)
class _Open:
    """A line that is being answered, with the session whose settings are the line's.

    It has no prompt where it is to be split, no question where that could not be read.
    """

    line: InputLine
    question: Question | None
    prompt: Prompt | NgtError | None
    session: Session


class Runner:
    """Answers all `lines` by `session`, `size` together (0: as many as it allows).

    `read` gives the question of a line, and raises NgtError where it cannot.
    """

    def __init__(
        self, session: Session, size: int, lines: Lines, read: Callable[[InputLine], Question]
    ) -> None:
        self._session, self._size, self._lines, self._read = session, size, lines, read
        self._sessions: dict[Settings, Session] = {}
        self._open: dict[int, _Open] = {}  # by the line's index
        self._long: list[_Open] = []

    def run(self) -> Generator[Outcome, None, None]:
        """All lines as they are done, in any order. Raises what the session raises."""
        while self._lines.wait():
            if (first := self._lines.take()) is not None:
                yield from self._of_task(first)

    def _of_task(self, first: InputLine) -> Iterator[Outcome]:
        """Lines of the task of the first one, as long as there are any."""
        one = self._opened(first)
        if isinstance(one.prompt, NgtError) and one.question is None:  # its task has no session yet
            yield self._done(one, FinishedAnswer(first.index, error=one.prompt))
            return
        session, prompts = one.session, self._prompts(one)
        try:
            for answer in session.answers(prompts, self._size, lambda key: self._open[key].session):
                yield self._done(self._open.pop(answer.key), answer)
        except NgtError:
            raise
        except Exception as error:  # of which line it was can be told from each alone
            self._error_of(error)
        # Here, not where the error is caught: it holds all that the failed batch had in memory.
        for one in list(self._open.values()):
            del self._open[one.line.index]
            yield self._done(one, self._alone(one))
        while self._long:
            yield from self._split(self._long.pop(0))

    def _session_for(self, settings: Settings) -> Session:
        """The session with these settings, whose model is loaded. Raises UsageError."""
        found = self._sessions.pop(settings, None)
        try:
            found = found or self._session.with_settings(settings)
        except ValueError as error:
            raise UsageError(
                f"the presets of the tasks name different models: {error}",
                "Give -m, --device and --dtype, which stand above what presets say.",
            ) from None
        self._sessions[settings] = found  # the last used is the last
        if len(self._sessions) > _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return found

    def _opened(self, line: InputLine) -> _Open:
        """A line with its question and prompt; UsageErrors of its session end the run."""
        question = self._try(self._read, line)
        if isinstance(question, NgtError):
            return _Open(line, None, question, self._session)
        session = self._session_for(question.settings)
        return _Open(line, question, self._prompt(session, question), session)

    def _prompts(self, one: _Open) -> Iterator[NumberedPrompt]:
        """The prompts of this line and those of its task; lines to be split are put aside."""
        following: InputLine | None = one.line
        while following is not None:
            if one.prompt is None:
                self._long.append(one)
            else:
                self._open[one.line.index] = one
                yield one.line.index, one.prompt
            following = self._lines.take(one.line.task) if len(self._long) < _LONG else None
            one = self._opened(following) if following is not None else one

    def _prompt(self, session: Session, question: Question) -> Prompt | NgtError | None:
        """The prompt of a question; None where it does not fit and is split."""
        preset, documents = question.preset, question.documents
        if question.settings.overflow in IN_PARTS:
            found = self._try(lambda: fits(session.task(preset, documents)))
        else:
            found = self._try(session.prompt, preset, documents, question.question)
        if not isinstance(found, Prompt):
            return found
        return self._try(predicting, session, question, found)

    def _split(self, one: _Open) -> Iterator[Outcome]:
        """The answer to a line that does not fit, part by part.

        What is kept of the parts stays until the answer was taken, and where it is an error.
        """
        assert (question := one.question) is not None
        splitting = Splitting(one.session, question.preset, question.documents)
        prompt = self._try(
            lambda: predicting(one.session, question, splitting.whole() or splitting.prompt())
        )
        answer = self._alone(replace(one, prompt=prompt))
        yield self._done(one, replace(answer, parts=tuple(splitting.reports)))
        if answer.error is None:
            splitting.forget()

    def _alone(self, one: _Open) -> FinishedAnswer:
        """The answer to one prompt by itself, or the error it ends with."""
        assert one.prompt is not None
        prompts, key = [(one.line.index, one.prompt)], one.line.index
        found = self._try(lambda: [*one.session.answers(prompts, 1)])
        return FinishedAnswer(key, error=found) if isinstance(found, NgtError) else found[0]

    def _try(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | NgtError:
        """What work for one line gives, or the error that the line ends with."""
        try:
            return work(*given, **named)
        except Exception as error:
            return self._error_of(error)

    def _error_of(self, error: Exception) -> NgtError:
        """The error that one line ends with. Raises KeyboardInterrupt if that was the cause."""
        if process.interrupted():  # a library made this of the Ctrl-C
            raise KeyboardInterrupt from error
        return error if isinstance(error, NgtError) else unexpected(error)

    def _done(self, one: _Open, answer: FinishedAnswer) -> Outcome:
        self._lines.done(one.line)
        return Outcome(one.line, one.question, answer)
