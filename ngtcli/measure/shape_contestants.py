"""Who takes part in a replay with real passes: our loop with a method, and `transformers`.

The decoding loop over a recording: its passes are real, its choices are the recorded ones.

`transformers`' generate over a recording: its passes are real, its choices the recorded ones.

A hook on the model raises the score of the recorded token in every row of a pass, one indexed write
on the device; all else is generate's: its loop, its cache, and with `prompt_lookup_num_tokens` its
drafts, which are accepted just where the recording has them. It starts from a copy of the prompt's
keys and values, so the prompt is not read again; what generate does before its first pass counts.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ngtcli.config import Settings
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.reference import plain_generation
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.costs import Costs
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, Feedback, draft_settings
from ngtcli.draft.pool import TOKENS, Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import NgtError
from ngtcli.measure.contestants import AGAINST, BASELINE, decoded
from ngtcli.measure.records import Answering, Contestant, Generation, Notify
from ngtcli.measure.refusals import refusal
from ngtcli.measure.replay_run import budgets, context_of, recorded_background
from ngtcli.measure.traces import Trace, TraceSet
from ngtcli.render.rows import Refusal
from ngtcli.session.memory import PassCosts
from ngtcli.trie.background import BackgroundCounts

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
        found: dict[str, Contestant[Trace]] = {}
        for method in dict.fromkeys((BASELINE, *methods)):
            try:
                one = self._able(method, progress)
                for num_draft in budgets(one, num_drafts):
                    made = self._ours(one, num_draft)
                    made.begin()
                    found[made.key] = made
            except (NgtError, ImportError, OSError) as error:  # something it needs is not there
                self.refused.append(refusal(method, error))
        if against is not None:
            found |= {name: self._generate(against, name, o) for name, o in AGAINST.items()}
        return list(found.values())

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
            rows = self._model.cached()
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


_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = SamplingSettings()


class Unscored(Drafter):
    """A drafter that is given no scores. The loop computes the best ids that it asks for anyway."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.origins = inner.origins

    @property
    def top_k(self) -> int:  # type: ignore[override]  # elsewhere it is a plain number
        """What the drafter asks for."""
        return self._inner.top_k

    def reset(self, context: Context) -> None:
        self._inner.reset(context)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return self._inner.propose(ids, budget)

    def observe(self, tokens: Sequence[int]) -> None:
        self._inner.observe(tokens)

    def learn(self, feedback: Feedback) -> None:
        pass

    def spent(self, rows: int, seconds: float) -> None:
        self._inner.spent(rows, seconds)

    def finish(self) -> None:
        self._inner.finish()

    def report(self) -> dict[str, Any]:
        return self._inner.report()


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


class RecordedRun(Run):
    """A run whose tokens are those of a trace. Otherwise each step does what it always does.

    Scores are computed and reduced to choices as in greedy decoding; then the recorded tokens take
    the place of the choices. The scores are of random weights, so the drafter is given none. The
    prompt is in the model's cache already: `statistics.prefill_s` is the time to start the drafter.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        context: Context,
        trace: Trace,
        num_draft: int,
    ) -> None:
        limits = Limits(trace.room, num_draft)
        super().__init__(model, Unscored(drafter), context, _GREEDY, limits)
        self._text = RecordedText(model, context, trace, limits)
        self.statistics.split_s = self._watch.parts

    def _prefill(self) -> None:
        clock = time.perf_counter()
        self.drafter.reset(self.context)
        self.statistics.prefill_s = time.perf_counter() - clock


_HIGHEST = 1e4  # above every score of a model with small random weights, and a number in float16
_BEYOND = 1024  # rows a pass may have behind the recording's end; twice the longest draft there is


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
        _wait(hf)
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


def _wait(hf: Any) -> None:
    if hf.device.type == "cuda":
        torch.cuda.synchronize(hf.device)
