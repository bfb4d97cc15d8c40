"""Answers the lines of a batch: those of one kind together, each line with its own settings.

A summary of what does not fit is made from summaries of its parts, which the session answers
itself; this is done while no other line is being answered.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ngtcli.batch.waiting import Line
from ngtcli.batch.work import Outcome, Work
from ngtcli.config import IN_PARTS, Settings
from ngtcli.decode.steps import PassesReport
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.splitting import PartReport, fits
from ngtcli.session.answer import Answered, Given, failed
from ngtcli.session.local import Session
from ngtcli.session.parts import Splitting
from ngtcli.system import process

_LONG = 8  # lines that do not fit and wait, with their documents, to be split; guess
_SESSIONS = 4  # with other settings, and drafters of their own, that are kept; guess
Notify = Callable[[str], None]


class Answers(Protocol):
    """See `batch.answers`."""

    def __call__(
        self,
        session: Session,
        prompts: Iterable[Given],
        size: int,
        own: Callable[[int], Session] | None = None,
    ) -> Iterator[Answered]: ...


class Lines(Protocol):
    """Lines that are to be answered; see `KnownLines`."""

    def wait(self) -> bool: ...
    def first_kind(self) -> str: ...
    def take(self, kind: str) -> Line | None: ...
    def done(self, line: Line) -> None: ...


@dataclass(frozen=True, slots=True)
class _Begun:
    """A line that was begun, with the session whose settings are the line's."""

    line: Line
    work: Work | None
    prompt: Prompt | NgtError
    session: Session


@dataclass(frozen=True, slots=True)
class Engine:
    """What answers: a session, or what stands for one, and the function that answers with it.

    `size` is for that function: how many sequences together, 0 for as many as memory allows.
    `passes` says what is reported of the model's passes.
    """

    session: Session
    answers: Answers
    size: int
    passes: Callable[[], PassesReport]


class Runner:
    """Answers all `lines`; `read` gives the work of a line, and raises NgtError where it cannot.

    `error_of` says what an unexpected error of one line is.
    """

    def __init__(
        self,
        engine: Engine,
        lines: Lines,
        read: Callable[[Line], Work],
        error_of: Callable[[Exception], NgtError],
        *,
        status: Notify = lambda _: None,
        warn: Notify = lambda _: None,
    ) -> None:
        self._engine, self._lines, self._read, self._error_of = engine, lines, read, error_of
        self._status, self._warn = status, warn
        self._sessions: dict[Settings, Session] = {}
        self._begun: dict[int, _Begun] = {}
        self._long: list[tuple[Line, Work]] = []

    def run(self) -> Generator[Outcome, None, None]:
        """All lines as they are done, in any order. Raises what the engine raises."""
        while self._lines.wait():
            kind = self._lines.first_kind()
            first = self._lines.take(kind)
            if first is not None:
                yield from self._of_kind(kind, first)

    def _of_kind(self, kind: str, first: Line) -> Iterator[Outcome]:
        """Lines of one kind, as long as there are any."""
        work = self._work(first)
        if isinstance(work, NgtError):
            yield self._outcome(first, None, failed(first.index, work))
            return
        session = self._session_for(work.settings)
        prompts = self._prompts(kind, first, work)
        own = lambda key: self._begun[key].session  # noqa: E731
        try:
            for answered in self._engine.answers(session, prompts, self._engine.size, own):
                begun = self._begun.pop(answered.key)
                yield self._outcome(begun.line, begun.work, answered)
        except NgtError:
            raise
        except Exception as error:  # of which line it was can be told from each alone
            self._told(error)
        # Here, not where the error is caught: it holds all that the failed batch had in memory.
        for begun in list(self._begun.values()):
            del self._begun[begun.line.index]
            answered = self._alone(begun.session, begun.line, begun.prompt)
            yield self._outcome(begun.line, begun.work, answered)
        while self._long:
            yield from self._split(*self._long.pop(0))

    def _session_for(self, settings: Settings) -> Session:
        """The session with these settings, whose model is loaded. Raises UsageError."""
        found = self._sessions.pop(settings, None)
        try:
            found = found or self._engine.session.with_settings(settings)
        except ValueError as error:
            raise UsageError(
                f"the presets of the tasks name different models: {error}",
                "Give -m, --device and --dtype, which stand above what presets say.",
            ) from None
        self._sessions[settings] = found  # the last used is the last
        if len(self._sessions) > _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return found

    def _prompts(self, kind: str, first: Line, work: Work) -> Iterator[Given]:
        line: Line | None = first
        found: Work | NgtError = work
        while line is not None:
            begun = self._begin(line, found)
            if begun is not None:
                self._begun[line.index] = begun
                yield line.index, begun.prompt
            line = self._lines.take(kind) if len(self._long) < _LONG else None
            if line is not None:
                found = self._work(line)

    def _begin(self, line: Line, work: Work | NgtError) -> _Begun | None:
        """A line with its prompt, or with its error; None for one that is split later."""
        if isinstance(work, NgtError):
            return _Begun(line, None, work, self._engine.session)
        session = self._session_for(work.settings)
        prompt = self._prompt(session, line, work)
        return None if prompt is None else _Begun(line, work, prompt, session)

    def _work(self, line: Line) -> Work | NgtError:
        try:
            return self._read(line)
        except Exception as error:
            return self._told(error)

    def _prompt(self, session: Session, line: Line, work: Work) -> Prompt | NgtError | None:
        """The prompt of a line; None for one that does not fit and is split later."""
        try:
            documents = work.loaded.documents
            if work.settings.overflow not in IN_PARTS:
                return session.prompt(work.preset, documents, work.question)
            prompt = fits(session.task(work.preset, documents))
        except Exception as error:
            return self._told(error)
        if prompt is None:
            self._long.append((line, work))
        return prompt

    def _split(self, line: Line, work: Work) -> Iterator[Outcome]:
        """The answer to a line that does not fit, part by part.

        What is kept of the parts stays until the answer was taken, and where it is an error.
        """
        session, documents = self._session_for(work.settings), work.loaded.documents
        splitting = Splitting(session, work.preset, documents, self._status, self._warn)
        try:
            prompt = replace(splitting.prompt(), given=tuple(documents))
        except Exception as error:
            yield self._outcome(line, work, failed(line.index, self._told(error)))
            return
        answered = self._alone(session, line, prompt)
        yield self._outcome(line, work, answered, splitting.reports)
        if answered.error is None:
            splitting.forget()

    def _alone(self, session: Session, line: Line, prompt: Prompt | NgtError) -> Answered:
        """The answer to one prompt by itself, or the error it ends with."""
        try:
            (answered,) = self._engine.answers(session, [(line.index, prompt)], 1)
        except Exception as error:
            return failed(line.index, self._told(error))
        return answered

    def _told(self, error: Exception) -> NgtError:
        """The error that one line ends with. Raises KeyboardInterrupt if that was the cause."""
        if process.interrupted():  # a library made this of the Ctrl-C
            raise KeyboardInterrupt from error
        return error if isinstance(error, NgtError) else self._error_of(error)

    def _outcome(
        self,
        line: Line,
        work: Work | None,
        answered: Answered,
        parts: Sequence[PartReport] = (),
    ) -> Outcome:
        self._lines.done(line)
        return Outcome(line, work, answered, parts)
