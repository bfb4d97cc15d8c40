"""Times on this machine: forward passes by their tokens, plain decoding, generate, memory copies.

A forward pass takes at least the time to read its weights.
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
from ngtcli.drafting.tree import DraftTree, chain
from tests.support.runs import Run
from tests.tools.shapes.model import Plan

TIMES = 9  # Forward passes of each size, in turns; the median counts.
# Tokens that are prefilled; their KV is repeated up to the context length. Guess.
_PREFILLED_TOKENS = 64
# Bytes of a copy by device: more than any processor cache holds. Guess.
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
_DEFAULT_COPY_BYTES = 1 << 28
_TOKEN = 17


def bandwidth(device: torch.device) -> float:
    """Return the bytes per second of the fastest of several copies, reads and writes added."""
    size = _COPY_BYTES.get(device.type, _DEFAULT_COPY_BYTES)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [_seconds(lambda: target.copy_(source), device) for _ in range(TIMES + 1)]
    return 2 * size / min(times)


def read_bytes(plan: Plan, rows: int) -> int:
    """Return the bytes of weights that a forward pass over `rows` tokens reads.

    The input embeddings are read only if they are the output embeddings as well. Of E experts, of
    which each token takes k at random, 1 − (1 − k/E)^rows are expected to be read.
    """
    config = plan.config.get_text_config()
    head = plan.empty.get_output_embeddings()
    table = plan.empty.get_input_embeddings().weight
    is_table_skipped = head is not None and head.weight is not table
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    expert_share = 1.0
    if experts:
        expert_share = 1 - (1 - config.num_experts_per_tok / experts) ** rows
    total = 0.0
    for name, parameter in plan.empty.named_parameters():
        if parameter is table and is_table_skipped:
            continue
        share = expert_share if ".experts." in name else 1.0
        total += parameter.nbytes * share
    return int(total)


@torch.inference_mode()
def pass_seconds(model: TargetModel, rows: Sequence[int], length: int) -> dict[int, list[float]]:
    """Time forward passes over several numbers of tokens, after a context of `length` tokens.

    The time includes the transfer of the chosen tokens to the CPU. The sizes take turns. The first
    passes of each size, up to its capture, are left out.

    Returns:
        The seconds of the passes, by the number of tokens.
    """
    model.start(length + 2 * max(rows))
    model.prefill([_TOKEN] * min(_PREFILLED_TOKENS, length))
    model.cache.repeat(length)
    times: dict[int, list[float]] = {count: [] for count in rows}
    for turn in range(TIMES + USES + 1):
        for count in rows:
            tree = chain([_TOKEN] * (count - 1))

            def forward(tree: DraftTree = tree) -> Any:
                return model.forward(_TOKEN, tree).argmax(-1).tolist()

            seconds = _seconds(forward, model.device)
            if turn > USES:
                times[count].append(seconds)
    return times


def plain_seconds(model: TargetModel, prompt: Sequence[int], tokens: int) -> list[float]:
    """Time each token but the first in our loop without drafts, in the second of two runs."""
    for _ in range(2):
        context = Context(prompt, outside=(tuple(prompt),), vocabulary=model.vocabulary)
        drafter = parse_method("none", DraftSettings()).build()
        run = Run(model, drafter, context, Settings(), Limits(tokens + 1, 0))
        step_ends = [time.perf_counter() for _ in run]
    return [after - before for before, after in pairwise(step_ends)]


def generate_seconds(hf: Any, prompt: Sequence[int], tokens: int) -> float:
    """Return the seconds per token of generate, less the time of a run of one token (prefill)."""
    ids = torch.tensor([list(prompt)], device=hf.device)

    def run(count: int) -> float:
        def generate() -> Any:
            return hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
            )

        return _seconds(generate, hf.device)

    with torch.inference_mode(), plain_generation(hf):
        run(tokens + 1)  # warm up
        all_tokens = statistics.median(run(tokens + 1) for _ in range(2))
        one_token = statistics.median(run(1) for _ in range(2))
    return max(all_tokens - one_token, 1e-9) / tokens


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Time `work` with all that it starts on the device."""
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    wait: Callable[[], Any] = waits.get(device.type, lambda: None)
    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started
