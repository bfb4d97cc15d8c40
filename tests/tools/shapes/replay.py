"""Replay a recording with real forward passes of a model with random weights.

The recording decides which drafts are accepted. The cost of each step is measured in the decoding
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
from ngtcli.bench.records import Answering, Generation, measure_methods
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

# Tokens of the first answer that each method decodes before anything is timed. Guess.
_WARM_UP_TOKENS = 4
_END = -1  # Follows the last recorded token. No draft has it.
_GREEDY = Settings()
# KV positions for draft nodes and padding, after the longest answer. Guess.
SPARE = 256


class PromptCache:
    """Prefills a prompt once for all methods that answer it in turn.

    `seconds` are the times of the prefills, by trace id.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.seconds: dict[str, list[float]] = {}
        self._prefilled: tuple[str, tuple[int, ...]] | None = None

    def put(self, trace: Trace) -> None:
        """Make the KV cache hold exactly the trace's prompt without its last id."""
        model = self.model
        ids = trace.prompt_ids
        if self._prefilled != (trace.id, ids):
            model.start(len(ids) + trace.room + SPARE)
            model.finish_device_work()
            started = time.perf_counter()
            model.prefill(ids[:-1])
            model.finish_device_work()
            self.seconds.setdefault(trace.id, []).append(time.perf_counter() - started)
            self._prefilled = (trace.id, ids)
        model.truncate(len(ids) - 1)
        if not model.verifies_trees:  # its states cannot go back: prefill again for the next method
            self._prefilled = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow(TaskRow):
    """The figures of a cell over the prompts of one task; times are of decoding alone."""

    undrafted_share: float | None = column(lambda g: ratio(g.sum_of("undrafted"), g.steps))
    tokens_per_s: float | None = column(Group.tokens_per_s)
    spread: float | None = column(Group.spread)
    speedup: float = column(lambda g: g.speedup()[0])
    decode_s: float = column(lambda g: round(sum(g.seconds()), 4))
    step_ms: float = column(lambda g: round(sum(g.seconds()) / g.steps * 1e3, 3))
    draft_ms: float | None = column(lambda g: _draft_ms(g))


