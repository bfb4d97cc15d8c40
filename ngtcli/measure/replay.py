"""Drafters driven over recorded runs, exactly as the decoding loop would drive them.

No model is needed: verification of a greedy run accepts just the drafts that the recording goes on
with. What a drafter would learn from scores is not in a recording; such methods are refused.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ngtcli.background.files import check_names
from ngtcli.background.loaded import Backgrounds
from ngtcli.config import Settings, Use, settings_where
from ngtcli.draft.costs import SHORT, CostCurve, Costs, Points
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.draft.steps import Statistics
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import InputError, ModelError, NgtError, UsageError, nearest, reason_of
from ngtcli.measure import records
from ngtcli.measure.grid import BenchOptions, Cell, Grid
from ngtcli.measure.prompts import choose
from ngtcli.measure.results import ReplayResult, SweepData, digest
from ngtcli.measure.summary import REPLAY, summarized
from ngtcli.measure.traces import Trace, TraceSet, is_odd, read_traces
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.system.files import DamagedFileError, parse_json, read_bounded
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.corpus import Corpus, build

DEFAULT_COSTS = Path(__file__).parent / "costs.json"
IDS = ("all", "odd", "even")
MOST_COSTS = 1 << 20  # bytes of such a file: 30,000 sizes of a pass


def walk(tree: DraftTree, output: Sequence[int], at: int) -> int:
    """How many nodes of `tree` the recorded `output` accepts from index `at` on.

    >>> walk(DraftTree((5, 7, 6), (-1, -1, 0)), [4, 5, 6, 1], 1)
    2
    """
    children = {(tree.parents[i], tree.tokens[i]): i for i in range(tree.drafts)}
    node, accepted = ROOT, 0
    while at + accepted < len(output):
        following = children.get((node, output[at + accepted]))
        if following is None:
            break
        node = following
        accepted += 1
    return accepted


def replay(trace: Trace, drafter: Drafter, context: Context, num_draft: int) -> records.Generation:
    """Drive `drafter` over one trace with at most `num_draft` nodes a step."""
    made, undrafted, output = Statistics(), 0, trace.output_ids
    nodes, draft_us = Counter[int](), list[float]()
    drafter.reset(context)
    ids = list(trace.prompt_ids)
    done = 0
    while done < len(output):
        clock = time.perf_counter()
        depth = trace.room - done - 1
        tree = drafter.propose(ids, num_draft) if depth > 0 and num_draft > 0 else DraftTree()
        tree = tree.cut(depth, num_draft)
        proposing = time.perf_counter() - clock
        accepted = walk(tree, output, done)
        kept = output[done : done + accepted + 1]
        clock = time.perf_counter()
        drafter.observe(kept)
        draft_us.append((proposing + time.perf_counter() - clock) * 1e6)
        ids += kept
        done += len(kept)
        undrafted += not tree.drafts
        nodes[len(tree)] += 1
        made.add_step(tree.drafts, min(accepted, len(kept)), len(kept))
    more = {"undrafted": undrafted, "nodes": nodes, "draft_us": draft_us}
    return records.Generation.of(output, made, **more)


def context_of(trace: Trace, traces: TraceSet) -> Context:
    """What a drafter is told of a recorded prompt."""
    prompt, references = trace.prompt_ids, trace.references
    return Context(prompt, None, (prompt,), references, traces.tokenizer, traces.vocabulary)


class Replay:
    """A source over recorded answers: acceptance is the recording's.

    With `costs`, seconds of a pass by its rows, decoding takes these and the drafter's own time,
    and the trie of a prompt is built and timed as well.
    """

    def __init__(
        self, traces: TraceSet, warn: records.Notify, costs: Mapping[int, float] | None = None
    ) -> None:
        self.traces, self.prompts = traces, traces.traces
        self.seconds = costs
        self._background = cache(lambda names: recorded_background(traces, names, warn))

    @property
    def costs(self) -> Costs | None:
        """What the methods that ask for them are told of the costs of passes."""
        return None if self.seconds is None else Costs({SHORT: CostCurve(self.seconds)})

    def method(self, cell: Cell) -> MethodSpec:
        """The method of a cell with a pool and costs of its own, which teach no other.

        Raises NgtError for a method that a recording cannot tell of.
        """
        settings = cell.settings
        method = parse_method(settings.method, draft_settings(settings))
        if method.entry.live:
            raise NgtError(f"it needs {method.entry.needs}")
        if not method.entry.costs:
            return method
        pool = Pool(quotes=settings.pool_documents) if settings.pool else None
        costs, background = self.costs, self._background(settings.background)
        own = replace(method.settings, pool=pool, background=background, costs=costs)
        return replace(method, settings=own)

    def begin(self, cell: Cell, split: bool = False) -> records.Answering[Trace]:
        """As `Source.begin`, and raises as `method`."""
        method = self.method(cell)
        drafter, own = method.build(), method.settings

        def answer(trace: Trace) -> records.Generation:
            made = replay(trace, drafter, context_of(trace, self.traces), own.num_draft)
            if self.seconds is None:
                return made
            curve = CostCurve(self.seconds)
            passes = sum(count * curve.at(1 + k) for k, count in (made.nodes or {}).items())
            made = replace(made, decode_s=passes + sum(made.draft_us or ()) / 1e6)
            if not method.entry.documents:
                return made
            return replace(made, **timed_trie([trace.prompt_ids], own.n, own.lp)[1])

        return answer

    def about(self, options: BenchOptions, costs_of: str) -> SweepData:
        """What is measured on, the part that `options` choose; what the costs were measured on."""
        folder, part = Path(self.traces.source), options
        data = [folder.name, ", ".join(part.tasks) or "all tasks"]
        data += [f"{part.ids} ids"] if part.ids != "all" else []
        data += [f"the first {part.limit} of each task"] if part.limit is not None else []
        return SweepData(
            source="replay",
            model=self.traces.model,
            device=f"none: passes cost what they cost {costs_of}",
            data=", ".join(data),
            data_sha256=digest([(t.id, t.prompt_ids, t.output_ids, t.room) for t in self.prompts]),
            prompts=len(self.prompts),
            costs=self.seconds,
        )


def timed_trie(
    documents: Sequence[Sequence[int]], n: int, lp: int
) -> tuple[Corpus, dict[str, Any]]:
    """A trie, and the figures of a `Generation` about it."""
    clock = time.perf_counter()
    trie = build(documents, n)
    seconds = time.perf_counter() - clock
    size = sum(a.nbytes for a in trie.arrays.values())
    return trie, {"trie_build_s": seconds, "trie_bytes": size}


def read_costs(path: Path) -> tuple[dict[int, float], str]:
    """Seconds of a pass by its rows, and what they were measured on. Raises InputError.

    The file maps rows (the root and its drafts) to seconds of a pass, as in `{"1": 0.01, "32":
    0.02}`; or it holds such a map as `seconds`, and as `of` what was measured.
    """
    try:
        stored = parse_json(read_bounded(path.expanduser(), MOST_COSTS), dict)
        points = msgspec.convert(stored.get("seconds", stored), Points, str_keys=True)
        return CostCurve(points).by_rows(), str(stored.get("of", path.name))
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", "Check the path.") from None
    except (DamagedFileError, ValueError) as error:
        what = f"{path}: not a cost curve ({error})"
        raise InputError(what, 'Write rows and seconds, as in {"1": 0.01, "32": 0.02}.') from None


def check_replayable(grid: Grid) -> None:
    """Raise UsageError for what a recording cannot tell."""
    known = settings_where(Use.REPLAYS)
    if foreign := [name for name in grid.axes if name not in known]:
        what = f"a recording cannot tell what {foreign[0]} does"
        raise UsageError(what, f"Sweep {', '.join(known)}, or leave --replay out.")
    for cell in grid.cells:
        method = parse_method(cell.settings.method, DraftSettings())
        if method.entry.live:
            what = f"a recording cannot measure {method.name}: it needs {method.entry.needs}"
            raise UsageError(what, "Leave --replay out to measure it on a model.")


def run_replay(
    folder: Path,
    options: BenchOptions,
    settings: Settings,
    progress: records.Notify,
    warn: records.Notify,
) -> ReplayResult:
    """Replay `folder` with every method at every number of drafts.

    What methods share between questions (pools) lives through one run, in the order of the
    questions. Raises NgtError where nothing can be replayed.
    """
    clock = time.perf_counter()
    progress(f"Reading {folder} …")
    source = Replay(chosen_traces(folder, options, settings.max_mb), warn)
    if options.fresh:  # a pool would be empty
        settings = replace(settings, pool=False)
    one, order = source.prompts[:1], records.by_cell
    made = records.raced(source, options, settings, one, progress, order=order)
    if made.interrupted:
        raise KeyboardInterrupt
    traces = source.traces
    return ReplayResult(
        source=traces.source,
        model=traces.model,
        questions=len(traces.traces),
        fresh=options.fresh,
        seconds=round(time.perf_counter() - clock, 2),
        rows=summarized(REPLAY, made, [trace.task for trace in traces.traces]),
        refused=made.refused,
    )


def chosen_traces(folder: Path, options: BenchOptions, max_mb: int) -> TraceSet:
    """Those of the recording in `folder` that `options` choose. Raises NgtError."""
    traces = read_traces(folder, max_mb)
    chosen = select(traces.traces, options.tasks, options.limit, options.ids)
    return replace(traces, traces=tuple(chosen))


def select(
    traces: Sequence[Trace], tasks: Sequence[str], limit: int | None, ids: str = "all"
) -> list[Trace]:
    """Traces of `tasks` (all where none is named) in order, the first `limit` of each task.

    Of them only those whose question has an "odd" or "even" number in its id, unless `ids` is
    "all": choose settings on one half, report on the other.
    """
    if ids not in IDS:
        raise UsageError(f"no ids {ids!r}", nearest(ids, IDS))
    named = choose(traces, tasks, None, "the recording")
    halved = [t for t in named if ids == "all" or is_odd(t.id) == (ids == "odd")]
    out = choose(halved, (), limit)
    if not out:
        raise UsageError("nothing to replay", "Record something, or raise --limit.")
    return out


def recorded_background(
    traces: TraceSet, names: Sequence[str], warn: records.Notify
) -> BackgroundCounts | None:
    """The counts of these backgrounds, for the tokenizer of the recording.

    None without names or where that tokenizer (in the recording's folder, or of the model by its
    name) is not here, which `warn` is told. Raises UsageError for an unknown name.
    """
    check_names(names)
    if not names:
        return None
    own = Path(traces.source) / "tokenizer"
    try:
        tokenizer = load_tokenizer(str(own) if own.is_dir() else traces.model)
    except ModelError:
        tokenizer = None
    if tokenizer is None or tokenizer.fingerprint != traces.tokenizer:
        warn("no background: the tokenizer of the recording is not here")
        return None
    return Backgrounds(names, tokenizer, traces.vocabulary, model=traces.model, warn=warn).load()
