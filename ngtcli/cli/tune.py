"""`ngt tune`: try settings on a recording or a model, and keep the ones that are fastest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from ngtcli.cli.combinations import LIVE, REPLAY, TUNE, check_combination
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, command_line, with_settings
from ngtcli.cli.output import aim
from ngtcli.cli.tune_options import (
    CostsOption,
    CsvOption,
    DocsOption,
    ForceOption,
    FreshOption,
    HtmlOption,
    IdsOption,
    ItemsArgument,
    LimitOption,
    MarkdownOption,
    OutputOption,
    PromptsOption,
    ReplayOption,
    RoundsOption,
    StateOption,
    SweepOption,
    TaskOption,
    WriteOption,
)
from ngtcli.cli.tune_plan import Data, Plan, check_data, open_source, read_plan
from ngtcli.errors import INTERRUPTED
from ngtcli.evaluate.sweep.grid import is_axis
from ngtcli.evaluate.sweep.preset import preset_path, provenance, write_winner
from ngtcli.render.forms import sweep_forms
from ngtcli.render.sweep_rows import SweepReport
from ngtcli.system import process


@with_settings
def tune(
    context: typer.Context,
    items: ItemsArgument = None,
    sweep: SweepOption = None,
    replay: ReplayOption = None,
    task: TaskOption = None,
    ids: IdsOption = "all",
    limit: LimitOption = None,
    costs: CostsOption = None,
    docs: DocsOption = None,
    prompts: PromptsOption = None,
    rounds: RoundsOption = 3,
    preset: PresetOption = None,
    state: StateOption = None,
    fresh: FreshOption = False,
    write: WriteOption = None,
    force: ForceOption = False,
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
    html: HtmlOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"""
    check_combination(context, TUNE, REPLAY if replay else LIVE)
    destination = aim({"json": json, "markdown": markdown, "csv": csv}, output, html)
    axes = [*(sweep or []), *(i for i in items or [] if is_axis(i))]
    texts = [*(i for i in items or [] if not is_axis(i)), *(docs or [])]
    data = Data(
        replay=replay,
        tasks=task or [],
        limit=limit,
        ids=ids,
        costs=costs,
        texts=texts,
        prompts=prompts,
    )
    plan = read_plan(axes, flags or {}, preset)
    check_data(data, plan)
    saved = _saved(write, force)
    notes = Notes(verbose)
    report = _measure(data, plan, notes, rounds=rounds, state=state, fresh=fresh)
    if plan.remark and (notes.terminal or verbose):
        notes.say(plan.remark, dim=True)
    interrupted = report is None or not report.complete
    if report is not None:
        destination.deliver(sweep_forms(report, verbose), plan.base.color)
    if interrupted:
        notes.warn("interrupted; run the same command again to go on")
        raise typer.Exit(INTERRUPTED)
    if saved is not None and report is not None:
        _write(saved, plan, report, notes)


def _saved(name: str | None, force: bool) -> Path | None:
    """Where the winner goes; a bad name is refused before hours are spent."""
    if name is None:
        return None
    return preset_path(name, force)


def _measure(
    data: Data, plan: Plan, notes: Notes, *, rounds: int, state: Path | None, fresh: bool
) -> SweepReport | None:
    """The report, of what there is when interrupted; None where there is nothing at all."""
    from ngtcli.evaluate.sweep.run import measure_all, report
    from ngtcli.evaluate.sweep.state import State, default_state, state_key

    try:
        source, skipped = open_source(data, plan, notes)
        key = state_key(source.about, plan.axes, plan.base)
        kept = State(state or default_state(key), key, fresh)
    except KeyboardInterrupt:
        notes.clear()
        return None
    if held := len(kept.done):
        notes.say(f"{held} measurements are taken over from {kept.path}", dim=True)
    quiet = Progress(notes)
    process.unwind_on_interrupt()
    try:
        measure_all(source, plan.cells, rounds, kept, quiet.show)
    except KeyboardInterrupt:
        pass
    notes.clear()
    made = report(source.about, plan.axes, plan.cells, plan.skipped, rounds, kept)
    told = replace(
        made,
        preset=plan.preset.name,
        method=plan.base.method,
        command=command_line(),
        skipped=skipped,
    )
    return told if made.cells else None


class Progress:
    """How far the sweep is, on the status line; nothing where stderr is no terminal."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def show(self, done: int, total: int, left: float | None) -> None:
        """`left` in seconds."""
        if self._notes.terminal:
            more = f" · about {_duration(left)} left" if left else ""
            self._notes.status(f"{done} of {total} measurements{more}")


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(75)
    '1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _write(path: Path, plan: Plan, report: SweepReport, notes: Notes) -> None:
    chosen = next(cell for cell in plan.cells if cell.label == report.chosen)
    swept = [axis.name for axis in plan.axes]
    origin = provenance(report, plan.preset)
    write_winner(path, plan.preset, chosen.settings, swept, origin)
    notes.say(f"Saved as {path}; use it with -p {path.stem}.")
