"""The repetition, presence and frequency penalties, at a cost that does not grow with the text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Those of `SamplingSettings`; 1, 0, 0 change nothing."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return (self.repetition, self.presence, self.frequency) != (1, 0, 0)

    @property
    def of_output(self) -> bool:
        """Whether it matters how often a token stands in the output."""
        return bool(self.presence or self.frequency)

    def weaken(self, scores: Tensor, times: Tensor) -> Tensor:
        """The scores, (n,), of tokens that were said, `times` (n,) of them in the output."""
        if self.repetition != 1.0:  # as RepetitionPenaltyLogitsProcessor of `transformers`
            pick = torch.minimum if self.repetition > 1.0 else torch.maximum
            scores = pick(scores * self.repetition, scores / self.repetition)
        if self.of_output:
            scores = scores - self.presence * times.clamp(max=1) - self.frequency * times
        return scores


class Spoken:
    """The tokens of prompt and output, of which only the scores are changed.

    A call costs as much as there are different tokens, and one copy of the scores; a token that is
    committed is looked at once.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int]) -> None:
        self._penalties = penalties
        # The presence and frequency penalties concern the output only.
        self._known = set(prompt) if penalties.repetition != 1.0 else set[int]()
        self._ids = torch.tensor(sorted(self._known), dtype=torch.long)
        self._times = torch.empty(0)  # (vocabulary,), of each token in the output
        self._new: list[int] = []  # committed, not yet counted

    def commit(self, tokens: Sequence[int]) -> None:
        """The output goes on with `tokens`."""
        self._new += tokens

    def penalize(self, scores: Tensor, path: Sequence[int]) -> Tensor:
        """A penalised copy of scores, (vocabulary,), for the token after the output and `path`."""
        self._count(scores)
        changed = scores.clone()
        times = self._times[self._ids] if self._penalties.of_output else self._times
        changed[self._ids] = self._penalties.weaken(scores[self._ids], times)
        if path:
            counts = Counter(path)
            ids = torch.tensor(list(counts), device=scores.device)
            times = torch.tensor(list(counts.values()), device=scores.device) + self._times[ids]
            changed[ids] = self._penalties.weaken(scores[ids], times)
        return changed

    def _count(self, scores: Tensor) -> None:
        """Count what was committed; `scores` give the device and the size of the vocabulary."""
        if not len(self._times):
            self._times = torch.zeros(len(scores), device=scores.device)
            self._ids = self._ids.to(scores.device)
        if not self._new:
            return
        new, self._new = torch.tensor(self._new, device=scores.device), []
        self._times.index_add_(0, new, torch.ones(len(new), device=scores.device))
        if first := set(new.tolist()) - self._known:
            self._known |= first
            more = torch.tensor(sorted(first), device=scores.device)
            self._ids = torch.cat([self._ids, more])
