"""`ngt ask --each` and `ngt summarize --per-file`: a separate answer about each document.

An existing answer that was made from the same text with the same settings is not made again. A
file that another program wrote or changed is not overwritten. A document that fails does not end
the run.
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
from ngtcli.engine.request import Request, builtin_limit
from ngtcli.errors import NgtError, UsageError
from ngtcli.render.terminal import one_line, paint, reveal, visible, wants_color
from ngtcli.system.json_form import dump_json


def run_per_file(
    request: Request, output: Output, paths: list[str], hint: str, restart: bool, limit: int
) -> None:
    """Answer about each document separately.

    Args:
        request: The request, without documents.
        output: Where the answers go.
        paths: The documents.
        hint: What to do if no document is named.
        restart: Whether to ignore what an earlier run has done.
        limit: The maximum number of documents; 0 for all.

    Raises:
        FailedLinesError: Some documents failed.
        NgtError: Nothing could be done.
        Exit: The run was interrupted, with code 130.
    """
    notes = Notes(output.verbose)
    progress = RunProgress(notes, "file", warns_of_no_answer=False)
    answers = RunAnswers(request.settings, progress, may_be_served=True)
    with closing(_open_output(request, output, restart)) as written:
        documents, unreadable = read_each(
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
        unsupported = builtin_limit(request, 1)  # each file is summarized by itself
        if left and unsupported:
            notes.demonstration(request.settings.model.model, unsupported)

        results = _FileResults(request, output, written, notes, [*by_id])
        items = [Item(item, by_id[item].name, partial(results.work, by_id[item])) for item in left]
        failed = answer_items(
            ListedItems(items), results, answers, progress, notes, resumes=output.path is not None
        )
    if output.is_table:
        say_written(notes, output.path)
    notes.demonstration(request.settings.model.model)
    retry_hint = "" if output.path is None else "Run the same command again to retry only these."
    progress.check_failed(failed + unreadable, len(documents) + unreadable, retry_hint)


class _FileResults:
    """Writes answers about documents as rows of a table, files of a folder, or to stdout."""

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
        """Ask about one document, and return its row. Raises NgtError if there is no answer."""
        request = replace(self._request, loaded=Loaded((document,)))
        (answer,) = yield [request]
        error = request.incomplete_error(answer.finish_reason) or no_answer(answer.finish_reason)
        if error is not None:
            raise error
        return _row(request, self._output, document.name, answer, self._written)

    def put(self, item: Item, row: object) -> bool:
        """As `Results.put`. A file of the folder that was edited fails alone."""
        self._notes.clear()  # stdout and stderr may be the same terminal
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
            position = f"{self._numbers[item.id]} of {len(self._numbers)}"
            self._notes.say(f"{item.name} ({position}) → {self._written.path_of(item.id)}")
        return False


def _open_output(request: Request, output: Output, restart: bool) -> FileRows:
    """Open the output of the answers.

    Args:
        request: The request of each document.
        output: Where the answers go.
        restart: Whether to ignore what an earlier run has done.

    Raises:
        UsageError: The answers cannot be written there.
    """
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
    """Return a row of a table with a file name that is safe to show."""
    return {**row, "file": visible(str(row["file"]))}


def _row(request: Request, output: Output, name: str, answer: Ended, written: FileRows) -> Row:
    """Return the row of an answer; for files and stdout, its `body` is the text to write.

    Args:
        request: The request of the document.
        output: How the answer is shown.
        name: The name of the document.
        answer: The answer.
        written: Where the row goes.
    """
    is_structured = request.settings.answer.schema or request.settings.answer.schema_multi
    row: Row = {
        "file": name,
        "answer": json.loads(answer.text) if is_structured else visible(answer.text.strip()),
        "finish_reason": answer.finish_reason,
    }
    if isinstance(written, RowsOnStdout):
        return {**row, "body": _text(request, output, name, answer)}
    if isinstance(written, FolderOutput):
        return {**row, "body": f"{body_of(request, output, answer)}\n"}
    (document,) = request.documents
    spans = [source.span for source in answer.sources.places()]
    return {**row, "sources": [place_at(document, s.source_start, s.source_end) for s in spans]}


def _text(request: Request, output: Output, name: str, answer: Ended) -> str:
    """Return a JSON line, or the answer under a heading with the name of its document.

    Args:
        request: The request of the document.
        output: How the answer is shown.
        name: The name of the document.
        answer: The answer.
    """
    if output.is_json:
        has_tokens = output.format is OutputFormat.JSON_TOKENS
        return f"{json_of_answer(line_object(name, request, answer, has_tokens), None)}\n"
    heading = f"==> {reveal(one_line(name))} <=="
    if wants_color(sys.stdout, request.settings.output.color):
        heading = paint(heading, "bold")
    out = StringIO()
    out.write(f"\n{heading}\n")
    print_answer(request, output, answer, out)
    return out.getvalue()


def _text_of_error(output: Output, name: str, error: NgtError) -> str:
    """Return the JSON line of an error; "" without --json."""
    if not output.is_json:
        return ""
    return f"{json_of_answer(failed_line(name, error), None)}\n"
