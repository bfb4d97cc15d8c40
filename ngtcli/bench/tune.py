"""`ngt tune`: measures the cells of a grid on a model, and chooses one.

A journal has the finished runs, so that a sweep can be resumed. A run is one cell's answers to all
prompts in one round, since its drafter learns from prompt to prompt. The chosen cell's settings can
be written as a preset. Imports no torch.

The best cell has the highest median of tokens/s over rounds. Another cell is tied with it if their
rounds overlap, or if the best cell may owe its lead to the selection of prompts. A paired bootstrap
decides this: the prompts are drawn 1,000 times with replacement, the same ones for both cells. If
the best cell is not ahead in more than 25 of these draws, the cells are tied. With fewer than six
prompts all cells are tied. Of the
tied cells that are nearly as fast as the best, the one with the smallest trie is chosen: it costs
the least to build and to store. If some cell was measured only once, the noise of rounds is unknown
and the report says so. The report of an interrupted sweep is about the cells measured so far.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ngtcli import __version__
from ngtcli.bench.grid import Grid
from ngtcli.bench.records import Measurement, P, Record, Source, Turn, by_cell, run
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

LEVEL = 0.025  # share of draws in which the best cell may be behind without being tied
DRAWS = 1000  # bootstrap draws of prompts
MIN_PROMPTS = 6  # with fewer prompts, all of them may favor one cell by chance
NEAR = 0.02  # a tied cell that is slower by more than this share is not chosen
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)  # names of presets
VERSION = 5
_MAX_RUN_BYTES = 100_000_000  # of a run in the journal (guess: a record has a few thousand)
_HINT = "Name another with --state, or start again with --fresh."
_KIND: Any = list[Record]
_FORM: Form[list[Record]] = Form(
    "ngt-tune", VERSION, _KIND, _HINT, {"key": "another sweep, data, model or settings"}
)


class State:
    """The finished runs of a sweep in a journal. Call `close` at the end.

    Args:
        path: The journal, to which each run is appended when it is finished.
        key: Stands for everything that makes runs comparable.
        prompts: The number of prompts in a run.
        fresh: Whether to discard the runs in the journal.

    Attributes:
        done: The finished runs by cell and round.

    Raises:
        UsageError: The file belongs to another measurement or cannot be used.
    """

    def __init__(self, path: Path, key: str, prompts: int, fresh: bool = False) -> None:
        self.path = path
        self._prompts = prompts
        self._unfinished: list[Record] = []  # records of the current run
        with errors_named(path, _HINT, UsageError, resumes=not fresh):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path.resolve(), _FORM, {"key": key}, _MAX_RUN_BYTES, restart=fresh)
        self.close = self._journal.close
        self.done: dict[tuple[str, int], list[Record]] = {}
        for _, records in self._journal:
            key_of_run = self._run_key(records)
            if key_of_run is not None:
                self.done[key_of_run] = records

    def _run_key(self, records: list[Record]) -> tuple[str, int] | None:
        """Return the cell and round of a run; None if the records are not one complete run."""
        keys = {(record.cell, record.round) for record in records}
        is_complete = [record.prompt for record in records] == list(range(self._prompts))
        return keys.pop() if is_complete and len(keys) == 1 else None

    def rounds(self, cell: str, count: int) -> list[list[Record]]:
        """Return the finished runs of a cell in the first `count` rounds."""
        keys = [(cell, number) for number in range(count)]
        return [self.done[key] for key in keys if key in self.done]

    def left(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """Yield the turns whose runs are not finished."""
        return (turn for turn in turns if (turn.cell.key, turn.round) not in self.done)

    def add(self, record: Record) -> None:
        """Add a record; the last one of a run writes the run to the journal."""
        if record.prompt == 0:
            self._unfinished = []
        self._unfinished.append(record)
        if record.prompt < self._prompts - 1:
            return
        key = self._run_key(self._unfinished)
        if key is not None:
            self.done[key] = self._unfinished
            self._journal.add(self._unfinished)


def state_key(about: SweepData, grid: Grid) -> str:
    """Return a hash of all that makes runs comparable.

    It covers the data, the files of models and heads, versions, device and CPU, the settings and
    the sweep.
    """
    settings = grid.base.values()
    for name in ("color", *grid.axes):
        settings.pop(name, None)
    axes = [{"name": name, "values": values} for name, values in grid.axes.items()]
    weights = weight_fingerprints(grid)
    return digest([VERSION, versions_and_cpu(), weights, to_json(about), settings, axes])


def weight_fingerprints(grid: Grid) -> list[str]:
    """Return the fingerprints of the weights of all models and heads that cells name."""
    models: set[str] = set()
    heads: set[str] = set()
    for cell in grid.cells:
        model_settings = cell.settings.model
        models |= {model_settings.model, model_settings.draft_model}
        heads |= set(model_settings.heads)
    models.discard("")
    heads.discard(OWN)
    folders = [*map(fetch, sorted(models)), *map(find_head, sorted(heads))]
    return [fingerprint(folder) for folder in folders]


def default_state(key: str) -> Path:
    """Return the journal of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(source: Source[P], grid: Grid, rounds: int, state: State) -> None:
    """Measure the runs that `state` does not have yet."""
    turns = list(state.left(by_cell(grid.cells, len(source.prompts), rounds)))
    measurement = Measurement(grid.cells)
    for record in run(source, measurement, turns):
        state.add(record)


