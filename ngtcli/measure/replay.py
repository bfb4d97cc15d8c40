"""Drafters driven over recorded runs, exactly as the decoding loop would drive them.

No model is needed: verification of a greedy run accepts just the drafts that the recording goes on
with. What a drafter would learn from scores is not in a recording; such methods are refused.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ngtcli.background.files import check_names
from ngtcli.background.loaded import Backgrounds
from ngtcli.config import Settings
from ngtcli.draft.drafter import Context, Drafter, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.draft.steps import Statistics
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, NgtError, UsageError, counted, nearest
from ngtcli.measure.options import IDS, BenchOptions
from ngtcli.measure.prompts import choose
from ngtcli.measure.records import (
    Answering,
    Contestant,
    Generation,
    Notify,
    Race,
    by_prompt,
    refusal,
    run,
)
from ngtcli.measure.results import ReplayResult
from ngtcli.measure.summary import REPLAY, summarized
from ngtcli.measure.traces import Trace, TraceSet, is_odd, read_traces
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.trie.background import BackgroundCounts


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


def replay(trace: Trace, drafter: Drafter, context: Context, num_draft: int) -> Generation:
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
    return Generation(
        output,
        made.steps,
        drafted=made.drafted_tokens,
        accepted=made.accepted_tokens,
        undrafted=undrafted,
        histogram=made.acceptance_histogram,
        nodes=nodes,
        draft_us=draft_us,
    )


def replayed(
    one: MethodSpec, num_draft: int, traces: TraceSet, pool: Callable[[], Pool | None]
) -> Contestant[Trace]:
    """A drafter of method `one`, with a new pool, that is driven over recorded answers."""

    def begin() -> Answering[Trace]:
        drafter = replace(one, settings=replace(one.settings, pool=pool())).build()
        return lambda trace: replay(trace, drafter, context_of(trace, traces), num_draft)

    return Contestant(one.spec, num_draft, begin)


def context_of(trace: Trace, traces: TraceSet) -> Context:
    """What a drafter is told of a recorded prompt."""
    prompt, references = trace.prompt_ids, trace.references
    return Context(prompt, None, (prompt,), references, traces.tokenizer, traces.vocabulary)


def run_replay(
    folder: Path, options: BenchOptions, settings: Settings, progress: Notify, warn: Notify
) -> ReplayResult:
    """Replay `folder` with every method at every number of drafts.

    What methods share between questions (pools) lives through one run, in the order of the
    questions. Raises NgtError where nothing can be replayed.
    """
    clock = time.perf_counter()
    progress(f"Reading {folder} …")
    traces = chosen_traces(folder, options, settings)
    questions = traces.traces
    made: Race[Trace] = Race([])
    methods = [parse_method(spec, draft_settings(settings)) for spec in options.methods]
    background = None
    if any(one.entry.costs and not one.entry.live for one in methods):
        background = recorded_background(traces, settings.background, warn)
    pool = (lambda: None) if options.fresh else Pool
    for one in methods:
        try:
            if one.entry.live:
                raise NgtError(f"it needs {one.entry.needs}")
            one = replace(one, settings=replace(one.settings, background=background))
            for num_draft in budgets(one, options.num_drafts):
                words = counted(len(questions), "question")
                progress(f"{one.spec} at {num_draft} nodes, {words} …")
                contestant = replayed(one, num_draft, traces, pool)
                turns = by_prompt([contestant], len(questions), 1)
                made.records += list(run(turns, questions, fresh=options.fresh))
                made.contestants.append(contestant)
        except NgtError as error:
            made.refused.append(refusal(one.spec, error))
    if not made.contestants:
        first = made.refused[0]
        raise UsageError(f"{first.method}: {first.reason}", "Name another method.")
    return ReplayResult(
        source=traces.source,
        model=traces.model,
        questions=len(questions),
        inexact=traces.inexact,
        fresh=options.fresh,
        seconds=round(time.perf_counter() - clock, 2),
        rows=summarized(REPLAY, made, [trace.task for trace in questions]),
        refused=made.refused,
    )


def chosen_traces(folder: Path, options: BenchOptions, settings: Settings) -> TraceSet:
    """Those of the recording in `folder` that `options` choose. Raises NgtError."""
    traces = read_traces(folder, options.template, options.turns, settings.max_mb)
    chosen = select(traces.traces, options.tasks, options.limit, options.ids)
    return replace(traces, traces=tuple(chosen))


def budgets(method: MethodSpec, num_drafts: Sequence[int]) -> list[int]:
    """The numbers of nodes to measure a method at; one that its spec names stands for all.

    >>> from ngtcli.draft.drafter import DraftSettings
    >>> budgets(parse_method("trie:num_draft=8", DraftSettings()), [16, 32])
    [8]
    """
    if method.name == "none":
        return [0]
    own = (
        parse_method(method.spec, replace(method.settings, num_draft=k)).settings
        for k in num_drafts
    )
    return list(dict.fromkeys(settings.num_draft for settings in own))


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
    traces: TraceSet, names: Sequence[str], warn: Notify
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
