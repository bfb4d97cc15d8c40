"""Parts of the GPU report that compare: scores with `transformers`' own, drafted tokens with plain.

Prompts are those of a recording; what a model of random weights answers to them means nothing, but
whether it answers the same with drafts does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ngtcli.config import Settings
from ngtcli.decode.exact_check import ExactRows
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Drafter, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.draft.tree import chain
from ngtcli.measure.replay import context_of
from ngtcli.measure.traces import Trace, TraceSet

BEHIND = 24  # tokens of a prompt before the passes whose scores are compared; guess

_OFTEN = 22  # passes of each size where the first ones are not captured: beyond these; derived


@dataclass(frozen=True, slots=True)
class Sameness:
    """Answers with drafts beside plain ones; `first` are the tokens equal before a difference."""

    answers: int
    same: int
    tokens: int
    accepted: int
    rows: int | None
    first: tuple[int, ...]


def same_tokens(
    model: TargetModel,
    traces: TraceSet,
    *,
    method: str,
    num_draft: int,
    tokens: int,
    exact: bool = False,
) -> Sameness:
    """Answers to the prompts of `traces`, `tokens` long, with `method` and plainly.

    With `exact` both are decoded exactly. Raises ModelError where that cannot be.
    """
    settings = DraftSettings(num_draft=num_draft)
    plain, drafter = (parse_method(m, settings).build() for m in ("none", method))
    longest = max(len(t.prompt_ids) for t in traces.traces) + tokens
    choose = ExactRows(model, lambda: None, lambda _: None).choose
    rows = choose("on" if exact else "off", num_draft, longest)
    same, accepted, first = 0, 0, list[int]()
    for trace in traces.traces:
        one = _answer(model, traces, trace, plain, Limits(tokens, 0), rows)
        two = _answer(model, traces, trace, drafter, Limits(tokens, num_draft), rows)
        accepted += two.statistics.accepted_tokens
        pairs = zip(one.output, two.output, strict=False)
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        same += equal is None and len(one.output) == len(two.output)
        first += [] if equal is None else [equal]
    count = len(traces.traces)
    return Sameness(count, same, count * tokens, accepted, rows, tuple(first))


def _answer(
    model: TargetModel, traces: TraceSet, trace: Trace, drafter: Drafter, limits: Limits,
    rows: int | None,
) -> Run:  # fmt: skip
    context = replace(context_of(trace, traces), vocabulary=model.vocabulary, rows=rows)
    return Run(model, drafter, context, Settings(), limits).finish()


@torch.inference_mode()
def score_error(model: TargetModel, hf: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest difference of our passes' scores from those of one pass of `transformers`.

    Our passes are padded, and captured where they are so in use: each size is passed often enough
    for that. In standard deviations of the scores.
    """
    most = max(rows)
    text = [(7 * i) % model.vocabulary for i in range(BEHIND + most)]
    ids = torch.tensor([text], device=model.device)
    truth = hf(input_ids=ids, use_cache=False).logits[0, BEHIND:].double()
    worst, spread = 0.0, float(truth.std())
    model.start(len(text) + most)
    model.prefill(text[:BEHIND])
    for count in [*rows] * (2 if model.passes.at_once else _OFTEN):
        found = model.forward(text[BEHIND], chain(text[BEHIND + 1 : BEHIND + count])).double()
        worst = max(worst, float((found - truth[:count]).abs().max()))
    return worst / spread
