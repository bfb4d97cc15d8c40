"""What the commands that answer about each file by itself share: documents in, rows out."""

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
from ngtcli.documents.read import Documents
from ngtcli.engine.batch.journal import journal_of
from ngtcli.engine.batch.output import DoneLine, StreamOutput
from ngtcli.engine.batch.run import ItemId
from ngtcli.engine.batch.table import Row
from ngtcli.engine.request import Request
from ngtcli.errors import InputError, NgtError
from ngtcli.prompts.preset import deciding
from ngtcli.system.files import key_of
from ngtcli.words import counted

_NAMES_SHOWN = 3  # of files that do not exist any more


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
        output: What the answers are written to, which is not read.
        paths: Files, folders and patterns.
        hint: What to do where no document is named.
        notes: Where warnings go.
        files: What this command writes besides, which is not read.
        wrote: Whether an earlier run wrote the file at a path, which is not read then.

    Returns:
        The documents, and how many paths could not be read.

    Raises:
        InputError: Where there is no document.
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

    documents = [d for d in loaded.documents if not (d.path and wrote(d.path))]
    if not documents:
        raise InputError(
            "all these documents are answers that this command wrote", hint="Name other documents."
        )
    written = len(loaded.documents) - len(documents)
    if written:
        notes.warn(f"skipped {counted(written, 'file')}: answers that this command wrote")
    return documents, failed


def _errors_of(paths: Sequence[str], request: Request) -> dict[str, InputError]:
    """Return why single paths cannot be read."""
    errors: dict[str, InputError] = {}
    with closing(Documents(request.settings)) as reader:
        for path in paths:
            try:
                load([path], settings=request.settings, files=reader)
            except InputError as error:
                errors[path] = error
    return errors


def decisive_values(request: Request, output: Output) -> dict[str, Any]:
    """Return what decides an answer and how it is shown, except its document, as JSON has it."""
    shown: list[bool] = []
    if not output.is_table:
        is_json = output.format is OutputFormat.JSON
        has_tokens = output.format is OutputFormat.JSON_TOKENS
        shown = [output.cites, is_json, has_tokens, output.shows_thinking]
    about = {"engine": request.settings.engine.engine, "question": request.question, "shown": shown}
    deciding_values = sorted(deciding(request.settings, request.preset).items())
    return about | {f"{request.task}.{name}": value for name, value in deciding_values}


def item_ids(documents: Sequence[Document], *key: object) -> dict[ItemId, Document]:
    """Return documents by what they are known by: their real path, and their text.

    Args:
        documents: The documents.
        *key: What decides the rows of a document besides, and is not in the head of a journal.
    """
    return {
        ItemId(
            os.path.realpath(document.path) if document.path else STDIN,
            key_of(*key, document.sha256),
        ): document
        for document in documents
    }


class RowsOnStdout:
    """Standard output as `FileRows`: the text of rows, in the order of the documents.

    Args:
        text: Makes the text of the rows of a file.
        keeps: Whether `rows` can be asked for later; else they are forgotten.
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
        """As `FileRows.to_do`: all of them, as nothing is resumed."""
        return [*self._numbers]

    def deleted(self) -> Sequence[str]:
        """As `FileRows.deleted`."""
        return []

    def has(self, item: ItemId) -> bool:
        """As `FileRows.has`."""
        return item in self._rows

    def rows(self, item: ItemId) -> Sequence[Row]:
        """As `FileRows.rows`, of a document whose rows are kept."""
        return self._rows[item]

    def put(self, item: ItemId, rows: Sequence[Row]) -> None:
        """As `FileRows.put`."""
        if self._keeps:
            self._rows[item] = rows
        self.show(item, self._text(rows))

    def show(self, item: ItemId, text: str) -> None:
        """Put out the text of a document, "" for none, when its turn comes."""
        self._stream.put(DoneLine(self._numbers[item], text))

    def close(self) -> None:
        """As `FileRows.close`."""

    def _write(self, text: str) -> None:
        sys.stdout.write(text.removeprefix("\n") if self._is_first else text)
        sys.stdout.flush()
        if text:
            self._is_first = False


def warn_of_deleted(notes: Notes, table: Path, deleted: Sequence[str]) -> None:
    """Say which files a table has no rows of any more because they do not exist."""
    if deleted:
        names = ", ".join(deleted[:_NAMES_SHOWN])
        if len(deleted) > _NAMES_SHOWN:
            names += ", …"
        verb = "do" if len(deleted) > 1 else "does"
        notes.warn(
            f"{table.name} leaves out {counted(len(deleted), 'file')} that {verb} not exist any"
            f" more: {names}; its journal keeps the rows"
        )


def say_written(notes: Notes, table: Path | None) -> None:
    """Report where a table is, and what its journal is for."""
    if table is not None and table.is_file():
        journal = journal_of(table)
        kept = f" ({journal.name} lets the same command resume)" if journal.exists() else ""
        notes.say(f"→ {table}{kept}")


def report_failure(notes: Notes, name: str, error: NgtError) -> None:
    """Report in one line that a file failed."""
    where = "" if not name or name in str(error) else f"{name}: "
    notes.warn(f"{where}{error}. {error.hint}".rstrip())
