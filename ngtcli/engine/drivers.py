"""Two of the three drivers of an engine: `Answering` asks one question, `run` many, of one thread.

The third is the `Resident` of server/, of many threads.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ngtcli.engine.engine import Engine, PreparedParts, PreparedRequest, Request, caught
from ngtcli.engine.events import USUAL, Drawn, Ended, Event, Message, Outcome, Wants
from ngtcli.engine.question import OtherModelError, Question
from ngtcli.engine.requests import RequestEvent, Requests
from ngtcli.errors import NgtError, StoppedError


class Answering:
    """The `Answer` of an engine to one question; what is reported goes where the engine reports.

    Parts stay cached until the caller asks for more than `Ended`; then what was read is stored,
    too. Interrupted before it has begun, it raises StoppedError.
    """

    def __init__(self, engine: Engine, question: Question, wants: Wants = USUAL) -> None:
        self._engine = engine
        self._request = Request(question, wants=wants, report=engine.session.report)
        self._requests = Requests(engine)
        self._events: list[RequestEvent] = []
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
            self._requests.add(self._engine.prepare(self._request))
            self._is_begun = True
        while not self._events:
            if not self._requests.busy:
                raise StopIteration
            self._events = self._requests.step()
        _, event = self._events.pop(0)
        if isinstance(event, NgtError):
            raise event
        return event

    def interrupt(self) -> None:
        """As `Answer.interrupt`."""
        self._is_stopped = not self._is_begun
        self._events += self._requests.interrupt()

    def close(self) -> None:
        """As `Answer.close`."""
        self._events = []
        self._requests.close()


@dataclass(frozen=True, slots=True)
class _KeyedRequest:
    """A prepared request of a run, with the caller's key."""

    key: Any
    prepared: PreparedRequest

    @property
    def request(self) -> Request:
        return self.prepared.request

    def outcome(self, event: Ended | NgtError) -> Outcome:
        prepared = self.prepared
        prompt = None if isinstance(prepared, PreparedParts) else prepared.prompt
        return Outcome(self.key, self.request.question, prompt, event)


def run(
    engine: Engine, draw: Callable[[bool], Drawn | None], wants: Wants = USUAL
) -> Generator[Outcome]:
    """Yield the answers to many questions as they finish, in any order.

    Parts stay cached until the next outcome is asked for. Raises NgtError for what ends the run.

    Args:
        engine: What answers.
        draw: Is called when there is room for a question, and returns the next one; None where
            none is there now. It gets True where nothing is being answered: then it may wait, and
            None is the end.
        wants: What is wanted back of each.
    """
    requests = Requests(engine)
    running: dict[Request, _KeyedRequest] = {}
    following: _KeyedRequest | None = None  # is prepared, and waits for room

    def report(event: Event) -> None:
        if isinstance(event, Message):  # the progress of many texts would be a muddle
            engine.session.report(event)

    try:
        while True:
            if following is None and requests.has_room():
                drawn = draw(not requests.busy)
                if drawn is not None:
                    key, question = drawn
                    if isinstance(question, NgtError):
                        yield Outcome(key, None, None, question)
                        continue
                    try:
                        request = Request(question, wants=wants, report=report)
                        following = _KeyedRequest(key, engine.prepare(request))
                    except OtherModelError:
                        raise
                    except Exception as error:
                        yield Outcome(key, question, None, caught(error))
                    continue
            if following is not None and requests.has_room(following.request):
                running[following.request] = following
                requests.add(following.prepared)
                following = None
            elif requests.busy:
                for request, event in requests.step():
                    if isinstance(event, Ended | NgtError):
                        yield running.pop(request).outcome(event)
            else:
                break
    finally:
        requests.close()
