"""`ngt tune`: the cells of a grid are contestants, on a recording or on a model that runs.

On a recording it says what is accepted, and a cost curve how long a pass takes. What was measured
stands in a state file, and the report says what follows from it. Knows no torch.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

from ngtcli.config import Settings, settings_where
from ngtcli.draft.costs import SHORT, CostCurve, Costs, read_points
from ngtcli.draft.drafter import DraftSettings, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, UsageError, reason_of
from ngtcli.measure.grid import Axis, Cell
from ngtcli.measure.ranking import judge, summarize
from ngtcli.measure.records import (
    Answering,
    Contestant,
    Generation,
    Notify,
    P,
    Turn,
    by_contestant,
    run,
)
from ngtcli.measure.replay import recorded_background, replayed, select
from ngtcli.measure.results import CellRow, SkippedCell, SweepData, SweepReport
from ngtcli.measure.state import VERSION, Figures, State
from ngtcli.measure.traces import Trace, read_traces
from ngtcli.system.json_form import to_json
from ngtcli.system.storage import DamagedFileError, home, read_json
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.ngram import NGramTrie, build_trie

DEFAULT_COSTS = Path(__file__).parent / "costs.json"
MOST_COSTS = 1 << 20  # bytes of such a file: 30,000 sizes of a pass


def read_costs(path: Path) -> tuple[CostCurve, str]:
    """A cost curve and what it was measured on. Raises InputError.

    The file maps rows (the root and its drafts) to seconds of a pass, as in `{"1": 0.01, "32":
    0.02}`; or it holds such a map as `seconds`, and as `of` what was measured.
    """
    try:
        stored = read_json(path.expanduser(), MOST_COSTS)
        curve = CostCurve(read_points(stored.get("seconds", stored)))
        return curve, str(stored.get("of", path.name))
    except FileNotFoundError as error:
        raise InputError(f"{path}: {reason_of(error)}", "Check the path.") from None
    except (DamagedFileError, ValueError) as error:
        raise InputError(
            f"{path}: not a cost curve ({error})",
            'Write rows and seconds, as in {"1": 0.01, "32": 0.02}.',
        ) from None


def check_replayable(axes: Sequence[Axis], cells: Sequence[Cell]) -> None:
    """Raise UsageError for what a recording cannot tell."""
    for axis in axes:
        if axis.name not in settings_where(replayed=True):
            raise UsageError(
                f"a recording cannot tell what {axis.name} does",
                f"Sweep {', '.join(settings_where(replayed=True))}, or leave --replay out.",
            )
    for cell in cells:
        method = parse_method(cell.settings.method, DraftSettings())
        if method.entry.live:
            raise UsageError(
                f"a recording cannot measure {method.name}: it needs {method.entry.needs}",
                "Leave --replay out to measure it on a model.",
            )


class Source(Generic[P]):
    """What cells are measured on, and the prompts that every cell answers."""

    about: SweepData
    prompts: Sequence[P]

    def begin(self, settings: Settings) -> Answering[P]:
        """Answers with these settings, by a drafter that has learned nothing."""
        raise NotImplementedError

    def contestant(self, cell: Cell) -> Contestant[P]:
        """Who answers with the settings of `cell`, under its label."""
        return Contestant(cell.label, None, partial(self.begin, cell.settings))


class Recording(Source[Trace]):
    """A recorded run: acceptance is the recording's, time is the cost curve's and the drafter's."""

    def __init__(
        self,
        folder: Path,
        *,
        tasks: Sequence[str] = (),
        limit: int | None = None,
        ids: str = "all",
        costs: Path = DEFAULT_COSTS,
        max_mb: int | None = None,
    ) -> None:
        curve, of = read_costs(costs)
        self._seconds = {int(rows): s for rows, s in curve.by_rows().items()}
        self._set = read_traces(folder, max_mb=max_mb)
        self._backgrounds: dict[tuple[str, ...], BackgroundCounts | None] = {}
        self.prompts = select(self._set.traces, tasks, limit, ids)
        texts = [(t.id, t.prompt_ids, t.output_ids, t.room) for t in self.prompts]
        self.about = SweepData(
            source="replay",
            model=self._set.model,
            device=f"none: passes cost what they cost {of}",
            data=_chosen(folder, tasks, limit, ids),
            data_sha256=digest(texts),
            prompts=len(self.prompts),
            costs=self._seconds,
        )

    def begin(self, settings: Settings) -> Answering[Trace]:
        curve = CostCurve(self._seconds)
        shared = replace(
            draft_settings(settings),
            costs=Costs({SHORT: CostCurve(self._seconds)}),
            pool=Pool(quotes=settings.pool_documents) if settings.pool else None,
            background=self._background_of(settings),
        )
        method = parse_method(settings.method, shared)
        own = method.settings
        answer = replayed(method, own.num_draft, self._set, lambda: own.pool).begin()

        def timed(trace: Trace) -> Generation:
            made = answer(trace)
            passes = sum(count * curve.at(1 + k) for k, count in (made.nodes or {}).items())
            made = replace(made, decode_s=passes + sum(made.draft_us or ()) / 1e6)
            if not method.entry.documents:
                return made
            return with_trie(made, *timed_trie([trace.prompt_ids], own.n, own.lp)[1:])

        return timed

    def _background_of(self, settings: Settings) -> BackgroundCounts | None:
        """What the cell's method has of the cell's backgrounds; made once for all cells."""
        names = settings.background
        if not parse_method(settings.method, DraftSettings()).entry.costs:
            return None
        if names not in self._backgrounds:
            self._backgrounds[names] = recorded_background(self._set, names, lambda _: None)
        return self._backgrounds[names]


