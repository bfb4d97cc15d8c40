"""The journal of finished items, which a batch, a table and a folder of answers share.

Each finished item has a record, which is on disk before any output shows it. So the journal is the
source of truth, and the files that people read are made from it. They differ in how a row is
written: as lines (`output`), in a table, or in a file for each document (`table`).

Before a file is written whole, its hash is recorded. So a file that another program wrote or
changed is recognized, even after this process was killed, and is not overwritten.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ngtcli.documents.find import STDIN
from ngtcli.documents.text import utf8
from ngtcli.engine.batch.run import ItemId
from ngtcli.system import process
from ngtcli.system.journal import Form, Journal, errors_named

BATCH = "a batch"
TABLE = "a table"
FOLDER = "a folder of answers"
ANOTHER_FILE = "Name another file with -o, or write it again with --restart."


class Record(Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a finished item, or a file that is about to be `written`.

    Attributes:
        file: The source of the item: a path seen from the journal's folder, a number, or STDIN.
        key: A hash of the item's text and of everything else that its rows depend on.
        rows: The rows of the item, as JSON. Its numbers may be larger than msgspec reads.
        failed: Whether the rows are an error.
        name: The name of the answer's file, if the output is a folder.
        files: A hash of the sizes and times of the files that a line of a batch names; "" for none.
        texts: A hash of the texts of these files; "" for none.
        written: The name of a file that is written whole.
        sha256: SHA-256 of that file, in hex.
    """

    file: str = ""
    key: str = ""
    rows: Raw = Raw(b"[]")
    failed: bool = False
    name: str = ""
    files: str = ""
    texts: str = ""
    written: str = ""
    sha256: str = ""


class _Line3(Struct, frozen=True):
    """A record of version 3 of a batch's journal, which had a separate format."""

    index: int
    text: str = ""
    failed: bool = False
    files: str = ""
    texts: str = ""

    def record(self) -> Record:
        return Record(
            file=str(self.index),
            rows=Raw(msgspec.json.encode(self.text)),
            failed=self.failed,
            files=self.files,
            texts=self.texts,
        )


# Older journals by the kind of output; those of tables and folders had the same records.
_EARLIER: Mapping[str, Mapping[tuple[str, int], type[Any]]] = {
    BATCH: {("ngt-batch", 3): _Line3},
    TABLE: {("ngt-table", 2): Record},
    FOLDER: {("ngt-answers", 4): Record},
}


