"""Several texts decoded together."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ngtcli.config import Settings
from ngtcli.decoding.continuation import Continuation
from ngtcli.decoding.decoder import Decoder, Member
from ngtcli.decoding.kv_cache import Keeping
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.auto.drafter import AutoDrafters
from ngtcli.drafting.costs import SHORT, CostCurve, Costs
from ngtcli.drafting.drafter import Context, Drafters, DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.steps import Limits
from tests.support.tiny_models import GREEDY, make_drafter, make_target


@lru_cache
def target(family: str) -> TargetModel:
    return make_target(family)


def together(
    model: TargetModel, texts: Sequence[Sequence[int]], drafts: Any, size: int,
    sampling: Settings = GREEDY, limits: Callable[[int], Limits] = lambda i: Limits(max_tokens=20),
    keeping: Keeping | None = None,
) -> list[Member]:  # fmt: skip
    """The texts' ends in their own order; each joins as soon as there is room."""
    batch, waiting = Decoder(model, drafts, size), [*enumerate(texts)]
    ended: list[Member] = []
    while waiting or not batch.done:
        while waiting and batch.takes_more:
            i, ids = waiting.pop(0)
            context = Context(ids, outside=(tuple(ids),), vocabulary=model.vocabulary)
            text = Continuation(model, context, sampling, limits(i))
            ended += batch.add(Member(i, text, context, keeping))
        assert len(batch.running) <= size
        ended += batch.step()
    assert sorted(m.given for m in ended) == [*range(len(texts))]
    return sorted(ended, key=lambda m: m.given)


def outputs(members: Sequence[Member]) -> list[list[int]]:
    assert not [m.error for m in members if m.error]
    return [m.text.output for m in members]


def own(method: str = "none", most: int = 24) -> Drafters[Any]:
    return Drafters(lambda: make_drafter(method, DraftSettings(num_draft=most)), most)


def joint(pool: Pool | None = None) -> AutoDrafters:
    curve = CostCurve({1: 1.0, 16: 1.1, 64: 1.5})
    costs = Costs({SHORT: curve})
    return AutoDrafters(DraftSettings(num_draft=8, costs=costs, pool=pool))
