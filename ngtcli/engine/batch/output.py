"""The output of a batch: lines, in the order of the input.

The file of a batch is a view of its journal. Lines are appended as their turns come, and the file
is rewritten if a line in it was answered again. A file with any other content is refused.
"""

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ngtcli.documents.find import expand_home
from ngtcli.engine.batch.journal import ANOTHER_FILE, BATCH, Record, RunJournal, journal_of
from ngtcli.engine.batch.run import ItemId
from ngtcli.errors import UsageError
from ngtcli.system import process
from ngtcli.system.files import identity, write_all, write_atomically
from ngtcli.system.journal import LineFile, errors_named

_FORCE = "Name another file with -o, or overwrite it with --force."
_WORDS = {
    "input": "other lines: the input has changed (new or corrected lines need an input file and an"
    " output of their own)",
    "wording": "another wording of preset {task}",
}
_MAX_RECORD_BYTES = 1_000_000  # beside its text, which may be twice as long there (guess)


@dataclass(frozen=True, slots=True)
class DoneLine:
    """A line that is done.

    Attributes:
        index: Its place in the output, from 0.
        text: The text to write, without a line feed.
        failed: Whether the text is an error.
        files: A hash of the sizes and times of the files that were read for it; "" for none.
        texts: A hash of their texts; "" for none.
    """

    index: int
    text: str = ""
    failed: bool = False
    files: str = ""
    texts: str = ""


def line_id(index: int) -> ItemId:
    """Return the id of the line at an index of the input; the input itself is in the head."""
    return ItemId(str(index))


class StreamOutput:
    """A stream of lines in order; each is written when its turn comes and waits in memory before.

    `close` it.

    Args:
        path: The file to write, which replaces an existing one.
        write: Writes a line if there is no file.

    Raises:
        NgtError: The file cannot be written.
    """

    def __init__(self, path: Path | None, write: Callable[[str], object]) -> None:
        self._path = path
        self._write = write
        self._next = 0
        self._waiting: dict[int, str] = {}
        self.close: Callable[[], None] = lambda: None
        if path is not None:
            with errors_named(path, ANOTHER_FILE):
                file = io.FileIO(path, "a")  # no buffer: closing it writes nothing more
            self._write = partial(self._write_to, file)
            self.close = file.close

    def _write_to(self, file: io.FileIO, text: str) -> None:
        with errors_named(self._path, ANOTHER_FILE):
            if not self._next and os.path.isfile(file.fileno()):
                file.truncate(0)
            write_all(file, f"{text}\n".encode())

    def put(self, done: DoneLine) -> None:
        """Take a line."""
        self._waiting[done.index] = done.text
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))
            self._next += 1


