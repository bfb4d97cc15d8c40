"""Drafters driven over recorded runs, exactly as the decoding loop would drive them.

No model is needed: verification of a greedy run accepts just the drafts that the recording goes on
with. What a drafter would learn from scores is not in a recording; such methods are refused.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ngtcli.background.files import check_names
from ngtcli.background.loaded import Backgrounds
from ngtcli.decode.steps import Statistics
from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, NgtError, UsageError, counted, nearest
from ngtcli.measure.records import Answering, Contestant, Generation, Notify, by_prompt, run
from ngtcli.measure.summary import drafting
from ngtcli.measure.traces import Trace, TraceSet, is_odd, read_traces
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.render.results import ReplayResult
from ngtcli.render.rows import OVERALL, Refusal, ReplayRow
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts

IDS = ("all", "odd", "even")


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


def run_replay(
    folder: Path,
    methods: Sequence[str],
    num_drafts: Sequence[int],
    *,
    settings: DraftSettings | None = None,
    backgrounds: Sequence[str] = (),
    tasks: Sequence[str] = (),
    limit: int | None = None,
    ids: str = "all",
    template: str = "",
    turns: str = "first",
    max_mb: int | None = None,
    fresh: bool = False,
    progress: Notify = lambda _: None,
    warn: Notify = lambda _: None,
) -> ReplayResult:
    """Replay `folder` with every method at every number of drafts.

    `limit` is per task. What methods share between questions (pools) lives through one run, in
    the order of the questions, or is emptied at each with `fresh`. `ids` keeps the questions with
    "odd" or "even" ids, or "all". `max_mb` bounds what is read. `backgrounds` are names. Raises
    NgtError where nothing can be replayed.
    """
    clock = time.perf_counter()
    progress(f"Reading {folder} …")
    traces = read_traces(folder, template, turns, max_mb)
    chosen = select(traces.traces, tasks, limit, ids)
    able, refused = _able(methods, settings or DraftSettings())
    if any(one.entry.costs for one in able):
        background = recorded_background(traces, backgrounds, warn)
        able = [replace(a, settings=replace(a.settings, background=background)) for a in able]
    rows: list[ReplayRow] = []
    for one in able:
        try:
            for num_draft in budgets(one, num_drafts):
                progress(f"{one.spec} at {num_draft} nodes, {counted(len(chosen), 'question')} …")
                made = _answers(one, num_draft, traces, chosen, fresh)
                rows += _rows(one.spec, num_draft, chosen, made)
        except NgtError as error:
            refused.append(Refusal(one.spec, f"{error}. {error.hint}"))
    if not rows:
        first = refused[0]
        raise UsageError(f"{first.method}: {first.reason}", "Name another method.")
    seconds = round(time.perf_counter() - clock, 2)
    return ReplayResult(
        source=traces.source, model=traces.model, questions=len(chosen), inexact=traces.inexact,
        fresh=fresh, seconds=seconds, rows=rows, refused=refused,
    )  # fmt: skip


def budgets(method: MethodSpec, num_drafts: Sequence[int]) -> list[int]:
    """The numbers of nodes to measure a method at; one that its spec names stands for all.

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
    known = list(dict.fromkeys(t.task for t in traces))
    for task in tasks:
        if task not in known:
            raise UsageError(f"no task {task!r} in the recording", nearest(task, known))
    out: list[Trace] = []
    counts = dict.fromkeys(tasks or known, 0)
    for trace in traces:
        if ids != "all" and is_odd(trace.id) != (ids == "odd"):
            continue
        if trace.task in counts and (limit is None or counts[trace.task] < limit):
            counts[trace.task] += 1
            out.append(trace)
    if not out:
        raise UsageError("nothing to replay", "Record something, or raise --limit.")
    return out


def _able(
    methods: Sequence[str], settings: DraftSettings
) -> tuple[list[MethodSpec], list[Refusal]]:
    """The methods that a recording can measure, and the others with the reason."""
    able, refused = [], []
    for spec in methods:
        one = parse_method(spec, settings)
        if one.entry.live:
            refused.append(Refusal(spec, f"it needs {one.entry.needs}"))
        else:
            able.append(one)
    return able, refused


def context_of(trace: Trace, traces: TraceSet) -> Context:
    """What a drafter is told of a recorded prompt."""
    return Context(
        trace.prompt_ids, None, (trace.prompt_ids,), trace.references,
        traces.tokenizer, traces.vocabulary,
    )  # fmt: skip


def _answers(
    one: MethodSpec, num_draft: int, traces: TraceSet, chosen: Sequence[Trace], fresh: bool
) -> list[Generation]:
    contestant = replayed(one, num_draft, traces, (lambda: None) if fresh else Pool)
    taken = run(by_prompt([contestant], len(chosen), 1), chosen, fresh=fresh)
    return [sample.generation for _, sample in taken]


def _rows(
    method: str, num_draft: int, traces: Sequence[Trace], made: Sequence[Generation]
) -> list[ReplayRow]:
    """A row for each task, and one for all."""
    tasks: dict[str, list[Generation]] = {}
    for trace, generation in zip(traces, made, strict=True):
        tasks.setdefault(trace.task, []).append(generation)
    return [_row(method, num_draft, *of) for of in (*tasks.items(), (OVERALL, made))]


def _row(method: str, num_draft: int, task: str, made: Sequence[Generation]) -> ReplayRow:
    draft_us = [us for generation in made for us in generation.draft_us or ()]
    middle, late = np.percentile(draft_us, (50, 99)) if draft_us else (0.0, 0.0)
    whole = drafting(made)
    per_step = (whole.drafted_tokens or 0) / max(1, whole.steps)
    rate = whole.draft_acceptance_rate or 0.0
    return ReplayRow(
        method=method,
        num_draft=num_draft,
        task=task,
        questions=len(made),
        drafting=replace(whole, nodes_per_step=round(per_step, 3), draft_acceptance_rate=rate),
        draft_us_median=round(float(middle), 1),
        draft_us_p99=round(float(late), 1),
    )


def recorded_background(
    traces: TraceSet, names: Sequence[str], warn: Callable[[str], None]
) -> BackgroundCounts | None:
    """The counts of these backgrounds; None without names or without the tokenizer.

    `warn` is told why there is none. Raises UsageError for an unknown name.
    """
    check_names(names)
    if not names:
        return None
    tokenizer = _tokenizer(traces)
    if tokenizer is None:
        warn("no background: the tokenizer of the recording is not here")
        return None
    return Backgrounds(names, tokenizer, traces.vocabulary, model=traces.model, warn=warn).load()


def _tokenizer(traces: TraceSet) -> Tokenizer | None:
    """The tokenizer beside the recording, or that of the model by its name."""
    beside = Path(traces.source) / "tokenizer"
    try:
        found = load_tokenizer(str(beside) if beside.is_dir() else traces.model)
    except ModelError:
        return None
    return found if found.fingerprint == traces.tokenizer else None
