"""A recording answered with real passes by a model of some shape, whose weights are random.

Which drafts are accepted, the recording decides; what each step costs is measured, in the decoding
loop and in `transformers`' generate. There a hook on the model raises the score of the recorded
token in every row of a pass, one indexed write on the device; all else is generate's: its loop, its
cache, and with `prompt_lookup_num_tokens` its drafts. It starts from a copy of the prompt's keys
and values, so the prompt is not read again; what generate does before its first pass counts.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from ngtcli.config import Settings
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.decoder import Decoder, Member
from ngtcli.decode.load import use_threads
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import plain_generation
from ngtcli.draft.costs import Costs
from ngtcli.draft.drafter import Context, Drafter, draft_settings
from ngtcli.draft.pool import TOKENS, Pool
from ngtcli.draft.registry import parse_method
from ngtcli.draft.steps import Limits
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.measure.grid import BenchOptions, Cell, Refusal, cells_of, check_some_left
from ngtcli.measure.live import AGAINST, decoded, machine
from ngtcli.measure.records import (
    BASELINE,
    Answering,
    Generation,
    Notify,
    by_prompt,
    run,
    warmed_up,
)
from ngtcli.measure.replay import chosen_traces, context_of, recorded_background
from ngtcli.measure.results import Invocation, Machine, inexact_notes
from ngtcli.measure.summary import Group, Pair, column, json_rows, summarized
from ngtcli.measure.traces import Trace, TraceSet
from ngtcli.session.memory import PassCosts
from ngtcli.system.json_form import json_key, json_property, to_json
from ngtcli.trie.background import BackgroundCounts
from tests.tools.shapes.model import Built, build, check_memory, copies, find_shape, plan

SHAPE = "shape"  # the kind of these measurements
_WARM = 4  # tokens of the first answer that every contestant decodes untimed; guess
_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = Settings()
_HIGHEST = 1e4  # above every score of a model with small random weights, and a number in float16
_BEYOND = 1024  # rows a pass may have behind the recording's end; twice the longest draft there is
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
        if model.tree_reason:  # it cannot go back: the next one reads the prompt again
            self._read = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """A cell over the prompts of one task; seconds are of decoding alone."""

    method: str = column(lambda g: g.cell.values["method"], kinds=[SHAPE])
    num_draft: int | None = column(lambda g: g.cell.num_draft, kinds=[SHAPE])
    task: str = column(lambda g: g.task, kinds=[SHAPE])
    questions: int = column(lambda g: len(g.prompts), kinds=[SHAPE])
    new_tokens: int = column(lambda g: g.tokens, kinds=[SHAPE])
    steps: int = column(lambda g: g.steps, kinds=[SHAPE])
    drafted_tokens: int | None = column(lambda g: g.sum_of("drafted"), kinds=[SHAPE])
    accepted_tokens: int | None = column(lambda g: g.sum_of("accepted"), kinds=[SHAPE])
    mean_acceptance_length: float | None = column(Group.length, kinds=[SHAPE])
    draft_acceptance_rate: float | None = column(Group.acceptance_rate, kinds=[SHAPE])
    acceptance_histogram: Mapping[int, int] = column(Group.histogram, kinds=[SHAPE])
    nodes_per_step: float | None = column(Group.nodes_per_step, kinds=[SHAPE])
    undrafted_share: float | None = column(Group.undrafted_share, kinds=[SHAPE])
    decode_s: float = column(lambda g: round(sum(g.seconds()), 4), kinds=[SHAPE])
    tokens_per_s: float | None = column(Group.tokens_per_s, kinds=[SHAPE])
    step_ms: float = column(lambda g: round(sum(g.seconds()) / g.steps * 1e3, 3), kinds=[SHAPE])
    draft_ms: float | None = column(lambda g: _draft_ms(g), kinds=[SHAPE])
    speedup_overall: float = column(
        lambda g: round(sum(g.seconds(BASELINE)) / sum(g.seconds()), 3), kinds=[SHAPE]
    )
    spread: float | None = column(Group.spread, kinds=[SHAPE])
    speedup: float = column(lambda g: g.speedup()[0], kinds=[SHAPE])
    speedup_quartiles: Pair = column(lambda g: g.speedup()[1], kinds=[SHAPE])
    speedup_least_and_most: Pair = column(lambda g: g.speedup()[2], kinds=[SHAPE])


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
    rows: Sequence[ShapeRow] = json_rows(SHAPE, ShapeRow)
    refused: Sequence[Refusal]
    invocation: Invocation = field(default_factory=Invocation, metadata=json_key(flat=True))

    @property
    @json_property(after="kind")
    def label(self) -> str:
        """What stands with every figure."""
        return f"random weights of shape {self.shape}; tokens from the recording"


class ShapeSource:
    """A source over a recording, with real passes of a model of some shape.

    The cost of passes is measured when a method first asks for it, which empties the model's cache.
    """

    def __init__(
        self, traces: TraceSet, built: Built, settings: Settings, progress: Notify
    ) -> None:
        self.traces, self.prompts, self.built = traces, traces.traces, built
        self.cache = PromptCache(built.model)
        self.costs: Costs | None = None
        self._settings, self._progress = settings, progress

    @cached_property
    def _measured(self) -> BackgroundCounts | None:
        costs = PassCosts(self.built.model, False, self._progress)
        self.costs = costs.load(self._settings.calibrate)
        return recorded_background(self.traces, self._settings.background, self._progress)

    def begin(self, cell: Cell, split: bool = False) -> Answering[Trace]:
        """As `Source.begin`."""
        if cell.key in AGAINST:
            return lambda trace: self.generated(cell.key, trace)
        settings = cell.settings
        method = parse_method(settings.method, draft_settings(settings))
        if method.entry.live:
            raise NgtError(f"it needs {method.entry.needs}", "A recording has none.")
        own = method.settings
        if method.entry.costs:
            # A pool and costs of its own: what steps teach of costs is not shared.
            background = self._measured
            pool = Pool(TOKENS, settings.pool_documents) if settings.pool else None
            own = replace(own, pool=pool, costs=deepcopy(self.costs), background=background)
        drafter, model = replace(method, settings=own).build(), self.built.model

        def answer(trace: Trace) -> Generation:
            self.cache.put(trace)
            context = replace(context_of(trace, self.traces), vocabulary=model.vocabulary)
            found = decoded(RecordedRun(model, drafter, context, trace, cell.num_draft or 0))
            drafter.finish()
            return found

        return answer

    def generated(self, name: str, trace: Trace) -> Generation:
        """The answer by `transformers`' generate; `name` is one of AGAINST."""
        self.cache.put(trace)
        rows = self.built.model.cache.rows()
        if not rows:
            raise NgtError("a cache that cannot be rolled back is not shared with generate")
        try:
            return generate_recorded(self.built.stock, trace, rows, AGAINST[name])
        except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
            raise NgtError(str(error).strip().split("\n")[0]) from error


