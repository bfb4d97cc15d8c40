"""Drafters driven over recorded runs, exactly as the decoding loop would drive them.

No model is needed: verification of a greedy run accepts just the drafts that follow in the
recording. A recording may have the best tokens after each token of prompt and answer. Drafters that
learn from logits then learn those after accepted nodes, but never those after rejected ones, which
a live run would show them. Methods that draft from logits alone are refused.
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
    """What is measured, and of which prompts of the recording.

    `tasks` (none: all) and `limit`, per task, choose them; `ids` keeps those with "odd" or "even"
    ids, or "all".
    """

    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"


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


def replay(trace: Trace, drafter: Drafter, context: Context, num_draft: int) -> ReplayedGeneration:
    """Drive `drafter` over one trace with at most `num_draft` nodes a step."""
    made, undrafted, output = Statistics(), 0, trace.output_ids
    draft_us = list[float]()
    drafter.begin(context)
    log = TokenLog(trace.prompt_ids)
    done = 0
    while done < len(output):
        clock = time.perf_counter()
        depth = trace.room - done - 1
        draft = Draft()
        if depth > 0 and num_draft > 0:
            draft = drafter.propose(log, Room(num_draft))
        tree = draft.tree.cut(depth, num_draft)
        proposing = time.perf_counter() - clock
        accepted = walk(tree, output, done)
        kept = output[done : done + accepted + 1]
        clock = time.perf_counter()
        log.emit(kept)
        drafter.learn(log, outcome_of(trace, done, accepted, draft.top_k))
        draft_us.append((proposing + time.perf_counter() - clock) * 1e6)
        done += len(kept)
        undrafted += not tree.drafts
        made.add_step(tree.drafts, min(accepted, len(kept)), len(kept))
    drafter.close()
    return ReplayedGeneration(
        output,
        made.steps,
        drafted=made.drafted_tokens,
        accepted=made.accepted_tokens,
        undrafted=undrafted,
        histogram=made.acceptance_histogram,
        draft_us=draft_us,
    )


def outcome_of(trace: Trace, done: int, accepted: int, top_k: int) -> Outcome:
    """Return what a forward pass said of the nodes that it accepted, as far as that is recorded.

    Args:
        trace: The recording.
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
    """What a drafter is told of a recorded prompt."""
    prompt, references = trace.prompt_ids, trace.references
    return Context(prompt, None, (prompt,), references, traces.tokenizer, traces.vocabulary)


class Replay:
    """A source over recorded answers: acceptance is the recording's."""

    def __init__(self, traces: TraceSet, warn: Notify) -> None:
        self.traces, self.prompts = traces, traces.traces
        self._background = cache(lambda name: recorded_background(traces, name, warn))

    @property
    def costs(self) -> Costs | None:
        """What the methods that ask for them are told of the costs of passes: nothing."""
        return None

    def method(self, cell: Cell) -> MethodSpec:
        """The method of a cell with a pool and costs of its own, which teach no other.

        Raises NgtError for a method that a recording cannot tell of.
        """
        settings = cell.settings
        method = parse_method(settings.drafting.method, draft_settings(settings))
        if method.entry.live:
            raise NgtError(f"it needs {method.entry.needs}")
        if not method.entry.costs:
            return method
        pool = Pool(quotes=settings.drafting.pool_documents) if settings.drafting.pool else None
        costs, background = self.costs, self._background(settings.drafting.background)
        own = replace(method.settings, pool=pool, background=background, costs=costs)
        return replace(method, settings=own)

    def begin(self, cell: Cell, split: bool = False) -> records.Answering[Trace]:
        """As `Source.begin`, and raises as `method`."""
        method = self.method(cell)
        drafter, num_draft = method.build(), method.settings.num_draft
        return lambda trace: replay(trace, drafter, context_of(trace, self.traces), num_draft)


def run_replay(
    folder: Path,
    options: ReplayOptions,
    settings: Settings,
    progress: Notify,
    warn: Notify,
) -> ReplayResult:
    """Replay `folder` with every method at every number of drafts.

    What methods share between questions (pools) lives through one run, in the order of the
    questions. Raises NgtError where nothing can be replayed.
    """
    clock = time.perf_counter()
    progress(f"Reading {folder} …")
    source = Replay(chosen_traces(folder, options, settings.reading.max_mb), warn)
    if options.fresh:  # a pool would be empty
        settings = settings.replace(pool=False)
    cells, refused = cells_of(options.methods, options.num_drafts, settings)
    race = records.Race(cells, refused=refused)
    with reporting_to(CallsOf(status=progress, warn=warn)):
        records.warm_up(source, race, source.prompts[:1], fresh=options.fresh)
        check_some_left(options.methods, race.cells, race.refused)
        turns = list(records.by_cell(race.cells, len(source.prompts), options.rounds))
        for _ in records.run(source, race, turns, fresh=options.fresh):
            pass
    if race.interrupted:
        raise KeyboardInterrupt
    traces = source.traces
    return ReplayResult(
        source=traces.source,
        model=traces.model,
        questions=len(traces.traces),
        fresh=options.fresh,
        seconds=round(time.perf_counter() - clock, 2),
        rows=rows_by_task(ReplayRow, race, [t.task for t in traces.traces], tasks_first=True),
        refused=race.refused,
    )


def chosen_traces(folder: Path, options: ReplayOptions, max_mb: int) -> TraceSet:
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
        raise UsageError(f"no ids {ids!r}", hint=nearest(ids, IDS))
    named = choose(traces, tasks, None, "the recording")
    halved = [t for t in named if ids == "all" or is_odd(t.id) == (ids == "odd")]
    out = choose(halved, (), limit)
    if not out:
        raise UsageError("nothing to replay", hint="Record something, or raise --limit.")
    return out


def recorded_background(traces: TraceSet, name: str, warn: Notify) -> BackgroundCounts | None:
    """The counts of a background, for the tokenizer of the recording.

    None for the name "none", or where that tokenizer (in the recording's folder, or of the model by
    its name) is not here, which `warn` is told.
    """
    if name == "none":
        return None
    own = Path(traces.source) / "tokenizer"
    try:
        tokenizer = load_tokenizer(str(own) if own.is_dir() else traces.model)
    except ModelError:
        tokenizer = None
    if tokenizer is None or tokenizer.fingerprint != traces.tokenizer:
        warn("no background: the tokenizer of the recording is not here")
        return None
    with reporting_to(CallsOf(warn=warn)):
        return Background(name, tokenizer, traces.vocabulary, model=traces.model).load()
