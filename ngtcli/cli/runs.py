"""`ngt runs`: the log of answers, and what drafting brought."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from ngtcli.cli.completion import quietly
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import reports
from ngtcli.cli.show import facts, table
from ngtcli.errors import InputError, counted
from ngtcli.render.terminal import visible
from ngtcli.session.runs import ModelRuns, RunRecord, read_runs, totals

runs_app = typer.Typer(no_args_is_help=True)
_UNKNOWN = "unknown"
_ids = quietly(lambda _: [run.id for run in read_runs()[0]])
_ID = typer.Argument(
    help="Its id, or how that begins; without, the last.", metavar="ID", autocompletion=_ids
)
_LAST = typer.Option("--last", min=0, help="Only the last N; 0: all.", metavar="N")


def _run_cells(run: RunRecord) -> list[object]:
    """As a row; `length` is the acceptance length."""
    when = run.at
    with suppress(ValueError):  # another program's; shown as it stands
        when = f"{datetime.fromisoformat(when).astimezone():%Y-%m-%d %H:%M}"
    own = [visible(text) for text in (run.id, when, run.by, run.model, run.method)]
    return [*own, *_figures(run.new_tokens, run.steps, run.decode_s), _saved(run.saved_s)]


def _figures(tokens: int, steps: int, seconds: float) -> list[str]:
    length = f"{tokens / steps:.2f}" if steps else "-"
    return [str(tokens), length, f"{tokens / seconds:.1f}" if seconds else "-"]


def _saved(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{seconds:.2f} s"


@runs_app.command("list")
@reports(table("id,when,by,model,method,tokens,length,tokens/s,saved", _run_cells))
def runs_list(last: Annotated[int, _LAST] = 20) -> list[RunRecord]:
    """List the answers in the log, the last one below."""
    return _runs()[-last:]


@runs_app.command("show")
@reports(facts)
def runs_show(name: Annotated[str, _ID] = "") -> RunRecord:
    """Show one answer's line in the log."""
    found = [run for run in _runs() if run.id.startswith(name)]
    if not found:
        what = f"the log has no run {name!r}" if name else "the log is empty"
        raise InputError(what, "See ngt runs list --last 0.")
    return found[-1]


def _model_cells(sums: ModelRuns) -> list[object]:
    plain = _UNKNOWN if sums.saved_s is None else f"{sums.plain_s:.2f} s"
    saved = _saved(sums.saved_s)
    if sums.saved_s is not None and sums.compared_s:
        saved += f" ({sums.plain_s / sums.compared_s:.2f}×)"
    figures = _figures(sums.new_tokens, sums.steps, sums.decode_s)
    compared = counted(sums.compared_runs, "run")
    return [visible(sums.model), sums.runs, *figures, plain, saved, compared]


@runs_app.command("stats")
@reports(table("model,runs,tokens,length,tokens/s,plain,saved,of", _model_cells))
def runs_stats() -> list[ModelRuns]:
    """Sum the log by model: runs, tokens, acceptance length, speed, and the time drafts saved.

    The time saved is what plain decoding would have taken, less what decoding took. Plain decoding
    makes one token a pass: it would have taken the answer's tokens times the cost of a pass over
    one row, as auto measures it on this device and refines it by the steps of each run; with other
    methods, the mean of the run's own steps without drafts. Where that is not known, and of texts
    that were decoded together, it is unknown; the last column says of how many runs the sum is.
    """
    return totals(_runs())


def _runs() -> list[RunRecord]:
    """The log; damaged lines are counted on stderr. Raises NgtError."""
    found, damaged = read_runs()
    if damaged:
        Notes().warn(f"left out {counted(damaged, 'damaged line')} of the log")
    return found
