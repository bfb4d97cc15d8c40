"""Answers about documents, in a table or in a folder: views of their journal, each file whole."""

import csv
import hashlib
import io
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from ngtcli.documents.text import utf8
from ngtcli.engine.batch.journal import ANOTHER_FILE, FOLDER, TABLE, RunJournal, journal_of
from ngtcli.engine.batch.run import ItemId
from ngtcli.errors import UsageError
from ngtcli.system.files import file_sha256, write_atomically
from ngtcli.system.journal import ANSWERS, errors_named
from ngtcli.system.json_form import dump_json

Row = Mapping[str, Any]  # JSON values by column
_DIALECTS = {".csv": "excel", ".tsv": "excel-tab"}
SUFFIXES = (*_DIALECTS, ".jsonl", ".json")
NAMES = "Name a file that ends in .csv, .tsv, .jsonl or .json."
_KEEP = "Move it, name another with -o, or overwrite it with --force."
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # the list of OWASP
_MAX_RECORD_BYTES = 1_000_000_000  # bytes of a record, which has all rows of a document (guess)
# A table is written when it has grown by a 50th, so that all writes together take as long as about
# 50 writes of the whole table (guess).
_VIEWS = 50
# Bytes of a file's name without number and suffix; derived: file systems allow 255 bytes.
_MAX_NAME_BYTES = 200


