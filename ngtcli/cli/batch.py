"""`ngt batch`: a file or stream of questions and texts, a line each; an answer a line."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from ngtcli import errors
from ngtcli.cli import checks, options, reading
from ngtcli.cli.answer_many import (
    RunAnswers,
    RunProgress,
    answer_items,
    warn_of_limits,
)
from ngtcli.cli.checks import Situation
from ngtcli.cli.command import command
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_output_file, json_of_answer, print_line
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.documents.find import STDIN
from ngtcli.engine.batch.input import InputLine, Lines, Shard, read_lines, scan
from ngtcli.engine.batch.line_requests import LineRequests
from ngtcli.engine.batch.output import (
    DoneLine,
    FileOutput,
    StreamOutput,
    line_id,
    written_with,
)
from ngtcli.engine.batch.run import Item, Work
from ngtcli.engine.checks import check_session
from ngtcli.engine.no_answer import caught, no_answer
from ngtcli.engine.request import Tasks
from ngtcli.prompts.preset import TASKS, deciding
from ngtcli.system.files import identity
from ngtcli.system.reporting import reporting_to
from ngtcli.system.yaml_file import shown
from ngtcli.words import counted, reason_of

if TYPE_CHECKING:
    from ngtcli.cli.answer_object import FailedLineObject, LineObject

_OUT = options.file_option(
    "--output", "-o", help="Write to this file; the same command resumes an interrupted run."
)
_RETRY = typer.Option("--retry-failed", help="Also retry lines that failed.")
_SHARD = typer.Option(
    "--shard", metavar="I/N", help="Process one line in N, beginning with line I."
)
_IDS_SHOWN = 5  # ids that a remark names
_IN_LINE = "Each failed line of the output says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags of `ngt batch`, except for the input and the settings."""

    output: Annotated[Path | None, _OUT] = None
    preset: options.PresetOption = None
    batch_size: options.SizeOption = 0
    retry_failed: Annotated[bool, _RETRY] = False
    restart: options.RestartOption = False
    force: options.ForceOption = False
    shard: Annotated[str, _SHARD] = "1/1"
    limit: options.LimitOption = 0
    verbose: options.VerboseOption = False

    @property
    def lines(self) -> Shard:
        """Which of the lines are meant. Raises UsageError."""
        numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.shard)
        if numbers is not None:
            part, parts = int(numbers[1]), int(numbers[2])
            if 1 <= part <= parts:
                return part, parts
        raise errors.UsageError(
            f"--shard {self.shard}: not I/N", hint="Write --shard 1/4 to --shard 4/4, for example."
        )


@command("batch", settings=options.OF_MANY)
def batch(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file of JSON lines; - is standard input.")
    ],
    *,
    batch_flags: BatchFlags,
    flags: SettingFlags,
) -> None:
    """Process many texts, one JSON line each: ngt batch in.jsonl -o out.jsonl

    A line is {"id", "task", "documents"|"paths"|"context", "question", "settings"}.

    Only the texts are required: documents is a list of texts, or of {"name", "text"}; paths is a
    list of files, folders and patterns; context is one text. With a question the task is ask,
    else summarize. A line that fails has {"id", "error"} in the output, and the exit code is 7.
    """
    tasks = options.tasks_of(flags, batch_flags.preset, TASKS, fallback_for_ask=True)
    settings = tasks.by_name["ask"][0]
    checks.warn_of_no_effect([Situation.NO_COLOR], checks.given_settings(flags))
    checks.check_settings(flags, settings)
    check_output_file(batch_flags.output)
    if batch_flags.output is None:
        of_files = {
            "--retry-failed": batch_flags.retry_failed,
            "--restart": batch_flags.restart,
            "--force": batch_flags.force,
        }
        checks.warn_of_no_effect([Situation.BATCH_ON_STDOUT], of_files)
    _check_apart(source, batch_flags.output)
    check_session(settings)
    path = Path(source)
    folder = str(path.absolute().parent) if path.is_file() else os.getcwd()
    command = _Batch(batch_flags, tasks, folder)
    with reporting_to(command.progress):
        if source != STDIN and _is_file(path) and _is_file(batch_flags.output):
            command.run_file(path)
        else:
            command.run_stream(source)