def run_shape(
    folder: Path,
    shape: str,
    options: BenchOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """Replay the recording in `folder` by a shape (a name or a file). Raises NgtError.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    """
    found = find_shape(shape)
    progress(f"Reading {folder} …")
    traces, planned = chosen_traces(folder, options, settings.max_mb), plan(found, settings)
    longest = max(len(t.prompt_ids) + t.room for t in traces.traces) + SPARE
    check_memory(planned, longest, copies(planned.device, settings, options.against))
    use_threads(settings.threads)
    built = build(planned, settings, progress, options.against)
    return replay_with_passes(traces, built, options, settings, progress)


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
    for trace in traces.traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            what = f"{trace.id}: prompt and answer have {tokens} tokens"
            raise ContextOverflowError(
                f"{what}, the shape takes {model.context}",
                "Choose another shape, or other questions with --tasks and --limit.",
            )
    if model.plain_reason:
        notes.append(f"this shape decodes without drafts: {model.plain_reason}")
    cells, refused = cells_of((BASELINE, *options.methods), options.num_drafts, settings)
    for name in AGAINST if options.against else ():
        cells.append(replace(cells[0], key=name, values={"method": name}))
    source, first = ShapeSource(traces, built, settings, progress), traces.traces[0]
    brief = replace(first, id="", output_ids=first.output_ids[:_WARM])
    made = warmed_up(source, cells, [brief], options.fresh, progress)
    refused += made.refused
    check_some_left(options.methods, made.cells, refused)
    turns = list(by_prompt(made.cells, len(traces.traces), options.rounds))
    for _ in run(source, made, turns, fresh=options.fresh, progress=progress):
        pass
    measured = [traces.traces[i] for i in made.measured()]
    if made.interrupted and not measured:
        raise KeyboardInterrupt
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
            for length, curve in (source.costs.curves if source.costs else {}).items()
        },
        passes=to_json(model.passes.report()),
        notes=[*notes, *inexact_notes(traces.inexact)],
        rows=summarized(SHAPE, made, [trace.task for trace in traces.traces], rows=ShapeRow),
        refused=refused,
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


