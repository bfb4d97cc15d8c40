"""`ngt tune`: the cells of a grid are contestants, on a recording or on a model that runs.

On a recording it says what is accepted, and a cost curve how long a pass takes. What was measured
stands in a state file, and the report says what follows from it. Knows no torch.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where the best one may owe its lead to the prompts that happened to be there:
prompts are drawn again, with replacement and for both cells alike, a thousand times, and in over
2.5% of the draws it is not ahead. Under six prompts nothing can be said. Of the tied cells that are
nearly as fast as the best the one with the smallest trie is chosen: it costs least to build and to
keep. Where some cell was measured once there is no estimate of the noise of rounds, and none is
claimed; what is said of a sweep that was interrupted is said of the cells measured so far.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Generic

import numpy as np

from ngtcli.config import Settings, settings_where
from ngtcli.draft.costs import SHORT, CostCurve, Costs, read_points
from ngtcli.draft.drafter import DraftSettings, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, UsageError, counted, reason_of
from ngtcli.heads.places import OWN, find_head
from ngtcli.measure.grid import Grid
from ngtcli.measure.records import Answering, Contestant, Generation, Notify, P, by_contestant, run
from ngtcli.measure.replay import recorded_background, replayed, select
from ngtcli.measure.results import CellRow, SweepData, SweepReport
from ngtcli.measure.state import VERSION, Figures, State
from ngtcli.measure.traces import Trace, read_traces
from ngtcli.model_files.checkpoint import fetch
from ngtcli.model_files.quantized import weights_of
from ngtcli.system.files import DamagedFileError, home, parse_json, read_bounded
from ngtcli.system.json_form import to_json
from ngtcli.system.trials import versions_and_cpu
from ngtcli.trie.ngram import NGramTrie, build_trie

DEFAULT_COSTS = Path(__file__).parent / "costs.json"
LEVEL = 0.025
DRAWS = 1000
FEWEST = 6  # prompts: of fewer, all may well favour one cell by chance
NEAR = 0.02  # a tied cell slower by more than this share is not taken for its smaller trie
MOST_COSTS = 1 << 20  # bytes of such a file: 30,000 sizes of a pass


def read_costs(path: Path) -> tuple[CostCurve, str]:
    """A cost curve and what it was measured on. Raises InputError.

    The file maps rows (the root and its drafts) to seconds of a pass, as in `{"1": 0.01, "32":
    0.02}`; or it holds such a map as `seconds`, and as `of` what was measured.
    """
    try:
        stored = parse_json(read_bounded(path.expanduser(), MOST_COSTS), dict)
        curve = CostCurve(read_points(stored.get("seconds", stored)))
        return curve, str(stored.get("of", path.name))
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", "Check the path.") from None
    except (DamagedFileError, ValueError) as error:
        what = f"{path}: not a cost curve ({error})"
        raise InputError(what, 'Write rows and seconds, as in {"1": 0.01, "32": 0.02}.') from None


def check_replayable(grid: Grid) -> None:
    """Raise UsageError for what a recording cannot tell."""
    known = settings_where(replayed=True)
    for name in grid.axes:
        if name not in known:
            what = f"a recording cannot tell what {name} does"
            raise UsageError(what, f"Sweep {', '.join(known)}, or leave --replay out.")
    for cell in grid.cells:
        method = parse_method(cell.settings.method, DraftSettings())
        if method.entry.live:
            what = f"a recording cannot measure {method.name}: it needs {method.entry.needs}"
            raise UsageError(what, "Leave --replay out to measure it on a model.")


@dataclass(frozen=True, slots=True)
class Source(Generic[P]):
    """What cells are measured on, and the prompts that every cell answers.

    `begin` gives what answers with some settings, by a drafter that has learned nothing.
    """

    about: SweepData
    prompts: Sequence[P]
    begin: Callable[[Settings], Answering[P]]


def recording(
    folder: Path,
    tasks: Sequence[str] = (),
    limit: int | None = None,
    ids: str = "all",
    costs: Path = DEFAULT_COSTS,
    max_mb: int | None = None,
) -> Source[Trace]:
    """A recorded run: acceptance is the recording's, time is the cost curve's and the drafter's."""
    curve, of = read_costs(costs)
    seconds = {int(rows): s for rows, s in curve.by_rows().items()}
    traces = read_traces(folder, max_mb=max_mb)
    chosen = select(traces.traces, tasks, limit, ids)
    background = cache(lambda names: recorded_background(traces, names, lambda _: None))

    def begin(settings: Settings) -> Answering[Trace]:
        curve, costs = CostCurve(seconds), Costs({SHORT: CostCurve(seconds)})
        method = parse_method(settings.method, draft_settings(settings))
        pool = Pool(quotes=settings.pool_documents) if settings.pool else None
        counts = background(settings.background) if method.entry.costs else None
        own = replace(method.settings, costs=costs, background=counts)
        method = replace(method, settings=own)
        answer = replayed(method, own.num_draft, traces, lambda: pool).begin()

        def timed(trace: Trace) -> Generation:
            made = answer(trace)
            passes = sum(count * curve.at(1 + k) for k, count in (made.nodes or {}).items())
            made = replace(made, decode_s=passes + sum(made.draft_us or ()) / 1e6)
            if not method.entry.documents:
                return made
            return replace(made, **timed_trie([trace.prompt_ids], own.n, own.lp)[1])

        return timed

    data = [folder.name, ", ".join(tasks) or "all tasks"]
    data += [f"{ids} ids"] if ids != "all" else []
    data += [f"the first {limit} of each task"] if limit is not None else []
    about = SweepData(
        source="replay",
        model=traces.model,
        device=f"none: passes cost what they cost {of}",
        data=", ".join(data),
        data_sha256=digest([(t.id, t.prompt_ids, t.output_ids, t.room) for t in chosen]),
        prompts=len(chosen),
        costs=seconds,
    )
    return Source(about, chosen, begin)