def timed_trie(documents: Sequence[Sequence[int]], n: int, lp: int) -> tuple[NGramTrie, float, int]:
    """A trie, the seconds it took to build, and its bytes."""
    clock = time.perf_counter()
    trie = build_trie(documents, n, lp)
    return trie, time.perf_counter() - clock, trie.arrays.nbytes


def with_trie(made: Generation, seconds: float, size: int) -> Generation:
    """`made`, with what it took to build its trie."""
    return replace(made, trie_build_s=seconds, trie_bytes=size)


def _chosen(folder: Path, tasks: Sequence[str], limit: int | None, ids: str) -> str:
    parts = [folder.name, ", ".join(tasks) or "all tasks"]
    parts += [f"{ids} ids"] if ids != "all" else []
    parts += [f"the first {limit} of each task"] if limit is not None else []
    return ", ".join(parts)


def digest(value: Any) -> str:
    """Stands for the data that were measured on."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def state_key(about: SweepData, axes: Sequence[Axis], base: Settings) -> str:
    """What makes passes comparable: data, model, device, settings and the sweep."""
    settings = asdict(base)
    settings.pop("color")
    for axis in axes:
        settings.pop(axis.name)
    state = [VERSION, to_json(about), settings, [asdict(axis) for axis in axes]]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(
    source: Source[P], cells: Sequence[Cell], rounds: int, state: State, progress: Notify
) -> None:
    """Measure what `state` does not hold yet."""
    contestants = [source.contestant(cell) for cell in cells]
    turns = by_contestant(contestants, len(source.prompts), rounds)
    words = Progress(sum(len(_passes(c, rounds, state)) for c in cells), len(cells) * rounds)
    for record in run(state.left(turns), source.prompts, describe=words, progress=progress):
        state.add(record)


class Progress:
    """How far a sweep is, in words: `done` of `total` passes at first."""

    def __init__(self, done: int, total: int) -> None:
        self._done, self._total, self._before = done, total, done
        self._begin, self._words = time.perf_counter(), ""

    def __call__(self, turn: Turn[Any]) -> str:
        if turn.prompt:
            return self._words
        self._words = f"{self._done} of {self._total} measurements"
        if passed := self._done - self._before:
            seconds = (time.perf_counter() - self._begin) / passed * (self._total - self._done)
            self._words += f" · about {duration(seconds)} left"
        self._done += 1
        return self._words


def duration(seconds: float) -> str:
    """In words.

    >>> duration(75)
    '1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _passes(cell: Cell, rounds: int, state: State) -> list[tuple[Figures, ...]]:
    places = ((cell.label, number) for number in range(rounds))
    return [state.done[place] for place in places if place in state.done]


def summaries(cells: Sequence[Cell], rounds: int, state: State) -> list[CellRow]:
    """The summaries of all cells that were measured at least once."""
    measured = ((cell, _passes(cell, rounds, state)) for cell in cells)
    return [summarize(cell.label, dict(cell.values), got) for cell, got in measured if got]


def report(
    about: SweepData,
    axes: Sequence[Axis],
    cells: Sequence[Cell],
    skipped: Sequence[SkippedCell],
    rounds: int,
    state: State,
) -> SweepReport:
    """Everything that was measured and what follows from it.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    measured = summaries(cells, rounds, state)
    complete = sum(cell.rounds for cell in measured) == len(cells) * rounds
    verdict = judge(measured, complete) if measured else None
    standing = {c.cell: "tied" for c in verdict.tied} if verdict else {}
    if verdict:
        standing[verdict.chosen.cell] = "chosen" if complete else "ahead"
    rows = [replace(c, standing=standing.get(c.cell, "")) for c in measured]
    return SweepReport(
        about=about,
        sweep={axis.name: axis.values for axis in axes},
        rounds=rounds,
        measured=sum(row.rounds for row in rows),
        planned=len(cells) * rounds,
        complete=complete,
        cells=rows,
        skipped_cells=skipped,
        best=verdict.best.cell if verdict else None,
        tied=[c.cell for c in verdict.tied] if verdict else [],
        chosen=verdict.chosen.cell if verdict and complete else None,
        reason=verdict.reason if verdict else "nothing was measured",
        state=str(state.path),
    )
