"""A request that was submitted to a resident model, as the one who asked holds it."""

from collections.abc import Callable
from dataclasses import replace

from ngtcli.engine.engine import Submission
from ngtcli.engine.events import Ended, Event
from ngtcli.errors import NgtError, StoppedError


class Ticket:
    """Hands on the events of a request, until the last; `cancel` it from any thread.

    What `on_event` raises cancels it, too. `on_cancel` is called where it is cancelled, and
    `is_closing` says whether all are.
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
        """Whether nobody waits for an answer any more."""
        return self._cancelled or self._is_closing()

    def cancel(self) -> None:
        """End the request within a step; does nothing after its last event."""
        self._cancelled = True
        self._on_cancel(self)

    def send(self, event: Event | NgtError) -> None:
        """Hand on an event; nothing comes after the last one."""
        if self.is_over:
            return
        self.is_over = isinstance(event, Ended | NgtError)
        try:
            self._on_event(event)
        except Exception:  # nobody is there any more
            self._cancelled = True

    def report(self, event: Event) -> None:
        """Hand on what is reported meanwhile. Raises StoppedError where it was cancelled."""
        self.send(event)
        if self.is_cancelled:
            raise StoppedError("interrupted")
