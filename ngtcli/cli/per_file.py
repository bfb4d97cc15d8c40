"""`ngt ask --each` and `ngt summarize --per-file`: an answer of each document, by itself.

What is there already, made from the same text in the same way, is not made again; what another
program wrote or changed is not written over. A file that fails does not end the run.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import StringIO

from ngtcli.cli.answer_flags import Output, OutputFormat
from ngtcli.cli.answer_many import RunAnswers, RunProgress, answer_items
from ngtcli.cli.answer_object import failed_line, line_object
from ngtcli.cli.answering import body_of, print_answer
from ngtcli.cli.each_file import (
    RowsOnStdout,
    decisive_values,
    item_ids,
    read_each,
    report_failure,
    say_written,
    warn_of_deleted,
)
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_name, check_not_read, check_output_file, json_of_answer
from ngtcli.documents.load import Document, Loaded
from ngtcli.engine.batch.extract import place_at
from ngtcli.engine.batch.run import Item, ItemId, ListedItems, Work
from ngtcli.engine.batch.table import FileRows, FolderOutput, Row, TableOutput
from ngtcli.engine.events import Ended
from ngtcli.engine.no_answer import no_answer
from ngtcli.engine.request import Request, limit_of
from ngtcli.errors import NgtError, UsageError
from ngtcli.render.terminal import one_line, paint, reveal, visible, wants_color
from ngtcli.system.json_form import dump_json


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
        decisive = dump_json(decisive_values(request, output), None)
        by_id = item_ids(documents, decisive)
        written.expect({item: document.name for item, document in by_id.items()})
        read = [document.path for document in documents if document.path]
        check_not_read(written.targets(), read, "Name another with -o.")

        left = written.to_do()
        progress.set_total(len(documents), len(left), "already done")
        if output.path is not None and output.is_table:
            warn_of_deleted(notes, output.path, written.deleted())
        if left and (limits := limit_of(request, len(documents))):
            notes.demonstration(request.settings.model.model, limits)

        results = _FileResults(request, output, written, notes, [*by_id])
        items = [Item(item, by_id[item].name, partial(results.work, by_id[item])) for item in left]
        failed = answer_items(
            ListedItems(items), results, answers, progress, notes, resumes=output.path is not None
        )
    if output.is_table:
        say_written(notes, output.path)
    notes.demonstration(request.settings.model.model)
    again = "" if output.path is None else "Run the same command again to retry only these."
    progress.check_failed(failed + bad, len(documents) + bad, again)


class _FileResults:
    """Takes the answers about files: rows of a table, files of a folder, or standard output."""

    def __init__(
        self,
        request: Request,
        output: Output,
        written: FileRows,
        notes: Notes,
        items: Sequence[ItemId],
    ) -> None:
        self._request = request
        self._output = output
        self._written = written
        self._notes = notes
        self._numbers = {item: number for number, item in enumerate(items, 1)}

    def work(self, document: Document) -> Work:
        """Answer the request of one document. Raises NgtError for what is no answer."""
        request = replace(self._request, loaded=Loaded((document,)))
        (answer,) = yield [request]
        error = request.cut_off(answer.finish_reason) or no_answer(answer.finish_reason)
        if error is not None:
            raise error
        return _row(request, self._output, document.name, answer, self._written)

    def put(self, item: Item, row: object) -> bool:
        """As `Results.put`. A file of a folder that was edited is an error of that file alone."""
        self._notes.clear()  # both may be on one terminal
        if isinstance(row, NgtError):
            if isinstance(self._written, RowsOnStdout):
                self._written.show(item.id, _text_of_error(self._output, item.name, row))
            report_failure(self._notes, item.name, row)
            return True
        assert isinstance(row, Mapping)
        try:
            self._written.put(item.id, [row])
        except UsageError as error:
            if not isinstance(self._written, FolderOutput):
                raise
            report_failure(self._notes, item.name, error)
            return True
        if isinstance(self._written, FolderOutput):
            number, count = self._numbers[item.id], len(self._numbers)
            path = self._written.path_of(item.id)
            self._notes.say(f"{item.name} ({number} of {count}) → {path}")
        return False


def _opened(request: Request, output: Output, restart: bool) -> FileRows:
    """Open what the answers go to. Raises UsageError where they cannot go there."""
    path = output.path
    if path is None:
        return RowsOnStdout(lambda rows: str(rows[0]["body"]))
    if not output.is_table:
        check_name(path)
        return FolderOutput(path, ".json" if output.is_json else ".txt", restart, output.force)
    check_output_file(path)
    columns = ["file", "answer", *(["sources"] if output.cites else [])]
    return TableOutput(
        path,
        decisive_values(request, output),
        columns,
        flat=_shown,
        whole=_shown,
        restart=restart,
        force=output.force,
    )


def _shown(row: Row) -> Row:
    """A row of a table, with the name of its file as a terminal may show it."""
    return {**row, "file": visible(str(row["file"]))}


def _row(request: Request, output: Output, name: str, answer: Ended, written: FileRows) -> Row:
    """Return what is kept of an answer: as a table has it, or with the `body` that is shown."""
    row: Row = {"file": name, "answer": visible(answer.text.strip())}
    row = {**row, "finish_reason": answer.finish_reason}
    if request.settings.answer.schema or request.settings.answer.schema_multi:
        row = {**row, "answer": json.loads(answer.text)}
    if isinstance(written, RowsOnStdout):
        return {**row, "body": _text(request, output, name, answer)}
    if isinstance(written, FolderOutput):
        return {**row, "body": f"{body_of(request, output, answer)}\n"}
    (document,) = request.documents
    spans = [source.span for source in answer.sources.places()]
    return {**row, "sources": [place_at(document, s.source_start, s.source_end) for s in spans]}


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
