"""Answer many items for a command, and show the progress."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from ngtcli.cli.notes import CUT_OFF, Notes
from ngtcli.config import Settings
from ngtcli.engine.batch.run import Item, Items, Results, answer_all
from ngtcli.engine.events import BatchItem, Ended, Outcome
from ngtcli.engine.no_answer import no_answer
from ngtcli.engine.request import OtherModelError, Request, builtin_limit
from ngtcli.errors import INTERRUPTED, FailedLinesError, UsageError
from ngtcli.server.client import Remote
from ngtcli.server.many import ServedRun
from ngtcli.system import process
from ngtcli.system.progress import time_left
from ngtcli.system.reporting import Reporter, reporting_to
from ngtcli.words import counted, short

if TYPE_CHECKING:  # it loads numpy
    from ngtcli.engine.engine import Engine

_EVERY_S = 10.0  # between two lines with -v where none can be wiped (guess)
_WARNINGS_SHOWN = 5  # about single items; -v shows all


class RunProgress(Reporter):
    """Shows how many items of a run are done, with the documents and tokens of their answers.

    On a terminal that is one line in place, elsewhere one now and then with -v.

    Args:
        notes: Where it is shown.
        noun: What an item is called.
        warns_of_no_answer: Whether to warn of an answer that is none; if not, the results do.
    """

    def __init__(self, notes: Notes, noun: str, warns_of_no_answer: bool = True) -> None:
        self._notes = notes
        self._noun = noun
        self._warns_of_no_answer = warns_of_no_answer
        self._total = 0  # items, including those of earlier runs; 0 if not known
        self._before = 0  # items that earlier runs have finished
        self._done = 0
        self._failed = 0
        self._documents = 0
        self._tokens = 0
        self._began_at = 0.0  # by time.monotonic; 0.0 before
        self._shown_at = 0.0
        self._warned = set[str]()

    def set_total(self, total: int, left: int, words: str) -> None:
        """Report how many items there are.

        Args:
            total: All items.
            left: The items to do.
            words: What happened to the others.
        """
        self._total = total
        self._before = total - left
        if self._before:
            self._notes.warn(f"{words}: {self._before} of {counted(total, self._noun)}")

    def begin(self) -> None:
        """Start the clock, unless it runs already."""
        self._began_at = self._began_at or time.monotonic()
        self._shown_at = time.monotonic()

    def answered(self, item: Item, request: Request, answer: Ended) -> None:
        """As `engine.batch.run.Progress.answered`."""
        self._tokens += answer.statistics.new_tokens
        self._tokens += sum(part.new_tokens for part in answer.parts)
        nothing = no_answer(answer.finish_reason)
        if nothing and self._warns_of_no_answer:
            self.warn(f"{self._noun} {item.name}: {nothing}")
        why = CUT_OFF.get(answer.finish_reason)
        if why and not request.settings.answer.has_form:  # half a structured output is an error
            self.warn(f"{self._noun} {item.name}: {why}")
        self.show()

    def finished(self, *, failed: bool, documents: int = 0) -> None:
        """As `engine.batch.run.Progress.finished`."""
        self._done += 1
        self._failed += failed
        self._documents += documents
        self.show()

    def show(self, message: str = "") -> None:
        """Show the progress with a message; without a status line, only from time to time."""
        if not self._began_at:
            if message:
                self._notes.status(message)
        elif self._notes.wipes:
            facts = self._facts()
            if message:
                facts.append(message)
            self._notes.status(" · ".join(facts))
        elif self._notes.verbose and time.monotonic() - self._shown_at >= _EVERY_S:
            self._shown_at = time.monotonic()
            self._notes.say(" · ".join(self._facts()))

    def status(self, text: str) -> None:
        """As `Reporter.status`."""
        self.show(text)

    def conclude(self) -> None:
        """Show on a terminal, or with -v, what was done and how long it took."""
        self.begin()
        self._notes.clear()
        if self._done and (self._notes.terminal or self._notes.verbose):
            self._notes.facts([*self._facts(), time_left(time.monotonic() - self._began_at)])

    def check_failed(self, failed: int, total: int, hint: str) -> None:
        """Raise FailedLinesError (exit code 7) if some items failed."""
        if failed:
            raise FailedLinesError(f"{failed} of {counted(total, self._noun)} failed", hint=hint)

    def warn(self, message: str) -> None:
        """Show a warning once; without -v only the first few are shown."""
        if message in self._warned:
            return
        self._warned.add(message)
        if self._notes.verbose or len(self._warned) <= _WARNINGS_SHOWN:
            self._notes.warn(message)
        elif len(self._warned) == _WARNINGS_SHOWN + 1:
            self._notes.warn("more warnings like these; -v shows all")

    def _facts(self) -> list[str]:
        """Return the progress in short phrases."""
        done = self._before + self._done
        seconds = time.monotonic() - self._began_at
        if self._total:
            facts = [f"{done} of {counted(self._total, self._noun)}"]
        else:
            facts = [counted(done, self._noun)]
        if self._failed:
            facts.append(f"{self._failed} failed")
        if self._documents:
            facts.append(counted(self._documents, "document"))
            facts.append(f"{short(round(self._tokens / max(seconds, 1e-6)))} tokens/s")
        if self._done and self._total > done:
            facts.append(f"{time_left((self._total - done) * seconds / self._done)} left")
        return facts


class RunAnswers:
    """What answers the requests of a run: a running server, or a model loaded in this process.

    Args:
        settings: What has to be loaded.
        progress: Where its messages are shown.
        size: How many requests are answered together; 0 for as many as the engine can.
        may_be_served: Whether a running server may answer them, if `size` is 0.
    """

    def __init__(
        self,
        settings: Settings,
        progress: RunProgress,
        *,
        size: int = 0,
        may_be_served: bool = False,
    ) -> None:
        is_exact = settings.drafting.exact == "on" and settings.engine.engine != "vllm"
        self._settings = settings
        self._progress = progress
        self._may_be_served = may_be_served and not size
        self._size = size or int(is_exact)  # exact passes are over one text
        self._engine: Engine | None = None

    def engine(self) -> "Engine":
        """Return the engine, its model loaded now if need be."""
        if self._engine is None:
            from ngtcli.engine.opening import open_engine  # few commands get this far

            self._engine = open_engine(self._settings, size=self._size, many=True)
        return self._engine

    def outcomes(self, draw: Callable[[bool], BatchItem | None]) -> Generator[Outcome]:
        """Yield what comes of the requests that are drawn, as `engine.drivers.run` does."""
        left: list[BatchItem] = []
        remote = None
        if self._may_be_served and self._engine is None:
            remote = Remote.of(self._settings)
        if remote is not None:
            process.unwind_on_interrupt()
            self._progress.begin()
            served = ServedRun(remote, self._settings)
            with closing(served.outcomes(draw)) as outcomes:
                yield from outcomes
            left = served.left
            if not left:
                following = draw(True)
                if following is None:
                    return
                left = [following]
            why = served.why_left
            self._progress.warn(f"{why}: the model is loaded in this process instead")

        engine = self.engine()
        from ngtcli.engine.drivers import run  # not before vLLM runs: it loads numba

        process.unwind_on_interrupt()
        self._progress.begin()

        def draw_left_first(waits: bool) -> BatchItem | None:
            return left.pop(0) if left else draw(waits)

        with closing(run(engine, draw_left_first)) as outcomes:
            yield from outcomes


def answer_items(
    items: Items,
    results: Results,
    answers: RunAnswers,
    progress: RunProgress,
    notes: Notes,
    *,
    resumes: bool,
) -> int:
    """Answer all items, show how far that has come, and return how many failed.

    Args:
        items: What is answered.
        results: What takes the rows.
        answers: What answers the requests.
        progress: Shows what is done.
        notes: Where warnings go.
        resumes: Whether the same command continues where this one was interrupted.

    Raises:
        NgtError: The run cannot continue.
        Exit: With code 130 where it was interrupted.
    """
    try:
        with reporting_to(progress):
            failures = answer_all(items, results, answers.outcomes, progress)
    except OtherModelError as error:
        raise UsageError(
            f"the presets of the tasks name different models: {error}",
            hint="Give -m, --device and --dtype, which override presets.",
        ) from None
    except KeyboardInterrupt:
        progress.conclude()
        rest = "the same command resumes" if resumes else "finished answers were printed"
        notes.warn(f"interrupted; {rest}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        notes.clear()
    progress.conclude()
    return failures


def warn_of_limits(notes: Notes, request: Request) -> None:
    """Say what of a request the built-in model cannot do."""
    limit = builtin_limit(request)
    if limit:
        notes.demonstration(request.settings.model.model, limit)
