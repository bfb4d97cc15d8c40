"""`ngt tune`: the cells of a grid are contestants, on a recording or on a model that runs.

On a recording it says what is accepted, and a cost curve how long a pass takes. What was measured
stands in a state file, and the report says what follows from it. Knows no torch.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Generic

from ngtcli.config import Settings, settings_where
from ngtcli.draft.costs import SHORT, CostCurve, Costs, read_points
from ngtcli.draft.drafter import DraftSettings, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, UsageError, reason_of
from ngtcli.measure.grid import Grid
from ngtcli.measure.ranking import judge, summarize
from ngtcli.measure.records import Answering, Contestant, Generation, Notify, P, by_contestant, run
from ngtcli.measure.replay import recorded_background, replayed, select
from ngtcli.measure.results import SweepData, SweepReport
from ngtcli.measure.state import VERSION, State
from ngtcli.measure.traces import Trace, read_traces
from ngtcli.system.json_form import to_json
from ngtcli.system.storage import DamagedFileError, home, read_json
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


def check_replayable(grid: Grid) -> None:
    """Raise UsageError for what a recording cannot tell."""
    known = settings_where(replayed=True)
    for axis in grid.axes:
        if axis.name not in known:
            raise UsageError(
                f"a recording cannot tell what {axis.name} does",
                f"Sweep {', '.join(known)}, or leave --replay out.",
            )
    for cell in grid.cells:
        method = parse_method(cell.settings.method, DraftSettings())
        if method.entry.live:
            raise UsageError(
                f"a recording cannot measure {method.name}: it needs {method.entry.needs}",
                "Leave --replay out to measure it on a model.",
            )


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
    *,
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
        curve = CostCurve(seconds)
        uses_costs = parse_method(settings.method, DraftSettings()).entry.costs
        shared = replace(
            draft_settings(settings),
            costs=Costs({SHORT: CostCurve(seconds)}),
            pool=Pool(quotes=settings.pool_documents) if settings.pool else None,
            background=background(settings.background) if uses_costs else None,
        )
        method = parse_method(settings.method, shared)
        own = method.settings
        answer = replayed(method, own.num_draft, traces, lambda: own.pool).begin()

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
    return trie, {"trie_build_s": seconds, "trie_bytes": trie.arrays.nbytes}


def digest(value: Any) -> str:
    """Stands for the data that were measured on."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def state_key(about: SweepData, grid: Grid) -> str:
    """What makes passes comparable: data, model, device, settings and the sweep."""
    settings = asdict(grid.base)
    for name in ("color", *(axis.name for axis in grid.axes)):
        settings.pop(name, None)
    return digest([VERSION, to_json(about), settings, [asdict(axis) for axis in grid.axes]])


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(source: Source[P], grid: Grid, rounds: int, state: State, progress: Notify) -> None:
    """Measure what `state` does not hold yet."""
    contestants = [
        Contestant(cell.label, None, partial(source.begin, cell.settings)) for cell in grid.cells
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
    rows = [summarize(cell.label, dict(cell.values), passes) for cell, passes in found if passes]
    measured, planned = sum(row.rounds for row in rows), len(grid.cells) * rounds
    complete = measured == planned
    verdict = judge(rows, complete) if rows else None
    standing = {row.cell: "tied" for row in verdict.tied} if verdict else {}
    if verdict:
        standing[verdict.chosen.cell] = "chosen" if complete else "ahead"
    return SweepReport(
        about=about,
        sweep={axis.name: axis.values for axis in grid.axes},
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
