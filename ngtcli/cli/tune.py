"""`ngt tune`: try settings on a recording or a model, and keep the ones that are fastest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from ngtcli.cli.checks import LIVE, REPLAY, TUNE, check_combination
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import command_line, with_flags, with_own_engine
from ngtcli.cli.output import aim
from ngtcli.cli.tune_options import TuneFlags
from ngtcli.cli.tune_plan import Plan, open_source, read_plan
from ngtcli.errors import INTERRUPTED
from ngtcli.measure.winner import preset_path, provenance, write_winner
from ngtcli.render.forms import sweep_forms
from ngtcli.render.sweep_rows import SweepReport
from ngtcli.system import process


@with_own_engine
@with_flags(TuneFlags)
def tune(context: typer.Context, given: TuneFlags, flags: dict[str, Any] | None = None) -> None:
    """Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"""
    check_combination(context, TUNE, REPLAY if given.replay else LIVE)
    forms = {"json": given.json, "markdown": given.markdown, "csv": given.csv}
    destination = aim(forms, given.output, given.html)
    plan = read_plan(given, flags or {})
    # A bad name is refused before hours are spent.
    saved = None if given.write is None else preset_path(given.write, given.force)
    notes = Notes(given.verbose)
    report = _measure(given, plan, notes)
    if plan.remark and (notes.terminal or given.verbose):
        notes.say(plan.remark, dim=True)
    if report is not None:
        destination.deliver(sweep_forms(report, given.verbose), plan.base.color)
    if report is None or not report.complete:
        notes.warn("interrupted; run the same command again to go on")
        raise typer.Exit(INTERRUPTED)
    if saved is not None:
        _write(saved, plan, report, notes)


def _measure(given: TuneFlags, plan: Plan, notes: Notes) -> SweepReport | None:
    """The report, of what there is when interrupted; None where there is nothing at all."""
    from ngtcli.measure.state import State
    from ngtcli.measure.sweep_run import default_state, measure, report, state_key

    try:
        source, skipped = open_source(given, plan, notes)
        key = state_key(source.about, plan.axes, plan.base)
        path = given.state or default_state(key)
        kept = State(path, key, len(source.prompts), given.fresh)
    except KeyboardInterrupt:
        notes.clear()
        return None
    if held := len(kept.done):
        notes.say(f"{held} measurements are taken over from {kept.path}", dim=True)
    process.unwind_on_interrupt()
    try:
        # Without a terminal nothing is said of progress, not even with --verbose.
        progress = notes.status if notes.terminal else lambda _: None
        measure(source, plan.cells, given.rounds, kept, progress)
    except KeyboardInterrupt:
        pass
    notes.clear()
    made = report(source.about, plan.axes, plan.cells, plan.skipped, given.rounds, kept)
    method, preset = plan.base.method, plan.preset.name
    told = replace(made, preset=preset, method=method, command=command_line(), skipped=skipped)
    return told if made.cells else None


def _write(path: Path, plan: Plan, report: SweepReport, notes: Notes) -> None:
    chosen = next(cell for cell in plan.cells if cell.label == report.chosen)
    swept = [axis.name for axis in plan.axes]
    origin = provenance(report, plan.preset)
    write_winner(path, plan.preset, chosen.settings, swept, origin)
    notes.say(f"Saved as {path}; use it with -p {path.stem}.")
