"""Two of the three drivers of an engine: `Answering` for one request, `run` for many in one thread.

The third is the `Resident` in server/, for the requests of many threads.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ngtcli.engine.engine import Engine, PreparedParts, PreparedRequest, Submission
from ngtcli.engine.events import BatchItem, Ended, Event, Message, Outcome
from ngtcli.engine.no_answer import caught
from ngtcli.engine.request import OtherModelError, Request
from ngtcli.engine.submissions import SubmissionEvent, Submissions
from ngtcli.errors import NgtError, StoppedError


class Answering:
    """The `Answer` of an engine to one request; it reports to the engine's reporter.

    Parts stay cached until the caller asks for more after `Ended`; then the prefill is stored, too.
    An answer that is interrupted before it has begun raises StoppedError.
    """

    def __init__(self, engine: Engine, request: Request, owner: str = "") -> None:
        self._engine = engine
        self._submission = Submission(request, owner, engine.session.report)
        self._submissions = Submissions(engine)
        self._events: list[SubmissionEvent] = []
        self._is_begun = False
        self._is_stopped = False  # before it has begun

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_stopped:
            raise StoppedError("interrupted")
        try:
            return self._next()
        except Exception:
            self.close()
            raise

    def _next(self) -> Event:
        if not self._is_begun:
            self._submissions.add(self._engine.prepare(self._submission))
            self._is_begun = True
        while not self._events:
            if not self._submissions.busy:
                raise StopIteration
            self._events = self._submissions.step()
        _, event = self._events.pop(0)
        if isinstance(event, NgtError):
            raise event
        return event

    def interrupt(self) -> None:
        """Interrupt the answer, as `Answer.interrupt` does."""
        self._is_stopped = not self._is_begun
        self._events += self._submissions.interrupt()

    def close(self) -> None:
        """End the answer, as `Answer.close` does."""
        self._events = []
        self._submissions.close()


@dataclass(frozen=True, slots=True)
class _KeyedSubmission:
    """A prepared request of a run, with the caller's key."""

    key: Any
    prepared: PreparedRequest

    @property
    def submission(self) -> Submission:
        return self.prepared.submission

    def outcome(self, event: Ended | NgtError) -> Outcome:
        prepared = self.prepared
        prompt = None if isinstance(prepared, PreparedParts) else prepared.prompt
        return Outcome(self.key, self.submission.request, prompt, event)


def run(engine: Engine, draw: Callable[[bool], BatchItem | None]) -> Generator[Outcome]:
    """Yield the answers to many requests as they finish, in any order.

    Parts stay cached until the next outcome is asked for. Raises NgtError for what ends the run.

    Args:
        engine: The engine.
        draw: Called when there is room for a request; returns the next one, or None if there is
            none at the moment. Its argument is True if nothing is being answered: then it may wait,
            and None is the end.
    """
    submissions = Submissions(engine)
    running: dict[Submission, _KeyedSubmission] = {}
    following: _KeyedSubmission | None = None  # is prepared, and waits for room

    def report(event: Event) -> None:
        if isinstance(event, Message):  # the progress of many texts would be a muddle
            engine.session.report(event)

    try:
        while True:
            if following is None and submissions.has_room():
                drawn = draw(not submissions.busy)
                if drawn is not None:
                    key, request = drawn
                    if isinstance(request, NgtError):
                        yield Outcome(key, None, None, request)
                        continue
                    try:
                        submission = Submission(request, report=report)
                        following = _KeyedSubmission(key, engine.prepare(submission))
                    except OtherModelError:
                        raise
                    except Exception as error:
                        yield Outcome(key, request, None, caught(error))
                    continue
            if following is not None and submissions.has_room(following.submission):
                running[following.submission] = following
                submissions.add(following.prepared)
                following = None
            elif submissions.busy:
                for submission, event in submissions.step():
                    if isinstance(event, Ended | NgtError):
                        yield running.pop(submission).outcome(event)
            else:
                break
    finally:
        submissions.close()
