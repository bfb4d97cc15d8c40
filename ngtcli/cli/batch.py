"""`ngt batch`: a file or stream of questions and texts, a line each; an answer a line."""

import os
import re
import stat
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ngtcli.batch.input import Choice, Line, Lines, StreamLines, scan
from ngtcli.batch.journal import ANOTHER_FILE, Head
from ngtcli.batch.output import FileOutput, StreamOutput, Written
from ngtcli.batch.questions import LineAnswer, Questions, Tasks, wording
from ngtcli.cli.answer_report import answer_object, copied
from ngtcli.cli.batch_run import Run, request_of
from ngtcli.cli.checks import check_session, refuse_colour, refuse_ignored, refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    PresetOption,
    VerboseOption,
    file_option,
    resolve_tasks,
    with_flags,
    with_settings,
)
from ngtcli.cli.output import check_output_file, print_line
from ngtcli.cli.reading import standard_input
from ngtcli.documents.find import STDIN
from ngtcli.errors import InputError, NgtError, UsageError, counted, reason_of, unexpected
from ngtcli.prompt.preset import TASKS, deciding
from ngtcli.system.json_form import dump_json, to_json
from ngtcli.system.reading import identity
from ngtcli.system.yaml_file import shown

_OUT = file_option(
    "--output", "-o", help="Write to this file; the same command resumes after a kill."
)
_SIZE = typer.Option(
    "--batch-size", min=0, max=4096, help="Texts decoded together; 0: as memory allows."
)
_RETRY = typer.Option("--retry-failed", help="Run the lines that failed again, too.")
_RESTART = typer.Option("--restart", help="Start again, over what is in the file.")
_SHARD = typer.Option("--shard", metavar="I/N", help="Only the I-th of every N lines, from 1.")
_LIMIT = typer.Option("--limit", min=0, help="Only the first N lines; 0: all.")
_IDS_SHOWN = 5  # ids that a remark names


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
        refuse_with("standard output", others, "Name a file with -o.")
    _check_apart(source, given.output)
    tasks = {task: (s.settings, wording(task, preset)) for task, (s, preset) in resolved.items()}
    check_session(tasks["ask"][0])
    path = Path(source)
    folder = str(path.absolute().parent) if path.is_file() else os.getcwd()
    command = _Batch(given, tasks, folder)
    if source != STDIN and _is_file(path) and _is_file(given.output):
        command.run_file(path)
    else:
        command.run_stream(source)