def check_table(path: Path) -> None:
    """Raise UsageError if the name is not that of a table, or the path is not that of a file."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: not the name of a table", hint=NAMES)
    if path.exists() and not path.is_file():  # a device or a pipe, where no run can be resumed
        raise UsageError(f"{path}: not a regular file", hint=NAMES)


class FileRows(Protocol):
    """The receiver of the rows of each document: a journal with its view, or standard output.

    Documents are identified by their ids. Their names may differ in the next run, for example if a
    file of the same name is added.
    """

    @property
    def files(self) -> Sequence[Path]:
        """Return the written files that are known before any document is."""

    def targets(self) -> Sequence[Path]:
        """Return the paths of all files that rows are written to."""

    def wrote(self, path: str) -> bool:
        """Return whether the file at `path` was written by this command, and is no document."""

    def expect(self, names: Mapping[ItemId, str]) -> None:
        """Set the documents of this run, once and in their order, each with its name."""

    def to_do(self) -> Sequence[ItemId]:
        """Return the documents of this run whose rows are not there yet."""

    def deleted(self) -> Sequence[str]:
        """Return the files of earlier runs, not of this one, that do not exist any more."""

    def has(self, item: ItemId) -> bool:
        """Return whether the rows of a document are there already."""

    def rows(self, item: ItemId) -> Sequence[Row]:
        """Return the rows of a document that is done."""

    def put(self, item: ItemId, rows: Sequence[Row]) -> None:
        """Store the rows of a document."""

    def close(self) -> None:
        """Finish the output."""


class RowsOutput(ABC):
    """The rows of documents in a journal, and the output that is made from them. `close` it.

    Files that were not written by this command are overwritten only with `force`.

    Args:
        journal: The journal.
        restart: Whether no document counts as done.
        force: Whether files that this command did not write are overwritten.
        hint: What to do if nothing can be written.
    """

    files: tuple[Path, ...] = ()  # written files that are known before any document is
    _suffix = ""  # the suffix of a file for each document

    def __init__(
        self, journal: RunJournal, *, restart: bool, force: bool, hint: str = ANOTHER_FILE
    ) -> None:
        self._journal = journal
        self._hint = hint
        self._force = force
        self._resumes = not restart  # whether the same command continues with what is done
        self._names: dict[ItemId, str] = {}  # names of this run's documents, in their order
        if restart:
            journal.forget_items()

    def expect(self, names: Mapping[ItemId, str]) -> None:
        """Set the documents of this run, as `FileRows.expect` does.

        Raises UsageError if this would overwrite a file that has changed since it was written.
        """
        self._names = dict(names)

    def to_do(self) -> Sequence[ItemId]:
        """Return the documents that are not done, as `FileRows.to_do` does."""
        return self._journal.to_do(self._names)

    def deleted(self) -> Sequence[str]:
        """Return the deleted files, as `FileRows.deleted` does."""
        return self._journal.deleted(self._names)

    def has(self, item: ItemId) -> bool:
        """Return whether a document is done, as `FileRows.has` does."""
        return self._journal.has(item)

    def rows(self, item: ItemId) -> Sequence[Row]:
        """Return the rows of a finished document. Raises OSError."""
        rows: list[dict[str, Any]] = json.loads(self._journal.rows(item))
        # The name may have changed since the answer, if another document of this name was added.
        name = self._names[item]
        return [{**row, "file": name} if "file" in row else row for row in rows]

    def put(self, item: ItemId, rows: Sequence[Row]) -> None:
        """Store the rows of a document on disk, and write the output if its turn has come.

        Values that JSON in UTF-8 lacks are replaced: infinite numbers by null, lone surrogates by
        "?". Raises NgtError if the rows cannot be written, UsageError if a file has changed since.
        """
        text = utf8(json.dumps(rows, ensure_ascii=False))
        plain = dump_json(json.loads(text, parse_constant=lambda _: None), None)
        name = self._journal.names.get((self._journal.source_of(item), self._suffix), "")
        self._journal.put(item, plain.encode(), name=name)
        self._show(item)

    @abstractmethod
    def _show(self, item: ItemId) -> None:
        """Write the output that a finished document affects."""

    def wrote(self, path: str) -> bool:
        """Return whether this command wrote a file, as `FileRows.wrote` does."""
        return self._journal.wrote(path)

    def _changed(self, path: Path) -> str:
        """Return why a file is not overwritten.

        The reason is "" if the file is missing, empty, or unchanged since it was written.
        """
        is_file = path.is_file()
        if not os.path.lexists(path) or (is_file and not path.stat().st_size):
            return ""
        hashes = self._journal.hashes(path.name)
        if not hashes or not is_file:
            return "already exists, and this command did not write it"
        if file_sha256(path) in hashes:
            return ""
        if self._journal.damaged:
            return f"differs from what its journal {self._journal.path.name} says, which is damaged"
        return "changed after this command wrote it"

    def _check(self, paths: Iterable[Path]) -> None:
        """Raise UsageError for files that exist and have changed since they were written."""
        if self._force:
            return
        reasons = {path: self._changed(path) for path in paths}
        changed = [path for path, why in reasons.items() if why]
        if changed:
            more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise UsageError(f"{changed[0]}: {reasons[changed[0]]}{more}", hint=_KEEP)

    def _write(self, path: Path, text: str) -> None:
        """Write a whole file, unless it has this text already. Raises as `put`."""
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        self._check([path])
        if file_sha256(path) != sha256:
            self._journal.put_written(path.name, sha256)
            with errors_named(path, self._hint, resumes=self._resumes):
                write_atomically(path, text)

    def close(self) -> None:
        """Release the lock. Raises as `put` if something is left to write."""
        self._journal.close()


class TableOutput(RowsOutput):
    """A table, whose suffix determines its format.

    Args:
        path: The table.
        head: Everything that all rows depend on, as JSON. A journal with another head is refused.
        columns: The columns of a CSV or TSV file.
        flat: Returns the cells of a row in a CSV or TSV file.
        whole: Returns the JSON object of a row.
        restart: Whether all rows are made again; the first one replaces all that is there.
        force: Whether a file that this command did not write is overwritten.
        heading: Returns the heading of a column.
        words: The message for each value of the head that may differ, as in `Form`.
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
        if path.is_symlink():
            path = path.resolve()  # one table by all its names
        journal = RunJournal(
            journal_of(path),
            TABLE,
            head,
            words=words,
            max_bytes=_MAX_RECORD_BYTES,
            restart=restart,
        )
        super().__init__(journal, restart=restart, force=force)
        self._path = path
        self._columns = columns
        self._flat = flat
        self._whole = whole
        self._heading = heading
        self.files = (path, journal.path)
        self._shown = 0  # documents in the table, at least
        self._new = 0  # documents done since

    def targets(self) -> Sequence[Path]:
        """Return the paths of all written files, as `FileRows.targets` does."""
        return [self._path]

    def expect(self, names: Mapping[ItemId, str]) -> None:
        super().expect(names)
        self._check([self._path])
        self._shown = len(names) - len(self.to_do())

    def put(self, item: ItemId, rows: Sequence[Row]) -> None:
        if not self._journal.is_begun:  # so that the old table is recognized after a kill
            old = file_sha256(self._path)
            if old:
                self._journal.put_written(self._path.name, old)
        super().put(item, rows)

    def _show(self, item: ItemId) -> None:
        """Write the table if enough documents are new since it was last written."""
        self._new += 1
        if self._new > self._shown // _VIEWS:
            self._write(self._path, self._text())
            self._shown += self._new
            self._new = 0

    def _text(self) -> str:
        """Return the text of the table with all finished documents, in their order."""
        suffix = self._path.suffix.lower()
        rows = (row for item in self._names if self.has(item) for row in self.rows(item))
        dialect = _DIALECTS.get(suffix)
        if dialect:
            out = io.StringIO()
            writer = csv.writer(out, dialect)
            writer.writerow([_cell(self._heading(column)) for column in self._columns])
            for row in map(self._flat, rows):
                writer.writerow([_cell(row.get(column)) for column in self._columns])
            return out.getvalue()
        objects = [dump_json(self._whole(row), None) for row in rows]
        if suffix == ".jsonl":
            return "".join(f"{line}\n" for line in objects)
        return "[\n" + ",\n".join(objects) + "\n]\n"

    def close(self) -> None:
        with closing(self._journal):
            if any(map(self.has, self._names)):
                self._write(self._path, self._text())


