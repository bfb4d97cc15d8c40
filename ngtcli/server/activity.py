"""The number of requests that a server answers, and the time since it has been idle."""

import time
from types import TracebackType


class Activity:
    """Counts requests, each in a `with` block of this object; for one thread.

    Attributes:
        answering: The number of requests that are being answered.
        answered: The number of requests that have ended.
        rested_since: When the last request ended, by time.monotonic.
    """

    def __init__(self) -> None:
        self.answering = 0
        self.answered = 0
        self.rested_since = time.monotonic()

    def __enter__(self) -> None:
        self.answering += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.answering -= 1
        self.answered += 1
        self.rested_since = time.monotonic()
