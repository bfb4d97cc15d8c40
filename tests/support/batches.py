"""Several sequences decoded in a batch."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pytest
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding.decoder import Decoder
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.layout import Layout
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.auto.drafter import batch_drafting
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.costs import SHORT, CostCurve, Costs
from ngtcli.drafting.drafter import Context, Drafter, DraftSettings
from ngtcli.drafting.pool import Pool
from tests.support.tiny_models import GREEDY, make_drafter, make_target


@lru_cache
def cached_target(family: str) -> TargetModel:
    return make_target(family)


def sequence_of(
    model: TargetModel,
    prompt: Sequence[int],
    limits: Limits,
    sampling: Settings = GREEDY,
    cache_policy: CachePolicy | None = None,
    drafter: Drafter | None = None,
) -> DecodedSequence:
    """One to be added to a decoder; `drafter` is that which it has by itself."""
    context = Context(prompt, outside=(tuple(prompt),), vocabulary=model.vocabulary)
    own = drafter or make_drafter("none")
    return DecodedSequence(model, context, sampling, limits, lambda: own, cache_policy=cache_policy)


def decode_batch(
    model: TargetModel,
    texts: Sequence[Sequence[int]],
    drafting: Drafting,
    size: int,
    sampling: Settings = GREEDY,
    limits: Callable[[int], Limits] = lambda i: Limits(max_tokens=20),
    cache_policy: CachePolicy | None = None,
) -> list[DecodedSequence]:
    """The texts' ends in their own order; each joins as soon as there is room."""
    batch = Decoder(model, drafting, size)
    every = [
        sequence_of(model, ids, limits(i), sampling, cache_policy) for i, ids in enumerate(texts)
    ]
    waiting, ended = [*every], list[DecodedSequence]()
    while waiting or not batch.is_done:
        while waiting and batch.takes_more:
            ended += batch.add(waiting.pop(0))
        assert len(batch.running) <= size
        ended += batch.step()
    assert set(ended) == set(every) and len(ended) == len(every)
    return every


def outputs(sequences: Sequence[DecodedSequence]) -> list[list[int]]:
    assert not [one.error for one in sequences if one.error]
    return [one.token_ids for one in sequences]


def separate_drafters(make: Callable[[], Drafter], max_nodes: int) -> Drafting:
    return Drafting(lambda context: make(), max_nodes)


def separate_drafts(method: str = "none", most: int = 24) -> Drafting:
    return separate_drafters(lambda: make_drafter(method, DraftSettings(num_draft=most)), most)


def auto_drafts(pool: Pool | None = None) -> Drafting:
    curve = CostCurve({1: 1.0, 16: 1.1, 64: 1.5})
    costs = Costs({SHORT: curve})
    return batch_drafting(DraftSettings(num_draft=8, costs=costs, pool=pool))


class LimitedMemory:
    """Lets forward passes over too many rows or sequences run out of memory.

    Attributes:
        failures: How many forward passes did.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, max_rows: int = 1000, max_sequences: int = 1000
    ) -> None:
        self.failures = 0
        score = TargetModel.score

        def score_within_memory(model: TargetModel, layout: Layout) -> list[Tensor]:
            if len(layout.ids) > max_rows or len(layout.spans) > max_sequences:
                self.failures += 1
                raise MemoryError
            return score(model, layout)

        monkeypatch.setattr(TargetModel, "score", score_within_memory)