def _cell(value: object) -> str:
    """Return the cell of a value: text as it is, "" for None, otherwise JSON.

    A text that a spreadsheet would take for a formula is preceded by an apostrophe.

    >>> [_cell(value) for value in ("tide, high", None, True, -1.5, ["a", None], "=1+1")]
    ['tide, high', '', 'true', '-1.5', '["a", null]', "'=1+1"]
    """
    if value is None or isinstance(value, str):
        text = value or ""
        return f"'{text}" if text.startswith(_COMPUTED) else text
    return dump_json(value, None)


class FolderOutput(RowsOutput):
    """A folder with a file for each document: the `body` of its row.

    A file has the name of its document, except for the `suffix`, and keeps it whatever other
    documents are added. Answers for other keys stay in the journal, so that they come back with
    these keys.

    Args:
        folder: The folder.
        suffix: The suffix of the files.
        restart: Whether all answers are made again.
        force: Whether files that this command did not write are overwritten.
    """

    def __init__(
        self, folder: Path, suffix: str, restart: bool = False, force: bool = False
    ) -> None:
        self._folder = folder
        self._suffix = suffix
        self._paths: dict[ItemId, Path] = {}
        hint = "Name another folder with -o."
        with errors_named(folder, hint, UsageError):
            folder.mkdir(parents=True, exist_ok=True)
        journal = RunJournal(folder / ANSWERS, FOLDER, {}, hint=hint, max_bytes=_MAX_RECORD_BYTES)
        super().__init__(journal, restart=restart, force=force, hint=hint)

    def targets(self) -> Sequence[Path]:
        """Return the paths of all written files, as `FileRows.targets` does."""
        return [*self._paths.values()]

    def path_of(self, item: ItemId) -> Path:
        """Return the file for the answer about a document."""
        return self._paths[item]

    def expect(self, names: Mapping[ItemId, str]) -> None:
        """Set the documents of this run, and rewrite removed files of finished documents."""
        super().expect(names)
        self._name_files()
        for item in names:
            name = self._journal.names[self._journal.source_of(item), self._suffix]
            self._paths[item] = self._folder / name
        done = [item for item in names if self.has(item)]
        edited = set[ItemId]()
        if not self._force:
            edited = {item for item in done if self._is_edited(self._paths[item])}
        self._check(path for item, path in self._paths.items() if item not in edited)
        for item in done:
            if item not in edited:
                self._show(item)

    def _is_edited(self, path: Path) -> bool:
        return self.wrote(str(path)) and bool(self._changed(path))

    def _name_files(self) -> None:
        """Give each document without a file name a new one, unique even if case is ignored.

        No name is that of a document in this folder.
        """
        folder = os.path.realpath(self._folder)
        file_names = self._journal.names
        taken = {name.casefold() for name in file_names.values()}
        for item in self._names:
            parent, base = os.path.split(item.source)
            if parent == folder:
                taken.add(base.casefold())

        new: dict[str, str] = {}  # names of documents, by their sources
        for item, name in self._names.items():
            source = self._journal.source_of(item)
            if (source, self._suffix) not in file_names:
                new[source] = name
        stems = Counter(_stem(name).casefold() for name in new.values())
        for source, name in new.items():
            for base in _file_stems(name, is_unique=stems[_stem(name).casefold()] == 1):
                file_name = f"{base}{self._suffix}"
                if file_name.casefold() not in taken:
                    break
            taken.add(file_name.casefold())
            file_names[source, self._suffix] = file_name

    def _show(self, item: ItemId) -> None:
        self._write(self._paths[item], self.rows(item)[0]["body"])


def _file_stems(document: str, *, is_unique: bool) -> Iterator[str]:
    """Yield names for the file of a document's answer, without the suffix, best first.

    Args:
        document: The name of the document.
        is_unique: Whether no other new document has this name except for its suffix.
    """
    if is_unique:
        yield _stem(document)
    whole = _shortened(document)
    yield whole
    for number in itertools.count(2):
        yield f"{whole}-{number}"


def _stem(document: str) -> str:
    return _shortened(os.path.splitext(document)[0])


def _shortened(document: str) -> str:
    """Return the name of a document, shortened for a file name."""
    stem = document.replace("/", "_").replace("\\", "_").lstrip(".") or "document"
    return stem.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
