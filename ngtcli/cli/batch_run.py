"""Runs many texts for `ngt batch` and `ngt summarize -o FOLDER`: loads, answers, shows progress."""

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from ngtcli.batch.waiting import Line
from ngtcli.batch.work import Outcome, Work
from ngtcli.cli.app import unexpected
from ngtcli.cli.batch_rows import Progress
from ngtcli.cli.notes import Notes
from ngtcli.config import Settings
from ngtcli.errors import INTERRUPTED, FailedLinesError, counted
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.batch.runner import Engine, Lines


def open_engine(settings: Settings, size: int, progress: Progress) -> "Engine":
    """What answers the lines. Loads the model; raises ModelError."""
    if settings.engine == "vllm":
        from ngtcli.cli.vllm_engine import engine_of_vllm

        return engine_of_vllm(settings, size, progress.show, progress.warn)
    progress.show("Starting …")
    from ngtcli.batch.answers import answers  # here: they load torch
    from ngtcli.batch.runner import Engine
    from ngtcli.session.local import Session

    size = 1 if settings.exact == "on" and not size else size  # exact passes are over one text
    session = Session(settings, progress.show, progress.warn)
    session.model.keeps_chunks = True  # lines with the same documents follow one another
    return Engine(session, answers, size, session.model.passes.report)


def run_lines(
    lines: "Lines",
    *,
    engine: Callable[[Progress], "Engine"],
    read: Callable[[Line], Work],
    deliver: Callable[[Outcome, "Engine"], bool],
    progress: Progress,
    notes: Notes,
    interrupted: str,
) -> None:
    """Answer all lines; `deliver` puts out what came of one, and returns whether it failed.

    `engine` is opened when there is something to do; `interrupted` says what an interruption leaves
    behind. Raises NgtError for what ends the run; exits 130 when interrupted.
    """
    try:
        if not lines.wait():
            return
        opened = engine(progress)
        from ngtcli.batch.runner import Runner  # here: it loads torch

        process.unwind_on_interrupt()
        progress.begin()
        runner = Runner(opened, lines, read, unexpected, status=progress.show, warn=progress.warn)
        with closing(runner.run()) as outcomes:
            for outcome in outcomes:
                progress.add(outcome, deliver(outcome, opened))
    except KeyboardInterrupt:
        progress.conclude()
        notes.warn(f"interrupted; {interrupted}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        notes.clear()
    progress.conclude()


def check_failed(failed: int, total: int, what: str, hint: str) -> None:
    """Raise FailedLinesError, exit code 7, where some failed."""
    if failed:
        raise FailedLinesError(f"{failed} of {counted(total, what)} failed", hint)
