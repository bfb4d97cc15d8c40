"""How long a machine takes: passes by their rows, plain decoding, generate, a copy of memory.

The least that a pass can take is the time to read its weights.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decoding.captured import USES
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import plain_generation
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.tree import chain
from tests.support.runs import Run
from tests.tools.shapes.model import Plan

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
    """Seconds of passes by rows after `length` tokens, with the choices brought back.

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
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
            )

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