class _Batch:
    """One run of the command; paths of lines are taken from `folder`."""

    def __init__(self, given: BatchFlags, tasks: Tasks, folder: str) -> None:
        self._given, self._tasks = given, tasks
        self._choice, self._notes = given.choice, Notes(given.verbose)
        self._settings = tasks["ask"][0]
        self._most = self._settings.max_mb * 1_000_000  # bytes of a line
        self._run = Run(self._settings, given.batch_size, self._notes, "line")
        written, warn = Written(given.output), self._run.warn
        self._questions = Questions(tasks, given.preset, folder, written, warn)

    def run_file(self, path: Path) -> None:
        """Answer the lines of a file, into a file that the same command resumes."""
        assert self._given.output is not None
        self._notes.status(f"Reading {path} …")
        found = scan(path, self._most, self._choice, self._questions.check_paths)
        self._notes.clear()
        chosen = found.lines[: self._choice.limit or None]
        answers = {task: deciding(*of_task) for task, of_task in self._tasks.items()}
        head = Head(found.sha256, self._given.shard, self._settings.engine, answers)
        with closing(
            FileOutput(self._given.output, head, found.lines, self._given.restart, self._most)
        ) as output:
            again = output.failed if self._given.retry_failed else set[int]()
            left = [n for n in chosen if n.index not in output.done or n.index in again]
            self._run.set_total(len(chosen), len(left), "done before")
            self._warn_of_changes(chosen, {line.index for line in left}, path, output)
            self._answer(Lines(left), path, output, "the same command goes on from there")
        failed = sum(line.index in output.failed for line in chosen)
        self._run.check_failed(failed, len(chosen), self._hint)

    def _warn_of_changes(
        self, chosen: Sequence[Line], left: set[int], path: Path, output: FileOutput
    ) -> None:
        """Name the lines whose documents have other texts than when they were answered."""
        changed: list[Line] = []
        for line in chosen:
            read = output.read.get(line.index)
            answered = line.index in output.done and line.index not in output.failed
            if read is None or line.index in left or not answered:
                continue
            now = self._questions.changed(line, path, read)
            if now is None:
                changed.append(line)
            elif now != read:
                with suppress(OSError):  # then the texts are compared again the next time
                    output.note_read(line.index, now)
        if changed:
            ids = ", ".join(shown(line.id) for line in changed[:_IDS_SHOWN])
            more = f" and {len(changed) - _IDS_SHOWN} more" if len(changed) > _IDS_SHOWN else ""
            self._notes.warn(
                f"the documents of {counted(len(changed), 'line')} have changed or gone since the"
                f" answers were made: {ids}{more}; --restart answers all lines again"
            )

    def run_stream(self, source: str) -> None:
        """Answer lines as they arrive, or of a file to a stream. Nothing is resumed."""
        refuse_with("a stream", {"--retry-failed": self._given.retry_failed}, "Name a file.")
        out = self._given.output
        if out is not None and out.is_file() and out.stat().st_size and not self._given.restart:
            what = "it is there, and what comes from a stream cannot be resumed"
            raise UsageError(f"{out}: {what}", ANOTHER_FILE)
        name = "standard input" if source == STDIN else source
        with ExitStack() as stack:
            self._notes.status(f"Waiting for lines of {name} …")
            stream = _open_lines(source)
            if Path(source).is_file():  # closing others would wait for what is being read
                stack.enter_context(stream)
            lines = StreamLines(stream, self._most, self._choice, name)
            output = stack.enter_context(closing(StreamOutput(out, print_line)))
            self._answer(lines, None, output, "what is done is put out")
        self._run.check_failed(output.failed, lines.count, self._hint)

    def _answer(
        self,
        lines: Lines,
        path: Path | None,
        output: FileOutput | StreamOutput,
        interrupted: str,
    ) -> None:
        def deliver(answer: LineAnswer) -> bool:
            row = _line(answer)
            if self._given.output is None:
                self._notes.clear()  # both may be on one terminal
            read = answer.question.read if answer.question else None
            output.put(answer.line.index, dump_json(row, None), "error" in row, read)
            return "error" in row

        with closing(self._questions):
            read = lambda line: self._questions.read(line, path)  # noqa: E731
            self._run.answer(lines, read, deliver, interrupted)

    @property
    def _hint(self) -> str:
        if self._given.output is None:
            return "Each has its error in its line."
        return "Each has its error in its line; --retry-failed runs them again."


def _line(answer: LineAnswer) -> dict[str, Any]:
    """What stands in the output for a line: the object of --json and its id, or its error."""
    from ngtcli.cli.answer_object import ErrorObject, FailedLineObject, LineObject

    error, question = answer.answer.error, answer.question
    try:
        if error is None and question is not None:
            sources = copied(answer.answer, question.loaded.documents)
            own = answer_object(request_of(question), answer.answer, sources)
            return dict(to_json(LineObject(answer.line.id, own)))
    except Exception as caught:
        error = unexpected(caught)
    error = error or NgtError("not answered")
    about = ErrorObject(str(error), error.hint, error.exit_code)
    return dict(to_json(FailedLineObject(answer.line.id, about)))


# --- what lines are read from and written to ---


def _is_file(path: Path | None) -> bool:
    """Whether a file stands there, or may be made there: no device and no pipe."""
    return path is not None and (path.is_file() or not path.exists())


def _check_apart(source: str, output: Path | None) -> None:
    """Raise UsageError where the answers would be written over the lines, or behind them."""
    read = 0 if source == STDIN else source
    try:
        regular = stat.S_ISREG(os.stat(read).st_mode)
    except (OSError, ValueError):
        return
    if regular and identity(read) in Written(output).files():
        where = output or "standard output"
        hint = "Name another file with -o."
        raise UsageError(f"{where}: it is the input, or its journal is", hint)


def _open_lines(source: str) -> IO[bytes]:
    """The lines' stream. Raises InputError."""
    if source != STDIN:
        try:
            return open(source, "rb")
        except OSError as error:
            what = f"{source}: {reason_of(error)}"
            raise InputError(what, "Name a file of JSON lines.") from None
    stream = standard_input([STDIN])
    if stream is None:
        raise InputError("standard input: nothing is piped in", "Pipe JSON lines in.")
    return stream
