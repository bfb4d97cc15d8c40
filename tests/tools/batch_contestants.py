"""Who answers many prompts in `batch_bench`: ours one by one and in batches, and `transformers`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from ngtcli.decode.batch import Batch, Begun, Member
from ngtcli.decode.batch_drafts import Drafts, OwnDrafts, joint_drafts
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.costs import Costs
from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.pool import TOKENS, Pool
from ngtcli.draft.registry import parse_method
from ngtcli.errors import NgtError
from ngtcli.measure.replay.shape_decode import RecordedRun, RecordedText
from ngtcli.measure.replay.traces import Trace

_GREEDY, _NODES, _PAGE = SamplingSettings(), 32, 256
Answers = list[list[int]]


class _ReadRun(RecordedRun):
    """A recorded run that reads its prompt, too."""

    def _prefill(self) -> None:
        Run._prefill(self)


@dataclass(frozen=True)
class World:
    """The model as we run it, the one for generate, the prompts, and the answers if recorded."""

    model: TargetModel
    stock: Any
    prompts: list[list[int]]
    max_tokens: int
    recorded: tuple[Trace, ...] = ()
    costs: Costs | None = None

    def drafts(self, method: str) -> Drafts:
        if method == "none":
            return OwnDrafts(lambda: self.drafter(method), 0)
        return joint_drafts(self.costs, Pool(TOKENS), _NODES)

    def drafter(self, method: str) -> Drafter:
        settings = DraftSettings(costs=self.costs, pool=Pool(TOKENS))
        return parse_method(method, settings).build()

    def text(self, i: int, context: Context) -> Continuation:
        limits = Limits(self.max_tokens, _NODES)
        if self.recorded:
            return RecordedText(self.model, context, self.recorded[i], limits)
        return Continuation(self.model, context, _GREEDY, limits)

    def run(self, i: int, drafter: Drafter, context: Context) -> Run:
        if self.recorded:
            return _ReadRun(self.model, drafter, context, self.recorded[i], _NODES)
        return Run(self.model, drafter, context, _GREEDY, Limits(self.max_tokens, _NODES))

    def context(self, i: int) -> Context:
        return Context(self.prompts[i], vocabulary=self.model.vocabulary)

    def most(self, i: int) -> int:
        """Tokens of an answer at most; of a recorded one just as many."""
        return len(self.recorded[i].output_ids) if self.recorded else self.max_tokens


def one_by_one(method: str, world: World) -> Answers:
    """Ours as it is without a batch."""
    drafter, found = world.drafter(method), []
    for i in range(len(world.prompts)):
        found.append(world.run(i, drafter, world.context(i)).finish().output)
        drafter.finish()
    return found


def together(method: str, size: int, world: World) -> Answers:
    """Ours in batches."""
    batch, members = Batch(world.model, world.drafts(method), size), list[Member]()
    at = 0
    while at < len(world.prompts) or not batch.done:
        while at < len(world.prompts) and batch.takes_more:
            context = world.context(at)
            members += batch.add(Begun(at, world.text(at, context), context))
            at += 1
        members += batch.step()
    return [m.text.output for m in sorted(members, key=lambda m: int(m.given))]


def _generation(world: World) -> GenerationConfig:
    ends = sorted(world.model.end_ids) if not world.recorded else None
    return GenerationConfig(
        max_new_tokens=world.max_tokens, do_sample=False, eos_token_id=ends, pad_token_id=0
    )


def _cut(found: list[int], ends: frozenset[int]) -> list[int]:
    """Up to the first end token, it included."""
    at = next((i + 1 for i, token in enumerate(found) if token in ends), len(found))
    return found[:at]


@torch.inference_mode()
def generate(size: int, world: World) -> Answers:
    """`transformers` over batches padded on the left."""
    config, found = _generation(world), dict[int, list[int]]()
    order = sorted(range(len(world.prompts)), key=lambda i: len(world.prompts[i]))
    for start in range(0, len(order), size):
        own = order[start : start + size]
        longest = max(len(world.prompts[i]) for i in own)
        ids = torch.zeros((len(own), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(own):
            ids[row, longest - len(world.prompts[i]) :] = torch.tensor(world.prompts[i])
            mask[row, longest - len(world.prompts[i]) :] = 1
        config.max_new_tokens = max(world.most(i) for i in own)
        out = world.stock.generate(ids, attention_mask=mask, generation_config=config)
        for row, i in enumerate(own):
            found[i] = _cut(out[row, longest:].tolist(), world.model.end_ids)[: world.most(i)]
    return [found[i] for i in range(len(order))]


def generate_batch(size: int, world: World) -> Answers:
    """`transformers`' continuous batching, in as many pages as `size` texts need."""
    pages = max(-(-(len(p) + world.max_tokens + 1) // _PAGE) for p in world.prompts)
    config = ContinuousBatchingConfig(
        num_blocks=size * pages, max_batch_tokens=512, max_requests_per_batch=size,
        use_async_batching=False, use_cuda_graph=False,
    )  # fmt: skip
    own = world.stock.config._attn_implementation
    with world.stock.continuous_batching_context_manager(
        generation_config=_generation(world), continuous_batching_config=config, warmup=False,
    ) as manager:  # fmt: skip
        ids = [
            manager.add_request(ids, max_new_tokens=world.most(i))
            for i, ids in enumerate(world.prompts)
        ]
        done = dict[str, list[int]]()
        while len(done) < len(ids):
            if (result := manager.get_result(timeout=60)) is None:
                raise NgtError("generate_batch gave nothing for a minute")
            if result.error is not None:
                raise NgtError(f"generate_batch failed: {result.error}")
            if result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
    world.stock.set_attn_implementation(own)
    return [_cut(done[i], world.model.end_ids) for i in ids]


def contestants(sizes: Sequence[int], against: bool) -> dict[str, Callable[[World], Answers]]:
    """All that take part, by name."""
    found: dict[str, Callable[[World], Answers]] = {}
    for method in ("none", "auto"):
        found[f"one by one, {method}"] = partial(one_by_one, method)
        for size in sizes:
            found[f"batch {size}, {method}"] = partial(together, method, size)
    for size in sizes if against else ():
        found[f"generate, {size} padded"] = partial(generate, size)
        found[f"generate_batch, {size}"] = partial(generate_batch, size)
    return found
