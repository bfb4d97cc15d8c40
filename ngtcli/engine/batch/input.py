"""The lines of a batch, from a file or a stream, in the order in which they are answered.

A file is read once to find its lines, and each line is read again when its turn comes, so that only
some facts about each line stay in memory. Lines of the same task with the same documents are
answered together.
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

AHEAD = 64  # lines of a stream that are read before the first of them is answered (guess)
IDS = 100_000  # ids of a stream, the last ones, that are compared with new ones (guess)
_SKIPPED_BYTES = 1 << 20  # bytes of an overlong line that are read at once (guess)
_FORMAT_BYTES = 1024  # bytes, enough to recognize a format (guess)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs begin UTF-8 files with it
CheckPaths = Callable[[int, tuple[str, ...]], None]
Shard = tuple[int, int]  # the I-th of every N lines, from 1


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is to be answered.

    Attributes:
        index: Its place in the output, from 0.
        number: Its place in the input, from 1.
        id: The id of its answer.
        task: The task, as in `BatchLine`.
        documents_key: A key that lines with the same documents share.
        value: The content of the line, or the error in it; None if it is read again from its file.
        start: The offset of the line in the file, in bytes.
        size: The size of the line in bytes.
        hash: A hash of these bytes, to notice a change.
    """

    index: int
    number: int
    id: Id
    task: str = ""
    documents_key: str = ""
    value: BatchLine | NgtError | None = None
    start: int = 0
    size: int = 0
    hash: int = 0

    def content(self, path: Path | None = None) -> BatchLine:
        """Return the content, reading it from the file if it is not in memory. Raises NgtError."""
        value = self.value
        if value is None:
            assert path is not None
            value = self._read_again(path)
        if isinstance(value, NgtError):
            raise value
        return value

    def _read_again(self, path: Path) -> BatchLine | NgtError:
        try:
            with path.open("rb") as file:
                file.seek(self.start)
                raw = file.read(self.size)
        except OSError as error:
            return InputError(f"{path}: {reason_of(error)}", hint="Run it again.")
        if hash(raw) != self.hash:
            return InputError(
                "the line has changed since the run began",
                hint="Start again with --restart, and leave the input as it is while it runs.",
            )
        _, value = read_line(raw)
        return value


def read_lines(
    stream: IO[bytes],
    name: str,
    max_bytes: int,
    shard: Shard,
    *,
    ids: int = IDS,
    check: CheckPaths = lambda number, paths: None,
) -> Iterator[InputLine]:
    """Yield the lines of a shard; skip blank ones.

    Args:
        stream: The stream to read.
        name: The name of the stream in messages.
        max_bytes: The maximum size of a line; a longer one is an error.
        shard: The shard whose lines are yielded.
        ids: The number of previous lines among which an equal id is an error; 0 for all.
        check: Called with the number and the paths of each line; its exceptions are not caught.

    Raises:
        InputError: The stream is empty, or is not JSON lines.
    """
    end = 0  # the start of the line, in bytes
    number = 0
    count = 0  # the number of lines that are not empty
    known_ids = Ids(ids)
    part, parts = shard
    while raw := stream.readline(max_bytes + 1):
        start = end
        end += len(raw)
        number += 1
        is_too_long = len(raw) > max_bytes
        if number == 1:
            _check_head(raw[:_FORMAT_BYTES], name)
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
            start = end - len(raw)
        while is_too_long and raw and not raw.endswith(b"\n"):
            raw = stream.readline(_SKIPPED_BYTES)
            end += len(raw)
        if not (is_too_long or raw.strip()):
            continue

        index, place = divmod(count, parts)
        count += 1
        if place != part - 1:
            continue
        line = InputLine(index, number, number, start=start, size=len(raw), hash=hash(raw))
        if is_too_long:
            error = InputError(
                f"a line of more than {max_bytes / 1e6:g} MB",
                hint="Raise the limit with --set max_mb.",
            )
            yield replace(line, value=error)
        else:
            yield _read(line, raw, known_ids, check)
    if not count:
        raise InputError(f"{name}: empty", hint="Write one JSON object per line.")


