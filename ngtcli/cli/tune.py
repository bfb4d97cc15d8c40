"""`ngt tune`: try settings on a recording or a model, and keep the ones that are fastest.

The winner becomes a preset of the user's, with where it comes from written in it.
"""

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from ngtcli import __version__
from ngtcli.cli.checks import (
    LIVE,
    REPLAY,
    TUNE,
    check_combination,
    refuse_idle,
)
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import (
    OF_OWN_ENGINE,
    JsonOption,
    PresetOption,
    VerboseOption,
    command_line,
    file_option,
    resolve,
    with_settings,
)
from ngtcli.cli.output import asked_form, check_not_read, write_forms
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Resolved, Settings, Use, settings_where
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document
from ngtcli.errors import INTERRUPTED, InputError, UsageError, reason_of
from ngtcli.measure.grid import Grid, grid, is_axis, parse_sweep
from ngtcli.measure.prompts import Item, items_from
from ngtcli.measure.results import SweepData, SweepReport
from ngtcli.prompt.preset import PROVENANCE, Preset, can_ask
from ngtcli.render.sweep_tables import sweep_forms
from ngtcli.session.checks import check_session
from ngtcli.system import process
from ngtcli.system.files import home, write_atomically
from ngtcli.system.json_form import to_json
from ngtcli.system.yaml_file import read_mapping

