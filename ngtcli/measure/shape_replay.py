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
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

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
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.draft.steps import Limits
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.measure.live import AGAINST, decoded, machine
from ngtcli.measure.options import BenchOptions, check_some_left, find_shape
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
from ngtcli.measure.replay import budgets, chosen_traces, context_of, recorded_background
from ngtcli.measure.results import ShapeResult, inexact_notes
from ngtcli.measure.shape_model import Built, build, check_memory, copies, plan
from ngtcli.measure.summary import SHAPE, summarized
from ngtcli.measure.traces import Trace, TraceSet
from ngtcli.session.memory import PassCosts
from ngtcli.system.json_form import to_json
from ngtcli.trie.background import BackgroundCounts

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


def _generated(built: Built, prompts: PromptCache, name: str, trace: Trace) -> Generation:
    prompts.put(trace)
    rows = built.model.cache.rows()
    if not rows:
        raise NgtError("a cache that cannot be rolled back is not shared with generate")
    try:
        return generate_recorded(built.stock, trace, rows, AGAINST[name])
    except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
        raise NgtError(str(error).strip().split("\n")[0]) from error


def contestants(
    traces: TraceSet,
    built: Built,
    options: BenchOptions,
    settings: Settings,
    prompts: PromptCache,
    refused: list[Refusal],
    progress: Notify,
) -> tuple[list[Contestant[Trace]], Costs | None]:
    """Plain decoding, each method at each number of nodes, then generate where it is wanted.

    The others are `refused`. Measures the cost of passes if a method asks for it, which empties the
    model's cache.
    """
    model, shared = built.model, draft_settings(settings)

    @cache
    def measured() -> tuple[Costs | None, BackgroundCounts | None]:
        costs = PassCosts(model, False, progress).load(settings.calibrate)
        return costs, recorded_background(traces, settings.background, progress)

    def ours(one: MethodSpec, num_draft: int) -> Contestant[Trace]:
        def begin() -> Answering[Trace]:
            # A pool and costs of its own: what steps teach of costs is not shared.
            pool = Pool(TOKENS, settings.pool_documents) if settings.pool else None
            own = replace(one.settings, pool=pool, costs=deepcopy(one.settings.costs))
            drafter = replace(one, settings=own).build()

            def answer(trace: Trace) -> Generation:
                prompts.put(trace)
                context = replace(context_of(trace, traces), vocabulary=model.vocabulary)
                found = decoded(RecordedRun(model, drafter, context, trace, num_draft))
                drafter.finish()
                return found

            return answer

        return Contestant(one.spec, num_draft or None, begin)

    def theirs(name: str) -> Answering[Trace]:
        return partial(_generated, built, prompts, name)

    def of(method: str) -> list[Contestant[Trace]]:
        one = parse_method(method, shared)
        if one.entry.live:
            raise NgtError(f"it needs {one.entry.needs}", "A recording has none.")
        if one.entry.costs:
            costs, background = measured()
            one = replace(one, settings=replace(one.settings, costs=costs, background=background))
        return [ours(one, num_draft) for num_draft in budgets(one, options.num_drafts)]

    found = taking_part((BASELINE, *options.methods), of, refused)
    for name in AGAINST if options.against else ():
        found.append(Contestant(name, None, partial(theirs, name)))
    return found, measured()[0] if measured.cache_info().currsize else None


def run_shape(
    folder: Path, options: BenchOptions, settings: Settings, progress: Notify = lambda _: None
) -> ShapeResult:
    """Replay the recording in `folder`. Raises NgtError.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    """
    shape = find_shape(options.shape)
    progress(f"Reading {folder} …")
    traces, planned = chosen_traces(folder, options, settings), plan(shape, settings)
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
    planned, model, refused = built.plan, built.model, list[Refusal]()
    traces, notes = _folded(traces, model.vocabulary)
    for trace in traces.traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            raise ContextOverflowError(
                f"{trace.id}: prompt and answer have {tokens} tokens, the shape takes"
                f" {model.context}",
                "Choose another shape, or other questions with --tasks and --limit.",
            )
    if model.plain_reason:
        notes.append(f"this shape decodes without drafts: {model.plain_reason}")
    prompts = PromptCache(model)
    found, costs = contestants(traces, built, options, settings, prompts, refused, progress)
    check_some_left(options.methods, refused)
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
        prefill_s=[round(min(prompts.seconds[t.id]), 4) for t in measured],
        cost_s={
            length: {int(rows): round(s, 6) for rows, s in curve.measured.items()}
            for length, curve in (costs.curves if costs else {}).items()
        },
        passes=to_json(model.passes.report()),
        notes=[*notes, *inexact_notes(traces.inexact)],
        rows=summarized(SHAPE, made, [trace.task for trace in traces.traces]),
        refused=[*refused, *made.refused],
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
    ids = torch.tensor([trace.prompt_ids], device=hf.device)
    cache = DynamicCache(config=hf.config)
    for layer, (keys, values) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
        cache.update(keys.clone(), values.clone(), layer)
    with torch.inference_mode(), plain_generation(hf), _recorded(hf, trace) as passes:
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