class _Batch:
    """One run of the command; relative paths in lines start at `folder`."""

    def __init__(self, flags: BatchFlags, tasks: Tasks, folder: str) -> None:
        self._flags = flags
        self._tasks = tasks
        self._shard = flags.lines
        self._notes = Notes(flags.verbose)
        self._settings = tasks.by_name["ask"][0]
        self._max_line_bytes = self._settings.reading.max_mb * 1_000_000
        self.progress = RunProgress(self._notes, "line")
        self._answers = RunAnswers(
            self._settings, self.progress, size=flags.batch_size, may_be_served=True
        )
        self._requests = LineRequests(tasks, flags.preset, folder, flags.output)

    def run_file(self, path: Path) -> None:
        """Answer the lines of a file, into a file that the same command resumes."""
        flags = self._flags
        assert flags.output is not None
        self._notes.status(f"Reading {path} …")
        lines, sha256 = scan(path, self._max_line_bytes, self._shard, self._requests.check_paths)
        self._notes.clear()
        lines = lines[: flags.limit or None]
        head = self._head(sha256)
        with closing(
            FileOutput(flags.output, head, flags.restart, self._max_line_bytes, flags.force)
        ) as output:
            indices = [line.index for line in lines]
            to_do = output.to_do(indices, retries=flags.retry_failed)
            left = [line for line in lines if line.index in to_do]
            self.progress.set_total(len(lines), len(left), "already done")
            without_answer = output.to_do(indices, retries=True)
            answered = [line for line in lines if line.index not in without_answer]
            self._warn_of_changes(answered, path, output)
            self._answer(Lines(left), path, output)
        failed = sum(output.failed(line.index) for line in lines)
        self.progress.check_failed(
            failed, len(lines), f"{_IN_LINE}; --retry-failed runs them again."
        )

    def _head(self, sha256: str) -> dict[str, Any]:
        """Return what decides all answers: the input, which of its lines, and the settings."""
        head: dict[str, Any] = {
            "input": sha256,
            "shard": self._flags.shard,
            "engine": self._settings.engine.engine,
        }
        for task in sorted(self._tasks.by_name):
            for name, value in sorted(deciding(*self._tasks.by_name[task]).items()):
                head[f"{task}.{name}"] = value
        return head

    def _warn_of_changes(self, done: Iterable[InputLine], path: Path, output: FileOutput) -> None:
        """Name the lines whose documents have other texts than when they were answered."""
        changed = [shown(line.id) for line in self._requests.changed(done, path, output.record)]
        if not changed:
            return
        ids = ", ".join(changed[:_IDS_SHOWN])
        if len(changed) > _IDS_SHOWN:
            ids += f" and {len(changed) - _IDS_SHOWN} more"
        self._notes.warn(
            f"the documents of {counted(len(changed), 'line')} have changed or disappeared"
            f" since the answers were made: {ids}; --restart answers all lines again"
        )

    def run_stream(self, source: str) -> None:
        """Answer lines as they arrive, or of a file to a stream. Nothing is resumed."""
        flags = self._flags
        retry = {"--retry-failed": flags.retry_failed}
        checks.warn_of_no_effect([Situation.STREAM], retry)
        path = flags.output
        if path is not None and path.is_file() and path.stat().st_size and not flags.force:
            raise errors.UsageError(
                f"{path} already exists, and answers to a stream cannot be resumed",
                hint="Name another file with -o, or overwrite it with --force.",
            )
        name = "standard input" if source == STDIN else source
        with ExitStack() as stack:
            self._notes.status(f"Waiting for lines from {name} …")
            stream = _open_lines(source)
            if Path(source).is_file():  # closing others would wait for what is being read
                stack.enter_context(stream)
            arriving = read_lines(stream, name, self._max_line_bytes, self._shard)
            lines = Lines(islice(arriving, flags.limit or None), self._max_line_bytes)
            output = stack.enter_context(closing(StreamOutput(path, print_line)))
            failed = self._answer(lines, None, output)
        self.progress.check_failed(failed, lines.count, f"{_IN_LINE}.")

    def _answer(self, lines: Lines, path: Path | None, output: FileOutput | StreamOutput) -> int:
        """Answer lines, of the file at `path` if there is one; return how many failed."""
        items = _LineItems(lines, partial(self._work, path))
        results = _LineResults(output, self._notes, to_stdout=self._flags.output is None)
        with closing(self._requests):
            failed = answer_items(
                items,
                results,
                self._answers,
                self.progress,
                self._notes,
                resumes=isinstance(output, FileOutput),
            )
        self._notes.demonstration(self._settings.model.model)
        return failed

    def _work(self, path: Path | None, line: InputLine) -> Work:
        """Answer a line: the object of --json with its id, or its error."""
        from ngtcli.cli.answer_object import failed_line, line_object  # here: few runs need it

        try:
            request = self._requests.read(line, path)
            warn_of_limits(self._notes, request)
            (answer,) = yield [request]
            row: LineObject | FailedLineObject = line_object(line.id, request, answer)
            failed = no_answer(answer.finish_reason) is not None
        except Exception as error:
            row = failed_line(line.id, caught(error))
            failed = True
        files, texts = self._requests.hashes(line)
        return DoneLine(line.index, json_of_answer(row, None), failed, files, texts)


