"""One sequence that is decoded by itself, as tests look at it."""

from collections.abc import Callable, Iterator
from typing import Any, Self

from ngtcli.config import Settings
from ngtcli.decoding.decoder import decode
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.drafter import Context, Drafter
from ngtcli.drafting.steps import Statistics, Step


class Run:
    """Iterate over it for its steps, or `finish` it."""

    def __init__(
        self,
        model: Any,
        drafter: Drafter,
        context: Context,
        sampling: Settings,
        limits: Limits,
        progress: Callable[[int, int], object] = lambda read, total: None,
        cache_policy: CachePolicy | None = None,
        numerics: Numerics = NOT_EXACT,
    ) -> None:
        self.model, self.drafter, self._progress = model, drafter, progress
        self.sequence = DecodedSequence(
            model, context, sampling, limits, lambda: drafter, numerics, cache_policy
        )

    @property
    def output(self) -> list[int]:
        return self.sequence.token_ids

    @property
    def statistics(self) -> Statistics:
        return self.sequence.statistics

    @property
    def finish_reason(self) -> str:
        return self.sequence.finish_reason

    @property
    def exact(self) -> bool:
        return self.sequence.is_exact

    def __iter__(self) -> Iterator[Step]:
        return decode(self.model, self.sequence, self._progress)

    def finish(self) -> Self:
        for _ in self:
            pass
        return self