if TYPE_CHECKING:
    from ngtcli.measure.records import Source

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)  # of a preset
_data = partial(typer.Option, rich_help_panel="Data")
_output = partial(typer.Option, rich_help_panel="Output")
_ITEMS = typer.Argument(help="More of the sweep (NAME=VALUES), or texts to measure on.")
_SWEEP = typer.Option(help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C.")
_ROUNDS = typer.Option(min=1, max=1000, help="How often to measure each cell.")
_STATE = typer.Option(help="Keep finished measurements in this file.")
_FRESH = typer.Option("--fresh", help="Start again, whatever was measured before.")
_COSTS = "Seconds of a pass by its rows, as JSON, for a recording."
_PAGE = file_option(help="Write a page to this file.", rich_help_panel="Output")
_FILE = file_option("--output", "-o", help="Write the report to this file, whole.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What stands on the command line, unread; None stands for what is not there."""

    items: Annotated[list[str] | None, _ITEMS] = None
    sweep: Annotated[list[str] | None, _SWEEP] = None
    replay: Annotated[Path | None, _data(help="Measure on this recording.")] = None
    task: Annotated[list[str] | None, _data(help="Of a recording only this task.")] = None
    ids: Annotated[str, _data(help="Of a recording all, odd or even ids.")] = "all"
    limit: Annotated[int | None, _data(min=1, help="Most prompts of a task.")] = None
    costs: Annotated[Path | None, _data(help=_COSTS)] = None
    docs: Annotated[list[str] | None, _data("--docs", "-d", help="Texts to measure on.")] = None
    prompts: Annotated[Path | None, _data(help="Prompts as JSON lines.")] = None
    rounds: Annotated[int, _ROUNDS] = 3
    preset: PresetOption = None
    state: Annotated[Path | None, _STATE] = None
    fresh: Annotated[bool, _FRESH] = False
    write: Annotated[str | None, _output(help="Save the winner as this preset.")] = None
    force: Annotated[bool, _output("--force", help="Replace that preset.")] = False
    markdown: Annotated[bool, _output("--markdown", help="Print Markdown.")] = False
    csv: Annotated[bool, _output("--csv", help="Print CSV.")] = False
    html: Annotated[Path | None, _PAGE] = None
    output: Annotated[Path | None, _FILE] = None
    json: JsonOption = False
    verbose: VerboseOption = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The sweep, the preset, and texts to answer."""

    grid: Grid
    preset: Preset
    texts: list[str]
    remark: str  # what of it was not asked for in so many words


@with_settings(OF_OWN_ENGINE)
def tune(context: typer.Context, given: TuneFlags, flags: dict[str, Any] | None = None) -> None:
    """Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"""
    check_combination(context, TUNE, REPLAY if given.replay else LIVE)
    outputs = given.output, given.html
    forms = {"json": given.json, "markdown": given.markdown, "csv": given.csv}
    form = asked_form(forms, *outputs)
    plan = read_plan(given, flags or {})
    # A bad name is refused before hours are spent.
    saved = None if given.write is None else preset_path(given.write, given.force)
    notes = Notes(given.verbose)
    report = _measure(given, plan, notes)
    if plan.remark and (notes.terminal or given.verbose):
        notes.say(plan.remark, dim=True)
    if report is not None:
        write_forms(sweep_forms(report, given.verbose), form, *outputs, plan.grid.base.color)
    if report is None or not report.complete:
        notes.warn("interrupted; run the same command again to go on")
        raise typer.Exit(INTERRUPTED)
    if saved is not None:
        write_winner(saved, plan.preset, plan.grid, report)
        notes.say(f"Saved as {saved}; use it with -p {saved.stem}.")


def _measure(given: TuneFlags, plan: Plan, notes: Notes) -> SweepReport | None:
    """The report, of what there is when interrupted; None where there is nothing at all."""
    from ngtcli.measure.state import State
    from ngtcli.measure.tune import default_state, measure, report, state_key

    grid = plan.grid
    try:
        source, about, skipped = _open(given, plan, notes)
        key = state_key(about, grid)
        kept = State(given.state or default_state(key), key, len(source.prompts), given.fresh)
    except KeyboardInterrupt:
        notes.clear()
        return None
    if held := len(kept.done):
        notes.say(f"{held} measurements are taken over from {kept.path}", dim=True)
    process.unwind_on_interrupt()
    # Without a terminal nothing is said of progress, not even with --verbose.
    tell = notes.status if notes.terminal else lambda _: None
    with suppress(KeyboardInterrupt), closing(kept):
        measure(source, grid, given.rounds, kept, tell)
    notes.clear()
    made = report(about, grid, given.rounds, kept)
    name, method = plan.preset.name, grid.base.method
    made = replace(made, preset=name, method=method, command=command_line(), skipped=skipped)
    return made if made.cells else None


def read_plan(given: TuneFlags, flags: dict[str, Any]) -> Plan:
    """Read the sweep and the settings it is laid over. Raises UsageError."""
    items = given.items or []
    sweep = [*(given.sweep or []), *filter(is_axis, items)]
    texts = [*(item for item in items if not is_axis(item)), *(given.docs or [])]
    if not sweep:
        raise UsageError("nothing to sweep", "Say what, as in ngt tune --sweep n=8..16 lp=2..5")
    axes = parse_sweep(sweep)
    # A swept value stands in for a flag, so that no other layer can be at odds with it.
    if clash := next((name for name in axes if name in flags), None):
        raise UsageError(f"{clash} is both swept and given", f"Leave out --{clash}.")
    resolved, preset = resolve(flags, given.preset, "summarize")
    refuse_idle(flags, resolved.settings)
    base, remark = _base(resolved, list(axes))
    cells = grid(axes, base)
    if texts and (given.prompts or given.replay):
        what = "a recording" if given.replay else "--prompts"
        raise UsageError(f"texts and {what} are given", "Leave out one of them.")
    if given.replay is not None:
        from ngtcli.measure.replay import check_replayable

        check_replayable(cells)
    return Plan(cells, preset, texts, remark)


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


def _open(
    given: TuneFlags, plan: Plan, notes: Notes
) -> tuple["Source[Any]", SweepData, Sequence[Skipped]]:
    """What is measured on, what is said of it, and the files that were left out of folders."""
    outputs, base, cells = (given.output, given.html), plan.grid.base, plan.grid.cells
    if given.replay is not None:
        return _recording(given, given.replay, base.max_mb, notes)
    told = once(Notes().warn)
    for cell in {(c.settings.method, c.settings.background): c for c in cells}.values():
        check_session(cell.settings, told)
    texts = read_documents(plan.texts, piped_stdin(), base, notes, outputs)
    items = items_of(texts.documents, plan.preset, given.limit, given.prompts, base, outputs)
    from ngtcli.measure.live import Live  # here: it loads torch

    live = Live(items, plan.preset, notes.status, once(notes.warn), sweeps=True)
    return live, live.about(cells[0].settings), tuple(dict.fromkeys(texts.skipped))


def _recording(
    given: TuneFlags, folder: Path, max_mb: int, notes: Notes
) -> tuple["Source[Any]", SweepData, Sequence[Skipped]]:
    """The same of a recording."""
    from ngtcli.measure.options import BenchOptions
    from ngtcli.measure.replay import DEFAULT_COSTS, Replay, chosen_traces, read_costs
    from ngtcli.measure.traces import recorded_files

    costs = given.costs.expanduser() if given.costs else DEFAULT_COSTS
    read = [costs] if given.costs else []
    check_not_read((given.output, given.html), [*recorded_files(folder), *read])
    notes.status(f"Reading {folder} …")
    seconds, of = read_costs(costs)
    part = BenchOptions(tasks=given.task or [], limit=given.limit, ids=given.ids)
    source = Replay(chosen_traces(folder, part, max_mb), lambda _: None, seconds)
    return source, source.about(part, of), ()


def items_of(
    texts: Sequence[Document],
    preset: Preset,
    limit: int | None,
    lines: Path | None = None,
    settings: Settings | None = None,
    outputs: Sequence[Path | None] = (),
) -> list[Item]:
    """Prompts for a preset: those with a question if it asks for one, else those without.

    They come from the JSON lines of `lines`, which are read up to the bound of `settings`, else
    from `texts` (of each a summary, or a few questions), else from the built-in examples. Raises
    InputError; UsageError where one of `outputs` would be written over what is read.
    """
    asks = can_ask(preset)
    summarized, asked = ([], texts) if asks else (texts, [])
    items = items_from(
        lines, summarized, asked, settings, lambda path: check_not_read(outputs, [path])
    )
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        kind = "with" if asks else "without"
        what = f"{lines}: no prompt {kind} a question"
        raise InputError(what, f"Preset {preset.name} wants one; see -p.")
    return chosen[:limit]


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: texts of several lines as blocks, and every value written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip("\n") else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def preset_path(name: str, force: bool) -> Path:
    """Where a preset of that name is written. Raises UsageError for a bad name or a taken one."""
    if not _NAME.fullmatch(name):
        what = f"{name!r} is not a name for a preset"
        raise UsageError(what, "Use letters, digits, dots, dashes and underscores.")
    path = home("config") / "presets" / f"{name}.yaml"
    if path.exists() and not force:
        what = f"{path}: there is such a preset already"
        raise UsageError(what, "Choose another name, or give --force.")
    return path


def write_winner(path: Path, base: Preset, grid: Grid, report: SweepReport) -> None:
    """Write `base` with the chosen cell's settings to `path`, whole or not at all.

    All that decides drafts is written, as it was measured, swept or not, and what was run, on what,
    with the figures of the cell. Raises InputError.
    """
    settings = next(cell.settings for cell in grid.cells if cell.key == report.chosen)
    row = next(row for row in to_json(report)["cells"] if row["cell"] == report.chosen)
    facts = ("model", "device", "data", "data_sha256", "prompts")
    body = {k: v for k, v in read_mapping(base.path).items() if k != PROVENANCE}
    for name in dict.fromkeys((*settings_where(Use.REPLAYS), *grid.axes)):
        value = getattr(settings, name)
        body[name] = list(value) if isinstance(value, tuple) else value
    body[PROVENANCE] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": report.command,
        "ngt": __version__,
        "based_on": base.name,
        **{name: getattr(report.about, name) for name in facts},
        "rounds": report.rounds,
        "chosen": report.chosen,
        "reason": report.reason,
        "figures": {k: v for k, v in row.items() if k not in ("cell", "values", "standing")},
    }
    text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", "See ngt presets path.") from None
