"""`ngt tune`: try settings on a model, and keep the ones that are fastest.

The winner becomes a preset of the user's, with where it comes from written in it.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.bench.grid import Grid, grid, is_axis, label_of, parse_sweep
from ngtcli.bench.prompts import preset_items
from ngtcli.bench.records import Source
from ngtcli.bench.results import SweepData, SweepReport
from ngtcli.bench.tune import (
    State,
    default_state,
    measure,
    preset_path,
    report,
    state_key,
    write_winner,
)
from ngtcli.cli.command import command
from ngtcli.cli.measuring import (
    OutputFlags,
    PromptFlags,
    Run,
    measure_and_put_out,
    prompt_option,
    result_option,
)
from ngtcli.cli.options import OF_OWN_ENGINE, command_line
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Resolved, Settings, Use, settings_where
from ngtcli.documents.find import Skipped
from ngtcli.engine.checks import check_session
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.system import process
from ngtcli.words import counted

_ITEMS = typer.Argument(help="NAME=VALUES to sweep, or documents to measure on.")
_MAX_NAMED = 8  # skipped cells that a warning names (guess)
_SWEEP = typer.Option(help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C.")
_ROUNDS = typer.Option(min=1, max=1000, help="How often to measure each combination.")
_STATE = typer.Option(help="Keep finished measurements in this file.")
_FRESH = typer.Option(
    "--fresh", help="Measure everything again, without the results of an interrupted run."
)


@dataclass(frozen=True, kw_only=True)
class TuneFlags(PromptFlags, OutputFlags):
    """The flags of `ngt tune`; None for one that was not given."""

    items: Annotated[list[str] | None, _ITEMS] = None
    sweep: Annotated[list[str] | None, _SWEEP] = None
    limit: Annotated[int | None, prompt_option(min=1, help="Maximum number of prompts.")] = None
    rounds: Annotated[int, _ROUNDS] = 3
    state: Annotated[Path | None, _STATE] = None
    fresh: Annotated[bool, _FRESH] = False
    write: Annotated[str | None, result_option(help="Save the winner as this preset.")] = None
    force: Annotated[
        bool,
        result_option("--force", help="Overwrite that preset, or a file that ngt did not write."),
    ] = False
    csv: Annotated[bool, result_option("--csv", help="Print CSV.")] = False


@command("tune", settings=OF_OWN_ENGINE, report=SweepReport)
def tune(flags: SettingFlags, tune_flags: TuneFlags) -> None:
    """Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"""
    measure_and_put_out(_tune, flags, tune_flags)


def _tune(run: Run, tune_flags: TuneFlags) -> Generator[SweepReport]:
    """Yield the report; when it has been shown, save the winner."""
    notes = run.notes
    cells, texts, remark = _plan(run, tune_flags)
    # An invalid name is refused before the measurements, which may take hours.
    saved = None if tune_flags.write is None else preset_path(tune_flags.write, tune_flags.force)
    _report_skipped(run, cells)
    sweep_report = _measure(run, tune_flags, cells, texts)
    if remark and (notes.terminal or tune_flags.verbose):
        notes.say(remark, dim=True)
    if sweep_report is not None:
        yield sweep_report
    if sweep_report is None or not sweep_report.complete:
        notes.warn("interrupted; run the same command again to resume")
        raise typer.Exit(INTERRUPTED)
    if saved is not None:
        write_winner(saved, run.preset, cells, sweep_report)
        notes.say(f"Saved as {saved}; use it with -p {saved.stem}.")


def _report_skipped(run: Run, cells: Grid) -> None:
    """Warn of cells with invalid settings."""
    by_reason: dict[str, list[str]] = {}
    for cell in cells.skipped:
        by_reason.setdefault(cell.reason, []).append(label_of(cell.values))
    for reason, labels in by_reason.items():
        shown = labels[:_MAX_NAMED]
        names = "; ".join(shown)
        more = len(labels) - len(shown)
        if more:
            names += f"; and {more} more"
        run.notes.warn(f"skipped {counted(len(labels), 'cell')}: {names}. {reason}")


def _plan(run: Run, tune_flags: TuneFlags) -> tuple[Grid, list[str], str]:
    """Return the cells of the sweep, the texts to answer, and a remark about the method.

    Raises:
        UsageError: The sweep or the flags are invalid.
    """
    items = tune_flags.items or []
    sweep = [*(tune_flags.sweep or []), *filter(is_axis, items)]
    texts = [*(item for item in items if not is_axis(item)), *(tune_flags.docs or [])]
    if not sweep:
        raise UsageError(
            "nothing to sweep",
            hint="Give settings to sweep, as in ngt tune --sweep n=8..16 lp=2..5",
        )
    axes = parse_sweep(sweep)
    clash = next((name for name in axes if name in run.flags), None)
    if clash is not None:
        raise UsageError(f"{clash} is both swept and given as a flag", hint=f"Leave out --{clash}.")
    base, remark = _base(run.resolved, list(axes))
    cells = grid(axes, base)
    if texts and tune_flags.prompts:
        raise UsageError("--prompts cannot be combined with texts", hint="Give one of them.")
    return cells, texts, remark


def _base(resolved: Resolved, swept: Sequence[str]) -> tuple[Settings, str]:
    """Return the settings that cells are based on, and a remark if their method was changed.

    If the settings of the trie are swept, but a preset or the default says method auto, which does
    not use them, the method is trie.

    Raises:
        UsageError: The user chose auto.
    """
    base = resolved.settings
    of_trie = [name for name in swept if name in settings_where(Use.TRIE)]
    method = base.drafting.method
    origin = resolved.origins["method"]
    if not of_trie or "method" in swept or method.split(":")[0] != "auto":
        return base, ""
    if origin != "default" and not origin.startswith("preset"):
        raise UsageError(
            f"method auto, set by {origin}, does not use {of_trie[0]}",
            hint="Give --method trie, or sweep method as well.",
        )
    base = base.replace(method="trie")
    if resolved.origins["num_draft"].startswith("preset"):  # chosen for auto
        base = base.replace(num_draft=Settings().drafting.num_draft)
    return base, "Measured with --method trie, which uses the swept settings."


def _measure(
    run: Run, tune_flags: TuneFlags, cells: Grid, texts: Sequence[str]
) -> SweepReport | None:
    """Measure all cells, and return the report; None if interrupted before the first result.

    Args:
        run: The settings and the notes of the command.
        tune_flags: Its flags.
        cells: The cells of the sweep.
        texts: The documents to measure on.
    """
    notes = run.notes
    try:
        source, about, skipped = _live(run, tune_flags, cells, texts)
        key = state_key(about, cells)
        state = State(
            tune_flags.state or default_state(key), key, len(source.prompts), tune_flags.fresh
        )
    except KeyboardInterrupt:
        notes.clear()
        return None
    if state.done:
        notes.say(f"{len(state.done)} measurements are reused from {state.path}", dim=True)
    process.unwind_on_interrupt()
    with suppress(KeyboardInterrupt), closing(state):
        measure(source, cells, tune_flags.rounds, state)
    notes.clear()
    sweep_report = report(about, cells, tune_flags.rounds, state)
    if sweep_report is None:
        return None
    return replace(
        sweep_report,
        preset=run.preset.name,
        method=cells.base.drafting.method,
        skipped=skipped,
        command=command_line(),
    )


def _live(
    run: Run, tune_flags: TuneFlags, cells: Grid, texts: Sequence[str]
) -> tuple[Source[Any], SweepData, Sequence[Skipped]]:
    """Return the source of answers, a description of it, and the files that were skipped.

    Args:
        run: The settings and the notes of the command.
        tune_flags: Its flags.
        cells: The cells of the sweep.
        texts: The documents to measure on.
    """
    outputs = tune_flags.outputs
    base = cells.base
    for cell in {c.settings.drafting.method: c for c in cells.cells}.values():
        check_session(cell.settings)
    read = read_documents(texts, piped_stdin(), base, run.notes, outputs)
    items = preset_items(
        read.documents,
        run.preset,
        tune_flags.limit,
        tune_flags.prompts,
        base,
        lambda path: check_not_read(outputs, [path]),
    )
    from ngtcli.bench.live import Live  # it loads torch

    live = Live(items, run.preset, sweeps=True)
    return live, live.about(cells.cells[0].settings), tuple(dict.fromkeys(read.skipped))
