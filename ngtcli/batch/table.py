"""A table with the rows of many files, so that the same command goes on after a kill.

Its journal, `NAME.journal`, has the rows of each file that is done, under a key of what decides
them: it is the truth. The table is a view of it, written whole, in the order of the files; a hash
of each is in the journal before it is written. So one that another program wrote or changed is
known, also after a kill, and is not written over.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from ngtcli.batch.output import ANOTHER_FILE, changed_since, hash_of, journal_of
from ngtcli.documents.text import utf8
from ngtcli.errors import UsageError
from ngtcli.system import process
from ngtcli.system.files import write_atomically
from ngtcli.system.journal import Form, Journal, errors_named
from ngtcli.system.json_form import dump_json

Row = Mapping[str, Any]  # values by column, as JSON has them
_DIALECTS = {".csv": "excel", ".tsv": "excel-tab"}
SUFFIXES = (*_DIALECTS, ".jsonl", ".json")
NAMES = "Name a file that ends in .csv, .tsv, .jsonl or .json."
_KEEP = "Move it away, and it is made again, name another with -o, or write over it with --restart."
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # as OWASP lists them
_MOST = 1_000_000_000  # bytes of a record, which has all rows of a file; guess
_VIEWS = 50  # a table is written when it has grown by a 50th: all writes take as much as 50; guess


class _Record(Struct, frozen=True, omit_defaults=True):
    """The rows of a file and the key of what decides them; or a hash of a `table` to be written.

    Rows are as they were given: numbers in JSON may be larger than msgspec reads.
    """

    file: str = ""
    key: str = ""
    rows: Raw = Raw(b"[]")
    table: str = ""


_TABLE = Form("ngt-table", 1, _Record, ANOTHER_FILE)


def check_table(path: Path) -> None:
    """Raise UsageError for a name that is not that of a table."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: no table is written under such a name", NAMES)


class TableOutput:
    """A table at `path`, whose suffix says its form, and its journal. `close` it.

    `head` is what decides all rows, JSON-ready: another one is refused. A CSV or TSV has `columns`,
    of what `flat` makes of a row; JSON has rows as `whole` makes them. After opening, `expect` is
    called once.
    Raises UsageError where the journal is another's, or where another process writes it; with
    `restart` nothing counts as done, and what is at `path` may be written over.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        columns: Sequence[str],
        *,
        flat: Callable[[Row], Row] = dict,
        whole: Callable[[Row], Row] = dict,
        restart: bool = False,
    ) -> None:
        check_table(path)
        self.path, self._columns, self._flat, self._whole = path, columns, flat, whole
        self._places: dict[tuple[str, str], int] = {}  # in the journal, by file and key
        self._tables = set[str]()  # hashes of all that were written
        self._keys: dict[str, str] = {}  # of the files of this run, in their order
        self._shown = -1  # files in the table; -1 where it is not known to be as it should
        self._journal = Journal(journal_of(path), _TABLE, head, _MOST, restart)
        for place, record in self._journal:
            self._note(place, record)
        if restart and path.is_file():
            self._note_table(hash_of(path))

    def _note(self, place: int, record: _Record) -> None:
        if record.table:
            self._tables.add(record.table)
        else:
            self._places[record.file, record.key] = place

    def expect(self, keys: Mapping[str, str]) -> None:
        """Say which files the table is of, in their order, and the key of each.

        A key stands for all that decides the rows of its file and is not in the head, as its text.
        Raises UsageError for a table that is not as it was written here.
        """
        self._keys = dict(keys)
        self._check()

    def has(self, file: str) -> bool:
        """Whether the rows of a file are there, made from what its key stands for."""
        return (file, self._keys[file]) in self._places

    def rows(self, file: str) -> Sequence[Row]:
        """The rows of a file that is done. Raises OSError."""
        rows: list[dict[str, Any]] = json.loads(
            bytes(self._journal.at(self._places[file, self._keys[file]]).rows)
        )
        return rows

    @property
    def others(self) -> int:
        """How many files have rows in the journal, and are not among those of this run."""
        return len({file for file, _ in self._places if file not in self._keys})

    def put(self, file: str, rows: Sequence[Row]) -> None:
        """Take the rows of a file, which are on disk when this returns; the table comes later.

        What JSON in UTF-8 lacks is left out: infinite numbers are null, lone surrogates "?".
        Raises NgtError where they cannot be written, UsageError for a table that was changed.
        """
        text = utf8(json.dumps(rows, ensure_ascii=False))
        plain = dump_json(json.loads(text, parse_constant=lambda _: None), None)
        record = _Record(file, self._keys[file], Raw(plain.encode()))
        with errors_named(self.path, ANOTHER_FILE), process.unbroken():
            self._note(self._journal.add(record), record)
        done = sum(map(self.has, self._keys))
        if done - max(self._shown, 0) > self._shown // _VIEWS:
            self._write(done)

    def _write(self, done: int) -> None:
        """Write the table, of so many files, unless it is there."""
        text = self._text()
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        self._check()
        with errors_named(self.path, ANOTHER_FILE), process.unbroken():
            if hash_of(self.path) != sha256:
                self._note_table(sha256)
                write_atomically(self.path, text)
        self._shown = done

    def _note_table(self, sha256: str) -> None:
        """Note a table before it is written, or what may be written over."""
        if sha256 not in self._tables:
            with errors_named(self.path, ANOTHER_FILE):
                self._journal.add(_Record(table=sha256))
            self._tables.add(sha256)

    def _check(self) -> None:
        """Raise UsageError for a table that is not as it was written here."""
        why = changed_since(self.path, self._tables)
        if why and not (self.path.is_file() and not self.path.stat().st_size):
            raise UsageError(f"{self.path}: {why}", _KEEP)

    def _text(self) -> str:
        """The table as it should be, in the form of its suffix."""
        suffix, rows = self.path.suffix.lower(), self._all()
        if dialect := _DIALECTS.get(suffix):
            out = io.StringIO()
            writer = csv.writer(out, dialect)
            writer.writerow(self._columns)
            for row in map(self._flat, rows):
                writer.writerow([_cell(row.get(column)) for column in self._columns])
            return out.getvalue()
        objects = [dump_json(self._whole(row), None) for row in rows]
        if suffix == ".jsonl":
            return "".join(f"{one}\n" for one in objects)
        return "[\n" + ",\n".join(objects) + "\n]\n"

    def _all(self) -> Iterator[Row]:
        """The rows of all files that are done, in the order of the files."""
        for file in filter(self.has, self._keys):
            yield from self.rows(file)

    def close(self) -> None:
        """Write the table, if a file is done, and end the lock. Raises as `put` does."""
        with closing(self._journal):
            if done := sum(map(self.has, self._keys)):
                self._write(done)


def _cell(value: object) -> str:
    """A value as a cell has it: a text, nothing for None, else JSON.

    Before a text that a spreadsheet would compute there is an apostrophe.

    >>> [_cell(value) for value in ("tide, high", None, True, -1.5, ["a", None], "=1+1")]
    ['tide, high', '', 'true', '-1.5', '["a", null]', "'=1+1"]
    """
    if value is None or isinstance(value, str):
        text = value or ""
        return f"'{text}" if text.startswith(_COMPUTED) else text
    return dump_json(value, None)
