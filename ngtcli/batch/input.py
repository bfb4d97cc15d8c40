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


def read_lines(
    stream: IO[bytes],
    name: str,
    most: int,
    choice: Choice,
    ids: Ids,
    check: CheckPaths,
    taken: Callable[[bytes], object] = lambda raw: None,
) -> Iterator[Line]:
    """The chosen lines, the limit left aside; those of white space alone are passed over.

    A line of more than `most` bytes is wrong. `check` gets the number and the paths of each line,
    `taken` all bytes as they are read. Raises what `check` raises, and InputError for a stream,
    called `name`, that is not lines or empty.
    """
    end = number = count = 0
    while raw := stream.readline(most + 1):
        taken(raw)
        start, end, number = end, end + len(raw), number + 1
        too_long = len(raw) > most
        if number == 1:
            _check_head(raw[:_HEAD], name)
            raw = raw.removeprefix(_MARK)
            start = end - len(raw)
        while too_long and raw and not raw.endswith(b"\n"):
            raw = stream.readline(_PIECE)
            taken(raw)
            end += len(raw)
        if too_long or raw.strip():
            if count % choice.parts == choice.part - 1:
                line = Line(count // choice.parts, number, number, start=start, raw=raw)
                yield _too_long(line, most) if too_long else _read(line, ids, check)
            count += 1
    if not count:
        raise InputError(f"{name}: empty", "Write one JSON object a line.")


def _check_head(head: bytes, name: str) -> None:
    """Raise Unreadable where a file does not begin as one of lines does."""
    try:
        check_format(head)
        if b"\0" in head:
            raise Unreadable("no text in UTF-8", "Give JSON lines in UTF-8.")
    except Unreadable as error:
        raise error.of(name) from None


def _too_long(line: Line, most: int) -> Line:
    hint = "Raise the bound with --max-mb."
    return replace(line, raw=b"", wrong=InputError(f"a line of more than {most / 1e6:g} MB", hint))


def _read(line: Line, ids: Ids, check: CheckPaths) -> Line:
    """The line with its id, and what is known of it or wrong with it."""
    own, said = read_line(line.raw)
    if own is not None or not isinstance(said, NgtError):  # else its number may be another's id
        line = replace(line, id=line.number if own is None else own)
        try:
            ids.check(line.id, line.number)
        except InputError as error:
            said = said if isinstance(said, NgtError) else error
    if isinstance(said, NgtError):
        return replace(line, raw=b"", wrong=said)
    check(line.number, said.paths)
    size, found = len(line.raw), hash(line.raw)
    return replace(line, kind=said.task, texts=said.texts, size=size, hash=found)


def scan(
    path: Path, most: int, choice: Choice, check: CheckPaths = lambda number, paths: None
) -> tuple[list[Line], str]:
    """The lines of a file, as `read_lines`, and SHA-256 in hex of all of its bytes."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.sha256()
            found = read_lines(file, str(path), most, choice, Ids(), check, sha256.update)
            return [replace(line, raw=b"") for line in found], sha256.hexdigest()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason_of(error)}", "Name a file of JSON lines.") from None


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

    def __init__(self, stream: IO[bytes], name: str, most: int, choice: Choice) -> None:
        super().__init__()
        self._most, self._limit = most, choice.limit
        self._open: dict[int, int] = {}  # bytes of each line that is not answered, by index
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.count = 0  # lines read so far
        found = read_lines(stream, name, most, choice, Ids(IDS), lambda number, paths: None)
        threading.Thread(target=self._read, args=(found,), daemon=True).start()

    def _read(self, found: Iterator[Line]) -> None:
        try:
            for line in found:
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
        """Wait for a line; False at the end. Raises what failed in reading, as `read_lines`."""
        with self._changed:
            self._changed.wait_for(lambda: self._kinds or self._ended)
            if not self._kinds and self._error is not None:
                raise self._error
            return bool(self._kinds)

    def take(self, kind: str | None = None) -> Line | None:
        with self._changed:
            return super().take(kind)

    def done(self, line: Line) -> None:
        """A line is answered: there is room for another one."""
        with self._changed:
            self._open.pop(line.index, None)
            self._changed.notify_all()
