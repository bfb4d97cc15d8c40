"""What the GPU report measures.

Some parts compare: scores with `transformers`' own, drafted tokens with plain ones. What a model of
random weights answers to recorded prompts means nothing, but whether it answers the same with
drafts does. Others time passes, the machine's bandwidth, and plain decoding. The least that a pass
can take is the time to read its weights.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch

from ngtcli.config import Settings
from ngtcli.decode.captured import USES
from ngtcli.decode.exactness import ExactRows
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import plain_generation
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.draft.steps import Limits
from ngtcli.draft.tree import chain
from ngtcli.measure.check import first_difference
from ngtcli.measure.replay import context_of
from ngtcli.measure.traces import TraceSet
from tests.tools.shapes.model import Plan

_SAME = "auto"  # the method whose tokens are compared with plain ones
BEHIND = 24  # tokens of a prompt before the passes whose scores are compared; guess


def same_tokens(
    model: TargetModel, traces: TraceSet, num_draft: int, tokens: int, exact: bool
) -> dict[str, Any]:
    """Answers of `tokens` tokens to the prompts of `traces` with drafts, beside plain ones.

    `first` counts the tokens that are equal before each difference. With `exact` both are decoded
    in passes of `rows` rows. Raises ModelError where that cannot be.
    """
    settings = DraftSettings(num_draft=num_draft)
    plain, drafter = (parse_method(m, settings).build() for m in ("none", _SAME))
    longest = max(len(t.prompt_ids) for t in traces.traces) + tokens
    choose = ExactRows(model, lambda _: None).choose
    rows = choose("on" if exact else "off", num_draft, longest)
    same, accepted, first = 0, 0, list[int]()
    for trace in traces.traces:
        context = replace(context_of(trace, traces), vocabulary=model.vocabulary, rows=rows)
        one = Run(model, plain, context, Settings(), Limits(tokens, 0)).finish()
        two = Run(model, drafter, context, Settings(), Limits(tokens, num_draft)).finish()
        accepted += two.statistics.accepted_tokens
        place = first_difference(one.output, two.output)
        same += place is None
        first += [] if place is None else [place]
    count = len(traces.traces)
    return {"answers": count, "same": same, "tokens": count * tokens, "accepted": accepted,
            "rows": rows and rows.most, "first": first}  # fmt: skip


@torch.inference_mode()
def score_error(model: TargetModel, hf: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest difference of our passes' scores from those of one pass of `transformers`.

    Our passes are padded, and captured where they are so in use: each size is passed often enough
    for that. In standard deviations of the scores.
    """
    most = max(rows)
    text = [(7 * i) % model.vocabulary for i in range(BEHIND + most)]
    ids = torch.tensor([text], device=model.device)
    truth = hf(input_ids=ids, use_cache=False).logits[0, BEHIND:].cpu().double()
    worst, spread = 0.0, float(truth.std())
    model.start(len(text) + most)
    model.prefill(text[:BEHIND])
    for count in [*rows] * (USES + 2 if model.passes.captures else 1):
        found = model.forward(text[BEHIND], chain(text[BEHIND + 1 : BEHIND + count])).cpu().double()
        worst = max(worst, float((found - truth[:count]).abs().max()))
    return worst / spread


TIMES = 9  # passes of each size, in turns; the median counts
_READ = 64  # tokens of the prompt that is repeated up to the length of the context; guess
_COPIED = {"cuda": 1 << 30, "cpu": 1 << 27}  # bytes: more than any cache on the way holds; guess
_TOKEN = 17


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a copy, reading and writing counted; the quickest of several."""
    size = _COPIED.get(device.type, 1 << 28)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(_seconds(lambda: target.copy_(source), device) for _ in range(TIMES + 1))


def read_bytes(plan: Plan, rows: int) -> int:
    """Bytes of weights that a pass over `rows` rows reads.

    An embedding is read only where it is the head, too. Of E experts, of which each row takes k at
    random, 1 − (1 − k/E)^rows are expected to be read.
    """
    config, head = plan.config.get_text_config(), plan.empty.get_output_embeddings()
    table = plan.empty.get_input_embeddings().weight
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = 1.0
    if experts:
        share = 1 - (1 - config.num_experts_per_tok / experts) ** rows
    total = 0.0
    for name, parameter in plan.empty.named_parameters():
        if parameter is table and head is not None and head.weight is not table:
            continue
        total += parameter.nbytes * (share if ".experts." in name else 1.0)
    return int(total)


@torch.inference_mode()
def pass_seconds(model: TargetModel, rows: Sequence[int], length: int) -> dict[int, list[float]]:
    """Seconds of passes by rows behind `length` tokens, with the choices brought back.

    The sizes take turns; the first passes of each, up to its capture, are left out.
    """
    model.start(length + 2 * max(rows))
    model.prefill([_TOKEN] * min(_READ, length))
    model.cache.repeat(length)
    found: dict[int, list[float]] = {r: [] for r in rows}
    for turn in range(TIMES + USES + 1):
        for count in rows:
            tree = chain([_TOKEN] * (count - 1))
            seconds = _seconds(
                lambda t=tree: model.forward(_TOKEN, t).argmax(-1).tolist(),  # type: ignore[misc]
                model.device,
            )
            if turn > USES:
                found[count].append(seconds)
    return found


def replayed(model: TargetModel, tokens: int) -> dict[str, Any]:
    """Answers of `auto` to eight prompts, each 100 tokens longer: how many passes were replayed.

    What is captured before is forgotten. The tokens are drafted, and seldom accepted.
    """
    drafter, run, found = parse_method(_SAME, DraftSettings()).build(), model.passes.run, [0, 0]
    before = model.passes.seconds
    model.passes.forget()

    def counted(*given: Any) -> Any:
        outputs = run(*given)
        found[0] += 1
        found[1] += model.passes.captures and not model.passes.took_longer
        return outputs

    with patch.object(model.passes, "run", counted):
        for n in range(8):
            ids = [(7 * i * i) % min(model.vocabulary, 97) for i in range(200 + 100 * n)]
            context = Context(ids, outside=(tuple(ids),), vocabulary=model.vocabulary)
            Run(model, drafter, context, Settings(), Limits(tokens, 32)).finish()
    return {"passes": found[0], "replayed": found[1], "captured": model.passes.captured,
            "seconds": model.passes.seconds - before}  # fmt: skip


def plain_seconds(model: TargetModel, prompt: Sequence[int], tokens: int) -> list[float]:
    """Seconds of each token of our loop without drafts but the first; the second of two runs."""
    for _ in range(2):
        context = Context(prompt, outside=(tuple(prompt),), vocabulary=model.vocabulary)
        plain = parse_method("none", DraftSettings()).build()
        run = Run(model, plain, context, Settings(), Limits(tokens + 1, 0))
        ends = [time.perf_counter() for _ in run]
    return [after - before for before, after in pairwise(ends)]


def generate_seconds(hf: Any, prompt: Sequence[int], tokens: int) -> float:
    """Seconds a token of generate. Prefill is taken off: what a run of a single token takes."""
    ids = torch.tensor([list(prompt)], device=hf.device)

    def run(count: int) -> float:
        def work() -> Any:
            return hf.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                min_new_tokens=count,
            )  # fmt: skip

        return _seconds(work, hf.device)

    with torch.inference_mode(), plain_generation(hf):
        run(tokens + 1)
        whole, one = (statistics.median(run(n) for _ in range(2)) for n in (tokens + 1, 1))
    return max(whole - one, 1e-9) / tokens


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    wait: Callable[[], Any] = waits.get(device.type, lambda: None)
    wait()
    clock = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - clock
