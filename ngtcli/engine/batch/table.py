"""Answers about files, in a table or in a folder, so that the same command goes on after a kill.

The journal has the rows of each file that is done, under a key of what decides them: it is the
truth. What is written of them is a view, each file of it whole; a hash of that is in the journal
before it is written. So one that another program wrote or changed is known, also after a kill, and
is not written over.
"""

import csv
import hashlib
import io
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from msgspec import Raw, Struct

from ngtcli.documents.text import utf8
from ngtcli.engine.batch.output import ANOTHER_FILE, journal_of
from ngtcli.errors import UsageError
from ngtcli.system import process
from ngtcli.system.files import file_sha256, write_atomically
from ngtcli.system.journal import ANSWERS, Form, Journal, errors_named
from ngtcli.system.json_form import dump_json

Row = Mapping[str, Any]  # values by column, as JSON has them
_DIALECTS = {".csv": "excel", ".tsv": "excel-tab"}
SUFFIXES = (*_DIALECTS, ".jsonl", ".json")
NAMES = "Name a file that ends in .csv, .tsv, .jsonl or .json."
_KEEP = "Move it away, name another with -o, or write over it with --force."
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # as OWASP lists them
_MOST = 1_000_000_000  # bytes of a record, which has all rows of a file; guess
_VIEWS = 50  # a table is written when it has grown by a 50th: all writes take as much as 50; guess
# Bytes of a file's name, number and suffix left out; derived: file systems take 255 in all.
_LONGEST = 200


class _Record(Struct, frozen=True, omit_defaults=True):
    """The rows of a file and the key of what decides them; or of a file to be `written` its hash.

    `file` is the real path of a document, seen from the journal's folder, or its name where it has
    no path; `name` is that of the file which its answer stands in, in a folder. Rows are as they
    were given: numbers in JSON may be larger than msgspec reads.
    """

    file: str = ""
    key: str = ""
    rows: Raw = Raw(b"[]")
    name: str = ""
    written: str = ""
    sha256: str = ""