def report(about: SweepData, grid: Grid, rounds: int, state: State) -> SweepReport | None:
    """Report everything that was measured and the verdict; None if nothing was measured.

    A cell is "chosen" only if everything is measured; before that one is "ahead".
    """
    prompts = range(about.prompts)
    rows: list[CellRow] = []
    for cell in grid.cells:
        runs = state.rounds(cell.key, rounds)
        if runs:
            records = {
                (cell.key, prompt): [records[prompt] for records in runs] for prompt in prompts
            }
            rows.append(row_of(CellRow, Group(cell, prompts, records)))
    if not rows:
        return None
    measured = sum(row.rounds for row in rows)
    planned = len(grid.cells) * rounds
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
    """The verdict of a sweep.

    Attributes:
        best: The fastest cell.
        tied: The cells that may be as fast as `best`, which is the first; the fastest first.
        chosen: One of them.
        reason: Why it was chosen.
    """

    best: CellRow
    tied: tuple[CellRow, ...]
    chosen: CellRow
    reason: str


def share_not_ahead(best: CellRow, other: CellRow) -> float:
    """Return the share of draws of prompts in which `best` is not faster than `other`."""
    import numpy as np  # here: naming a preset does without

    # Arrays (prompts, 2) of tokens and seconds; draws (DRAWS, prompts) of how often each counts.
    figures = np.array(best.prompts, np.float64)
    other_figures = np.array(other.prompts, np.float64)
    count = len(figures)
    draws = np.random.default_rng(0).multinomial(count, [1 / count] * count, DRAWS)
    tokens, seconds = (draws @ figures).T
    other_tokens, other_seconds = (draws @ other_figures).T
    return float(np.mean(tokens * other_seconds <= other_tokens * seconds))


def tied(best: CellRow, other: CellRow) -> bool:
    """Return whether the measurements do not show that `best` is faster than `other`."""
    slowest_round = best.tokens_per_s_least_and_most[0]
    other_fastest_round = other.tokens_per_s_least_and_most[1]
    has_rounds = max(best.rounds, other.rounds) > 1
    if has_rounds and other_fastest_round >= slowest_round:
        return True
    return len(best.prompts) < MIN_PROMPTS or share_not_ahead(best, other) > LEVEL


def judge(cells: Sequence[CellRow], complete: bool = True) -> Verdict:
    """Choose one of the cells.

    Args:
        cells: At least one measured cell.
        complete: Whether all rounds of all cells are measured.
    """
    best, *others = sorted(cells, key=lambda cell: -cell.tokens_per_s)
    tied_cells = (best, *(cell for cell in others if tied(best, cell)))
    near = [cell for cell in tied_cells if cell.tokens_per_s >= (1 - NEAR) * best.tokens_per_s]
    chosen = min(near, key=_cost)
    # The noise of rounds is known only if every cell was measured more than once.
    noise_is_known = min(cell.rounds for cell in cells) > 1
    if not others:
        reason = "it is the only cell"
    elif len(tied_cells) > 1:
        reason = f"{len(tied_cells)} cells are statistically tied; {_tie_reason(chosen, near)}"
    elif noise_is_known:
        reason = "faster than every other cell beyond the noise of rounds and prompts"
    else:
        reason = f"the fastest of {counted(len(cells), 'cell')}"
    if not noise_is_known:
        of_cells = "" if all(cell.rounds == 1 for cell in cells) else " of some cells"
        reason += f"; 1 round{of_cells}, no noise estimate"
    return Verdict(best, tied_cells, chosen, reason if complete else f"so far: {reason}")


def _cost(cell: CellRow) -> tuple[Any, ...]:
    """Order cells of equal speed: by trie, then nodes to verify, then lengths of n-grams."""
    lengths = [cell.values.get(name, 0) for name in ("num_draft", "n", "lp")]
    return (cell.trie_bytes or 0, *lengths, -cell.tokens_per_s)


def _tie_reason(chosen: CellRow, near: Sequence[CellRow]) -> str:
    """Say why one of the tied cells that are nearly as fast as the best was chosen."""
    if len(near) == 1:
        return f"{chosen.cell} is the best, no other within {NEAR:.0%} of its speed"
    sizes = [cell.trie_bytes or 0 for cell in near]
    advantage = "the fewest drafts and shortest lengths"
    if len(set(sizes)) > 1:
        is_shared = sizes.count(min(sizes)) > 1
        advantage = f"the smallest trie and {advantage}" if is_shared else "the smallest trie"
    return f"of the {len(near)} within {NEAR:.0%} of its speed {chosen.cell} has {advantage}"


def preset_path(name: str, force: bool) -> Path:
    """Return the path for a preset of this name.

    Raises:
        UsageError: The name is invalid, or it exists and `force` is false.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid preset name {name!r}",
            hint="Use letters, digits, dots, dashes and underscores.",
        )
    path = home("config") / "presets" / f"{name}.yaml"
    existing = preset_files()
    if name in existing and not force:
        message = f"{existing[name]}: this preset already exists"
        if not path.exists():
            message = f"{name} is a built-in preset, which yours would replace everywhere"
        raise UsageError(message, hint="Choose another name, or use --force.")
    return path


def write_winner(path: Path, base: Preset, grid: Grid, report: SweepReport) -> None:
    """Write a preset with the chosen cell's settings, completely or not at all.

    It has all settings of drafting as they were measured, swept or not, and where they come from:
    the command, the data, and the cell's figures.

    Args:
        path: The new preset.
        base: The preset that the sweep was based on.
        grid: The cells.
        report: A complete report.

    Raises:
        InputError: The file cannot be written.
    """
    settings = next(cell.settings for cell in grid.cells if cell.key == report.chosen)
    row = next(row for row in to_json(report)["cells"] if row["cell"] == report.chosen)
    facts = ("model", "device", "data", "data_sha256", "prompts")
    body = {key: value for key, value in read_mapping(base.path).items() if key != PROVENANCE}
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
        "figures": {
            key: value for key, value in row.items() if key not in ("cell", "values", "standing")
        },
    }
    text = written(body)
    with errors_named(path, "See ngt env.", InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
