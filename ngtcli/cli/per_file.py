"""`ngt ask --each` and `ngt summarize --per-file`: an answer of each document, by itself.

What is there already, made from the same text in the same way, is not made again; what another
program wrote or changed is not written over. A file that fails does not end the run.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from ngtcli.cli.answer_flags import Output, OutputFormat, read_documents
from ngtcli.cli.answer_many import GOES_ON, PUT_OUT, RunAnswers, RunProgress, answer_items
from ngtcli.cli.answer_object import failed_line, line_object
from ngtcli.cli.answering import body_of, print_answer
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_name, check_not_read, check_output_file, json_of_answer
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Documents
from ngtcli.engine.batch.extract import place_at
from ngtcli.engine.batch.output import DoneLine, StreamOutput, journal_of
from ngtcli.engine.batch.run import Item, ListedItems, Work
from ngtcli.engine.batch.table import FolderOutput, Row, RowsOutput, TableOutput
from ngtcli.engine.events import Ended
from ngtcli.engine.no_answer import no_answer
from ngtcli.engine.request import Request, limit_of
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.prompts.preset import deciding
from ngtcli.render.terminal import one_line, paint, reveal, visible, wants_color
from ngtcli.system.files import key_of
from ngtcli.system.json_form import dump_json
from ngtcli.words import counted


def run_per_file(
    request: Request, output: Output, paths: list[str], hint: str, restart: bool, limit: int
) -> None:
    """Answer of each document by itself, of the first `limit` (with 0 of all).

    Raises FailedLinesError where some failed, other NgtErrors where nothing could be done; exits
    130 when interrupted.
    """
    notes = Notes(output.verbose)
    progress = RunProgress(notes, "file")
    answers = RunAnswers(request.settings, progress, may_be_served=True)
    with closing(_opened(request, output, restart)) as written:
        documents, bad = read_each(
            request, output, paths, hint, notes, written.files, written.wrote
        )
        documents = documents[: limit or None]
        decisive = dump_json(how(request, output), None)
        keys = {d.name: key_of(decisive, d.sha256) for d in documents}
        written.expect(keys, {d.name: d.path for d in documents})
        read = [document.path for document in documents if document.path]
        check_not_read(written.paths.values(), read, "Name another with -o.")

        left = [document for document in documents if not written.has(document.name)]
        progress.set_total(len(documents), len(left), "made before and not again")
        if left and (limits := limit_of(request, len(documents))):
            notes.demonstration(request.settings.model.model, limits)

        results = _FileResults(request, output, written, notes, [d.name for d in documents])
        items = [Item(d.name, d.name, partial(results.work, d)) for d in left]
        interrupted = GOES_ON if output.path else PUT_OUT
        failed = answer_items(ListedItems(items), results, answers, progress, notes, interrupted)
    if output.is_table:
        say_written(notes, output.path)
    notes.demonstration(request.settings.model.model)
    again = "" if output.path is None else "The same command tries them again, and no others."
    progress.check_failed(failed + bad, len(documents) + bad, again)


def say_written(notes: Notes, table: Path | None) -> None:
    """Say where a table is, and what its journal is for, if there is one."""
    if table is not None and table.is_file():
        journal = journal_of(table)
        kept = f" ({journal.name} lets the same command go on)" if journal.exists() else ""
        notes.say(f"→ {table}{kept}")


class _FileResults:
    """Takes the answers about files: rows of a table, files of a folder, or standard output."""

    def __init__(
        self,
        request: Request,
        output: Output,
        written: "RowsOutput | Shown",
        notes: Notes,
        names: Sequence[str],
    ) -> None:
        self._request = request
        self._output = output
        self._written = written
        self._notes = notes
        self._numbers = {name: number for number, name in enumerate(names, 1)}

    def work(self, document: Document) -> Work:
        """Answer the request of one document. Raises NgtError for what is no answer."""
        request = replace(self._request, loaded=Loaded((document,)))
        (answer,) = yield [request]
        error = request.cut_off(answer.finish_reason) or no_answer(answer.finish_reason)
        if error is not None:
            raise error
        return _row(request, self._output, document.name, answer, self._written)

    def has(self, key: str) -> bool:
        """As `Results.has`."""
        return self._written.has(key)

    def put(self, item: Item, row: object) -> bool:
        """As `Results.put`. A file of a folder that was edited is an error of that file alone."""
        self._notes.clear()  # both may be on one terminal
        if isinstance(row, NgtError):
            if isinstance(self._written, Shown):
                self._written.show(item.key, _text_of_error(self._output, item.name, row))
            return warn_of(self._notes, item.name, row)
        assert isinstance(row, Mapping)
        try:
            self._written.put(item.key, [row])
        except UsageError as error:
            if not isinstance(self._written, FolderOutput):
                raise
            return warn_of(self._notes, item.name, error)
        if isinstance(self._written, FolderOutput):
            number, count = self._numbers[item.key], len(self._numbers)
            path = self._written.paths[item.key]
            self._notes.say(f"{item.name} ({number} of {count}) → {path}")
        return False


def how(request: Request, output: Output) -> dict[str, Any]:
    """Return all that decides an answer, and how it is shown, but its document, JSON-ready."""
    shown: list[bool] = []
    if not output.is_table:
        is_json = output.format is OutputFormat.JSON
        has_tokens = output.format is OutputFormat.JSON_TOKENS
        shown = [output.cites, is_json, has_tokens, output.shows_thinking]
    about = {"engine": request.settings.engine.engine, "question": request.question, "shown": shown}
    deciding_values = sorted(deciding(request.settings, request.preset).items())
    return about | {f"{request.task}.{name}": value for name, value in deciding_values}


def _opened(request: Request, output: Output, restart: bool) -> "RowsOutput | Shown":
    """Open what the answers go to. Raises UsageError where they cannot go there."""
    path = output.path
    if path is None:
        return Shown(lambda rows: str(rows[0]["body"]))
    if not output.is_table:
        check_name(path)
        return FolderOutput(path, ".json" if output.is_json else ".txt", restart, output.force)
    check_output_file(path)
    idle = {"--json": output.is_json, "--show-thinking": output.shows_thinking}
    refuse_with("a table", idle, "Name a folder: -o FOLDER/")
    columns = ["file", "answer", *(["sources"] if output.cites else [])]
    return TableOutput(
        path,
        how(request, output),
        columns,
        flat=_shown,
        whole=_shown,
        restart=restart,
        force=output.force,
    )


def _shown(row: Row) -> Row:
    """A row of a table, with the name of its file as a terminal may show it."""
    return {**row, "file": visible(str(row["file"]))}


def _row(
    request: Request, output: Output, name: str, answer: Ended, written: "RowsOutput | Shown"
) -> Row:
    """Return what is kept of an answer: as a table has it, or with the `body` that is shown."""
    row: Row = {"file": name, "answer": visible(answer.text.strip())}
    row = {**row, "finish_reason": answer.finish_reason}
    if request.settings.answer.schema or request.settings.answer.schema_multi:
        row = {**row, "answer": json.loads(answer.text)}
    if isinstance(written, Shown):
        return {**row, "body": _text(request, output, name, answer)}
    if isinstance(written, FolderOutput):
        return {**row, "body": f"{body_of(request, output, answer)}\n"}
    (document,) = request.documents
    spans = [source.span for source in answer.sources.places()]
    return {**row, "sources": [place_at(document, s.source_start, s.source_end) for s in spans]}


class Shown:
    """Standard output in the place of a `RowsOutput`: `text` of rows, in the order of the files.

    The rows are forgotten unless it `keeps` them.
    """

    files: tuple[Path, ...] = ()
    paths: Mapping[str, Path] = {}

    def __init__(self, text: Callable[[Sequence[Any]], str], keeps: bool = False) -> None:
        self._text, self._keeps, self._is_first = text, keeps, True
        self._index, self._rows = dict[str, int](), dict[str, Sequence[Row]]()
        self._stream = StreamOutput(None, self._write)

    def wrote(self, path: str) -> bool:
        return False

    def expect(self, keys: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        self._index = {name: i for i, name in enumerate(keys)}

    def has(self, file: str) -> bool:
        return file in self._rows

    def rows(self, file: str) -> Sequence[Row]:
        return self._rows[file]

    def put(self, file: str, rows: Sequence[Row]) -> None:
        if self._keeps:
            self._rows[file] = rows
        self.show(file, self._text(rows))

    def show(self, file: str, text: str) -> None:
        """Put out the text of a file, "" for none, when its turn comes."""
        self._stream.put(DoneLine(self._index[file], text))

    def _write(self, text: str) -> None:
        sys.stdout.write(text.removeprefix("\n") if self._is_first else text)
        sys.stdout.flush()
        self._is_first &= not text

    def close(self) -> None:
        pass


def _text(request: Request, output: Output, name: str, answer: Ended) -> str:
    """Return a JSON line, or an answer below a line with its file's name, bold on a terminal."""
    if output.is_json:
        tokens = output.format is OutputFormat.JSON_TOKENS
        return f"{json_of_answer(line_object(name, request, answer, tokens), None)}\n"
    heading = f"==> {reveal(one_line(name))} <=="
    if wants_color(sys.stdout, request.settings.output.color):
        heading = paint(heading, "bold")
    out = StringIO()
    out.write(f"\n{heading}\n")
    print_answer(request, output, answer, out)
    return out.getvalue()


