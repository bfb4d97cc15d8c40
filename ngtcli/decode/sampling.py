"""Which token the target model chooses at a node: greedy, or one keyed draw.

The draw at a position depends on (seed, position) and the warped distribution alone, not on what
was drafted; so a run gives the same text with and without drafts, and each token follows the
target distribution exactly, whatever the drafter proposes (a draft is accepted just when it is
the token drawn). Penalties see the node's own path.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.highest import first_highest, highest, least_of_sum
from ngtcli.decode.keyed_draw import draw
from ngtcli.decode.penalties import Penalties, Spoken

_FIRST = 64  # of the likeliest tokens, looked at first for top-p; guess: mostly enough


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
    def penalties(self) -> Penalties:
        return Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)


class Sampler:
    """Chooses tokens for one run, behind the run's `prompt` and the output committed so far."""

    def __init__(self, settings: SamplingSettings, prompt: Sequence[int]) -> None:
        self.settings, self._length = settings, len(prompt)
        penalties = settings.penalties
        self._spoken = Spoken(penalties, prompt) if penalties else None

    def commit(self, tokens: Sequence[int]) -> None:
        """The output goes on with `tokens`."""
        self._length += len(tokens)
        if self._spoken is not None:
            self._spoken.commit(tokens)

    @torch.inference_mode()
    def choose(self, scores: Tensor, path: Sequence[int] = ()) -> int:
        """The token after the output and `path`, from its scores, shape (vocabulary,).

        -1 where the best score is not finite, or NaN.
        """
        scores = _floats(scores)
        if self._spoken is not None:
            scores = self._spoken.penalize(scores, path)
        return self._choices(scores[None], [self._length + len(path)])[0]

    @torch.inference_mode()
    def choose_all(self, scores: Tensor, depths: Sequence[int]) -> list[int] | None:
        """The token for each row of scores, (rows, vocabulary), `depths` tokens behind the output.

        One transfer from a device with a memory of its own. None where rows are better chosen one
        by one: on a CPU, which needs only those of the path, and with penalties, which depend on
        it.
        """
        if scores.device.type in ("cpu", "mps") or self._spoken is not None:
            return None
        return self._choices(scores.float(), [self._length + depth for depth in depths])

    def _choices(self, scores: Tensor, positions: Sequence[int]) -> list[int]:
        """For rows of float32 scores; -1 where a row's best is not finite, or NaN."""
        if self.settings.greedy:
            return first_highest(scores)
        tokens = draw(warp(scores, self.settings), self.settings.seed, positions)
        choices: list[int] = tokens.tolist()
        return choices

    def distribution(self, scores: Tensor) -> Tensor:
        """Warped probabilities, float64 (vocabulary,), of penalised scores."""
        weights = warp(_floats(scores)[None], self.settings)[0].double()
        return weights / weights.sum()


def _floats(scores: Tensor) -> Tensor:
    """Scores in float32, on the CPU if their device knows no float64."""
    return (scores.cpu() if scores.device.type == "mps" else scores).float()


def warp(scores: Tensor, settings: SamplingSettings) -> Tensor:
    """Weights in proportion to the warped probabilities, float32 (rows, vocabulary).

    Temperature, top-k, top-p and min-p in the order of `transformers`' generate, with its
    meaning of each; but where tokens tie with the last one that survives, all of them survive.
    """
    if settings.temperature not in (0.0, 1.0):
        scores = scores / settings.temperature
    weights = torch.softmax(scores, dim=-1)
    if 0 < settings.top_k < scores.shape[-1]:
        weights = _cut(weights, highest(weights, settings.top_k)[0][:, -1:])
    if settings.top_p < 1.0:
        weights = _cut(weights, _least_of_mass(weights, settings.top_p))
    if settings.min_p > 0.0:
        weights = _cut(weights, settings.min_p * weights.amax(-1, keepdim=True))
    return weights


def _cut(weights: Tensor, least: Tensor) -> Tensor:
    """0 for each row's weights below its `least`, (rows, 1); may change them in place."""
    if len(weights) == 1 and weights.device.type == "cpu":  # a tenth of the time of `where`
        below = np.nextafter(np.float32(least.item()), np.float32(-1.0))
        return torch.nn.functional.threshold(weights, float(below), 0.0, inplace=True)
    return weights.where(weights >= least, 0.0)


def _least_of_mass(weights: Tensor, share: float) -> Tensor:
    """The least weight, (rows, 1), of the fewest highest ones that have `share` of a row's sum."""
    wanted = share * weights.sum(-1, keepdim=True, dtype=torch.float64)
    best = highest(weights, _FIRST)[0]
    mass = best.cumsum(-1, dtype=torch.float64)
    if not bool((mass[:, -1:] >= wanted).all()):
        if weights.device.type == "cpu":  # 1 ms for 150,000 weights; sorting takes 13 (measured)
            pairs = zip(weights.numpy(), wanted[:, 0].tolist(), strict=True)
            return torch.tensor([[least_of_sum(row, sum_)] for row, sum_ in pairs])
        best = weights.sort(descending=True).values
        mass = best.cumsum(-1, dtype=torch.float64)
    last = ((mass - best) < wanted).sum(-1, keepdim=True) - 1
    return best.gather(-1, last.clamp_min(0))