class RecordedText(Continuation):
    """A text whose tokens are those of a trace, whatever the scores are."""

    def __init__(self, model: TargetModel, context: Context, trace: Trace, limits: Limits) -> None:
        super().__init__(model, context, _GREEDY, limits)
        self._recorded = trace.output_ids

    def chooser(self, *scored: Any) -> Callable[[int, Sequence[int]], int]:
        def choose(node: int, tokens: Sequence[int]) -> int:
            at = len(self.output) + len(tokens)
            return self._recorded[at] if at < len(self._recorded) else _END

        return choose

    def _reason(self, ended: bool, repeats: bool) -> str:
        return "stop" if len(self.output) >= len(self._recorded) else ""


class _Replaying(Decoder):
    """Decodes a text whose prompt is in the model's cache but for its last token."""

    def _read(self, member: Member, clock: float) -> None:
        member.text.statistics.prefill_s = time.perf_counter() - clock


class RecordedRun(Run):
    """A run whose tokens are those of a trace. Otherwise each step does what it always does.

    Scores are computed and reduced to choices as in greedy decoding; then the recorded tokens take
    the place of the choices. The scores are of random weights, so the drafter is given none. The
    prompt is in the model's cache already: `statistics.prefill_s` is the time to start the drafter.
    """

    def __init__(
        self, model: TargetModel, drafter: Drafter, context: Context, trace: Trace, num_draft: int
    ) -> None:
        limits = Limits(trace.room, num_draft)
        drafter.learn = lambda feedback: None  # type: ignore[method-assign]  # of random scores
        text = RecordedText(model, context, trace, limits)
        super().__init__(model, drafter, context, _GREEDY, limits, text=text)
        self.decoder = _Replaying(model, self.drafters)


def generate_recorded(
    hf: Any, trace: Trace, rows: Sequence[Tensor], options: Mapping[str, Any]
) -> Generation:
    """The recorded answer by generate with `options`, timed.

    `rows` are keys and values of each layer for all but the last id of the prompt.
    """
    cache = DynamicCache(config=hf.config)
    for layer, (keys, values) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
        cache.update(keys.clone(), values.clone(), layer)
    with torch.inference_mode(), plain_generation(hf), _recorded(hf, trace) as passes:
        ids = torch.tensor([trace.prompt_ids], device=hf.device)
        if hf.device.type == "cuda":
            torch.cuda.synchronize(hf.device)
        clock = time.perf_counter()
        out = hf.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, do_sample=False,
            max_new_tokens=len(trace.output_ids), **options,
        )  # fmt: skip
        found = out[0, len(trace.prompt_ids) :].tolist()
        seconds = time.perf_counter() - clock
    ends = [first for first, _ in passes[1:]] + [len(found)]
    accepted = [end - first - 1 for (first, _), end in zip(passes, ends, strict=True)]
    return Generation(
        found, len(passes), 0.0, seconds,
        drafted=sum(rows - 1 for _, rows in passes), accepted=sum(accepted),
        undrafted=sum(rows == 1 for _, rows in passes), histogram=Counter(accepted),
    )  # fmt: skip


@contextmanager
def _recorded(hf: Any, trace: Trace) -> Iterator[list[tuple[int, int]]]:
    """A context in which the recorded tokens score highest.

    Its passes are listed: the index in the answer of the token after their first row, their rows.
    """
    prompt, passes = len(trace.prompt_ids), list[tuple[int, int]]()
    answer = torch.tensor([*trace.output_ids, *[0] * _BEYOND], device=hf.device)
    places = torch.arange(_BEYOND, device=hf.device)

    def before(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # Assisted generation hands its first pass the whole prompt, though the cache holds it.
        known = kwargs["past_key_values"].get_seq_length()
        if not passes:
            for name in ("input_ids", "position_ids"):
                if kwargs.get(name) is not None and kwargs[name].shape[1] > known:
                    kwargs[name] = kwargs[name][:, known:]
        return args, kwargs

    def after(_: Any, __: Any, kwargs: dict[str, Any], output: Any) -> None:
        count = output.logits.shape[1]
        first = kwargs["past_key_values"].get_seq_length() - count - prompt + 1
        output.logits[0, places[:count], answer[first : first + count]] = _HIGHEST
        passes.append((first, count))

    hooks = [
        hf.register_forward_pre_hook(before, with_kwargs=True),
        hf.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()
