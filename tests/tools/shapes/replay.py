"""A recording answered with real passes by a model of some shape, whose weights are random.

Which drafts are accepted, the recording decides; what each step costs is measured in the decoding
loop.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ngtcli.bench.grid import Cell, Refusal
from ngtcli.bench.live import counted_steps, machine
from ngtcli.bench.records import Answering, Generation, raced
from ngtcli.bench.results import Invocation, Machine, invocation_field
from ngtcli.bench.summary import Group, column, json_rows, ratio
from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.load import use_threads
from ngtcli.decoding.memory_limits import too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.output import Output
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.decoding.step import run_step
from ngtcli.drafting.costs import Costs
from ngtcli.drafting.drafter import Context, Draft, Drafter, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import Step
from ngtcli.drafting.tree import DraftTree
from ngtcli.engine.memory import PassCosts
from ngtcli.errors import ContextOverflowError
from ngtcli.system.json_form import json_key, json_property, to_json
from ngtcli.system.reporting import reporting_to
from tests.support.recording_reporter import CallsOf, Notify
from tests.tools.measuring.replaying import Replay, ReplayOptions, chosen_traces, context_of
from tests.tools.measuring.results import TaskRow, rows_by_task
from tests.tools.measuring.traces import Trace, TraceSet
from tests.tools.shapes.model import Built, build, check_memory, find_shape, plan

_WARM = 4  # tokens of the first answer that every contestant decodes untimed; guess
_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = Settings()
SPARE = 256  # places of the cache for draft nodes and padding, after the longest answer; guess


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
        if not model.verifies_trees:  # it cannot go back: the next one reads the prompt again
            self._read = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow(TaskRow):
    """A cell over the prompts of one task; seconds are of decoding alone."""

    undrafted_share: float | None = column(lambda g: ratio(g.sum_of("undrafted"), g.steps))
    tokens_per_s: float | None = column(Group.tokens_per_s)
    spread: float | None = column(Group.spread)
    speedup: float = column(lambda g: g.speedup()[0])
    decode_s: float = column(lambda g: round(sum(g.seconds()), 4))
    step_ms: float = column(lambda g: round(sum(g.seconds()) / g.steps * 1e3, 3))
    draft_ms: float | None = column(lambda g: _draft_ms(g))


def _draft_ms(group: Group) -> float | None:
    """Milliseconds of a pass that are spent drafting; None where that cannot be told."""
    drafts = [g.split_s["draft"] for g in group.last if g.split_s is not None]
    whole = len(drafts) == len(group.last) and group.steps
    return round(sum(drafts) * 1e3 / group.steps, 4) if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """A replay with real passes of a model of the shape `shape`, whose weights are random.

    By question: `prompt_tokens`, and `prefill_s`, the seconds to read them once. `cost_s` are the
    seconds of a pass that were measured first, by its rows, for each length of context. `passes`
    says how passes were captured.
    """

    kind: Literal["shape"] = "shape"
    source: str
    model: str
    shape: str
    parameters: int
    weight_bytes: int
    machine: Machine = field(metadata=json_key(flat=True))
    questions: int
    rounds: int
    fresh: bool
    interrupted: bool
    seconds: float
    prompt_tokens: Sequence[int]
    prefill_s: Sequence[float]
    cost_s: Mapping[int, Mapping[int, float]]
    passes: Mapping[str, Any]
    notes: Sequence[str]
    rows: Sequence[ShapeRow] = json_rows(ShapeRow)
    refused: Sequence[Refusal]
    invocation: Invocation = invocation_field()

    @property
    @json_property(after="kind")
    def label(self) -> str:
        """What stands with every figure."""
        return f"random weights of shape {self.shape}; tokens from the recording"


class ShapeSource(Replay):
    """A source over a recording, with real passes of a model of some shape.

    The cost of passes is measured when a method first asks for it, which empties the model's cache.
    """

    def __init__(
        self, traces: TraceSet, built: Built, settings: Settings, progress: Notify
    ) -> None:
        super().__init__(traces, progress)
        self.model, self.cache = built.model, PromptCache(built.model)
        with reporting_to(CallsOf(status=progress, warn=progress)):
            pass_costs = PassCosts(built.model, False)
        self._load = partial(pass_costs.load, settings.drafting.calibrate)
        self.measured: Costs | None = None

    @property
    def costs(self) -> Costs | None:
        """Measured once."""
        self.measured = self.measured or self._load()
        return deepcopy(self.measured)

    def begin(self, cell: Cell, split: bool = False) -> Answering[Trace]:
        """As `Source.begin`."""
        drafter, model = self.method(cell).build(), self.model

        def answer(trace: Trace) -> Generation:
            self.cache.put(trace)
            context = replace(context_of(trace, self.traces), vocabulary=model.vocabulary)
            sequence = RecordedSequence(model, drafter, context, trace, cell.num_draft or 0)
            return counted_steps(sequence, steps_of(model, sequence))

        return answer


def run_shape(
    folder: Path,
    shape: str,
    options: ReplayOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """Replay the recording in `folder` by a shape (a name or a file). Raises NgtError.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    """
    found = find_shape(shape)
    progress(f"Reading {folder} …")
    traces, planned = chosen_traces(folder, options, settings.reading.max_mb), plan(found, settings)
    longest = max(len(t.prompt_ids) + t.room for t in traces.traces) + SPARE
    check_memory(planned, longest)
    use_threads(settings.model.threads)
    built = build(planned, settings, progress, False)
    return replay_with_passes(traces, built, options, settings, progress)


def replay_with_passes(
    traces: TraceSet,
    built: Built,
    options: ReplayOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """The same for all of `traces` and a model that is made."""
    clock = time.perf_counter()
    planned, model = built.plan, built.model
    traces, notes = _folded(traces, model.vocabulary)
    for trace in traces.traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            what = f"{trace.id}: prompt and answer have {tokens} tokens"
            raise ContextOverflowError(
                f"{what}, the shape takes {model.context}",
                hint="Choose another shape, or other questions with --tasks and --limit.",
            )
    if not model.takes_drafts:
        notes.append(f"this shape decodes without drafts: {model.mode.why}")
    source, first = ShapeSource(traces, built, settings, progress), traces.traces[0]
    brief = replace(first, id="", output_ids=first.output_ids[:_WARM])
    with reporting_to(CallsOf(status=progress, warn=progress)):
        made = raced(source, options, settings, [brief])
    measured = [traces.traces[i] for i in made.measured()]
    return ShapeResult(
        source=traces.source,
        model=traces.model,
        shape=planned.shape.name,
        parameters=planned.parameters,
        weight_bytes=planned.weight_bytes,
        machine=machine(model),
        questions=len(measured),
        rounds=options.rounds,
        fresh=options.fresh,
        interrupted=made.interrupted,
        seconds=round(time.perf_counter() - clock, 2),
        prompt_tokens=[len(t.prompt_ids) for t in measured],
        prefill_s=[round(min(source.cache.seconds[t.id]), 4) for t in measured],
        cost_s={
            length: {int(rows): round(s, 6) for rows, s in curve.measured.items()}
            for length, curve in (source.measured.curves if source.measured else {}).items()
        },
        passes=to_json(model.passes.report()),
        notes=notes,
        rows=rows_by_task(ShapeRow, made, [t.task for t in traces.traces], tasks_first=False),
        refused=made.refused,
    )


def _folded(traces: TraceSet, vocabulary: int) -> tuple[TraceSet, list[str]]:
    """The traces with every id below `vocabulary`, and a note where that changed some."""
    traces = replace(traces, vocabulary=min(traces.vocabulary, vocabulary))
    if all(max(*t.prompt_ids, *t.output_ids) < vocabulary for t in traces.traces):
        return traces, []

    def low(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(id % vocabulary for id in ids)

    def folded(t: Trace) -> Trace:
        ids, references = low(t.prompt_ids), tuple(map(low, t.references))
        return replace(t, prompt_ids=ids, output_ids=low(t.output_ids), references=references)

    note = (
        f"ids of the recording from {vocabulary} on are taken modulo {vocabulary}, which can change"
        " what is accepted"
    )
    return replace(traces, traces=tuple(map(folded, traces.traces))), [note]


class _RecordedOutput(Output):
    """An output that ends where a trace does."""

    def __init__(self, output: Output, length: int) -> None:
        self.__dict__ |= output.__dict__
        self._length = length

    def _reason(self, has_stopped: bool, repeats: bool) -> str:
        return "stop" if self.log.emitted >= self._length else ""


class RecordedSequence(DecodedSequence):
    """A sequence whose tokens are those of a trace, whatever the logits are.

    Logits are computed and reduced to choices as in greedy decoding; then the recorded tokens take
    the place of the choices. The logits are of random weights, so the drafter is given none.
    """

    def __init__(
        self, model: TargetModel, drafter: Drafter, context: Context, trace: Trace, num_draft: int
    ) -> None:
        limits = Limits(trace.room, num_draft)
        super().__init__(model, context, _GREEDY, limits, lambda: _Unscored(drafter))
        self.output = _RecordedOutput(self.output, len(trace.output_ids))
        self._recorded = trace.output_ids

    def chooser(self, *given: Any) -> Callable[[int, Sequence[int]], int]:
        def choose(node: int, path: Sequence[int]) -> int:
            place = self.log.emitted + len(path)
            return self._recorded[place] if place < len(self._recorded) else _END

        return choose


def steps_of(model: TargetModel, sequence: RecordedSequence) -> Iterator[Step]:
    """Decode a sequence whose prompt is in the model's cache except for its last token.

    `Statistics.prefill_s` is the time to start the drafter.
    """
    started = time.perf_counter()
    drafting = sequence.single_drafting()
    sequence.drafter = drafting.join(sequence.context, sequence.log)
    sequence.statistics.prefill_s = time.perf_counter() - started
    try:
        while not sequence.has_ended:
            if not run_step(model, [sequence], drafting, lambda trees: True):
                raise too_long(sequence.log.settled)
            yield from sequence.take_steps()
        if sequence.error is not None:
            raise sequence.error
    finally:
        sequence.log.take_back()
        sequence.drafter.close()


class _Unscored(Drafter):
    """A drafter that learns nothing from the scores of random weights."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.origins, self.drafts, self.heads = drafter.origins, drafter.drafts, drafter.heads

    def begin(self, context: Context) -> None:
        self._drafter.begin(context)

    def propose(self, log: TokenLog, room: Room) -> Draft:
        return self._drafter.propose(log, room)

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        self._drafter.learn(log, replace(outcome, tree=DraftTree(), top=None))

    def close(self, keep: bool = True) -> PolicyReport | None:
        return self._drafter.close(keep)
