"""`ngt tune`: try settings on a recording or a model, and keep the ones that are fastest.

The winner becomes a preset of the user's, with where it comes from written in it.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.checks import refuse_with
from ngtcli.cli.measuring import (
    PageFlags,
    PromptFlags,
    Run,
    measures,
    result_option,
)
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import OF_OWN_ENGINE, command_line
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Resolved, Settings, Use, settings_where
from ngtcli.documents.find import Skipped
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.measure.grid import BenchOptions, Grid, grid, is_axis, parse_sweep
from ngtcli.measure.prompts import preset_items
from ngtcli.measure.records import Source
from ngtcli.measure.results import SweepData, SweepReport
from ngtcli.measure.tune import (
    State,
    default_state,
    measure,
    preset_path,
    report,
    state_key,
    write_winner,
)
from ngtcli.session.checks import check_session
from ngtcli.system import process

_ALWAYS = ("color", "max_mb", "cache_mb")  # settings that count on a recording, too
_data = partial(typer.Option, rich_help_panel="Data")
_ITEMS = typer.Argument(help="More of the sweep (NAME=VALUES), or texts to measure on.")
_SWEEP = typer.Option(help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C.")
_ROUNDS = typer.Option(min=1, max=1000, help="How often to measure each cell.")
_STATE = typer.Option(help="Keep finished measurements in this file.")
_FRESH = typer.Option("--fresh", help="Start again, whatever was measured before.")
_COSTS = "Seconds of a pass by its rows, as JSON, for a recording."
_IDS = "Of a recording all, odd or even ids."


@dataclass(frozen=True, kw_only=True)
class TuneFlags(PromptFlags, PageFlags):
    """What stands on the command line, unread; None stands for what is not there."""

    items: Annotated[list[str] | None, _ITEMS] = None
    sweep: Annotated[list[str] | None, _SWEEP] = None
    replay: Annotated[Path | None, _data(help="Measure on this recording.")] = None
    task: Annotated[list[str] | None, _data(help="Of a recording only this task.")] = None
    ids: Annotated[str, _data(help=_IDS)] = "all"
    limit: Annotated[int | None, _data(min=1, help="Most prompts of a task.")] = None
    costs: Annotated[Path | None, _data(help=_COSTS)] = None
    rounds: Annotated[int, _ROUNDS] = 3
    state: Annotated[Path | None, _STATE] = None
    fresh: Annotated[bool, _FRESH] = False
    write: Annotated[str | None, result_option(help="Save the winner as this preset.")] = None
    force: Annotated[
        bool,
        result_option("--force", help="Write over that preset, or a file that ngt did not write."),
    ] = False
    csv: Annotated[bool, result_option("--csv", help="Print CSV.")] = False


@measures(OF_OWN_ENGINE)
def tune(run: Run, given: TuneFlags) -> Generator[SweepReport]:
    """Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"""
    notes, preset = run.notes, run.preset
    _refuse_idle(run, given)
    cells, texts, remark = _plan(run, given)
    # A bad name is refused before hours are spent.
    saved = None if given.write is None else preset_path(given.write, given.force)
    report = _measure(run, given, cells, texts)
    if remark and (notes.terminal or given.verbose):
        notes.say(remark, dim=True)
    if report is not None:
        yield report
    if report is None or not report.complete:
        notes.warn("interrupted; run the same command again to go on")
        raise typer.Exit(INTERRUPTED)
    if saved is not None:
        write_winner(saved, preset, cells, report)
        notes.say(f"Saved as {saved}; use it with -p {saved.stem}.")


def _refuse_idle(run: Run, given: TuneFlags) -> None:
    """Raise UsageError for a flag that does nothing on a recording, or without one."""
    if given.replay is None:
        flags = {"--task": given.task, "--ids": given.ids != "all", "--costs": given.costs}
        refuse_with("--replay", flags, "Leave it out.", how="without")
        return
    flags = {SETTINGS[n].flag: Use.REPLAYS not in SETTINGS[n].uses for n in run.flags}
    flags |= dict.fromkeys((SETTINGS[name].flag for name in _ALWAYS), False)
    flags |= {"--docs": given.docs, "--prompts": given.prompts}
    refuse_with("--replay", flags, "Leave it out.")


def _plan(run: Run, given: TuneFlags) -> tuple[Grid, list[str], str]:
    """The sweep over its settings, the texts to answer, and a remark. Raises UsageError.

    The remark says what was not asked for in so many words.
    """
    items = given.items or []
    sweep = [*(given.sweep or []), *filter(is_axis, items)]
    texts = [*(item for item in items if not is_axis(item)), *(given.docs or [])]
    if not sweep:
        raise UsageError("nothing to sweep", "Say what, as in ngt tune --sweep n=8..16 lp=2..5")
    axes = parse_sweep(sweep)
    # A swept value stands in for a flag, so that no other layer can be at odds with it.
    if clash := next((name for name in axes if name in run.flags), None):
        raise UsageError(f"{clash} is both swept and given", f"Leave out --{clash}.")
    base, remark = _base(run.resolved, list(axes))
    cells = grid(axes, base)
    if texts and (given.prompts or given.replay):
        what = "a recording" if given.replay else "--prompts"
        raise UsageError(f"texts and {what} are given", "Leave out one of them.")
    if given.replay is not None:
        from ngtcli.measure.replay import check_replayable

        check_replayable(cells)
    return cells, texts, remark


def _base(resolved: Resolved, swept: Sequence[str]) -> tuple[Settings, str]:
    """The settings below the cells, with a remark where they are not what was asked for.

    They are those of method trie where the method is auto, by preset or default, which does not
    read what is swept. Raises UsageError where the user has asked for auto.
    """
    base = resolved.settings
    foreign = [name for name in swept if name in settings_where(Use.TRIE)]
    method, origin = base.method, resolved.origins["method"]
    if not foreign or "method" in swept or method.split(":")[0] != "auto":
        return base, ""
    if origin != "default" and not origin.startswith("preset"):
        what = f"auto does not read {foreign[0]} (method is auto from {origin})"
        raise UsageError(what, "Give --method trie, or sweep method as well.")
    base = replace(base, method="trie")
    if resolved.origins["num_draft"].startswith("preset"):  # chosen for auto
        base = replace(base, num_draft=Settings().num_draft)
    return base, "Measured with --method trie, which reads what is swept."


def _measure(run: Run, given: TuneFlags, cells: Grid, texts: Sequence[str]) -> SweepReport | None:
    """The report, of what there is when interrupted; None where there is nothing at all."""
    notes = run.notes
    try:
        if given.replay is None:
            source, about, skipped = _live(run, given, cells, texts)
        else:
            source, about, skipped = _recording(run, given, given.replay)
        key = state_key(about, cells)
        kept = State(given.state or default_state(key), key, len(source.prompts), given.fresh)
    except KeyboardInterrupt:
        notes.clear()
        return None
    if held := len(kept.done):
        notes.say(f"{held} measurements are taken over from {kept.path}", dim=True)
    process.unwind_on_interrupt()
    with suppress(KeyboardInterrupt), closing(kept):
        measure(source, cells, given.rounds, kept, notes.status)
    notes.clear()
    if (made := report(about, cells, given.rounds, kept)) is None:
        return None
    told = replace(made, preset=run.preset.name, method=cells.base.method, skipped=skipped)
    return replace(told, command=command_line())


def _live(
    run: Run, given: TuneFlags, cells: Grid, texts: Sequence[str]
) -> tuple[Source[Any], SweepData, Sequence[Skipped]]:
    """What is measured on, what is said of it, and the files that were left out of folders."""
    outputs, base, told = given.outputs, cells.base, once(Notes().warn)
    for cell in {(c.settings.method, c.settings.background): c for c in cells.cells}.values():
        check_session(cell.settings, told)
    read = read_documents(texts, piped_stdin(), base, run.notes, outputs)
    items = preset_items(
        read.documents,
        run.preset,
        given.limit,
        given.prompts,
        base,
        lambda path: check_not_read(outputs, [path]),
    )
    from ngtcli.measure.live import Live  # here: it loads torch

    live = Live(items, run.preset, run.notes.status, once(run.notes.warn), sweeps=True)
    return live, live.about(cells.cells[0].settings), tuple(dict.fromkeys(read.skipped))


def _recording(
    run: Run, given: TuneFlags, folder: Path
) -> tuple[Source[Any], SweepData, Sequence[Skipped]]:
    """The same of a recording."""
    from ngtcli.measure.replay import DEFAULT_COSTS, Replay, chosen_traces, read_costs
    from ngtcli.measure.traces import recorded_files

    costs = given.costs.expanduser() if given.costs else DEFAULT_COSTS
    read = [costs] if given.costs else []
    check_not_read(given.outputs, [*recorded_files(folder), *read])
    run.notes.status(f"Reading {folder} …")
    seconds, of = read_costs(costs)
    part = BenchOptions(tasks=given.task or [], limit=given.limit, ids=given.ids)
    source = Replay(chosen_traces(folder, part, run.settings.max_mb), lambda _: None, seconds)
    return source, source.about(part, of), ()
