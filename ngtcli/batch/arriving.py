"""Lines of a batch that wait to be answered: known beforehand, or of a stream, as they arrive."""

import threading
from collections.abc import Iterable
from functools import partial
from typing import IO

from ngtcli.batch.source import Choice, Reader
from ngtcli.batch.waiting import Line, Waiting
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError

AHEAD = 64  # lines of a stream that are read before the first of them is answered; guess
IDS = 100_000  # ids of a stream, the last ones, that are compared with new ones; guess


class KnownLines:
    """Lines that are known beforehand."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._waiting = Waiting(lines)

    def wait(self) -> bool:
        """Whether there is a line to answer."""
        return bool(self._waiting)

    def first_kind(self) -> str:
        """The kind of the line to be answered next."""
        return self._waiting.first_kind()

    def take(self, kind: str) -> Line | None:
        """The next line of a kind; None where there is none now."""
        return self._waiting.take(kind)

    def done(self, line: Line) -> None:
        """A line is answered."""


class StreamLines:
    """Lines of a stream, read by a thread of its own, at most AHEAD before the oldest unanswered.

    At most `most` bytes of lines are kept, and one line more, and of other lines the last IDS ids.
    Errors call the stream `name`.
    """

    def __init__(
        self, stream: IO[bytes], most: int, choice: Choice, name: str = "standard input"
    ) -> None:
        self._name = name
        self._waiting, self._most, self._limit = Waiting(), most, choice.limit
        self._open: dict[int, int] = {}  # bytes of each line that is not answered, by index
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.count = 0  # lines read so far
        reader = Reader(stream, most, choice, IDS)
        threading.Thread(target=self._read, args=(reader,), daemon=True).start()

    def _read(self, reader: Reader) -> None:
        try:
            for line in reader.lines():
                with self._changed:
                    self._changed.wait_for(partial(self._has_room, line.index))
                    self._open[line.index] = len(line.raw)
                    self._waiting.add(line)
                    self.count += 1
                    self._changed.notify_all()
                if self.count == self._limit:
                    break
        except BaseException as error:  # raised where lines are waited for
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_room(self, index: int) -> bool:
        if not self._open:
            return True
        return index - min(self._open) < AHEAD and sum(self._open.values()) < self._most

    def wait(self) -> bool:
        """Wait for a line; False at the end. Raises InputError for a stream that is not lines.

        What else fails in reading is raised here as well.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                return True
        if isinstance(self._error, Unreadable):
            raise self._error.of(self._name)
        if self._error is not None:
            raise self._error
        if not self.count:
            raise InputError(f"{self._name}: empty", "Write one JSON object a line.")
        return False

    def first_kind(self) -> str:
        """The kind of the line to be answered next."""
        with self._changed:
            return self._waiting.first_kind()

    def take(self, kind: str) -> Line | None:
        """The next line of a kind; None where there is none now."""
        with self._changed:
            return self._waiting.take(kind)

    def done(self, line: Line) -> None:
        """A line is answered: there is room for another one."""
        with self._changed:
            self._open.pop(line.index, None)
            self._changed.notify_all()
