"""`ngt batch`: a file or stream of questions and texts, a line each; an answer a line."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.batch.arriving import KnownLines, StreamLines
from ngtcli.batch.head import Head
from ngtcli.batch.output import FileOutput, Output, StreamOutput
from ngtcli.batch.source import Choice, scan
from ngtcli.batch.waiting import Line
from ngtcli.batch.work import Outcome
from ngtcli.cli.app import unexpected
from ngtcli.cli.batch_files import Written, check_apart, is_file, open_lines, writer
from ngtcli.cli.batch_rows import Progress, error_row, row_of
from ngtcli.cli.batch_run import check_failed, open_engine, run_lines
from ngtcli.cli.batch_work import Tasks, WorkReader, wording
from ngtcli.cli.checks import check_session, refuse_beside, refuse_colour, refuse_ignored
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    PresetOption,
    VerboseOption,
    file_option,
    resolve_tasks,
    with_flags,
    with_settings,
)
from ngtcli.cli.output import check_output_file
from ngtcli.documents.listing import STDIN
from ngtcli.errors import UsageError, counted
from ngtcli.prompt.preset import deciding
from ngtcli.prompt.tasks import TASKS
from ngtcli.render.sinks import dump_json
from ngtcli.system.yaml_file import shown

if TYPE_CHECKING:
    from ngtcli.batch.runner import Engine, Lines

_OUT = file_option(
    "--output", "-o", help="Write to this file; the same command resumes after a kill."
)
_SIZE = typer.Option(
    "--batch-size", min=0, max=4096, help="Texts decoded together; 0: as memory allows."
)
_RETRY = typer.Option("--retry-failed", help="Run the lines that failed again, too.")
_RESTART = typer.Option("--restart", help="Start again, over what is in the file.")
_SHARD = typer.Option("--shard", metavar="I/N", help="Only the I-th of every N lines, from 1.")
_SHOWN = 5  # ids that a line names
_LIMIT = typer.Option("--limit", min=0, help="Only the first N lines; 0: all.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags of `ngt batch`, but for the input and the settings."""

    output: Annotated[Path | None, _OUT] = None
    preset: PresetOption = None
    batch_size: Annotated[int, _SIZE] = 0
    retry_failed: Annotated[bool, _RETRY] = False
    restart: Annotated[bool, _RESTART] = False
    shard: Annotated[str, _SHARD] = "1/1"
    limit: Annotated[int, _LIMIT] = 0
    verbose: VerboseOption = False

    @property
    def choice(self) -> Choice:
        """The lines that are meant. Raises UsageError."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.shard)
        part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= part <= parts:
            raise UsageError(f"--shard {self.shard}", "Give it as in --shard 1/4, up to 4/4.")
        return Choice(part, parts, self.limit)


@with_settings
@with_flags(BatchFlags)
def batch(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file of JSON lines; - is standard input.")
    ],
    *,
    given: BatchFlags,
    flags: dict[str, Any] | None = None,
) -> None:
    """Answer many texts, a JSON line each: ngt batch in.jsonl -o out.jsonl

    A line is {"id", "task", "documents"|"paths"|"context", "question", "settings"}.

    Of these only the texts are needed: documents is a list of texts, or of {"name", "text"},
    paths a list of files, folders and patterns, context one text. With a question the task is ask,
    else summarize. A line that fails has {"id", "error"} in the output, and the exit code is 7.
    """
    resolved = resolve_tasks(flags or {}, given.preset, TASKS)
    refuse_colour("ngt batch", flags or {})
    refuse_ignored(flags or {}, resolved["ask"][0].settings)
    check_output_file(given.output)
    if given.output is None:
        others = {"--retry-failed": given.retry_failed, "--restart": given.restart}
        refuse_beside("standard output", others, "Name a file with -o.")
    check_apart(source, given.output)
    tasks = {task: (s.settings, wording(task, preset)) for task, (s, preset) in resolved.items()}
    check_session(tasks["ask"][0])
    path = Path(source)
    folder = str(path.absolute().parent) if path.is_file() else os.getcwd()
    run = _Batch(given, tasks, folder)
    if source != STDIN and is_file(path) and is_file(given.output):
        run.run_file(path)
    else:
        run.run_stream(source)


class _Batch:
    """One run of the command; paths of lines are taken from `folder`."""

    def __init__(self, given: BatchFlags, tasks: Tasks, folder: str) -> None:
        self._given, self._tasks = given, tasks
        self._choice, self._notes = given.choice, Notes(given.verbose)
        self._progress = Progress(self._notes)
        self._settings = tasks["ask"][0]
        written, warn = Written(given.output), self._progress.warn
        self._reader = WorkReader(tasks, given.preset, folder, written, warn)

    def run_file(self, path: Path) -> None:
        """Answer the lines of a file, into a file that the same command resumes."""
        assert self._given.output is not None
        self._notes.status(f"Reading {path} …")
        most = self._settings.max_mb * 1_000_000
        found = scan(path, most, self._choice, self._reader.check_paths)
        self._notes.clear()
        chosen = found.lines[: self._choice.limit or None]
        self._progress.total = len(chosen)
        answers = {task: deciding(*of_task) for task, of_task in self._tasks.items()}
        head = Head(found.sha256, self._given.shard, self._settings.engine, answers)
        with closing(
            FileOutput(self._given.output, head, found.lines, self._given.restart, most)
        ) as kept:
            todo = self._left(chosen, kept)
            self._tell_changed(chosen, {line.index for line in todo}, path, kept)
            left = KnownLines(todo)
            self._answer(left, path, kept, "the same command goes on from there")
        self._check(sum(line.index in kept.failed for line in chosen), len(chosen))

    def _left(self, chosen: Sequence[Line], kept: FileOutput) -> list[Line]:
        """The lines that are to be answered now."""
        again = kept.failed if self._given.retry_failed else set[int]()
        left = [line for line in chosen if line.index not in kept.done or line.index in again]
        self._progress.before = len(chosen) - len(left)
        if self._progress.before:
            of = counted(len(chosen), "line")
            self._notes.warn(f"done before: {self._progress.before} of {of}")
        return left

    def _tell_changed(
        self, chosen: Sequence[Line], todo: set[int], path: Path, kept: FileOutput
    ) -> None:
        """Name the lines whose documents have other texts than when they were answered."""
        changed: list[Line] = []
        for line in chosen:
            read = kept.read.get(line.index)
            answered = line.index in kept.done and line.index not in kept.failed
            if read is None or line.index in todo or not answered:
                continue
            now = self._reader.changed(line, path, read)
            if now is None:
                changed.append(line)
            elif now != read:
                with suppress(OSError):  # then the texts are compared again the next time
                    kept.note_read(line.index, now)
        if changed:
            ids = ", ".join(shown(line.id) for line in changed[:_SHOWN])
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            self._notes.warn(
                f"the documents of {counted(len(changed), 'line')} have changed or gone since the"
                f" answers were made: {ids}{more}; --restart answers all lines again"
            )

    def run_stream(self, source: str) -> None:
        """Answer lines as they arrive, or of a file to a stream. Nothing is resumed."""
        refuse_beside("a stream", {"--retry-failed": self._given.retry_failed}, "Name a file.")
        out = self._given.output
        if out is not None and out.is_file() and out.stat().st_size and not self._given.restart:
            raise UsageError(
                f"{out}: it is there, and what comes from a stream cannot be resumed",
                "Name another file with -o, or write it again with --restart.",
            )
        most = self._settings.max_mb * 1_000_000
        name = "standard input" if source == STDIN else source
        with ExitStack() as stack:
            self._notes.status(f"Waiting for lines of {name} …")
            stream = open_lines(source)
            if Path(source).is_file():  # closing others would wait for what is being read
                stack.enter_context(stream)
            lines = StreamLines(stream, most, self._choice, name)
            output = StreamOutput(stack.enter_context(writer(out)))
            self._answer(lines, None, output, "what is done is put out")
        self._check(output.failed, lines.count)

    def _answer(self, lines: "Lines", path: Path | None, output: Output, interrupted: str) -> None:
        def deliver(outcome: Outcome, engine: "Engine") -> bool:
            row = self._row(outcome, engine)
            if self._given.output is None:
                self._notes.clear()  # both may be on one terminal
            read = outcome.work.read if outcome.work else None
            output.put(outcome.line.index, dump_json(row, None), "error" in row, read)
            return "error" in row

        with closing(self._reader):
            run_lines(
                lines,
                engine=lambda shown: open_engine(self._settings, self._given.batch_size, shown),
                read=lambda line: self._reader.work(line, path),
                deliver=deliver,
                progress=self._progress,
                notes=self._notes,
                interrupted=interrupted,
            )

    def _row(self, outcome: Outcome, engine: "Engine") -> dict[str, Any]:
        try:
            return row_of(outcome, engine.passes())
        except Exception as error:
            return error_row(outcome.line.id, unexpected(error))

    def _check(self, failed: int, total: int) -> None:
        hint = "Each has its error in its line."
        if self._given.output is not None:
            hint = "Each has its error in its line; --retry-failed runs them again."
        check_failed(failed, total, "line", hint)
