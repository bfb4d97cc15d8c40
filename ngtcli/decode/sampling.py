"""Which token the target model chooses at a node: greedy, or one keyed draw.

The draw at a position depends on (seed, position) and the warped distribution alone, not on what
was drafted; so a run gives the same text with and without drafts, and each token follows the
target distribution exactly, whatever the drafter proposes (a draft is accepted just when it is
the token drawn). Penalties see the node's own path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Temperature 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and penalties 1 / 0 / 0 do nothing.

    The repetition penalty (Keskar et al. 2019) counts prompt and output; the presence and
    frequency penalties are subtracted from the scores of tokens in the output, once, and once for
    each time they occur.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def keyed_race(seed: int, position: int, size: int) -> npt.NDArray[np.float64]:
    """`size` exponential numbers for (seed, position), by the counter-based Philox generator."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=position << 64))
    return np.maximum(generator.standard_exponential(size), 1e-300)


class Sampler:
    """Chooses tokens for one run; `prompt` is the run's prompt ids."""

    def __init__(self, settings: SamplingSettings, prompt: Sequence[int]) -> None:
        self.settings, self._prompt = settings, list(prompt)
        self._warpers = _warpers(settings)

    def best(self, scores: Tensor) -> list[int] | None:
        """Greedy choices for all rows, (k + 1, vocabulary); None where each needs a look."""
        if self.settings.greedy and not self.settings.penalized:
            best: list[int] = scores.argmax(dim=-1).tolist()
            return best
        return None

    def choose(self, scores: Tensor, output: Sequence[int]) -> int:
        """The token after prompt and `output`, from its scores, shape (vocabulary,), float32."""
        scores = self._penalize(scores.float(), output)
        if self.settings.greedy:
            return int(scores.argmax())
        return self._draw(self.distribution(scores, output), len(self._prompt) + len(output))

    def distribution(self, scores: Tensor, output: Sequence[int]) -> Tensor:
        """Warped probabilities, float64, of penalised scores; temperature, top-k, top-p, min-p."""
        ids = torch.tensor([[*self._prompt, *output]], device=scores.device)
        warped = self._warpers(ids, scores[None])[0]
        wide = warped.cpu() if warped.device.type == "mps" else warped  # no float64 there
        return torch.softmax(wide.double(), dim=-1)

    def _penalize(self, scores: Tensor, output: Sequence[int]) -> Tensor:
        s = self.settings
        if not s.penalized:
            return scores
        if s.repetition_penalty != 1.0:
            ids = torch.tensor([[*self._prompt, *output]], device=scores.device)
            scores = RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(ids, scores[None])[0]
        if output and (s.presence_penalty or s.frequency_penalty):
            seen, counts = torch.unique(
                torch.tensor(output, device=scores.device), return_counts=True
            )
            scores = scores.clone()
            scores[seen] -= s.presence_penalty + s.frequency_penalty * counts
        return scores

    def _draw(self, probabilities: Tensor, position: int) -> int:
        """Exponential race: of all tokens the one whose number divided by its probability is least.

        A rounding error in the scores can change the outcome only where the two first are as near
        as that, whereas one in a cumulative distribution adds up over all tokens.
        """
        race = torch.from_numpy(keyed_race(self.settings.seed, position, len(probabilities)))
        return int((probabilities / race.to(probabilities.device)).argmax())


def _warpers(settings: SamplingSettings) -> Any:
    """`transformers`' own warpers, in the order of its `generate`."""
    warpers = LogitsProcessorList()
    if settings.temperature not in (0.0, 1.0):
        warpers.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k > 0:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    return warpers