class RunJournal:
    """The journal of a run: its finished, failed and remaining items. `close` it.

    An item is identified by the real path of its file, whatever its name in a run, and by its text:
    an item whose text has changed is not done. The rows of both texts stay in the journal.

    Args:
        path: The journal.
        output: The kind of output: BATCH, TABLE or FOLDER.
        head: Everything that the rows of all items depend on, as JSON. A journal with another head
            is refused.
        hint: What to do if the journal cannot be used.
        words: As in `Form`.
        max_bytes: The maximum size of a record that is read.
        restart: Whether the first new record replaces all that is there. The replaced items stay
            known until `forget_items`.

    Raises:
        UsageError: As for `Journal`, and if another process writes to it.
    """

    def __init__(
        self,
        path: Path,
        output: str,
        head: Mapping[str, Any],
        *,
        hint: str = ANOTHER_FILE,
        words: Mapping[str, str] | None = None,
        max_bytes: int,
        restart: bool = False,
    ) -> None:
        form = Form(
            "ngt-run",
            1,
            Record,
            hint,
            words or {},
            output,
            _EARLIER[output],
            by_command=output == TABLE,
        )
        self.path = path
        self._hint = hint
        self._resumes = not restart
        self._folder = os.path.realpath(path.parent)
        # The last record of each item, without rows, and the places of all of its records.
        self._records: dict[tuple[str, str], Record] = {}
        self._places: dict[tuple[str, str], list[int]] = {}
        self._hashes: dict[str, set[str]] = {}  # hashes of all written versions, by file name
        self.names: dict[tuple[str, str], str] = {}  # names of answers' files, by source and suffix
        self._journal = Journal(path, form, head, max_bytes, restart)
        try:
            for place, record in self._journal.earlier():
                self._note(place, record)
            for place, record in self._journal:
                self._note(place, record)
        except BaseException:
            self._journal.close()
            raise

    @property
    def damaged(self) -> bool:
        """Return whether records could not be read."""
        return self._journal.damaged

    @property
    def is_begun(self) -> bool:
        """Return whether the journal has valid records."""
        return bool(self._journal.begun)

    @property
    def has_items(self) -> bool:
        """Return whether any item is done."""
        return bool(self._records)

    def _note(self, place: int, record: Record) -> None:
        if record.written:
            self._hashes.setdefault(record.written, set()).add(record.sha256)
        else:
            key = record.file, record.key
            self._records[key] = replace(record, rows=Raw(b""))
            self._places.setdefault(key, []).append(place)
        if record.name:
            self.names[record.file, os.path.splitext(record.name)[1]] = record.name

    def forget_items(self) -> None:
        """Count no item as done; written files are still known."""
        self._records.clear()
        self._places.clear()

    # --- items ---

    def source_of(self, item: ItemId) -> str:
        """Return the source of an item as in records: relative, as both may move together."""
        if not os.path.isabs(item.source):
            return item.source
        return utf8(os.path.relpath(item.source, self._folder))

    def _key(self, item: ItemId) -> tuple[str, str]:
        return self.source_of(item), item.key

    def has(self, item: ItemId) -> bool:
        """Return whether an item is done, with a row or an error."""
        return self._key(item) in self._records

    def failed(self, item: ItemId) -> bool:
        """Return whether an item is done, and failed."""
        record = self._records.get(self._key(item))
        return record is not None and record.failed

    def to_do(self, items: Iterable[ItemId], *, retries: bool = False) -> list[ItemId]:
        """Return the items that are not done; with `retries`, also those that failed."""
        return [item for item in items if not self.has(item) or (retries and self.failed(item))]

    def deleted(self, items: Iterable[ItemId]) -> list[str]:
        """Return the files that are done, are not among these items, and do not exist any more.

        Their paths and their order are those of the journal.
        """
        expected = {self.source_of(item) for item in items}
        sources = dict.fromkeys(source for source, _ in self._records)
        return [
            source
            for source in sources
            if source not in expected
            and source != STDIN
            and not os.path.lexists(os.path.join(self._folder, source))
        ]

    def record(self, item: ItemId) -> Record:
        """Return the record of an item that is done, without its rows."""
        return self._records[self._key(item)]

    def rows(self, item: ItemId) -> bytes:
        """Return the last rows of an item that is done, as JSON. Raises OSError."""
        return bytes(self._journal.at(self._places[self._key(item)][-1]).rows)

    def all_rows(self, item: ItemId) -> Iterator[bytes]:
        """Yield all rows that an item ever had, the latest last. Raises OSError."""
        for place in self._places.get(self._key(item), ()):
            yield bytes(self._journal.at(place).rows)

    def put(
        self,
        item: ItemId,
        rows: bytes,
        *,
        failed: bool = False,
        name: str = "",
        files: str = "",
        texts: str = "",
    ) -> None:
        """Record the rows of an item, which are on disk when this returns.

        Args:
            item: The item.
            rows: Its rows, as JSON.
            failed: As in `Record`.
            name: As in `Record`.
            files: As in `Record`.
            texts: As in `Record`.

        Raises:
            NgtError: They cannot be written.
        """
        source, key = self._key(item)
        self._add(Record(source, key, Raw(rows), failed, name, files, texts))

    # --- files that are written whole ---

    def hashes(self, name: str) -> set[str]:
        """Return the SHA-256 of each version of this file, beside the journal, that was written."""
        return self._hashes.get(name, set())

    def wrote(self, path: str) -> bool:
        """Return whether this command wrote a file at this path, even if it has changed since."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._hashes and folder == self._folder

    def put_written(self, name: str, sha256: str) -> None:
        """Record the hash of a file that is about to be written. Raises NgtError."""
        self._add(Record(written=name, sha256=sha256))

    def _add(self, record: Record) -> None:
        errors = errors_named(self.path, self._hint, resumes=self._resumes)
        with errors, process.unbroken():
            self._note(self._journal.add(record), record)

    def close(self) -> None:
        """Release the lock."""
        self._journal.close()


def journal_of(path: Path) -> Path:
    """Return the path of the journal next to an output."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")
