"""`ngt tune`: the cells of a grid, measured on a model that runs.

Finished passes stand in a journal, so that a sweep can go on: one cell's answers to all prompts in
one round, for what its drafter learns lives that long. The winner becomes a preset of the user's.
Knows no torch.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where the best one may owe its lead to the prompts that happened to be there:
prompts are drawn again, with replacement and for both cells alike, a thousand times, and in over
2.5% of the draws it is not ahead. Under six prompts nothing can be said. Of the tied cells that are
nearly as fast as the best the one with the smallest trie is chosen: it costs least to build and to
keep. Where some cell was measured once there is no estimate of the noise of rounds, and none is
claimed; what is said of a sweep that was interrupted is said of the cells measured so far.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ngtcli import __version__
from ngtcli.bench.grid import Grid
from ngtcli.bench.records import Notify, P, Race, Record, Source, Turn, by_cell, run
from ngtcli.bench.results import SweepData, SweepReport, digest
from ngtcli.bench.summary import CellRow, Group, row_of
from ngtcli.config import settings_in
from ngtcli.errors import InputError, UsageError
from ngtcli.heads.places import OWN, find_head
from ngtcli.models.checkpoint import fetch
from ngtcli.models.quantized import fingerprint
from ngtcli.prompts.preset import PROVENANCE, Preset, preset_files
from ngtcli.system.files import home, write_atomically
from ngtcli.system.journal import Form, Journal, errors_named
from ngtcli.system.json_form import to_json
from ngtcli.system.trials import versions_and_cpu
from ngtcli.system.yaml_file import read_mapping, written
from ngtcli.words import counted

LEVEL = 0.025
DRAWS = 1000
FEWEST = 6  # prompts: of fewer, all may well favour one cell by chance
NEAR = 0.02  # a tied cell slower by more than this share is not taken for its smaller trie
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)  # of a preset
VERSION = 5
_LONGEST = 100_000_000  # bytes of a pass, which has some thousand a prompt; guess
_HINT = "Name another with --state, or start again with --fresh."
_KIND: Any = list[Record]
_FORM: Form[list[Record]] = Form(
    "ngt-tune", VERSION, _KIND, _HINT, {"key": "another sweep, data, model or settings"}
)


class State:
    """Finished passes by (cell, round); each is appended to `path` as it ends. `close` it.

    `key` stands for all that makes passes comparable, each of them over `prompts` prompts. Raises
    UsageError where the file belongs to another measurement or cannot be used.
    """

    def __init__(self, path: Path, key: str, prompts: int, fresh: bool = False) -> None:
        self.path, self._prompts = path, prompts
        self._begun: list[Record] = []
        with errors_named(path, _HINT, UsageError, resumes=not fresh):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path.resolve(), _FORM, {"key": key}, _LONGEST, restart=fresh)
        self.close = self._journal.close
        self.done = {place: one for _, one in self._journal if (place := self._place(one))}

    def _place(self, records: list[Record]) -> tuple[str, int] | None:
        """Which pass these records are; None where they are not a whole one."""
        places = {(one.cell, one.round) for one in records}
        whole = [one.prompt for one in records] == list(range(self._prompts))
        return places.pop() if whole and len(places) == 1 else None

    def rounds(self, cell: str, most: int) -> list[list[Record]]:
        """The finished passes of a cell in the first `most` rounds."""
        places = ((cell, number) for number in range(most))
        return [self.done[place] for place in places if place in self.done]

    def left(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """Those of `turns` that are still to be taken."""
        return (turn for turn in turns if (turn.cell.key, turn.round) not in self.done)

    def add(self, record: Record) -> None:
        """Take in one answer; with the last one of its pass the pass is written."""
        if record.prompt == 0:
            self._begun = []
        self._begun.append(record)
        if record.prompt < self._prompts - 1:
            return
        place = self._place(self._begun)
        if place is not None:
            self.done[place] = self._begun
            self._journal.add(self._begun)


def state_key(about: SweepData, grid: Grid) -> str:
    """What makes passes comparable: data, files, versions, device and CPU, settings, the sweep."""
    settings = grid.base.values()
    for name in ("color", *grid.axes):
        settings.pop(name, None)
    axes = [{"name": name, "values": values} for name, values in grid.axes.items()]
    files = files_named(grid)
    return digest([VERSION, versions_and_cpu(), files, to_json(about), settings, axes])


def files_named(grid: Grid) -> list[str]:
    """What tells the weights that the cells name, of models and heads, from changed ones."""
    every = [cell.settings for cell in grid.cells]
    models = {name for s in every for name in (s.model.model, s.model.draft_model)} - {""}
    heads = {name for s in every for name in s.model.heads} - {OWN}
    folders = [*map(fetch, sorted(models)), *map(find_head, sorted(heads))]
    return [fingerprint(folder) for folder in folders]


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(source: Source[P], grid: Grid, rounds: int, state: State, progress: Notify) -> None:
    """Measure what `state` does not hold yet."""
    turns = list(state.left(by_cell(grid.cells, len(source.prompts), rounds)))
    race = Race(grid.cells)
    for record in run(source, race, turns, progress=progress):
        state.add(record)


def report(about: SweepData, grid: Grid, rounds: int, state: State) -> SweepReport | None:
    """Everything that was measured and what follows from it; None where nothing was.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    rows: list[CellRow] = []
    for cell in grid.cells:
        if passes := state.rounds(cell.key, rounds):
            records = {(cell.key, p): [one[p] for one in passes] for p in range(about.prompts)}
            rows.append(row_of(CellRow, Group(cell, range(about.prompts), records)))
    if not rows:
        return None
    measured, planned = sum(row.rounds for row in rows), len(grid.cells) * rounds
    complete = measured == planned
    verdict = judge(rows, complete)
    standing = {row.cell: "tied" for row in verdict.tied}
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
        best=verdict.best.cell,
        tied=[row.cell for row in verdict.tied],
        chosen=verdict.chosen.cell if complete else None,
        reason=verdict.reason,
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
    import numpy as np  # here: naming a preset does without

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
        reason = f"{len(level)} cells are statistically tied; {_why(chosen, near)}"
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


def preset_path(name: str, force: bool) -> Path:
    """Where a preset of that name is written. Raises UsageError for a bad name or a taken one."""
    if not _NAME.fullmatch(name):
        what = f"{name!r} is not a name for a preset"
        raise UsageError(what, hint="Use letters, digits, dots, dashes and underscores.")
    path = home("config") / "presets" / f"{name}.yaml"
    known = preset_files()
    if name in known and not force:
        what = f"{known[name]}: there is such a preset already"
        if not path.exists():
            what = f"{name} is a preset of ngt's own, which yours would replace everywhere"
        raise UsageError(what, hint="Choose another name, or give --force.")
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
    for name in dict.fromkeys((*settings_in("drafting"), *grid.axes)):
        value = settings.get(name)
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
    text = written(body)
    with errors_named(path, "See ngt env.", InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
