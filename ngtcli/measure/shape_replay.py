"""A recording replayed with real passes: a model of some shape with random weights does the work.

Which drafts are accepted, the recording decides; what each step costs is measured.
"""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from ngtcli.config import Settings
from ngtcli.decode.load import use_threads
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import Costs
from ngtcli.draft.drafter import Context, DraftSettings, draft_settings
from ngtcli.draft.pool import TOKENS, Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.measure.contestants import AGAINST, decoded
from ngtcli.measure.live import machine
from ngtcli.measure.options import BenchOptions, check_some_left, find_shape
from ngtcli.measure.recorded_run import RecordedRun, generate_recorded
from ngtcli.measure.records import (
    BASELINE,
    Answering,
    Contestant,
    Generation,
    Notify,
    Refusal,
    race,
    taking_part,
)
from ngtcli.measure.replay import budgets, context_of, recorded_background, select
from ngtcli.measure.results import ShapeResult, inexact_notes
from ngtcli.measure.shape_model import Built, build, check_memory, copies, plan
from ngtcli.measure.summary import SHAPE, Summary
from ngtcli.measure.traces import Trace, TraceSet, read_traces
from ngtcli.session.memory import PassCosts
from ngtcli.system.json_form import to_json
from ngtcli.trie.background import BackgroundCounts

_WARM = 4  # tokens of the first answer that every contestant decodes untimed; guess
SPARE = 256  # places of the cache for draft nodes and padding, behind the longest answer; guess


class PromptCache:
    """The model's cache with a prompt in it, read once for all who answer it in turn.

    `seconds` are those of the readings, by question.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.seconds: dict[str, list[float]] = {}
        self._read: tuple[str, tuple[int, ...]] | None = None

    def put(self, trace: Trace) -> None:
        """See that the cache holds all but the last id of the trace's prompt, and no more."""
        model, ids = self.model, trace.prompt_ids
        if self._read != (trace.id, ids):
            model.start(len(ids) + trace.room + SPARE)
            model.finish_device_work()
            clock = time.perf_counter()
            model.prefill(ids[:-1])
            model.finish_device_work()
            self.seconds.setdefault(trace.id, []).append(time.perf_counter() - clock)
            self._read = (trace.id, ids)
        model.truncate(len(ids) - 1)
        if model.plain_reason:  # it cannot go back: the next one reads the prompt again
            self._read = None


class Contestants:
    """Makes those that can take part; `refused` holds the others, each with the reason."""

    def __init__(self, model: TargetModel, traces: TraceSet, settings: Settings) -> None:
        self._model, self._traces, self._settings = model, traces, settings
        self.prompts = PromptCache(model)
        self.refused: list[Refusal] = []
        self.costs: Costs | None = None
        self.background: BackgroundCounts | None = None

    def make(
        self, methods: Sequence[str], num_drafts: Sequence[int], against: Any, progress: Notify
    ) -> list[Contestant[Trace]]:
        """Plain decoding, each method at each number of nodes, then generate where it is wanted.

        `against` is the model that generate runs, None where it takes no part. Measures the cost of
        passes if a method asks for it, which empties the model's cache.
        """

        def of(method: str) -> list[Contestant[Trace]]:
            one = self._able(method, progress)
            return [self._ours(one, num_draft) for num_draft in budgets(one, num_drafts)]

        found = taking_part((BASELINE, *methods), of, self.refused)
        if against is not None:
            found += [self._generate(against, name, how) for name, how in AGAINST.items()]
        return found

    def _able(self, method: str, progress: Notify) -> MethodSpec:
        """The method, with the costs that it asks for. Raises NgtError."""
        one = parse_method(method, draft_settings(self._settings))
        if one.entry.live:
            raise NgtError(f"it needs {one.entry.needs}", "A recording has none.")
        if not one.entry.costs:
            return one
        if self.costs is None:
            passes = PassCosts(self._model, False, progress, progress)
            self.costs = passes.load(self._settings.calibrate)
            self.background = recorded_background(self._traces, self._settings.background, progress)
        own = replace(one.settings, costs=self.costs, background=self.background)
        return replace(one, settings=own)

    def _ours(self, one: MethodSpec, num_draft: int) -> Contestant[Trace]:
        def begin() -> Answering[Trace]:
            drafter = replace(one, settings=self._own(one.settings)).build()

            def answer(trace: Trace) -> Generation:
                self.prompts.put(trace)
                context = self._context(trace)
                return _decoded(RecordedRun(self._model, drafter, context, trace, num_draft))

            return answer

        return Contestant(one.spec, num_draft or None, begin)

    def _own(self, settings: DraftSettings) -> DraftSettings:
        """With a pool and costs of its own: what steps teach of costs is not shared."""
        pool = Pool(TOKENS, self._settings.pool_documents) if self._settings.pool else None
        return replace(settings, pool=pool, costs=deepcopy(settings.costs))

    def _context(self, trace: Trace) -> Context:
        return replace(context_of(trace, self._traces), vocabulary=self._model.vocabulary)

    def _generate(self, hf: Any, name: str, options: Mapping[str, int]) -> Contestant[Trace]:
        def answer(trace: Trace) -> Generation:
            self.prompts.put(trace)
            rows = self._model.cache.rows()
            if not rows:
                raise NgtError("a cache that cannot be rolled back is not shared with generate")
            try:
                return generate_recorded(hf, trace, rows, options)
            except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
                raise NgtError(str(error).strip().split("\n")[0]) from error

        return Contestant(name, None, lambda: answer)