def _check_head(head: bytes, name: str) -> None:
    """Raise Unreadable if a file does not begin like one of JSON lines."""
    try:
        check_format(head)
        if b"\0" in head:
            raise Unreadable("not UTF-8 text", "Give JSON lines in UTF-8.")
    except Unreadable as error:
        raise error.of(name) from None


def _read(line: InputLine, raw: bytes, ids: Ids, check: CheckPaths) -> InputLine:
    """Return the line with its id, and with its content or the error in it."""
    line_id, value = read_line(raw)
    line = replace(line, id=line.number if line_id is None else line_id)
    # The number of a line without a valid id may be the id of another line.
    if line_id is not None or isinstance(value, BatchLine):
        try:
            ids.check(line.id, line.number)
        except InputError as error:
            if isinstance(value, BatchLine):
                value = error
    if isinstance(value, NgtError):
        return replace(line, value=value)
    check(line.number, value.paths)
    return replace(line, value=value, task=value.task, documents_key=value.documents_key)


def scan(
    path: Path, max_bytes: int, shard: Shard, check: CheckPaths = lambda number, paths: None
) -> tuple[list[InputLine], str]:
    """Return the lines of a file, as `read_lines` does, and the SHA-256 of the file in hex.

    Lines are read again when their turn comes: only errors in them stay in memory.
    """
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            lines = []
            for line in read_lines(file, str(path), max_bytes, shard, ids=0, check=check):
                is_good = bool(line.task)
                lines.append(replace(line, value=None) if is_good else line)
            return lines, sha256
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason_of(error)}", hint="Name a file of JSON lines.") from None


class Lines:
    """A queue of lines, grouped by task and within a task by documents, by their first lines.

    Args:
        lines: The lines.
        max_bytes: If not 0, a thread reads lines ahead: at most AHEAD lines past the oldest
            unanswered one, and at most one line beyond this number of bytes. If 0, all lines are
            read at once.
    """

    def __init__(self, lines: Iterable[InputLine], max_bytes: int = 0) -> None:
        self._waiting: dict[str, dict[str, deque[InputLine]]] = {}  # by task and documents
        self._last_task = ""  # those of the line that was taken last
        self._last_documents = ""
        self._max_bytes = max_bytes
        self._open: dict[int, int] = {}  # bytes of each line that is not answered, by index
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.count = 0  # lines read so far
        if max_bytes:
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
        except BaseException as error:  # raised in the thread that waits for lines
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _has_room(self, index: int) -> bool:
        if not self._open or not self._max_bytes:
            return True
        return index - min(self._open) < AHEAD and sum(self._open.values()) < self._max_bytes

    def wait(self) -> bool:
        """Wait for a line; return False at the end. Raises what `read_lines` raises."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting and self._error is not None:
                raise self._error
            return bool(self._waiting)

    def take(self) -> InputLine | None:
        """Return the next line; None if none is waiting.

        A line of the same task with the same documents as the last one comes first; otherwise the
        next is from the group that has waited longest.
        """
        with self._changed:
            if not self._waiting:
                return None
            if self._last_task not in self._waiting:
                self._last_task = next(iter(self._waiting))
            of_task = self._waiting[self._last_task]
            if self._last_documents not in of_task:
                self._last_documents = next(iter(of_task))
            lines = of_task[self._last_documents]
            line = lines.popleft()
            if not lines:
                del of_task[self._last_documents]
            if not of_task:
                del self._waiting[self._last_task]
            return line

    def done(self, line: InputLine) -> None:
        """Mark a line as answered, so that there is room for another one."""
        with self._changed:
            self._open.pop(line.index, None)
            self._changed.notify_all()
