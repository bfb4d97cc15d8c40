"""The lines of a batch, from a file or a stream, in the order in which they are answered.

A file is read once for what is in it and where, and each line again when its turn comes, so that no
more than some facts about each line are kept. Those of the same task and with the same documents
are answered together.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from ngtcli.batch.json_lines import BatchLine, Id, Ids, read_line
from ngtcli.documents.text import Unreadable, check_format
from ngtcli.errors import InputError, NgtError, reason_of

AHEAD = 64  # lines of a stream that are read before the first of them is answered; guess
IDS = 100_000  # ids of a stream, the last ones, that are compared with new ones; guess
_PIECE = 1 << 20  # bytes of a line too long that are passed over at once; guess
_HEAD = 1024  # bytes that tell a format
_MARK = b"\xef\xbb\xbf"  # some programs begin a file in UTF-8 with it
CheckPaths = Callable[[int, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is to be answered.

    `index` is its place in the output, from 0, `number` that in the input, from 1. Lines of one
    `kind` have the same task, those with the same `texts` the same documents. `wrong`
    is what is wrong with a line that cannot be answered. Its bytes are `raw`, or in the file from
    `start` on, `size` of them, whose `hash` tells whether they are still the same.
    """

    index: int
    number: int
    id: Id
    kind: str = ""
    texts: str = ""
    wrong: NgtError | None = None
    start: int = 0
    size: int = 0
    hash: int = 0
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines are answered: the `part`-th of every `parts` (from 1), `limit` of them at most.

    0 is no limit.
    """

    part: int = 1
    parts: int = 1
    limit: int = 0

    def has(self, place: int) -> bool:
        """Whether the line at that place, from 0, is one of them, the limit left aside."""
        return place % self.parts == self.part - 1


@dataclass(frozen=True, slots=True)
class Scan:
    """What stands in a file: the chosen lines, and SHA-256 in hex of all of its bytes.

    The limit of the choice is left aside.
    """

    lines: list[Line]
    sha256: str


class LineReader:
    """Reads a stream as `Line`s, numbered, with what is wrong with them.

    An id is wrong that one of the `ids` lines before has; 0: of all lines. `check` gets the number
    and the paths of each line.
    """

    def __init__(
        self,
        stream: IO[bytes],
        most: int,
        choice: Choice,
        ids: int = 0,
        check: CheckPaths = lambda number, paths: None,
    ) -> None:
        self._stream, self._most, self._choice = stream, most, choice
        self._check_paths = check
        self._sha256 = hashlib.sha256()
        self._ids = Ids(ids)
        self._start = 0
        self.count = 0  # lines so far, chosen or not

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def lines(self) -> Iterator[Line]:
        """The chosen lines; those of white space alone are passed over."""
        number = index = 0
        while raw := self._stream.readline(self._most + 1):
            start, number = self._start, number + 1
            too_long = len(raw) > self._most
            self._count(raw)
            if number == 1:
                _check(raw[:_HEAD])
                raw = raw.removeprefix(_MARK)
                start = self._start - len(raw)
            if too_long:
                self._pass_over(raw)
                raw = b""
            elif not raw.strip():
                continue
            self.count += 1
            if self._choice.has(self.count - 1):
                yield self._line(index, number, start, raw)
                index += 1

    def _count(self, raw: bytes) -> None:
        self._sha256.update(raw)
        self._start += len(raw)

    def _pass_over(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._stream.readline(_PIECE)
            self._count(raw)

    def _line(self, index: int, number: int, start: int, raw: bytes) -> Line:
        own: Id | None
        said: BatchLine | NgtError
        own, said = read_line(raw) if raw else (None, _too_long(self._most))
        if own is None and isinstance(said, NgtError):  # its number may be another line's id
            return Line(index, number, number, start=start, size=len(raw), wrong=said)
        own = number if own is None else own
        try:
            self._ids.check(own, number)
        except InputError as error:
            said = said if isinstance(said, NgtError) else error
        line = Line(index, number, own, start=start, size=len(raw), hash=hash(raw), raw=raw)
        if isinstance(said, NgtError):
            return replace(line, wrong=said, raw=b"")
        self._check_paths(number, said.paths)
        return replace(line, kind=said.task, texts=said.texts)


def _check(head: bytes) -> None:
    """Raise Unreadable where a file does not begin as one of lines does."""
    check_format(head)
    if b"\0" in head:
        raise Unreadable("no text in UTF-8", "Give JSON lines in UTF-8.")


def _too_long(most: int) -> InputError:
    return InputError(f"a line of more than {most / 1e6:g} MB", "Raise the bound with --max-mb.")


def _empty(name: object) -> InputError:
    return InputError(f"{name}: empty", "Write one JSON object a line.")


def scan(
    path: Path, most: int, choice: Choice, check: CheckPaths = lambda number, paths: None
) -> Scan:
    """What stands in a file, of lines of at most `most` bytes.

    Raises InputError, and what `check` raises of the number and the paths of a line.
    """
    try:
        with path.open("rb") as file:
            reader = LineReader(file, most, choice, check=check)
            lines = [replace(line, raw=b"") for line in reader.lines()]
    except Unreadable as error:
        raise error.of(str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason_of(error)}", "Name a file of JSON lines.") from None
    if not reader.count:
        raise _empty(path)
    return Scan(lines, reader.sha256)


def content_of(line: Line, path: Path | None = None) -> BatchLine:
    """What a line says, read again from its file where it has no bytes. Raises NgtError."""
    if line.wrong is not None:
        raise line.wrong
    raw = line.raw
    if path is not None:
        try:
            with path.open("rb") as file:
                file.seek(line.start)
                raw = file.read(line.size)
        except OSError as error:
            raise InputError(f"{path}: {reason_of(error)}", "Run it again.") from None
        if hash(raw) != line.hash:
            hint = "Start again with --restart, and leave the input as it is while it runs."
            raise InputError("the line has changed since the run began", hint)
    _, said = read_line(raw)
    if isinstance(said, NgtError):
        raise said
    return said


class Lines:
    """Lines to be answered: by kind, and by texts within a kind, in the order of the first ones."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._kinds: dict[str, dict[str, deque[Line]]] = {}
        self._texts = ""  # of the line that was taken last
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Put a line behind those with its documents."""
        self._kinds.setdefault(line.kind, {}).setdefault(line.texts, deque()).append(line)

    def wait(self) -> bool:
        """Whether there is a line to answer."""
        return bool(self._kinds)

    def take(self, kind: str | None = None) -> Line | None:
        """The next line of a kind, None where none waits; those with the last one's texts first.

        Without a kind it is the one whose lines have waited longest.
        """
        kind = next(iter(self._kinds), "") if kind is None else kind
        of_kind = self._kinds.get(kind)
        if not of_kind:
            return None
        self._texts = self._texts if self._texts in of_kind else next(iter(of_kind))
        lines = of_kind[self._texts]
        line = lines.popleft()
        if not lines:
            del of_kind[self._texts]
        if not of_kind:
            del self._kinds[kind]
        return line

    def done(self, line: Line) -> None:
        """A line is answered."""


class StreamLines(Lines):
    """Lines of a stream, read by a thread of its own, at most AHEAD before the oldest unanswered.

    At most `most` bytes of lines are kept, and one line more, and of other lines the last IDS ids.
    Errors call the stream `name`.
    """

    def __init__(
        self, stream: IO[bytes], most: int, choice: Choice, name: str = "standard input"
    ) -> None:
        super().__init__()
        self._name, self._most, self._limit = name, most, choice.limit
        self._open: dict[int, int] = {}  # bytes of each line that is not answered, by index
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.count = 0  # lines read so far
        reader = LineReader(stream, most, choice, IDS)
        threading.Thread(target=self._read, args=(reader,), daemon=True).start()

    def _read(self, reader: LineReader) -> None:
        try:
            for line in reader.lines():
                with self._changed:
                    self._changed.wait_for(partial(self._has_room, line.index))
                    self._open[line.index] = len(line.raw)
                    self.add(line)
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
            self._changed.wait_for(lambda: self._kinds or self._ended)
            if self._kinds:
                return True
        if isinstance(self._error, Unreadable):
            raise self._error.of(self._name)
        if self._error is not None:
            raise self._error
        if not self.count:
            raise _empty(self._name)
        return False

    def take(self, kind: str | None = None) -> Line | None:
        with self._changed:
            return super().take(kind)

    def done(self, line: Line) -> None:
        """A line is answered: there is room for another one."""
        with self._changed:
            self._open.pop(line.index, None)
            self._changed.notify_all()