def _decoded(run: RecordedRun) -> Generation:
    generation = decoded(run)
    run.drafter.finish()
    return generation


def run_shape(
    folder: Path, options: BenchOptions, settings: Settings, progress: Notify = lambda _: None
) -> ShapeResult:
    """Replay the recording in `folder`. Raises NgtError.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    """
    shape = find_shape(options.shape)
    progress(f"Reading {folder} …")
    traces = read_traces(folder, options.template, options.turns, settings.max_mb)
    chosen = select(traces.traces, options.tasks, options.limit, options.ids)
    traces, planned = replace(traces, traces=tuple(chosen)), plan(shape, settings)
    held = copies(planned.device, settings, options.against)
    check_memory(planned, places(traces), held)
    use_threads(settings.threads)
    built = build(planned, settings, progress, options.against)
    return replay_with_passes(traces, built, options, settings, progress)


def places(traces: TraceSet) -> int:
    """Of the cache, that the longest of `traces` takes."""
    return max(len(t.prompt_ids) + t.room for t in traces.traces) + SPARE


def replay_with_passes(
    traces: TraceSet,
    built: Built,
    options: BenchOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """The same for all of `traces` and a model that is made."""
    clock = time.perf_counter()
    planned, model = built.plan, built.model
    traces, notes = _folded(traces, model.vocabulary)
    _check_lengths(traces.traces, model)
    if model.plain_reason:
        notes.append(f"this shape decodes without drafts: {model.plain_reason}")
    making = Contestants(model, traces, settings)
    found = making.make(
        options.methods, options.num_drafts, built.stock if options.against else None, progress
    )
    check_some_left(options.methods, making.refused)
    first = traces.traces[0]
    made = race(
        found,
        traces.traces,
        options.rounds,
        warm_up=[replace(first, id="", output_ids=first.output_ids[:_WARM])],
        fresh=options.fresh,
        progress=progress,
    )
    measured = [traces.traces[i] for i in made.measured()]
    read_s = making.prompts.seconds
    return ShapeResult(
        source=traces.source,
        model=traces.model,
        shape=planned.shape.name,
        parameters=planned.parameters,
        weight_bytes=planned.weight_bytes,
        machine=machine(model.device, planned.dtype),
        questions=len(measured),
        rounds=options.rounds,
        fresh=options.fresh,
        interrupted=made.interrupted,
        seconds=round(time.perf_counter() - clock, 2),
        prompt_tokens=[len(t.prompt_ids) for t in measured],
        prefill_s=[round(min(read_s[t.id]), 4) for t in measured],
        cost_s=_costs(making),
        passes=to_json(model.passes.report()),
        notes=[*notes, *inexact_notes(traces.inexact)],
        rows=Summary(SHAPE, made, [trace.task for trace in traces.traces]).rows(),
        refused=[*making.refused, *made.refused],
    )


def _costs(making: Contestants) -> dict[int, dict[int, float]]:
    """Seconds of a pass by rows as first measured, for each length of context there is a curve."""
    curves = making.costs.curves if making.costs else {}
    return {
        length: {int(rows): round(s, 6) for rows, s in curve.measured.items()}
        for length, curve in curves.items()
    }


def _folded(traces: TraceSet, vocabulary: int) -> tuple[TraceSet, list[str]]:
    """The traces with every id below `vocabulary`, and a note where that changed some."""
    highest = max(max(*t.prompt_ids, *t.output_ids) for t in traces.traces)
    if highest < vocabulary:
        return traces, []

    def low(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(id % vocabulary for id in ids)

    found = [
        replace(
            t,
            prompt_ids=low(t.prompt_ids),
            output_ids=low(t.output_ids),
            references=tuple(map(low, t.references)),
        )
        for t in traces.traces
    ]
    note = (
        f"ids of the recording from {vocabulary} on are taken modulo {vocabulary}, which can change"
        " what is accepted"
    )
    return replace(traces, traces=tuple(found)), [note]


def _check_lengths(traces: Sequence[Trace], model: TargetModel) -> None:
    for trace in traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            raise ContextOverflowError(
                f"{trace.id}: prompt and answer have {tokens} tokens, the shape takes"
                f" {model.context}",
                "Choose another shape, or other questions with --tasks and --limit.",
            )
