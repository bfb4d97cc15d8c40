"""`ngt batch`: a file or stream of questions and texts, a line each; an answer a line.

`Run`, which answers many texts and shows what is done, is that of `ngt summarize -o FOLDER`, too.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from ngtcli import errors
from ngtcli.cli import checks, options, reading
from ngtcli.cli.notes import CUT_OFF, Notes, once
from ngtcli.cli.output import check_output_file, json_of_answer, print_line
from ngtcli.config import Settings
from ngtcli.documents.find import STDIN
from ngtcli.engine.batch.input import InputLine, Lines, Shard, read_lines, scan
from ngtcli.engine.batch.output import DoneLine, FileOutput, StreamOutput, written_with
from ngtcli.engine.batch.questions import Questions
from ngtcli.engine.checks import check_session
from ngtcli.engine.events import Ended, Outcome, reporter
from ngtcli.engine.no_answer import no_answer
from ngtcli.engine.request import OtherModelError, Request, Tasks, limit_of
from ngtcli.prompts.preset import TASKS, deciding
from ngtcli.server.client import served
from ngtcli.server.many import ServedRun
from ngtcli.system import process
from ngtcli.system.files import identity
from ngtcli.system.json_form import to_json
from ngtcli.system.progress import time_left
from ngtcli.system.yaml_file import shown
from ngtcli.words import counted, reason_of, short

if TYPE_CHECKING:  # it loads numpy
    from ngtcli.engine.engine import Engine

_Drawn = tuple[InputLine, Request | errors.NgtError]

_OUT = options.file_option(
    "--output", "-o", help="Write to this file; the same command resumes after a kill."
)
_RETRY = typer.Option("--retry-failed", help="Run the lines that failed again, too.")
_SHARD = typer.Option("--shard", metavar="I/N", help="Only the I-th of every N lines, from 1.")
GOES_ON = "the same command goes on from there"
PUT_OUT = "what is done is put out"
_IDS_SHOWN = 5  # ids that a remark names
_EVERY_S = 10.0  # between two lines with -v where none can be wiped; guess
_IN_LINE = "Each has its error, or why it is no answer, in its line"
_REMARKS_SHOWN = 5  # on single lines; -v shows all


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """The flags of `ngt batch`, but for the input and the settings."""

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
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.shard)
        part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= part <= parts:
            hint = "Give it as in --shard 1/4, up to 4/4."
            raise errors.UsageError(f"--shard {self.shard}", hint=hint)
        return part, parts


@options.with_settings(options.OF_MANY)
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
    tasks = options.tasks_of(flags or {}, given.preset, TASKS, worded=True)
    settings = tasks.of["ask"][0]
    checks.refuse_colour("ngt batch", flags or {})
    checks.refuse_ignored(flags or {}, settings)
    check_output_file(given.output)
    if given.output is None:
        others = {"--retry-failed": given.retry_failed, "--restart": given.restart}
        others |= {"--force": given.force}
        checks.refuse_with("standard output", others, "Name a file with -o.")
    _check_apart(source, given.output)
    check_session(settings, Notes().warn)
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
        self._shard, self._notes = given.lines, Notes(given.verbose)
        self._settings = tasks.of["ask"][0]
        self._most = self._settings.reading.max_mb * 1_000_000  # bytes of a line
        self._run = Run(self._settings, given.batch_size, self._notes, "line", may_be_served=True)
        self._questions = Questions(tasks, given.preset, folder, given.output, self._run.warn)

    def run_file(self, path: Path) -> None:
        """Answer the lines of a file, into a file that the same command resumes."""
        assert self._given.output is not None
        self._notes.status(f"Reading {path} …")
        lines, sha256 = scan(path, self._most, self._shard, self._questions.check_paths)
        self._notes.clear()
        chosen = lines[: self._given.limit or None]
        head = {"input": sha256, "shard": self._given.shard, "engine": self._settings.engine.engine}
        for task in sorted(self._tasks.of):
            how = sorted(deciding(*self._tasks.of[task]).items())
            head |= {f"{task}.{name}": value for name, value in how}
        out, restart = self._given.output, self._given.restart
        with closing(FileOutput(out, head, restart, self._most, self._given.force)) as output:
            good = [n for n in chosen if n.index in output.done and not output.failed(n.index)]
            kept = {n.index for n in good} if self._given.retry_failed else output.done
            left = [n for n in chosen if n.index not in kept]
            self._run.set_total(len(chosen), len(left), "done before")
            self._warn_of_changes(good, path, output)
            self._answer(Lines(left), path, output, GOES_ON)
        failed = sum(output.failed(line.index) for line in chosen)
        self._run.check_failed(failed, len(chosen), f"{_IN_LINE}; --retry-failed runs them again.")

    def _warn_of_changes(self, done: Iterable[InputLine], path: Path, output: FileOutput) -> None:
        """Name the lines whose documents have other texts than when they were answered."""
        changed = [shown(n.id) for n in self._questions.changed(done, path, output.done)]
        if changed:
            ids, more = ", ".join(changed[:_IDS_SHOWN]), len(changed) - _IDS_SHOWN
            self._notes.warn(
                f"the documents of {counted(len(changed), 'line')} have changed or gone"
                f" since the answers were made: {ids}{f' and {more} more' if more > 0 else ''};"
                " --restart answers all lines again"
            )

    def run_stream(self, source: str) -> None:
        """Answer lines as they arrive, or of a file to a stream. Nothing is resumed."""
        checks.refuse_with("a stream", {"--retry-failed": self._given.retry_failed}, "Name a file.")
        out = self._given.output
        if out is not None and out.is_file() and out.stat().st_size and not self._given.force:
            what = "it is there, and what comes from a stream cannot be resumed"
            hint = "Name another file with -o, or write over it with --force."
            raise errors.UsageError(f"{out}: {what}", hint=hint)
        name = "standard input" if source == STDIN else source
        with ExitStack() as stack:
            self._notes.status(f"Waiting for lines of {name} …")
            stream = _open_lines(source)
            if Path(source).is_file():  # closing others would wait for what is being read
                stack.enter_context(stream)
            found = read_lines(stream, name, self._most, self._shard)
            lines = Lines(islice(found, self._given.limit or None), self._most)
            output = stack.enter_context(closing(StreamOutput(out, print_line)))
            self._answer(lines, None, output, PUT_OUT)
        self._run.check_failed(self._run.failed, lines.count, f"{_IN_LINE}.")

    def _answer(
        self, lines: Lines, path: Path | None, output: FileOutput | StreamOutput, interrupted: str
    ) -> None:
        def deliver(outcome: Outcome) -> bool:
            row, line = row_of(outcome), outcome.key
            if self._given.output is None:
                self._notes.clear()  # both may be on one terminal
            files, texts = self._questions.hashes(line)
            done = DoneLine(
                line.index, json_of_answer(row, None), _has_failed(outcome), files, texts
            )
            output.put(done)
            return done.failed

        with closing(self._questions):
            read = partial(self._questions.read, path=path)
            self._run.answer(lines, read, deliver, interrupted)
        self._notes.demonstration(self._settings.model.model)


def _has_failed(outcome: Outcome) -> bool:
    """Return whether a line has an error, or an answer that is none."""
    answer = outcome.answer
    return not isinstance(answer, Ended) or no_answer(answer.finish_reason) is not None


def row_of(outcome: Outcome, tokens: bool = False) -> dict[str, Any]:
    """What a line puts out: its id with the object of --json, or --json-tokens, or its error."""
    from ngtcli.cli.answer_object import ErrorObject, FailedLineObject, LineObject, answer_object

    error, request = outcome.answer, outcome.request
    try:
        if isinstance(error, Ended) and request is not None:
            return dict(to_json(LineObject(outcome.key.id, answer_object(request, error, tokens))))
    except Exception as caught:
        error = errors.unexpected(caught)
    assert isinstance(error, errors.NgtError)
    about = ErrorObject(str(error), error.hint, error.exit_code)
    return dict(to_json(FailedLineObject(outcome.key.id, about)))


# --- what lines are read from and written to ---


def _is_file(path: Path | None) -> bool:
    """Whether a file stands there, or may be made there: no device and no pipe."""
    return path is not None and (path.is_file() or not path.exists())


def _check_apart(source: str, output: Path | None) -> None:
    """Raise UsageError where the answers would be written over the lines, or behind them."""
    if identity(0 if source == STDIN else source) in written_with(output):
        where = output or "standard output"
        hint = "Name another file with -o."
        raise errors.UsageError(f"{where}: it is the input, or its journal is", hint=hint)


def _open_lines(source: str) -> IO[bytes]:
    """The lines' stream. Raises InputError."""
    if source != STDIN:
        try:
            return open(source, "rb")
        except OSError as error:
            what = f"{source}: {reason_of(error)}"
            raise errors.InputError(what, hint="Name a file of JSON lines.") from None
    stream = reading.standard_input([STDIN])
    if stream is None:
        raise errors.InputError("standard input: nothing is piped in", hint="Pipe JSON lines in.")
    return stream


