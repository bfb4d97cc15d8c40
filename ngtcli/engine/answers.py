"""What answers requests: `Answers`, and `Local`, a model that is loaded on this thread.

`server/` has the two others: `Resident`, a model with a thread of its own that many threads ask,
and `Remote`, the server of this user over its socket.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ngtcli.config import Settings
from ngtcli.engine.events import Answer, Event, Report, ignore
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError

if TYPE_CHECKING:
    from ngtcli.engine.engine import Engine

OnEvent = Callable[[Event | NgtError], object]  # gets the events of a request, in another thread


class Answers(Protocol):
    """Answers requests; `close` it.

    `owner` is who asks: "" for the user of this process. Nothing that one owner asked is drafted
    from for another.
    """

    def ask(self, request: Request, *, owner: str = "") -> Answer:
        """Return the events of a request, which is asked by the first of them at the latest."""

    def close(self) -> None:
        """End what is being answered."""


class Submitted(Protocol):
    """A request whose events are handed on in another thread."""

    def cancel(self) -> None:
        """End it within a step; does nothing after its last event."""


class Submits(Protocol):
    """Answers requests in threads of its own: for those who must not wait, as an event loop."""

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> Submitted:
        """Take a request; `on_event` gets its events, the last an `Ended` or an NgtError."""


class Local:
    """`Answers` of a model that is loaded here by `load` or when it is first asked.

    All of it runs on the caller's thread.

    Args:
        settings: What is loaded.
        report: Is called with the progress of loading, and with what concerns no request.
        stays: Whether other requests follow, perhaps about the same documents.
    """

    def __init__(self, settings: Settings, report: Report = ignore, *, stays: bool = False) -> None:
        self._settings = settings
        self._report = report
        self._stays = stays
        self._engine: Engine | None = None

    def load(self) -> "Engine":
        """Load the model unless it is loaded, and return its engine.

        Raises:
            NgtError: It cannot be loaded.
        """
        from ngtcli.engine.opening import open_engine  # here: it loads numpy

        if self._engine is None:
            self._engine = open_engine(self._settings, self._report, stays=self._stays)
        return self._engine

    def ask(self, request: Request, *, owner: str = "") -> Answer:
        """As `Answers.ask`. Raises NgtError where the model cannot be loaded."""
        from ngtcli.engine.drivers import Answering  # here: it loads numpy

        return Answering(self.load(), request, owner)

    def close(self) -> None:
        """As `Answers.close`; the model is left."""
        self._engine = None
