"""Have the server answer many requests, several at once, in place of a model loaded here.

The server decides which of them share forward passes. This imports neither numpy nor modules that
load models.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ngtcli.config import Settings
from ngtcli.engine.events import BatchItem, Ended, Message, Outcome, report_to
from ngtcli.engine.request import OtherModelError, Request
from ngtcli.errors import NgtError, unexpected
from ngtcli.server.client import NotServedError, OtherStampError, Remote, RemoteAnswer
from ngtcli.system import reporting

MAX_ASKED = 8  # requests at the server, enough to share forward passes (guess)
_POLL_S = 0.2  # between two looks for new requests (guess)


class ServedRun:
    """The answers of the user's server to many requests; it reports to the reporter of the caller.

    Args:
        remote: The server.
        settings: The settings of its model; a request that needs another model is an error.

    Attributes:
        left: After the run, the requests that the server did not take.
        why_left: Why it did not take them, as a clause.
    """

    def __init__(self, remote: Remote, settings: Settings) -> None:
        self._remote = remote
        self._report = report_to(reporting.current())
        self._loaded = settings.model
        self._events: SimpleQueue[tuple[RemoteAnswer, Any]] = SimpleQueue()
        self._asked: dict[RemoteAnswer, tuple[Any, Request]] = {}
        self.left: list[BatchItem] = []
        self.why_left = "the server has ended"

    def outcomes(self, draw: Callable[[bool], BatchItem | None]) -> Generator[Outcome]:
        """Yield the answers as they come, in any order. Closing it cancels unfinished requests.

        `draw` returns the next request, or None if none is there yet. If no request is
        unfinished it gets True and may wait; None is then the end. Raises OtherModelError.
        """
        try:
            while True:
                while len(self._asked) < MAX_ASKED and not self.left:
                    drawn = draw(not self._asked)
                    if drawn is None:
                        break
                    key, request = drawn
                    if isinstance(request, NgtError):
                        yield Outcome(key, None, None, request)
                    else:
                        self._ask(key, request)
                if not self._asked:
                    return
                try:
                    answer, event = self._events.get(timeout=_POLL_S)
                except Empty:
                    continue
                if isinstance(event, Message):
                    self._report(event)
                elif isinstance(event, NotServedError):
                    self.left.append(self._asked.pop(answer))
                    if isinstance(event, OtherStampError):
                        self.why_left = "the server is of another installation or environment"
                elif isinstance(event, Ended | NgtError):
                    key, request = self._asked.pop(answer)
                    yield Outcome(key, request, None, event)
        finally:
            for answer in self._asked:
                with suppress(KeyboardInterrupt):
                    answer.interrupt()

    def _ask(self, key: Any, request: Request) -> None:
        if request.settings.model != self._loaded:
            raise OtherModelError("the server has another model loaded", hint="Use --no-serve.")
        answer = self._remote.ask(request)
        self._asked[answer] = key, request
        threading.Thread(target=self._follow, args=(answer,), daemon=True).start()

    def _follow(self, answer: RemoteAnswer) -> None:
        """Pass on the events of an answer, from a thread of its own."""
        try:
            for event in answer:
                self._events.put((answer, event))
        except NotServedError as error:
            self._events.put((answer, error))
        except BaseException as error:  # nothing may leave the run waiting
            self._events.put((answer, unexpected(error)))
