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
from ngtcli.cli.answering import body_of, print_answer
from ngtcli.cli.batch import GOES_ON, PUT_OUT, Run, row_of
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_name, check_not_read, check_output_file, json_of_answer
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Documents
from ngtcli.engine.batch.extract import place_at
from ngtcli.engine.batch.input import InputLine, Lines
from ngtcli.engine.batch.output import DoneLine, StreamOutput, journal_of
from ngtcli.engine.batch.table import FolderOutput, Row, RowsOutput, TableOutput
from ngtcli.engine.events import Ended, Outcome
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
    run = Run(request.settings, 0, notes, "file", may_be_served=True)
    with closing(_opened(request, output, restart)) as written:
        documents, bad = read_each(
            request, output, paths, hint, notes, written.files, written.wrote
        )
        documents = documents[: limit or None]
        own = dump_json(how(request, output), None)
        keys = {d.name: key_of(own, d.sha256) for d in documents}
        written.expect(keys, {d.name: d.path for d in documents})
        read = [document.path for document in documents if document.path]
        check_not_read(written.paths.values(), read, "Name another with -o.")
        lines = [
            InputLine(i, i + 1, document.name)
            for i, document in enumerate(documents)
            if not written.has(document.name)
        ]
        run.set_total(len(documents), len(lines), "made before and not again")

        if lines and (limits := limit_of(request, len(documents))):
            notes.demonstration(request.settings.model.model, limits)
        run.warns_of_limits = False

        def asked(line: InputLine) -> Request:
            return replace(request, loaded=Loaded((documents[line.index],)))

        deliver = partial(_deliver, output, written, notes, len(documents))
        run.answer(Lines(lines), asked, deliver, GOES_ON if output.path else PUT_OUT)
    if output.is_table:
        say_written(notes, output.path)
    notes.demonstration(request.settings.model.model)
    again = "" if output.path is None else "The same command tries them again, and no others."
    run.check_failed(run.failed + bad, len(documents) + bad, again)


def say_written(notes: Notes, table: Path | None) -> None:
    """Say where a table is, and what its journal is for, if there is one."""
    if table is not None and table.is_file():
        journal = journal_of(table)
        kept = f" ({journal.name} lets the same command go on)" if journal.exists() else ""
        notes.say(f"→ {table}{kept}")


def _deliver(
    output: Output, written: "RowsOutput | Shown", notes: Notes, count: int, outcome: Outcome
) -> bool:
    """Hand an answer on, or say why there is none; whether it failed.

    Raises NgtError where it cannot be written: the next one could not be, either.
    """
    name, answer, request = str(outcome.key.id), outcome.answer, outcome.request
    assert request is not None  # as was asked
    if isinstance(answer, Ended):
        error = request.cut_off(answer.finish_reason) or no_answer(answer.finish_reason)
        outcome = replace(outcome, answer=error or answer)
    notes.clear()  # both may be on one terminal
    try:
        written.put(name, [_row(request, output, outcome, written)])
    except NgtError as error:
        is_there = isinstance(error, UsageError) and isinstance(written, FolderOutput)
        if error is not outcome.answer and not is_there:
            raise
        if isinstance(written, Shown):
            written.show(name, _text(request, output, name, outcome))
        return warn_of(notes, name, error)
    if isinstance(written, FolderOutput):
        notes.say(f"{name} ({outcome.key.number} of {count}) → {written.paths[name]}")
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


def _row(request: Request, output: Output, outcome: Outcome, written: "RowsOutput | Shown") -> Row:
    """What is kept of an answer: as a table has it, or with the `body` that is shown.

    Raises NgtError where there is none.
    """
    answer, name = outcome.answer, str(outcome.key.id)
    if isinstance(answer, NgtError):
        raise answer
    row: Row = {"file": name, "answer": visible(answer.text.strip())}
    row = {**row, "finish_reason": answer.finish_reason}
    if request.settings.answer.schema or request.settings.answer.schema_multi:
        row = {**row, "answer": json.loads(answer.text)}
    if isinstance(written, Shown):
        return {**row, "body": _text(request, output, name, outcome)}
    if isinstance(written, FolderOutput):
        return {**row, "body": f"{body_of(request, output, answer)}\n"}
    (document,), spans = request.documents, [one.span for one in answer.sources.places()]
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


def _text(request: Request, output: Output, words: str, outcome: Outcome) -> str:
    """A JSON line; or an answer below a line of `words`, bold on a terminal; "" for an error."""
    if output.is_json:
        tokens = output.format is OutputFormat.JSON_TOKENS
        return f"{json_of_answer(row_of(outcome, tokens), None)}\n"
    if isinstance(outcome.answer, NgtError):
        return ""
    line, out = f"==> {reveal(one_line(words))} <==", StringIO()
    styled = wants_color(sys.stdout, request.settings.output.color)
    out.write(f"\n{paint(line, 'bold') if styled else line}\n")
    print_answer(request, output, outcome.answer, out)
    return out.getvalue()


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