def check_table(path: Path) -> None:
    """Raise UsageError for a name that is not that of a table, and for what is no file."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: no table is written under such a name", hint=NAMES)
    if path.exists() and not path.is_file():  # a device or a pipe, which nothing can be resumed in
        raise UsageError(f"{path}: not a regular file", hint=NAMES)


class FileRows(Protocol):
    """What takes the rows of each document: a journal with its view, or standard output.

    Within a run documents are known by their names, of which no two are alike. The next run may
    call them otherwise, as where a file of the same name joins: a journal knows them by their real
    paths.
    """

    @property
    def files(self) -> Sequence[Path]:
        """The files that are written and known before any document is."""

    @property
    def paths(self) -> Mapping[str, Path]:
        """The path of all that is written, for each document or as a whole."""

    def wrote(self, path: str) -> bool:
        """Return whether the file at `path` was written here, and is no document."""

    def expect(self, keys: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """Take the documents of this run, once and in their order.

        Args:
            keys: For each name a key of all that decides its rows.
            paths: The path of each that is a file.
        """

    def has(self, file: str) -> bool:
        """Return whether the rows of a document are there already."""

    def rows(self, file: str) -> Sequence[Row]:
        """Return the rows of a document that is done."""

    def put(self, file: str, rows: Sequence[Row]) -> None:
        """Take the rows of a document."""

    def close(self) -> None:
        """End what is written."""


class RowsOutput(ABC):
    """Rows of files in a journal, begun with `head`, and what is written of them. `close` it.

    Documents are known by their real paths, and called by their names in all methods. With
    `restart` none counts as done, and once there is a row it takes the place of all there is. What
    was not written here is written over with `force` alone. Raises UsageError where another process
    writes it.
    """

    files: tuple[Path, ...] = ()  # that are written and known before any document is
    _suffix = ""  # of a file for each document
    paths: dict[str, Path]  # of all that is written

    def __init__(
        self,
        journal: Path,
        form: Form[_Record],
        head: Mapping[str, Any],
        restart: bool,
        force: bool = False,
    ) -> None:
        self._hint, self._force = form.hint, force
        self._resumes = not restart  # whether the same command goes on with what is done
        self._places: dict[tuple[str, str], int] = {}  # in the journal, by identity and key
        self._hashes: dict[str, set[str]] = {}  # of all that was written, by name
        self._names: dict[tuple[str, str], str] = {}  # of answers' files, by identity and suffix
        self._keys: dict[str, str] = {}  # by the names of this run's documents, in their order
        self._identities: dict[str, str] = {}  # likewise
        self._journal = Journal(journal, form, head, _MOST, restart and bool(head))
        for place, record in (*self._journal.earlier(), *self._journal):
            self._note(place, record)
        if restart:
            self._places.clear()

    def _note(self, place: int, record: _Record) -> None:
        if record.written:
            self._hashes.setdefault(record.written, set()).add(record.sha256)
        else:
            self._places[record.file, record.key] = place
        if record.name:
            self._names[record.file, os.path.splitext(record.name)[1]] = record.name

    def _add(self, record: _Record) -> None:
        with (
            errors_named(self._journal.path, self._hint, resumes=self._resumes),
            process.unbroken(),
        ):
            self._note(self._journal.add(record), record)

    def expect(self, keys: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """Say once which documents there are, in their order, by their names, and the key of each.

        A key stands for all that decides the rows of its document and is not in the head, as its
        text; `paths` has the path of each that is a file. Raises UsageError for what would be
        written over and is not as it was written here.
        """
        self._keys = dict(keys)
        known = paths or {}
        folder = os.path.realpath(self._journal.path.parent)
        self._identities = {
            name: utf8(os.path.relpath(os.path.realpath(known[name]), folder))
            if known.get(name)
            else name
            for name in keys
        }

    def _place(self, file: str) -> tuple[str, str]:
        return self._identities[file], self._keys[file]

    def has(self, file: str) -> bool:
        """Whether the rows of a document are there, made from what its key stands for."""
        return self._place(file) in self._places

    def rows(self, file: str) -> Sequence[Row]:
        """The rows of a file that is done. Raises OSError."""
        record = self._journal.at(self._places[self._place(file)])
        rows: list[dict[str, Any]] = json.loads(bytes(record.rows))
        # A document may be called otherwise than when it was answered, beside one of its name.
        return [{**row, "file": file} if "file" in row else row for row in rows]

    def put(self, file: str, rows: Sequence[Row]) -> None:
        """Take the rows of a file, which are on disk when this returns, and show them.

        What JSON in UTF-8 lacks is left out: infinite numbers are null, lone surrogates "?".
        Raises NgtError where they cannot be written, UsageError for what was changed since.
        """
        text = utf8(json.dumps(rows, ensure_ascii=False))
        plain = dump_json(json.loads(text, parse_constant=lambda _: None), None)
        identity, key = self._place(file)
        name = self._names.get((identity, self._suffix), "")
        self._add(_Record(identity, key, Raw(plain.encode()), name))
        self._show(file)

    @abstractmethod
    def _show(self, file: str) -> None:
        """Write what is to be written now that a file is done."""

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here, and is no document."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._hashes and folder == os.path.dirname(self._journal.path.resolve())

    def _changed(self, path: Path) -> str:
        """Why a file is not written over; "" where it is absent, empty, or as it was written."""
        is_file = path.is_file()
        if not os.path.lexists(path) or (is_file and not path.stat().st_size):
            return ""
        known = self._hashes.get(path.name)
        if not known or not is_file:
            return "it is there, and this command did not write it"
        if file_sha256(path) in known:
            return ""
        if self._journal.damaged:
            return f"it is not as its journal {self._journal.path.name} says, which is damaged"
        return "it was changed after this command wrote it"

    def _check(self, paths: Iterable[Path]) -> None:
        """Raise UsageError for files that are there and are not as they were written here."""
        found = [(p, why) for p in paths if not self._force and (why := self._changed(p))]
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise UsageError(f"{found[0][0]}: {found[0][1]}{more}", hint=_KEEP)

    def _write(self, path: Path, text: str) -> None:
        """Write a file whole, unless it is there. Raises as `put`."""
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        self._check([path])
        if file_sha256(path) != sha256:
            self._add(_Record(written=path.name, sha256=sha256))
            with errors_named(path, self._hint, resumes=self._resumes):
                write_atomically(path, text)

    def close(self) -> None:
        """End the lock. Raises as `put` where something is left to write."""
        self._journal.close()


class TableOutput(RowsOutput):
    """A table at `path`, whose suffix says its form.

    `head` is what decides all rows, JSON-ready: another one is refused. A CSV or TSV has `columns`,
    of what `flat` makes of a row, which `heading` shows; JSON has rows as `whole` makes them.
    `words` say what differs of two heads, as in `Form`.
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
        force: bool = False,
        heading: Callable[[str], str] = str,
        words: Mapping[str, str] | None = None,
    ) -> None:
        check_table(path)
        path = path.resolve() if path.is_symlink() else path  # one table by all its names
        form = Form("ngt-table", 2, _Record, ANOTHER_FILE, words or {})
        super().__init__(journal_of(path), form, head, restart, force)
        self._path, self._columns, self._flat, self._whole = path, columns, flat, whole
        self._heading = heading
        self.files, self.paths = (path, journal_of(path)), {"": path}
        self._shown = self._new = 0  # files in the table, at least, and done since

    def expect(self, keys: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        super().expect(keys, paths)
        self._check([self._path])
        self._shown = sum(map(self.has, keys))

    def put(self, file: str, rows: Sequence[Row]) -> None:
        if not self._journal.begun and (old := file_sha256(self._path)):  # after a kill it is known
            self._add(_Record(written=self._path.name, sha256=old))
        super().put(file, rows)

    def _show(self, file: str) -> None:
        """Write the table where that pays."""
        self._new += 1
        if self._new > self._shown // _VIEWS:
            self._write(self._path, self._text())
            self._shown, self._new = self._shown + self._new, 0

    def _text(self) -> str:
        """The table as it should be, of all files that are done, in their order."""
        suffix = self._path.suffix.lower()
        rows = (row for file in filter(self.has, self._keys) for row in self.rows(file))
        if dialect := _DIALECTS.get(suffix):
            out = io.StringIO()
            writer = csv.writer(out, dialect)
            writer.writerow([_cell(self._heading(column)) for column in self._columns])
            for row in map(self._flat, rows):
                writer.writerow([_cell(row.get(column)) for column in self._columns])
            return out.getvalue()
        objects = [dump_json(self._whole(row), None) for row in rows]
        if suffix == ".jsonl":
            return "".join(f"{one}\n" for one in objects)
        return "[\n" + ",\n".join(objects) + "\n]\n"

    def close(self) -> None:
        with closing(self._journal):
            if any(map(self.has, self._keys)):
                self._write(self._path, self._text())


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


class FolderOutput(RowsOutput):
    """A folder, made where there is none, with a file for each document: the `body` of its row.

    A file is called as its document, but for the `suffix`, and keeps that name whatever other
    documents come. What was made from other keys stays in the journal, so that it comes back with
    them.
    """

    def __init__(
        self, folder: Path, suffix: str, restart: bool = False, force: bool = False
    ) -> None:
        self._folder, self._suffix = folder, suffix
        form = Form("ngt-answers", 4, _Record, "Name another folder with -o.")
        with errors_named(folder, form.hint, UsageError):
            folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / ANSWERS, form, {}, restart, force)

    def expect(self, keys: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """As above; what is done and taken away is written again."""
        super().expect(keys, paths)
        self._give_names({os.path.realpath(path) for path in (paths or {}).values() if path})
        self.paths = {
            name: self._folder / self._names[identity, self._suffix]
            for name, identity in self._identities.items()
        }
        done = [file for file in keys if self.has(file)]
        edited = [
            f for f in done if self.wrote(str(self.paths[f])) and self._changed(self.paths[f])
        ]
        edited = [] if self._force else edited
        self._check(path for file, path in self.paths.items() if file not in edited)
        for file in done:
            if file not in edited:
                self._show(file)

    def _give_names(self, documents: Collection[str]) -> None:
        """A file name for each document that has none, no two alike even where case does not count.

        None is that of one of the `documents`, which are real paths.
        """
        folder = os.path.realpath(self._folder)
        taken = {name.casefold() for name in self._names.values()}
        taken |= {
            os.path.basename(path).casefold()
            for path in documents
            if os.path.dirname(path) == folder
        }
        new = [
            (name, identity)
            for name, identity in self._identities.items()
            if (identity, self._suffix) not in self._names
        ]
        stems = Counter(_shortened(os.path.splitext(name)[0]).casefold() for name, _ in new)
        for document, identity in new:
            whole, stem = _shortened(document), _shortened(os.path.splitext(document)[0])
            is_own = stems[stem.casefold()] == 1
            numbered = (f"{whole}-{number}" for number in itertools.count(2))
            for base in itertools.chain([stem] if is_own else [], [whole], numbered):
                name = f"{base}{self._suffix}"
                if name.casefold() not in taken:
                    break
            taken.add(name.casefold())
            self._names[identity, self._suffix] = name

    def _show(self, file: str) -> None:
        self._write(self.paths[file], self.rows(file)[0]["body"])


def _shortened(document: str) -> str:
    """The name of a document as a part of a file's name."""
    stem = document.replace("/", "_").replace("\\", "_").lstrip(".") or "document"
    return stem.encode()[:_LONGEST].decode(errors="ignore")