class FileOutput:
    """The file of a batch, and its journal. `close` it.

    Args:
        path: The file.
        head: SHA-256 of the `input` in hex, which of its lines are meant (`shard`), the `engine`,
            and under "TASK.NAME" how lines are answered, settings and wording.
        restart: Whether the first line replaces all that is there.
        max_bytes: The maximum size of a line.
        force: Whether a file that this command did not write is overwritten.

    Raises:
        UsageError: This command did not write the file, another process is writing it, or it
            cannot be opened.
        NgtError: The file cannot be written later.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        restart: bool,
        max_bytes: int,
        force: bool = False,
    ) -> None:
        self._path = path.resolve()
        self._named_path = path
        self._max_bytes = max_bytes
        self._written = 0  # lines in the file
        self._is_outdated = False  # a line in the file was answered again since
        self._errors_named = partial(errors_named, path, ANOTHER_FILE, resumes=not restart)
        with ExitStack() as stack, self._errors_named(UsageError):
            self._journal = RunJournal(
                journal_of(path),
                BATCH,
                head,
                words=_WORDS,
                max_bytes=2 * max_bytes + _MAX_RECORD_BYTES,
                restart=restart,
            )
            stack.callback(self._journal.close)
            self._file = LineFile(self._path, 0o666)
            stack.callback(lambda: self._file.close())
            if not force:
                self._check(restart)
            if restart:
                self._journal.forget_items()
                self._written = 0
                self._is_outdated = False
            elif force and self._journal.is_begun:  # else the first line does it
                self._file.truncate(0)
            self._append()
            self._open = stack.pop_all()

    def _check(self, restart: bool) -> None:
        """Compare the file with the journal. Raises UsageError for a line that is not in it."""
        for start, line in self._file.lines(self._max_bytes):
            if not self._journal.is_begun and not self._journal.has_items:
                raise UsageError(
                    f"{self._named_path} already exists, and no journal says what it was made from",
                    hint=_FORCE,
                )
            known = [
                f"{_text(rows)}\n".encode()
                for rows in self._journal.all_rows(line_id(self._written))
            ]
            if not line.endswith(b"\n") and any(text.startswith(line) for text in known):
                if not restart:
                    self._file.truncate(start)  # torn
                return
            if line not in known:
                raise UsageError(
                    f"{self._named_path}: line {self._written + 1} was changed after ngt wrote it",
                    hint="Move the file away, name another with -o, or overwrite it with --force.",
                )
            if line != known[-1]:
                self._is_outdated = True
            self._written += 1

    def has(self, index: int) -> bool:
        """Return whether a line is done, with an answer or an error."""
        return self._journal.has(line_id(index))

    def failed(self, index: int) -> bool:
        """Return whether a line is done, and is an error."""
        return self._journal.failed(line_id(index))

    def to_do(self, indices: Iterable[int], *, retries: bool) -> set[int]:
        """Return the lines that are not done; with `retries`, also those that failed."""
        return {
            int(item.source) for item in self._journal.to_do(map(line_id, indices), retries=retries)
        }

    def record(self, index: int) -> Record:
        """Return the record of a line that is done, without its text."""
        return self._journal.record(line_id(index))

    def put(self, done: DoneLine) -> None:
        """Store a line on disk before this returns. Raises NgtError if that fails."""
        with self._errors_named(), process.unbroken():
            if not self._journal.is_begun:  # the file first: after a kill the journal has it all
                self._file.truncate(0)
            self._journal.put(
                line_id(done.index),
                msgspec.json.encode(done.text),
                failed=done.failed,
                files=done.files,
                texts=done.texts,
            )
            if done.index < self._written:
                self._is_outdated = True
            self._append()

    def _append(self) -> None:
        """Append the lines whose turn has come to the file."""
        while self.has(self._written):
            self._file.append(self._line(self._written).encode(), sync=False)
            self._written += 1

    def _line(self, index: int) -> str:
        return _text(self._journal.rows(line_id(index)))

    def close(self) -> None:
        """Rewrite the file if a line in it was answered again."""
        with self._errors_named(), process.unbroken(), self._open:
            if self._is_outdated:
                lines = (f"{self._line(index)}\n" for index in range(self._written))
                write_atomically(self._path, lines)


def _text(rows: bytes) -> str:
    """Return the text of a line from its rows in the journal."""
    return msgspec.json.decode(rows, type=str)


def written_with(output: Path | None) -> frozenset[tuple[int, int] | None]:
    """Return the existing files that a batch writes, by `identity`.

    Args:
        output: Its file, which has a journal beside it; None for standard output.
    """
    paths = (1,) if output is None else (output, journal_of(output))
    return frozenset(identity(path) for path in paths if os.path.isfile(path))


def check_not_read(number: int, paths: Sequence[str], output: Path | None) -> None:
    """Raise UsageError if a line names a file that the batch writes, even one not there yet."""
    outputs: tuple[str, ...] = ()
    if output is not None:
        outputs = (str(output.resolve()), str(journal_of(output)))
    written = written_with(output) if paths else frozenset()
    for path in map(expand_home, paths):
        if os.path.abspath(path) in outputs or identity(path) in written:
            raise UsageError(
                f"line {number} reads {path}, and this command would overwrite it",
                hint="Name another file with -o.",
            )