def timed_trie(
    documents: Sequence[Sequence[int]], n: int, lp: int
) -> tuple[NGramTrie, dict[str, Any]]:
    """A trie, and the figures of a `Generation` about it."""
    clock = time.perf_counter()
    trie = build_trie(documents, n, lp)
    seconds = time.perf_counter() - clock
    return trie, {
        "trie_build_s": seconds,
        "trie_bytes": sum(a.nbytes for a in trie.arrays.values()),
    }


def digest(value: Any) -> str:
    """Stands for the data that were measured on."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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
    contestants = [
        Contestant(
            cell.label,
            None,
            partial(source.begin, cell.settings),
            model=str([getattr(cell.settings, name) for name in settings_where(loaded=True)]),
        )
        for cell in grid.cells
    ]
    total = len(contestants) * rounds
    done = before = sum(len(state.rounds(cell.label, rounds)) for cell in grid.cells)
    left = state.left(by_contestant(contestants, len(source.prompts), rounds))
    begin = time.perf_counter()
    for _, turns in groupby(left, lambda turn: (turn.contestant.key, turn.round)):
        words = f"{done} of {total} measurements"
        if done > before:
            seconds = (time.perf_counter() - begin) / (done - before) * (total - done)
            words += f" · about {duration(seconds)} left"
        progress(words)
        for record in run(turns, source.prompts):
            state.add(record)
        done += 1


def duration(seconds: float) -> str:
    """In words.

    >>> duration(75)
    '1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def report(about: SweepData, grid: Grid, rounds: int, state: State) -> SweepReport:
    """Everything that was measured and what follows from it.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    found = ((cell, state.rounds(cell.label, rounds)) for cell in grid.cells)
    rows = [summarize(cell.label, cell.values, passes) for cell, passes in found if passes]
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


def summarize(
    label: str, values: Mapping[str, Any], rounds: Sequence[Sequence[Figures]]
) -> CellRow:
    """A cell in short, from at least one round over all prompts."""
    speeds = [_tokens_per_s(records) for records in rounds]
    every = [r for records in rounds for r in records]
    builds = [r.trie_build_s for r in every if r.trie_build_s is not None]
    sizes = [r.trie_bytes for r in every if r.trie_bytes is not None]
    tokens, steps = sum(r.new_tokens for r in every), sum(r.steps for r in every)
    return CellRow(
        cell=label,
        values=values,
        rounds=len(rounds),
        tokens_per_s=median(speeds),
        tokens_per_s_least_and_most=(min(speeds), max(speeds)),
        mean_acceptance_length=tokens / max(1, steps),
        trie_build_s=median(builds) if builds else None,
        trie_bytes=int(median(sizes)) if sizes else None,
        prompts=[
            (records[0].new_tokens, median(r.decode_s for r in records))
            for records in zip(*rounds, strict=True)
        ],
    )


def _tokens_per_s(records: Sequence[Figures]) -> float:
    seconds = sum(r.decode_s for r in records)
    return sum(r.new_tokens for r in records) / seconds if seconds > 0 else 0.0


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
