"""What `ngt tune` is to measure, and on what: read from the command line, and checked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.cli.notes import Notes
from ngtcli.cli.options import resolve
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import OF_TRIE, Resolved, Settings
from ngtcli.documents.find import Skipped
from ngtcli.errors import UsageError
from ngtcli.evaluate.sweep.grid import Axis, Cell, grid, parse_sweep
from ngtcli.prompt.preset import Preset
from ngtcli.render.sweep_rows import SkippedCell

if TYPE_CHECKING:
    from ngtcli.evaluate.sweep.run import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What to measure on: a recording and a part of it, or texts; without any, the examples."""

    replay: Path | None
    tasks: list[str]
    limit: int | None
    ids: str
    costs: Path | None
    texts: list[str]
    prompts: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sweep: its axes, its cells, the settings below them, and the task's preset."""

    axes: tuple[Axis, ...]
    cells: list[Cell]
    skipped: list[SkippedCell]
    base: Settings
    preset: Preset
    remark: str  # what of it was not asked for in so many words


def read_plan(sweep: Sequence[str], flags: dict[str, Any], preset: str | None) -> Plan:
    """Read the sweep and the settings it is laid over. Raises UsageError."""
    if not sweep:
        raise UsageError("nothing to sweep", "Say what, as in ngt tune --sweep n=8..16 lp=2..5")
    axes = parse_sweep(sweep)
    # A swept value stands in for a flag, so that no other layer can be at odds with it.
    swept = [axis.name for axis in axes]
    if clash := next((name for name in swept if name in flags), None):
        raise UsageError(f"{clash} is both swept and given", f"Leave out --{clash}.")
    resolved, chosen = resolve(flags, preset, "summarize")
    base, remark = resolved.settings, ""
    if _reads_none(resolved, swept):
        base = replace(base, method="trie")
        remark = "Measured with --method trie, which reads what is swept."
        if resolved.origins["num_draft"].startswith("preset"):  # chosen for auto
            base = replace(base, num_draft=Settings().num_draft)
    cells, skipped = grid(axes, base)
    return Plan(axes=axes, cells=cells, skipped=skipped, base=base, preset=chosen, remark=remark)


def _reads_none(resolved: Resolved, swept: Sequence[str]) -> bool:
    """Whether the method is auto, by preset or default, and the sweep of what it does not read.

    Raises UsageError where the user has asked for auto.
    """
    foreign = [name for name in swept if name in OF_TRIE]
    method, origin = resolved.settings.method, resolved.origins["method"]
    if not foreign or "method" in swept or method.split(":")[0] != "auto":
        return False
    if origin != "default" and not origin.startswith("preset"):
        raise UsageError(
            f"auto does not read {foreign[0]} (method is auto from {origin})",
            "Give --method trie, or sweep method as well.",
        )
    return True


def check_data(data: Data, plan: Plan) -> None:
    """Raise UsageError for data that contradict each other or the sweep."""
    if data.replay is None:
        if data.texts and data.prompts:
            raise UsageError("texts and --prompts are given", "Leave out one of them.")
        return
    if data.texts:
        raise UsageError("a recording and texts are given", "Leave out one of them.")
    from ngtcli.evaluate.sweep.sources import check_replayable

    check_replayable(plan.axes, plan.cells)


def open_source(data: Data, plan: Plan, notes: Notes) -> tuple["Source", Sequence[Skipped]]:
    """What is measured on, and the files that were left out of folders."""
    from ngtcli.evaluate.sweep.sources import DEFAULT_COSTS, Recording, Running

    if data.replay is not None:
        notes.status(f"Reading {data.replay} …")
        costs = data.costs or DEFAULT_COSTS
        recording = Recording(
            data.replay,
            tasks=data.tasks,
            limit=data.limit,
            ids=data.ids,
            costs=costs,
            max_mb=plan.base.max_mb,
        )
        return recording, ()
    from ngtcli.evaluate.sweep.prompts import prompts

    texts = read_documents(data.texts, piped_stdin(), plan.base, notes)
    work = prompts(texts.documents, plan.preset, data.limit, data.prompts, plan.base)
    running = Running(plan.cells[0].settings, plan.preset, work, notes.status, notes.warn)
    return running, tuple(dict.fromkeys(texts.skipped))
