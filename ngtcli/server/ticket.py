"""The ticket of a request to a resident model, by which its sender cancels it."""

from collections.abc import Callable
from dataclasses import replace

from ngtcli.engine.engine import Submission
from ngtcli.engine.events import Ended, Event
from ngtcli.errors import NgtError, StoppedError


class Ticket:
    """Passes on the events of a request until the last; `cancel` it from any thread.

    Args:
        submission: The request.
        on_event: Gets each event. An exception of it cancels the request.
        on_cancel: Called when the request is cancelled.
        is_closing: Returns whether all requests are cancelled.

    Attributes:
        is_over: Whether the last event has come.
    """

    def __init__(
        self,
        submission: Submission,
        on_event: Callable[[Event | NgtError], object],
        *,
        on_cancel: Callable[["Ticket"], object] = lambda _: None,
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.submission = replace(submission, report=self.report)
        self.is_over = False
        self._on_event = on_event
        self._on_cancel = on_cancel
        self._is_closing = is_closing
        self._cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """True if the request is cancelled, and nobody waits for its answer."""
        return self._cancelled or self._is_closing()

    def cancel(self) -> None:
        """End the request within a step; does nothing after its last event."""
        self._cancelled = True
        self._on_cancel(self)

    def send(self, event: Event | NgtError) -> None:
        """Pass on an event; ignore it after the last one."""
        if self.is_over:
            return
        self.is_over = isinstance(event, Ended | NgtError)
        try:
            self._on_event(event)
        except Exception:  # The client has gone.
            self._cancelled = True

    def report(self, event: Event) -> None:
        """Pass on a report. Raises StoppedError where the request is cancelled."""
        self.send(event)
        if self.is_cancelled:
            raise StoppedError("interrupted")
