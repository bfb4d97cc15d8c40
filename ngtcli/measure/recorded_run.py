"""A recording answered with real passes, by the decoding loop and by `transformers`' generate.

The passes are real, the choices are the recorded ones. In generate a hook on the model raises the
score of the recorded token in every row of a pass, one indexed write on the device; all else is
generate's: its loop, its cache, and with `prompt_lookup_num_tokens` its drafts, which are accepted
just where the recording has them. It starts from a copy of the prompt's keys and values, so the
prompt is not read again; what generate does before its first pass counts.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ngtcli.config import Settings
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import plain_generation
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.measure.records import Generation
from ngtcli.measure.traces import Trace

_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = Settings()
_HIGHEST = 1e4  # above every score of a model with small random weights, and a number in float16
_BEYOND = 1024  # rows a pass may have behind the recording's end; twice the longest draft there is


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
        drafter.learn = lambda feedback: None  # type: ignore[method-assign]  # of random scores
        super().__init__(model, drafter, context, _GREEDY, limits)
        self._member.text = RecordedText(model, context, trace, limits)

    def _prefill(self) -> None:
        clock = time.perf_counter()
        self._start()
        self.statistics.prefill_s = time.perf_counter() - clock


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
