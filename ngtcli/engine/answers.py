"""The protocol `Answers`, and its implementation `Local`: a model that is loaded on this thread.

`server/` has two others: `Resident`, a model on a thread of its own that many threads may ask, and
`Remote`, the user's server, over its socket.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ngtcli.config import Settings
from ngtcli.engine.events import Answer, Event
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError

if TYPE_CHECKING:
    from ngtcli.engine.engine import Engine

OnEvent = Callable[[Event | NgtError], object]  # receives the events of a request, in any thread


class Answers(Protocol):
    """A service that answers requests; `close` it after use."""

    def ask(self, request: Request, *, owner: str = "") -> Answer:
        """Return the events of a request; it may start when the first of them is asked for.

        Args:
            request: The request.
            owner: Who asks, "" for the user of this process. Requests of one owner are never
                drafted from for another.
        """

    def close(self) -> None:
        """End all requests."""


class RequestHandle(Protocol):
    """A request whose events are delivered by another thread."""

    def cancel(self) -> None:
        """End it within a step; after its last event, do nothing."""


class RequestService(Protocol):
    """A service that answers requests in its threads, for callers that must not block."""

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> RequestHandle:
        """Start a request; `on_event` receives its events, the last an `Ended` or an NgtError."""


class Local:
    """`Answers` by a model that is loaded in this process, by `load` or by the first request.

    Everything runs on the caller's thread. It reports to the reporter of the caller for whom it
    loads the model.

    Args:
        settings: The settings, which name the model.
        stays: Other requests will follow, perhaps about the same documents.
    """

    def __init__(self, settings: Settings, *, stays: bool = False) -> None:
        self._settings = settings
        self._stays = stays
        self._engine: Engine | None = None

    def load(self) -> "Engine":
        """Load the model unless it is loaded, and return its engine.

        Raises:
            NgtError: It cannot be loaded.
        """
        from ngtcli.engine.opening import open_engine  # here: it loads numpy

        if self._engine is None:
            self._engine = open_engine(self._settings, stays=self._stays)
        return self._engine

    def ask(self, request: Request, *, owner: str = "") -> Answer:
        """Return the events of a request; see `Answers.ask`.

        Raises:
            NgtError: The model cannot be loaded.
        """
        from ngtcli.engine.drivers import Answering  # here: it loads numpy

        return Answering(self.load(), request, owner)

    def close(self) -> None:
        """Release the model."""
        self._engine = None
