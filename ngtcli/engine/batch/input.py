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

from ngtcli.documents.text import Unreadable, check_format
from ngtcli.engine.batch.lines import BatchLine, Id, Ids, read_line
from ngtcli.errors import InputError, NgtError
from ngtcli.words import reason_of

AHEAD = 64  # lines of a stream that are read before the first of them is answered; guess
IDS = 100_000  # ids of a stream, the last ones, that are compared with new ones; guess
_PIECE = 1 << 20  # bytes of a line too long that are passed over at once; guess
_HEAD = 1024  # bytes that tell a format
_MARK = b"\xef\xbb\xbf"  # some programs begin a file in UTF-8 with it
CheckPaths = Callable[[int, tuple[str, ...]], None]
Shard = tuple[int, int]  # the I-th of every N lines, from 1


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is to be answered.

    `index` is its place in the output, from 0, `number` that in the input, from 1. `said` is what
    it says, or what is wrong with it; None where it is in a file, from `start` on, `size` bytes,
    whose `hash` tells whether they are still the same.
    """

    index: int
    number: int
    id: Id
    task: str = ""
    documents_key: str = ""
    said: BatchLine | NgtError | None = None
    start: int = 0
    size: int = 0
    hash: int = 0

    def content(self, path: Path | None = None) -> BatchLine:
        """What it says, read from its file where it is not known. Raises NgtError."""
        said = self._read_again(path) if path and self.said is None else self.said
        assert said is not None
        if isinstance(said, NgtError):
            raise said
        return said

    def _read_again(self, path: Path) -> BatchLine | NgtError:
        try:
            with path.open("rb") as file:
                file.seek(self.start)
                raw = file.read(self.size)
        except OSError as error:
            return InputError(f"{path}: {reason_of(error)}", hint="Run it again.")
        if hash(raw) != self.hash:
            hint = "Start again with --restart, and leave the input as it is while it runs."
            return InputError("the line has changed since the run began", hint=hint)
        return read_line(raw)[1]


def read_lines(
    stream: IO[bytes],
    name: str,
    most: int,
    shard: Shard,
    *,
    ids: int = IDS,
    check: CheckPaths = lambda number, paths: None,
) -> Iterator[InputLine]:
    """The lines of a shard; those of white space alone are passed over.

    A line of more than `most` bytes is wrong, and one whose id is among the last `ids` (0: among
    all). `check` gets the number and the paths of each line. Raises what `check` raises, and
    InputError for a stream, called `name`, that is not lines or empty.
    """
    end = number = count = 0
    known = Ids(ids)
    while raw := stream.readline(most + 1):
        start, end, number = end, end + len(raw), number + 1
        too_long = len(raw) > most
        if number == 1:
            _check_head(raw[:_HEAD], name)
            raw = raw.removeprefix(_MARK)
            start = end - len(raw)
        while too_long and raw and not raw.endswith(b"\n"):
            raw = stream.readline(_PIECE)
            end += len(raw)
        if too_long or raw.strip():
            index, place = divmod(count, shard[1])
            count += 1
            if place != shard[0] - 1:
                continue
            line = InputLine(index, number, number, start=start, size=len(raw), hash=hash(raw))
            if too_long:
                what = f"a line of more than {most / 1e6:g} MB"
                yield replace(
                    line, said=InputError(what, hint="Raise the bound with --set max_mb.")
                )
            else:
                yield _read(line, raw, known, check)
    if not count:
        raise InputError(f"{name}: empty", hint="Write one JSON object a line.")


def _check_head(head: bytes, name: str) -> None:
    """Raise Unreadable where a file does not begin as one of lines does."""
    try:
        check_format(head)
        if b"\0" in head:
            raise Unreadable("no text in UTF-8", "Give JSON lines in UTF-8.")
    except Unreadable as error:
        raise error.of(name) from None


def _read(line: InputLine, raw: bytes, ids: Ids, check: CheckPaths) -> InputLine:
    """The line with its id, and what it says or is wrong with it."""
    own, said = read_line(raw)
    line = replace(line, id=line.number if own is None else own)
    if own is not None or isinstance(said, BatchLine):  # else its number may be another's id
        try:
            ids.check(line.id, line.number)
        except InputError as error:
            said = error if isinstance(said, BatchLine) else said
    if isinstance(said, NgtError):
        return replace(line, said=said)
    check(line.number, said.paths)
    return replace(line, said=said, task=said.task, documents_key=said.documents_key)


def scan(
    path: Path, most: int, shard: Shard, check: CheckPaths = lambda number, paths: None
) -> tuple[list[InputLine], str]:
    """The lines of a file, as `read_lines`, and SHA-256 in hex of all of its bytes."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            lines = read_lines(file, str(path), most, shard, ids=0, check=check)
            return [replace(n, said=None) if n.task else n for n in lines], sha256  # not wrong
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason_of(error)}", hint="Name a file of JSON lines.") from None


class Lines:
    """Lines to be answered: by task, and by documents within a task, in the order of the first.

    With `most` they are read by a thread of its own, at most AHEAD before the oldest that is not
    answered, and of these `most` bytes and one line; else all at once.
    """

    def __init__(self, lines: Iterable[InputLine], most: int = 0) -> None:
        self._waiting: dict[str, dict[str, deque[InputLine]]] = {}
        self._task = self._last = ""  # task and documents of the line that was taken last
        self._most = most
        self._open: dict[int, int] = {}  # bytes of each line that is not answered, by index
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.count = 0  # lines read so far
        if most:
            threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        else:
            self._read(lines)

    def _read(self, lines: Iterable[InputLine]) -> None:
        try:
            for line in lines:
                with self._changed:
                    self._changed.wait_for(partial(self._has_room, line.index))
                    self._open[line.index] = line.size
                    of_task = self._waiting.setdefault(line.task, {})
                    of_task.setdefault(line.documents_key, deque()).append(line)
                    self.count += 1
                    self._changed.notify_all()
        except BaseException as error:  # raised where lines are waited for
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_room(self, index: int) -> bool:
        if not self._open or not self._most:
            return True
        return index - min(self._open) < AHEAD and sum(self._open.values()) < self._most

    def wait(self) -> bool:
        """Wait for a line; False at the end. Raises what failed in reading, as `read_lines`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting and self._error is not None:
                raise self._error
            return bool(self._waiting)

    def take(self) -> InputLine | None:
        """The next line, None where none waits: of the last task, first with the last documents.

        Where the last task has none it is of the one whose lines have waited longest.
        """
        with self._changed:
            if not self._waiting:
                return None
            self._task = self._task if self._task in self._waiting else next(iter(self._waiting))
            of_task = self._waiting[self._task]
            self._last = self._last if self._last in of_task else next(iter(of_task))
            lines = of_task[self._last]
            line = lines.popleft()
            if not lines:
                del of_task[self._last]
            if not of_task:
                del self._waiting[self._task]
            return line

    def done(self, line: InputLine) -> None:
        """A line is answered: there is room for another one."""
        with self._changed:
            self._open.pop(line.index, None)
            self._changed.notify_all()
