"""How much a server is answering, and since when it has rested."""

import time
from types import TracebackType


class Activity:
    """Counts requests: each is answered within a `with` block of this. Of one thread.

    Attributes:
        answering: Requests that are being answered.
        answered: Those that have ended.
        rested_since: When the last one ended, by time.monotonic.
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