class _LineItems:
    """The lines of a batch as items."""

    def __init__(self, lines: Lines, work: Callable[[InputLine], Work]) -> None:
        self._lines = lines
        self._work = work
        self._taken: dict[Item, InputLine] = {}

    def wait(self) -> bool:
        """As `Items.wait`."""
        return self._lines.wait()

    def take(self) -> Item | None:
        """As `Items.take`."""
        line = self._lines.take()
        if line is None:
            return None
        item = Item(line_id(line.index), str(line.id), partial(self._work, line))
        self._taken[item] = line
        return item

    def done(self, item: Item) -> None:
        """As `Items.done`."""
        self._lines.done(self._taken.pop(item))


class _LineResults:
    """The file or stream that gets a line for each line of a batch."""

    def __init__(self, output: FileOutput | StreamOutput, notes: Notes, *, to_stdout: bool) -> None:
        self._output = output
        self._notes = notes
        self._to_stdout = to_stdout

    def put(self, item: Item, row: object) -> bool:
        """As `Results.put`; a line that fails is a line of its own."""
        assert isinstance(row, DoneLine)
        if self._to_stdout:
            self._notes.clear()  # both may be on one terminal
        self._output.put(row)
        return row.failed


# --- what lines are read from and written to ---


def _is_file(path: Path | None) -> bool:
    """Whether a file is there, or may be made there: no device and no pipe."""
    return path is not None and (path.is_file() or not path.exists())


def _check_apart(source: str, output: Path | None) -> None:
    """Raise UsageError where the answers would be written over the lines, or after them."""
    if identity(0 if source == STDIN else source) in written_with(output):
        raise errors.UsageError(
            f"{output or 'standard output'} is also the input, or its journal is",
            hint="Name another file with -o.",
        )


def _open_lines(source: str) -> IO[bytes]:
    """Open the stream of lines. Raises InputError."""
    if source != STDIN:
        try:
            return open(source, "rb")
        except OSError as error:
            raise errors.InputError(
                f"{source}: {reason_of(error)}", hint="Name a file of JSON lines."
            ) from None
    stream = reading.standard_input([STDIN])
    if stream is None:
        raise errors.InputError("standard input: nothing is piped in", hint="Pipe JSON lines in.")
    return stream
