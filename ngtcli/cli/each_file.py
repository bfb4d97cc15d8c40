"""Shared by the commands that answer about each file separately: documents in, rows out."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ngtcli.cli.answer_flags import Output, OutputFormat, read_documents
from ngtcli.cli.notes import Notes
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Document, load
from ngtcli.documents.read import DocumentReader
from ngtcli.engine.batch.journal import journal_of
from ngtcli.engine.batch.output import DoneLine, StreamOutput
from ngtcli.engine.batch.run import ItemId
from ngtcli.engine.batch.table import Row
from ngtcli.engine.request import Request
from ngtcli.errors import InputError, NgtError
from ngtcli.prompts.preset import deciding
from ngtcli.system.files import key_of
from ngtcli.words import counted

_NAMES_SHOWN = 3  # of files that no longer exist


def read_each(
    request: Request,
    output: Output,
    paths: list[str],
    hint: str,
    notes: Notes,
    files: Sequence[Path] = (),
    wrote: Callable[[str], bool] = lambda _: False,
) -> tuple[Sequence[Document], int]:
    """Read the documents, and report the paths that cannot be read.

    Args:
        request: Its settings say how files are read.
        output: Its files are not read.
        paths: Files, folders and patterns.
        hint: What to do if no document is named.
        notes: Shows warnings.
        files: Other files that this command writes, which are not read.
        wrote: Returns whether an earlier run wrote the file at a path; such files are not read.

    Returns:
        The documents, and how many paths could not be read.

    Raises:
        InputError: There is no document.
    """
    failed = 0
    try:
        loaded = read_documents(paths, request, output, hint, files)
    except InputError:
        if len(paths) < 2 or STDIN in paths:
            raise
        errors = _errors_of(paths, request)
        if len(errors) == len(paths):
            raise errors[paths[0]] from None
        for error in errors.values():
            report_failure(notes, "", error)
        failed = len(errors)
        readable = [path for path in paths if path not in errors]
        loaded = read_documents(readable, request, output, hint, files)

    documents = [
        document for document in loaded.documents if not (document.path and wrote(document.path))
    ]
    if not documents:
        raise InputError(
            "all these documents are answers that this command wrote", hint="Name other documents."
        )
    written = len(loaded.documents) - len(documents)
    if written:
        notes.warn(f"skipped {counted(written, 'file')}: answers that this command wrote")
    return documents, failed


def _errors_of(paths: Sequence[str], request: Request) -> dict[str, InputError]:
    """Return the errors of the paths that cannot be read."""
    errors: dict[str, InputError] = {}
    with closing(DocumentReader(request.settings)) as reader:
        for path in paths:
            try:
                load([path], settings=request.settings, reader=reader)
            except InputError as error:
                errors[path] = error
    return errors


def decisive_values(request: Request, output: Output) -> dict[str, Any]:
    """Return everything that an answer and its display depend on, except its document, as JSON."""
    shown: list[bool] = []
    if not output.is_table:
        is_json = output.format is OutputFormat.JSON
        has_tokens = output.format is OutputFormat.JSON_TOKENS
        shown = [output.cites, is_json, has_tokens, output.shows_thinking]
    values: dict[str, Any] = {
        "engine": request.settings.engine.engine,
        "question": request.question,
        "shown": shown,
    }
    for name, value in sorted(deciding(request.settings, request.preset).items()):
        values[f"{request.task}.{name}"] = value
    return values


def item_ids(documents: Sequence[Document], *key: object) -> dict[ItemId, Document]:
    """Return documents by their identity: the real path, and the text.

    Args:
        documents: The documents.
        *key: Other values that the rows of a document depend on, and that are not in the head of
            the journal.
    """
    by_id: dict[ItemId, Document] = {}
    for document in documents:
        path = os.path.realpath(document.path) if document.path else STDIN
        by_id[ItemId(path, key_of(*key, document.sha256))] = document
    return by_id


class RowsOnStdout:
    """Standard output as `FileRows`: the text of rows, in the order of the documents.

    Args:
        text: Makes the text of the rows of a file.
        keeps: Whether rows are kept for `rows`.
    """

    files: tuple[Path, ...] = ()

    def __init__(self, text: Callable[[Sequence[Any]], str], keeps: bool = False) -> None:
        self._text = text
        self._keeps = keeps
        self._numbers: dict[ItemId, int] = {}  # of this run's documents
        self._rows: dict[ItemId, Sequence[Row]] = {}
        self._stream = StreamOutput(None, self._write)
        self._is_first = True

    def targets(self) -> Sequence[Path]:
        """As `FileRows.targets`."""
        return []

    def wrote(self, path: str) -> bool:
        """As `FileRows.wrote`."""
        return False

    def expect(self, names: Mapping[ItemId, str]) -> None:
        """As `FileRows.expect`."""
        self._numbers = {item: number for number, item in enumerate(names)}

    def to_do(self) -> Sequence[ItemId]:
        """As `FileRows.to_do`: all documents, because nothing is resumed."""
        return [*self._numbers]

    def deleted(self) -> Sequence[str]:
        """As `FileRows.deleted`."""
        return []

    def has(self, item: ItemId) -> bool:
        """As `FileRows.has`."""
        return item in self._rows

    def rows(self, item: ItemId) -> Sequence[Row]:
        """As `FileRows.rows`, for a document whose rows are kept."""
        return self._rows[item]

    def put(self, item: ItemId, rows: Sequence[Row]) -> None:
        """As `FileRows.put`."""
        if self._keeps:
            self._rows[item] = rows
        self.show(item, self._text(rows))

    def show(self, item: ItemId, text: str) -> None:
        """Print the text of a document, "" for none, when its turn comes."""
        self._stream.put(DoneLine(self._numbers[item], text))

    def close(self) -> None:
        """As `FileRows.close`."""

    def _write(self, text: str) -> None:
        sys.stdout.write(text.removeprefix("\n") if self._is_first else text)
        sys.stdout.flush()
        if text:
            self._is_first = False


def warn_of_deleted(notes: Notes, table: Path, deleted: Sequence[str]) -> None:
    """Warn of files whose rows a table lost because they no longer exist.

    Args:
        notes: Shows the warning.
        table: The table.
        deleted: The names of the files.
    """
    if not deleted:
        return
    names = ", ".join(deleted[:_NAMES_SHOWN])
    if len(deleted) > _NAMES_SHOWN:
        names += ", …"
    verb = "exist" if len(deleted) > 1 else "exists"
    notes.warn(
        f"{table.name} leaves out {counted(len(deleted), 'file')} that no longer {verb}: {names};"
        " its journal keeps the rows"
    )


def say_written(notes: Notes, table: Path | None) -> None:
    """Report where a table is, and what its journal is for."""
    if table is None or not table.is_file():
        return
    journal = journal_of(table)
    use = f" (keep {journal.name} to repeat this command for new files)" if journal.exists() else ""
    notes.say(f"→ {table}{use}")


def report_failure(notes: Notes, name: str, error: NgtError) -> None:
    """Report in one line that a file failed.

    Args:
        notes: Shows the line.
        name: The name of the file; "" if the error has it.
        error: Why it failed.
    """
    message = str(error)
    if name and name not in message:
        message = f"{name}: {message}"
    notes.warn(f"{message}. {error.hint}".rstrip())
