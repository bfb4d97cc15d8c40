"""`ngt tune`: the cells of a grid, measured on a recording or on a model that runs.

On a recording it says what is accepted, and a cost curve how long a pass takes. What was measured
stands in a journal, and the report says what follows from it. Knows no torch.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where the best one may owe its lead to the prompts that happened to be there:
prompts are drawn again, with replacement and for both cells alike, a thousand times, and in over
2.5% of the draws it is not ahead. Under six prompts nothing can be said. Of the tied cells that are
nearly as fast as the best the one with the smallest trie is chosen: it costs least to build and to
keep. Where some cell was measured once there is no estimate of the noise of rounds, and none is
claimed; what is said of a sweep that was interrupted is said of the cells measured so far.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ngtcli.errors import counted
from ngtcli.heads.places import OWN, find_head
from ngtcli.measure.grid import Grid
from ngtcli.measure.records import Notify, P, Race, Source, by_cell, run
from ngtcli.measure.results import SweepData, SweepReport, digest
from ngtcli.measure.state import VERSION, State
from ngtcli.measure.summary import TUNE, CellRow, Group, row_of
from ngtcli.model_files.checkpoint import fetch
from ngtcli.model_files.quantized import weights_of
from ngtcli.system.files import home
from ngtcli.system.json_form import to_json
from ngtcli.system.trials import versions_and_cpu

LEVEL = 0.025
DRAWS = 1000
FEWEST = 6  # prompts: of fewer, all may well favour one cell by chance
NEAR = 0.02  # a tied cell slower by more than this share is not taken for its smaller trie


def state_key(about: SweepData, grid: Grid) -> str:
    """What makes passes comparable: data, files, versions, device and CPU, settings, the sweep."""
    settings = asdict(grid.base)
    for name in ("color", *grid.axes):
        settings.pop(name, None)
    axes = [{"name": name, "values": values} for name, values in grid.axes.items()]
    files = files_named(grid) if about.source == "live" else []
    return digest([VERSION, versions_and_cpu(), files, to_json(about), settings, axes])


def files_named(grid: Grid) -> list[str]:
    """What tells the weights that the cells name, of models and heads, from changed ones."""
    every = [cell.settings for cell in grid.cells]
    models = {name for s in every for name in (s.model, s.draft_model)} - {""}
    heads = {name for s in every for name in s.heads} - {OWN}
    folders = [*map(fetch, sorted(models)), *map(find_head, sorted(heads))]
    return [weights_of(folder) for folder in folders]


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(source: Source[P], grid: Grid, rounds: int, state: State, progress: Notify) -> None:
    """Measure what `state` does not hold yet."""
    turns = list(state.left(by_cell(grid.cells, len(source.prompts), rounds)))
    race = Race(grid.cells)
    for record in run(source, race, turns, progress=progress):
        state.add(record)


def report(about: SweepData, grid: Grid, rounds: int, state: State) -> SweepReport:
    """Everything that was measured and what follows from it.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    found = [(cell, state.rounds(cell.key, rounds)) for cell in grid.cells]
    prompts = range(about.prompts)
    rows: list[CellRow] = []
    for cell, passes in found:
        if passes:
            records = {(cell.key, p): [one[p] for one in passes] for p in prompts}
            rows.append(row_of(TUNE, Group(TUNE, cell, "", prompts, records)))
    measured, planned = sum(row.rounds for row in rows), len(grid.cells) * rounds
    complete = measured == planned
    verdict = judge(rows, complete) if rows else None
    standing = {row.cell: "tied" for row in verdict.tied} if verdict else {}
    if verdict:
        standing[verdict.chosen.cell] = "chosen" if complete else "ahead"
    return SweepReport(
        about=about,
        sweep=grid.axes,
        rounds=rounds,
        measured=measured,
        planned=planned,
        complete=complete,
        cells=[replace(row, standing=standing.get(row.cell, "")) for row in rows],
        skipped_cells=grid.skipped,
        best=verdict.best.cell if verdict else None,
        tied=[row.cell for row in verdict.tied] if verdict else [],
        chosen=verdict.chosen.cell if verdict and complete else None,
        reason=verdict.reason if verdict else "nothing was measured",
        state=str(state.path),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tied` are the cells that cannot be told from `best`, itself included; the fastest first."""

    best: CellRow
    tied: tuple[CellRow, ...]
    chosen: CellRow
    reason: str


def behind(best: CellRow, other: CellRow) -> float:
    """The share of draws of prompts in which `best` is not ahead of `other`."""
    a, b = (np.array(cell.prompts, np.float64) for cell in (best, other))
    draws = np.random.default_rng(0).multinomial(len(a), [1 / len(a)] * len(a), DRAWS)
    (tokens, seconds), (their_tokens, their_seconds) = (draws @ a).T, (draws @ b).T
    return float(np.mean(tokens * their_seconds <= their_tokens * seconds))


def tied(best: CellRow, other: CellRow) -> bool:
    """Whether the measurements cannot tell that `best` is faster than `other`."""
    least, most = best.tokens_per_s_least_and_most[0], other.tokens_per_s_least_and_most[1]
    if max(best.rounds, other.rounds) > 1 and most >= least:
        return True
    return len(best.prompts) < FEWEST or behind(best, other) > LEVEL


def judge(cells: Sequence[CellRow], complete: bool = True) -> Verdict:
    """The verdict over at least one cell; `complete` says whether all rounds of all are there.

    Of noise something is said only where every cell was measured more than once.
    """
    best, *others = sorted(cells, key=lambda c: -c.tokens_per_s)
    level = (best, *(c for c in others if tied(best, c)))
    near = [c for c in level if c.tokens_per_s >= (1 - NEAR) * best.tokens_per_s]
    chosen = min(near, key=_weight)
    known = min(cell.rounds for cell in cells) > 1
    if not others:
        reason = "it is the only cell"
    elif len(level) > 1:
        told = "are within the noise of the best" if known else "cannot be told apart"
        reason = f"{len(level)} cells {told}; {_why(chosen, near)}"
    elif known:
        reason = "faster than every other cell beyond the noise of rounds and prompts"
    else:
        reason = f"the fastest of {counted(len(cells), 'cell')}"
    if not known:
        some = "" if all(cell.rounds == 1 for cell in cells) else " of some cells"
        reason += f"; 1 round{some}, no noise estimate"
    return Verdict(best, level, chosen, reason if complete else f"so far: {reason}")


def _weight(cell: CellRow) -> tuple[Any, ...]:
    """What a cell costs where speed cannot decide: trie, then nodes to check, then lengths."""
    names = ("num_draft", "n", "lp")
    return (cell.trie_bytes or 0, *(cell.values.get(name, 0) for name in names), -cell.tokens_per_s)


def _why(chosen: CellRow, near: Sequence[CellRow]) -> str:
    if len(near) == 1:
        return f"{chosen.cell} is the best, no other within {NEAR:.0%} of its speed"
    sizes = [c.trie_bytes or 0 for c in near]
    least = "the fewest drafts and shortest lengths"
    if len(set(sizes)) > 1:
        also = f" and {least}" if sizes.count(min(sizes)) > 1 else ""
        least = f"the smallest trie{also}"
    return f"of the {len(near)} within {NEAR:.0%} of its speed {chosen.cell} has {least}"
