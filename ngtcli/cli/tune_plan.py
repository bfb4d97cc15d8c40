"""What `ngt tune` is to measure, and on what: read from the command line, and checked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.cli.checks import check_session
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import resolve
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.cli.tune_options import TuneFlags
from ngtcli.config import Resolved, Settings, settings_where
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document
from ngtcli.errors import InputError, UsageError
from ngtcli.measure.grid import Axis, Cell, grid, is_axis, parse_sweep
from ngtcli.measure.prompts import Item, builtin_items, file_items, read_jsonl
from ngtcli.prompt.preset import Preset, can_ask
from ngtcli.render.sweep_rows import SkippedCell

if TYPE_CHECKING:
    from ngtcli.measure.sweep_run import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sweep: its axes, its cells, the settings below them, the preset, and texts to answer."""

    axes: tuple[Axis, ...]
    cells: list[Cell]
    skipped: list[SkippedCell]
    base: Settings
    preset: Preset
    texts: list[str]
    remark: str  # what of it was not asked for in so many words


def read_plan(given: TuneFlags, flags: dict[str, Any]) -> Plan:
    """Read the sweep and the settings it is laid over. Raises UsageError."""
    items = given.items or []
    sweep = [*(given.sweep or []), *filter(is_axis, items)]
    texts = [*(item for item in items if not is_axis(item)), *(given.docs or [])]
    if not sweep:
        raise UsageError("nothing to sweep", "Say what, as in ngt tune --sweep n=8..16 lp=2..5")
    axes = parse_sweep(sweep)
    # A swept value stands in for a flag, so that no other layer can be at odds with it.
    swept = [axis.name for axis in axes]
    if clash := next((name for name in swept if name in flags), None):
        raise UsageError(f"{clash} is both swept and given", f"Leave out --{clash}.")
    resolved, chosen = resolve(flags, given.preset, "summarize")
    base, remark = _base(resolved, swept)
    cells, skipped = grid(axes, base)
    plan = Plan(
        axes=axes,
        cells=cells,
        skipped=skipped,
        base=base,
        preset=chosen,
        texts=texts,
        remark=remark,
    )
    _check_data(given, plan)
    return plan


def _base(resolved: Resolved, swept: Sequence[str]) -> tuple[Settings, str]:
    """The settings below the cells, with a remark where they are not what was asked for."""
    base = resolved.settings
    if not _reads_none(resolved, swept):
        return base, ""
    base = replace(base, method="trie")
    if resolved.origins["num_draft"].startswith("preset"):  # chosen for auto
        base = replace(base, num_draft=Settings().num_draft)
    return base, "Measured with --method trie, which reads what is swept."


def _reads_none(resolved: Resolved, swept: Sequence[str]) -> bool:
    """Whether the method is auto, by preset or default, and the sweep of what it does not read.

    Raises UsageError where the user has asked for auto.
    """
    foreign = [name for name in swept if name in settings_where(method="trie")]
    method, origin = resolved.settings.method, resolved.origins["method"]
    if not foreign or "method" in swept or method.split(":")[0] != "auto":
        return False
    if origin != "default" and not origin.startswith("preset"):
        raise UsageError(
            f"auto does not read {foreign[0]} (method is auto from {origin})",
            "Give --method trie, or sweep method as well.",
        )
    return True


def _check_data(given: TuneFlags, plan: Plan) -> None:
    """Raise UsageError for data that contradict each other or the sweep."""
    if given.replay is None:
        if plan.texts and given.prompts:
            raise UsageError("texts and --prompts are given", "Leave out one of them.")
        return
    if plan.texts:
        raise UsageError("a recording and texts are given", "Leave out one of them.")
    from ngtcli.measure.recording import check_replayable

    check_replayable(plan.axes, plan.cells)


def open_source(
    given: TuneFlags, plan: Plan, notes: Notes
) -> tuple["Source[Any]", Sequence[Skipped]]:
    """What is measured on, and the files that were left out of folders."""
    outputs = given.output, given.html
    if given.replay is not None:
        from ngtcli.measure.recording import DEFAULT_COSTS, Recording
        from ngtcli.measure.traces import recorded_files

        costs = [given.costs.expanduser()] if given.costs else []
        check_not_read(outputs, [*recorded_files(given.replay), *costs])
        notes.status(f"Reading {given.replay} …")
        recording = Recording(
            given.replay,
            tasks=given.task or [],
            limit=given.limit,
            ids=given.ids,
            costs=given.costs or DEFAULT_COSTS,
            max_mb=plan.base.max_mb,
        )
        return recording, ()
    for cell in {(c.settings.method, c.settings.background): c for c in plan.cells}.values():
        check_session(cell.settings)
    texts = read_documents(plan.texts, piped_stdin(), plan.base, notes, outputs)
    items = items_of(texts.documents, plan.preset, given.limit, given.prompts, plan.base, outputs)
    from ngtcli.measure.running import Running  # here: it loads torch

    running = Running(plan.cells[0].settings, plan.preset, items, notes.status, once(notes.warn))
    return running, tuple(dict.fromkeys(texts.skipped))


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
    if lines is not None:
        items = read_jsonl(lines, settings, lambda path: check_not_read(outputs, [path]))
    elif texts:
        items = file_items([], texts) if asks else file_items(texts, [])
    else:
        items = builtin_items()
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        kind = "with" if asks else "without"
        raise InputError(
            f"{lines}: no prompt {kind} a question", f"Preset {preset.name} wants one; see -p."
        )
    return chosen[:limit]