def _text_of_error(output: Output, name: str, error: NgtError) -> str:
    """Return the JSON line of an error; "" where no JSON is put out."""
    if not output.is_json:
        return ""
    return f"{json_of_answer(failed_line(name, error), None)}\n"


def read_each(
    request: Request,
    output: Output,
    paths: list[str],
    hint: str,
    notes: Notes,
    files: Sequence[Path] = (),
    wrote: Callable[[str], bool] = lambda _: False,
) -> tuple[Sequence[Document], int]:
    """The documents, and how many paths could not be read, each of which is named.

    What this command writes to `files` and what it `wrote` are left out. Raises InputError where
    there is no other document.
    """
    wrong = dict[str, InputError]()
    try:
        loaded = read_documents(paths, request, output, hint, files)
    except InputError:
        if len(paths) < 2 or STDIN in paths:
            raise
        with closing(Documents(request.settings)) as reader:
            for path in paths:
                try:
                    load([path], settings=request.settings, files=reader)
                except InputError as error:
                    wrong[path] = error
        if len(wrong) == len(paths):
            raise wrong[paths[0]] from None
        for found in wrong.values():
            warn_of(notes, "", found)
        good = [path for path in paths if path not in wrong]
        loaded = read_documents(good, request, output, hint, files)
    left = [one for one in loaded.documents if not (one.path and wrote(one.path))]
    if not left:
        raise InputError("the documents are answers that this command wrote", hint="Name others.")
    if count := len(loaded.documents) - len(left):
        notes.warn(f"left out {counted(count, 'file')}: answers that this command wrote")
    return left, len(wrong)


def warn_of(notes: Notes, name: str, error: NgtError) -> bool:
    """One line for a file that failed; True."""
    where = "" if not name or name in str(error) else f"{name}: "
    notes.warn(f"{where}{error}. {error.hint}".rstrip())
    return True
