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
        self.settings, self._length = settings, len(prompt)
        self._warpers = _warpers(settings)
        self._spoken = Spoken(prompt) if settings.penalized else None

    def best(self, scores: Tensor) -> list[int] | None:
        """Greedy choices for all rows of scores, (k + 1, vocabulary); None unless greedy.

        The choice is -1 for a row whose best score is not finite. None with penalties, too: they
        depend on the path.
        """
        if self.settings.greedy and not self.settings.penalized:
            choices = scores.argmax(dim=-1)
            highest = scores.gather(-1, choices[:, None])[:, 0]
            best: list[int] = choices.where(highest.isfinite(), -1).tolist()
            return best
        return None

    def choose(self, scores: Tensor, output: Sequence[int]) -> int:
        """The token after prompt and `output`, from its scores, shape (vocabulary,).

        -1 where the best score is not finite, or NaN.
        """
        scores = self._penalize(scores.float(), output)
        if self.settings.greedy:
            token = int(scores.argmax())
            return token if bool(scores[token].isfinite()) else -1
        return self._draw(self.distribution(scores), self._length + len(output))

    def distribution(self, scores: Tensor) -> Tensor:
        """Warped probabilities, float64, of penalised scores; temperature, top-k, top-p, min-p."""
        none = torch.empty((1, 0), dtype=torch.long, device=scores.device)  # no warper reads ids
        warped = self._warpers(none, scores[None])[0]
        wide = warped.cpu() if warped.device.type == "mps" else warped  # no float64 there
        return torch.softmax(wide.double(), dim=-1)

    def _penalize(self, scores: Tensor, output: Sequence[int]) -> Tensor:
        if self._spoken is None:
            return scores
        s = self.settings
        self._spoken.follow(output, scores)
        seen, times = self._spoken.seen, self._spoken.times
        if s.repetition_penalty != 1.0:  # as RepetitionPenaltyLogitsProcessor of `transformers`
            weaker = torch.where(
                scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty
            )
            scores = torch.where(seen, weaker, scores)
        if s.presence_penalty or s.frequency_penalty:
            less = s.presence_penalty + s.frequency_penalty * times
            scores = torch.where(times > 0, scores - less, scores)
        return scores

    def _draw(self, probabilities: Tensor, position: int) -> int:
        """Exponential race: of all tokens the one whose number divided by its probability is least.

        A rounding error in the scores changes the outcome only where the two least numbers differ
        by less than it; in a cumulative distribution errors would add up over all tokens.
        """
        race = torch.from_numpy(keyed_race(self.settings.seed, position, len(probabilities)))
        token = int((probabilities / race.to(probabilities.device)).argmax())
        return token if bool(probabilities[token].isfinite()) else -1


class Spoken:
    """Counts the tokens of prompt and output.

    `follow` changes the counts by what differs from the output before, at its end, so that a call
    costs as much as is new. `seen` (vocabulary,), bool: in prompt or output. `times` (vocabulary,),
    int64: how often in the output.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt, self._output = prompt, list[int]()
        self._in_prompt = torch.empty(0, dtype=torch.bool)
        self.times = torch.empty(0, dtype=torch.long)

    @property
    def seen(self) -> Tensor:
        return self._in_prompt | (self.times > 0)

    def follow(self, output: Sequence[int], scores: Tensor) -> None:
        """Count `output`; `scores` give the size of the vocabulary, and the device."""
        if not len(self.times):
            self.times = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
            self._in_prompt = torch.zeros_like(self.times, dtype=torch.bool)
            ids = torch.tensor(list(set(self._prompt)), dtype=torch.long, device=scores.device)
            self._in_prompt[ids] = True
        same, own = 0, self._output
        if own == list(output[: len(own)]):
            same = len(own)
        else:
            while same < min(len(own), len(output)) and own[same] == output[same]:
                same += 1
        for token in own[same:]:
            self.times[token] -= 1
        for token in output[same:]:
            self.times[token] += 1
        own[same:] = output[same:]


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