def _draft_ms(group: Group) -> float | None:
    """Return the milliseconds of drafting per step; None if an answer does not have them."""
    times = []
    for answer in group.last:
        if answer.split_s is None:
            return None
        times.append(answer.split_s["draft"])
    return round(sum(times) * 1e3 / group.steps, 4) if group.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """A replay with real forward passes of a model of the shape `shape` with random weights.

    `prompt_tokens` and `prefill_s` (the fastest prefill) are by question. `cost_s` are the seconds
    of a forward pass by its tokens, for each context length, as measured for the methods that ask
    for them. `passes` says how forward passes were captured.
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
        """The description that accompanies all figures."""
        return f"random weights of shape {self.shape}; tokens from the recording"


class ShapeSource(Replay):
    """A source of recorded answers that runs real forward passes.

    Their cost is measured when a method first asks for it, which empties the model's cache.
    """

    def __init__(
        self, traces: TraceSet, built: Built, settings: Settings, progress: Notify
    ) -> None:
        super().__init__(traces, progress)
        self.model = built.model
        self.cache = PromptCache(built.model)
        with reporting_to(CallsOf(status=progress, warn=progress)):
            pass_costs = PassCosts(built.model, False)
        self._load = partial(pass_costs.load, settings.drafting.calibrate)
        self.measured: Costs | None = None

    @property
    def costs(self) -> Costs | None:
        """The costs of forward passes, measured once; each method gets a copy."""
        self.measured = self.measured or self._load()
        return deepcopy(self.measured)

    def begin(self, cell: Cell, split: bool = False) -> Answering[Trace]:
        """Begin a cell as `Source.begin` does."""
        drafter = self.method(cell).build()
        model = self.model

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
    """Replay the recording in `folder` with a shape, given by its name or file.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    Raises NgtError.
    """
    wanted_shape = find_shape(shape)
    progress(f"Reading {folder} …")
    traces = chosen_traces(folder, options, settings.reading.max_mb)
    planned = plan(wanted_shape, settings)
    max_length = max(len(trace.prompt_ids) + trace.room for trace in traces.traces)
    check_memory(planned, max_length + SPARE)
    use_threads(settings.model.threads)
    built = build(planned, settings, progress, stock=False)
    return replay_with_passes(traces, built, options, settings, progress)


def replay_with_passes(
    traces: TraceSet,
    built: Built,
    options: ReplayOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """Replay all traces with a model that is built."""
    started = time.perf_counter()
    planned = built.plan
    model = built.model
    traces, notes = _folded(traces, model.vocabulary)
    for trace in traces.traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            raise ContextOverflowError(
                f"{trace.id}: prompt and answer have {tokens} tokens, the shape takes"
                f" {model.context}",
                hint="Choose another shape, or other questions with --tasks and --limit.",
            )
    if not model.takes_drafts:
        notes.append(f"this shape decodes without drafts: {model.mode.why}")

    source = ShapeSource(traces, built, settings, progress)
    first = traces.traces[0]
    warm_up = replace(first, id="", output_ids=first.output_ids[:_WARM_UP_TOKENS])
    with reporting_to(CallsOf(status=progress, warn=progress)):
        race = measure_methods(source, options, settings, [warm_up])

    measured = [traces.traces[index] for index in race.measured()]
    cost_s = {}
    if source.measured:
        for length, curve in source.measured.curves.items():
            cost_s[length] = {
                int(tokens): round(seconds, 6) for tokens, seconds in curve.measured.items()
            }
    tasks = [trace.task for trace in traces.traces]
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
        interrupted=race.interrupted,
        seconds=round(time.perf_counter() - started, 2),
        prompt_tokens=[len(trace.prompt_ids) for trace in measured],
        prefill_s=[round(min(source.cache.seconds[trace.id]), 4) for trace in measured],
        cost_s=cost_s,
        passes=to_json(model.passes.report()),
        notes=notes,
        rows=rows_by_task(ShapeRow, race, tasks, tasks_first=False),
        refused=race.refused,
    )


def _folded(traces: TraceSet, vocabulary: int) -> tuple[TraceSet, list[str]]:
    """Take all ids modulo `vocabulary`; return the traces and a note if some ids changed."""
    traces = replace(traces, vocabulary=min(traces.vocabulary, vocabulary))
    if all(max(*trace.prompt_ids, *trace.output_ids) < vocabulary for trace in traces.traces):
        return traces, []

    def fold_ids(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(token_id % vocabulary for token_id in ids)

    def fold(trace: Trace) -> Trace:
        return replace(
            trace,
            prompt_ids=fold_ids(trace.prompt_ids),
            output_ids=fold_ids(trace.output_ids),
            references=tuple(map(fold_ids, trace.references)),
        )

    note = (
        f"ids of the recording from {vocabulary} on are taken modulo {vocabulary}, which can change"
        " what is accepted"
    )
    return replace(traces, traces=tuple(map(fold, traces.traces))), [note]


class _RecordedOutput(Output):
    """An output that ends after as many tokens as a trace has."""

    def __init__(self, output: Output, length: int) -> None:
        self.__dict__ |= output.__dict__
        self._length = length

    def _reason(self, has_stopped: bool, repeats: bool) -> str:
        return "stop" if self.log.emitted >= self._length else ""


class RecordedSequence(DecodedSequence):
    """A sequence whose tokens are those of a trace, whatever the logits are.

    Logits are computed and reduced to choices as in greedy decoding; then the recorded tokens
    replace the choices. The drafter does not see the logits, which come of random weights.
    """

    def __init__(
        self, model: TargetModel, drafter: Drafter, context: Context, trace: Trace, num_draft: int
    ) -> None:
        limits = Limits(trace.room, num_draft)
        super().__init__(model, context, _GREEDY, limits, lambda: _Unscored(drafter))
        self.output = _RecordedOutput(self.output, len(trace.output_ids))
        self._recorded = trace.output_ids

    def chooser(self, *_: Any) -> Callable[[int, Sequence[int]], int]:
        def choose(node: int, path: Sequence[int]) -> int:
            index = self.log.emitted + len(path)
            return self._recorded[index] if index < len(self._recorded) else _END

        return choose


def steps_of(model: TargetModel, sequence: RecordedSequence) -> Iterator[Step]:
    """Decode a sequence whose prompt, except for its last token, is in the model's cache.

    `Statistics.prefill_s` then is the time to start the drafter.
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
    """Hides the logits, which come of random weights, from a drafter."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.origins = drafter.origins
        self.drafts = drafter.drafts
        self.heads = drafter.heads

    def begin(self, context: Context) -> None:
        self._drafter.begin(context)

    def propose(self, log: TokenLog, room: Room) -> Draft:
        return self._drafter.propose(log, room)

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        self._drafter.learn(log, replace(outcome, tree=DraftTree(), top=None))

    def close(self, keep: bool = True) -> PolicyReport | None:
        return self._drafter.close(keep)