class Run:
    """Answers many texts, each of which is a `what`, and shows what is done.

    On a terminal that is one line in place, elsewhere one now and then with -v. `size` texts are
    answered together, 0: as many as the engine can. `engine` may be one that another run opened.
    Where it `may_be_served`, and no size is wanted, a running server answers in its place.
    """

    def __init__(
        self, settings: Settings, size: int, notes: Notes, what: str, *, may_be_served: bool = False
    ) -> None:
        self.engine: Engine | None = None
        self._may_be_served = may_be_served and not size
        is_exact = settings.drafting.exact == "on" and settings.engine.engine != "vllm"
        self._size = size or int(is_exact)  # exact passes are over one text
        self._settings, self._notes, self._what = settings, notes, what
        self._before = self._total = 0  # done by earlier runs, and in all; 0: not known
        self._began = self._shown = 0.0  # when the first was asked, 0.0 before; and shown last
        self._done = self.failed = self._documents = self._tokens = 0
        self._remarks = 0
        # For remarks on texts: each once, and without -v only the first few.
        self.warn = once(self._remark)
        self.warns_of_limits = True

    def set_total(self, total: int, left: int, words: str) -> None:
        """How many texts there are; those that are not left were done by earlier runs."""
        self._total, self._before = total, total - left
        if self._before:
            self._notes.warn(f"{words}: {self._before} of {counted(total, self._what)}")

    def answer(
        self,
        lines: Lines,
        read: Callable[[InputLine], Request],
        deliver: Callable[[Outcome], bool | None],
        interrupted: str,
    ) -> None:
        """Answer all lines; `deliver` puts out what came of one, and returns whether it failed.

        None: the text of that one is not done, for other questions of it are to be answered.
        The model is loaded when there is something to do; `interrupted` says what an interruption
        leaves behind. Raises NgtError for what ends the run; exits 130 when interrupted.
        """
        try:
            if not lines.wait():  # what is done needed no model
                self._began = time.monotonic()
                self._conclude()
                return
            draw: Callable[[bool], _Drawn | None] = partial(_draw, lines, partial(self._read, read))
            left = list[_Drawn]()
            place = served(self._settings) if self._may_be_served and not self.engine else None
            if place is not None:
                process.unwind_on_interrupt()
                self._began = time.monotonic()
                self._shown = self._began
                report = reporter(self._show, self.warn)
                remote = ServedRun(place, self._settings, report)
                self._deliver_all(remote.outcomes(draw), lines, deliver)
                left = remote.left
                if not left and not lines.wait():
                    self._conclude()
                    return
                self.warn("the server has ended: the model is loaded in this process instead")

            engine = self.opened()
            from ngtcli.engine.drivers import run  # not before vLLM runs: it loads numba

            process.unwind_on_interrupt()
            self._began = self._began or time.monotonic()
            self._shown = time.monotonic()

            def draw_left_first(waits: bool) -> _Drawn | None:
                return left.pop(0) if left else draw(waits)

            self._deliver_all(run(engine, draw_left_first), lines, deliver)
        except OtherModelError as error:
            hint = "Give -m, --device and --dtype, which stand above what presets say."
            what = f"the presets of the tasks name different models: {error}"
            raise errors.UsageError(what, hint=hint) from None
        except KeyboardInterrupt:
            self._conclude()
            self._notes.warn(f"interrupted; {interrupted}")
            raise typer.Exit(errors.INTERRUPTED) from None
        finally:
            self._notes.clear()
        self._conclude()

    def _deliver_all(
        self,
        outcomes: Generator[Outcome],
        lines: Lines,
        deliver: Callable[[Outcome], bool | None],
    ) -> None:
        with closing(outcomes):
            for outcome in outcomes:
                lines.done(outcome.key)
                self._add(outcome, deliver(outcome))

    def opened(self) -> "Engine":
        """Return the engine, its model loaded; another run may use it, too."""
        if self.engine is None:
            from ngtcli.engine.opening import open_engine  # here: few runs get as far

            report = reporter(self._show, self.warn)
            self.engine = open_engine(self._settings, report, size=self._size, many=True)
        return self.engine

    def _read(self, read: Callable[[InputLine], Request], line: InputLine) -> Request:
        """The question of a line; say what of it the built-in model cannot do."""
        request = read(line)
        if self.warns_of_limits and (limit := limit_of(request)):
            self._notes.demonstration(request.settings.model.model, limit)
        return request

    def check_failed(self, failed: int, total: int, hint: str) -> None:
        """Raise FailedLinesError, exit code 7, where some failed."""
        if failed:
            what = f"{failed} of {counted(total, self._what)} failed"
            raise errors.FailedLinesError(what, hint=hint)

    def _remark(self, message: str) -> None:
        self._remarks += 1
        if self._notes.verbose or self._remarks <= _REMARKS_SHOWN:
            self._notes.warn(message)
        elif self._remarks == _REMARKS_SHOWN + 1:
            self._notes.warn("there are more such remarks; -v has them all")

    def finished(self, failed: bool) -> None:
        """Count a text that is done, which needed no answer."""
        self._done += 1
        self.failed += failed

    def _add(self, outcome: Outcome, failed: bool | None) -> None:
        request, answer = outcome.request, outcome.answer
        if failed is not None:
            self.finished(failed)
            self._documents += len(request.documents) if request is not None else 0
        if request is not None and isinstance(answer, Ended):
            self._tokens += answer.statistics.new_tokens
            self._tokens += sum(part.new_tokens for part in answer.parts)
            if nothing := no_answer(answer.finish_reason):
                self.warn(f"{self._what} {outcome.key.id}: {nothing}")
            why = CUT_OFF.get(answer.finish_reason)
            if why and not request.settings.answer.has_form:  # half an answer in a form is an error
                self.warn(f"{self._what} {outcome.key.id}: {why}")
        self._show()

    def _show(self, message: str = "") -> None:
        """Show what is done, and `message` behind it; where nothing can be wiped, not too often."""
        if not self._began:
            self._notes.status(message)
        elif self._notes.wipes:
            self._notes.status(" · ".join([*self._facts(), *([message] * bool(message))]))
        elif self._notes.verbose and time.monotonic() - self._shown >= _EVERY_S:
            self._shown = time.monotonic()
            self._notes.say(" · ".join(self._facts()))

    def _facts(self) -> list[str]:
        """What is done so far, and the time left."""
        done, seconds = self._before + self._done, time.monotonic() - self._began
        of_all = f"{done} of {counted(self._total, self._what)}"
        facts = [of_all if self._total else counted(done, self._what)]
        if self.failed:
            facts.append(f"{self.failed} failed")
        if self._documents:
            facts.append(counted(self._documents, "document"))
            facts.append(f"{short(round(self._tokens / max(seconds, 1e-6)))} tokens/s")
        if self._done and self._total > done:
            facts.append(f"{time_left((self._total - done) * seconds / self._done)} left")
        return facts

    def _conclude(self) -> None:
        """On a terminal, or with -v, what was done, and in what time."""
        self._notes.clear()
        if self._done and (self._notes.terminal or self._notes.verbose):
            self._notes.facts([*self._facts(), time_left(time.monotonic() - self._began)])


def _draw(lines: Lines, read: Callable[[InputLine], Request], wait: bool) -> _Drawn | None:
    """The next line with its question, or why there is none; None where no line is there now."""
    from ngtcli.engine.engine import caught  # here, as `run`

    if (wait and not lines.wait()) or (line := lines.take()) is None:
        return None
    try:
        return line, read(line)
    except Exception as error:
        return line, caught(error)
