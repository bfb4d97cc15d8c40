"""Replay recorded runs: drafters are driven as the decoding loop would drive them.

No model is needed: verification of a greedy run accepts exactly the drafts that follow in the
recording. A recording may have the best tokens after each token of prompt and answer. Drafters that
learn from logits then learn those after accepted nodes, but not those after rejected ones, which a
live run would show them. Methods that draft from logits alone are refused.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ngtcli.bench import records
from ngtcli.bench.grid import BenchOptions, Cell, cells_of, check_some_left
from ngtcli.bench.prompts import choose
from ngtcli.config import Settings
from ngtcli.drafting.background.loaded import Background
from ngtcli.drafting.costs import Costs
from ngtcli.drafting.drafter import Context, Draft, Drafter, Outcome, Room, draft_settings
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import MethodSpec, parse_method
from ngtcli.drafting.steps import Statistics
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.errors import ModelError, NgtError, UsageError
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.system.reporting import reporting_to
from ngtcli.words import nearest
from tests.support.recording_reporter import CallsOf, Notify
from tests.tools.measuring.results import (
    ReplayedGeneration,
    ReplayResult,
    ReplayRow,
    rows_by_task,
)
from tests.tools.measuring.traces import Trace, TraceSet, is_odd, read_traces

IDS = ("all", "odd", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(BenchOptions):
    """What to measure, and on which prompts of the recording.

    Attributes:
        tasks: The tasks of the prompts; none: all.
        limit: The most prompts per task.
        ids: "all", or only the prompts with "odd" or "even" ids.
    """

    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"


def walk(tree: DraftTree, output: Sequence[int], start: int) -> int:
    """Count the nodes of `tree` that the recorded `output` accepts from index `start` on.

    >>> walk(DraftTree((5, 7, 6), (-1, -1, 0)), [4, 5, 6, 1], 1)
    2
    """
    children = {(tree.parents[i], tree.tokens[i]): i for i in range(tree.drafts)}
    node = ROOT
    accepted = 0
    while start + accepted < len(output):
        child = children.get((node, output[start + accepted]))
        if child is None:
            break
        node = child
        accepted += 1
    return accepted


def replay(trace: Trace, drafter: Drafter, context: Context, num_draft: int) -> ReplayedGeneration:
    """Drive `drafter` over one trace with at most `num_draft` nodes a step."""
    output = trace.output_ids
    statistics = Statistics()
    undrafted = 0
    draft_us: list[float] = []
    drafter.begin(context)
    log = TokenLog(trace.prompt_ids)
    done = 0
    while done < len(output):
        started = time.perf_counter()
        depth = trace.room - done - 1
        draft = Draft()
        if depth > 0 and num_draft > 0:
            draft = drafter.propose(log, Room(num_draft))
        tree = draft.tree.cut(depth, num_draft)
        propose_s = time.perf_counter() - started

        accepted = walk(tree, output, done)
        emitted = output[done : done + accepted + 1]

        started = time.perf_counter()
        log.emit(emitted)
        drafter.learn(log, outcome_of(trace, done, accepted, draft.top_k))
        learn_s = time.perf_counter() - started

        draft_us.append((propose_s + learn_s) * 1e6)
        done += len(emitted)
        if not tree.drafts:
            undrafted += 1
        statistics.add_step(tree.drafts, min(accepted, len(emitted)), len(emitted))
    drafter.close()
    return ReplayedGeneration(
        output,
        statistics.steps,
        drafted=statistics.drafted_tokens,
        accepted=statistics.accepted_tokens,
        undrafted=undrafted,
        histogram=statistics.acceptance_histogram,
        draft_us=draft_us,
    )


def outcome_of(trace: Trace, done: int, accepted: int, top_k: int) -> Outcome:
    """Return the outcome of a step for the nodes that it accepted, as far as it was recorded.

    Args:
        trace: The recorded answer.
        done: Tokens of the answer before this step.
        accepted: Nodes that the step accepted.
        top_k: How many of the best tokens the drafter wants.
    """
    if not trace.top.ids or not top_k:
        return Outcome()
    root = len(trace.prompt_ids) + done - 1  # the position of the last token before the step
    rows = trace.top.ids[root : root + accepted + 1]
    path = trace.output_ids[done : done + len(rows) - 1]
    chain = DraftTree(tuple(path), tuple(range(-1, len(path) - 1)))
    return Outcome(chain, np.array(rows, np.int64)[:, :top_k], len(path) - 1)


def context_of(trace: Trace, traces: TraceSet) -> Context:
    """Return the context that a drafter gets for a recorded prompt."""
    prompt = trace.prompt_ids
    return Context(prompt, None, (prompt,), trace.references, traces.tokenizer, traces.vocabulary)


class Replay:
    """A source of recorded answers for the benchmark: the recording decides what is accepted."""

    def __init__(self, traces: TraceSet, warn: Notify) -> None:
        self.traces = traces
        self.prompts = traces.traces
        self._background = cache(lambda name: recorded_background(traces, name, warn))

    @property
    def costs(self) -> Costs | None:
        """The costs of forward passes, which a recording does not have."""
        return None

    def method(self, cell: Cell) -> MethodSpec:
        """Return the method of a cell, with a pool that no other cell shares.

        Raises NgtError for a method that needs a model.
        """
        settings = cell.settings
        method = parse_method(settings.drafting.method, draft_settings(settings))
        if method.entry.live:
            raise NgtError(f"it needs {method.entry.needs}")
        if not method.entry.costs:
            return method
        pool = None
        if settings.drafting.pool:
            pool = Pool(quotes=settings.drafting.pool_documents)
        background = self._background(settings.drafting.background)
        method_settings = replace(
            method.settings, pool=pool, background=background, costs=self.costs
        )
        return replace(method, settings=method_settings)

    def begin(self, cell: Cell, split: bool = False) -> records.Answering[Trace]:
        """Begin a cell as `Source.begin` does; raises what `method` raises."""
        method = self.method(cell)
        drafter = method.build()
        num_draft = method.settings.num_draft
        return lambda trace: replay(trace, drafter, context_of(trace, self.traces), num_draft)


def run_replay(
    folder: Path,
    options: ReplayOptions,
    settings: Settings,
    progress: Notify,
    warn: Notify,
) -> ReplayResult:
    """Replay the recording in `folder` with each method and each number of draft nodes.

    A pool lives for one run: it learns from the questions in their order. Raises NgtError if
    nothing can be replayed.
    """
    started = time.perf_counter()
    progress(f"Reading {folder} …")
    source = Replay(chosen_traces(folder, options, settings.reading.max_mb), warn)
    if options.fresh:  # a pool would always be empty
        settings = settings.replace(pool=False)
    cells, refused = cells_of(options.methods, options.num_drafts, settings)
    measurement = records.Measurement(cells, refused=refused)
    with reporting_to(CallsOf(status=progress, warn=warn)):
        records.warm_up(source, measurement, source.prompts[:1], fresh=options.fresh)
        check_some_left(options.methods, measurement.cells, measurement.refused)
        turns = list(records.by_cell(measurement.cells, len(source.prompts), options.rounds))
        for _ in records.run(source, measurement, turns, fresh=options.fresh):
            pass
    if measurement.interrupted:
        raise KeyboardInterrupt
    traces = source.traces
    tasks = [trace.task for trace in traces.traces]
    return ReplayResult(
        source=traces.source,
        model=traces.model,
        questions=len(traces.traces),
        fresh=options.fresh,
        seconds=round(time.perf_counter() - started, 2),
        rows=rows_by_task(ReplayRow, measurement, tasks, tasks_first=True),
        refused=measurement.refused,
    )


def chosen_traces(folder: Path, options: ReplayOptions, max_mb: int) -> TraceSet:
    """Read the traces in `folder` that `options` choose. Raises NgtError."""
    traces = read_traces(folder, max_mb)
    chosen = select(traces.traces, options.tasks, options.limit, options.ids)
    return replace(traces, traces=tuple(chosen))


def select(
    traces: Sequence[Trace], tasks: Sequence[str], limit: int | None, ids: str = "all"
) -> list[Trace]:
    """Choose traces by task and id; their order stays.

    Args:
        traces: The traces of a recording.
        tasks: The tasks to keep; none: all.
        limit: The most traces of each task.
        ids: "odd" or "even" keeps the questions with such a number in their id, so that settings
            can be chosen on one half and reported on the other. "all" keeps both.

    Raises UsageError if none is left.
    """
    if ids not in IDS:
        raise UsageError(f"no ids {ids!r}", hint=nearest(ids, IDS))
    candidates = choose(traces, tasks, None, "the recording")
    if ids != "all":
        candidates = [trace for trace in candidates if is_odd(trace.id) == (ids == "odd")]
    chosen = choose(candidates, (), limit)
    if not chosen:
        raise UsageError("nothing to replay", hint="Record something, or raise --limit.")
    return chosen


def recorded_background(traces: TraceSet, name: str, warn: Notify) -> BackgroundCounts | None:
    """Load the counts of a background for the tokenizer of the recording.

    The tokenizer is in the recording's folder, or else that of the recorded model. Returns None
    for the name "none", and with a warning if that tokenizer is not found.
    """
    if name == "none":
        return None
    folder = Path(traces.source) / "tokenizer"
    try:
        tokenizer = load_tokenizer(str(folder) if folder.is_dir() else traces.model)
    except ModelError:
        tokenizer = None
    if tokenizer is None or tokenizer.fingerprint != traces.tokenizer:
        warn("no background: the tokenizer of the recording was not found")
        return None
    with reporting_to(CallsOf(warn=warn)):
        return Background(name, tokenizer, traces.vocabulary, model=traces.model).load()
