"""Which token the target model chooses at a node: greedy, or one keyed draw.

The draw at a position depends on (seed, position) and the warped distribution alone, so a run gives
the same text with and without drafts, and each token follows the target distribution exactly.

The numbers of a draw are those of SplitMix64 (Steele, Lea & Flood 2014): number i of a key, of
which there is one for each (seed, position, level), is a hash in 64-bit integers, the same on every
device. A draw is an exponential race: the entry whose exponential number over its weight is least
wins in proportion to its weight. First blocks of BLOCK tokens race by their sums, then the tokens
of the block that won: the same distribution, and of 150,000 tokens only some 800 need a number.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decode.scores import first_highest, highest


def penalizes(settings: Settings) -> bool:
    """Whether scores depend on what was said before."""
    return settings.repetition_penalty != 1.0 or bool(
        settings.presence_penalty or settings.frequency_penalty
    )


class Spoken:
    """The tokens of prompt and output, of which only the scores are changed.

    A call costs as much as there are different tokens, and one copy of the scores; a token that is
    committed is looked at once.
    """

    def __init__(self, settings: Settings, prompt: Sequence[int]) -> None:
        self._settings = settings
        # The repetition penalty counts the prompt, too, the others the output only.
        self._known = set(prompt) if settings.repetition_penalty != 1.0 else set[int]()
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
        changed[self._ids] = self._weakened(scores[self._ids], self._times[self._ids])
        if path:
            counts = Counter(path)
            ids = torch.tensor(list(counts), device=scores.device)
            times = torch.tensor(list(counts.values()), device=scores.device) + self._times[ids]
            changed[ids] = self._weakened(scores[ids], times)
        return changed

    def _weakened(self, scores: Tensor, times: Tensor) -> Tensor:
        """The scores, (n,), of tokens that were said, `times` (n,) of them in the output.

        The presence penalty is subtracted once, the frequency penalty for each time.
        """
        s = self._settings
        if s.repetition_penalty != 1.0:  # as RepetitionPenaltyLogitsProcessor of `transformers`
            pick = torch.minimum if s.repetition_penalty > 1.0 else torch.maximum
            scores = pick(scores * s.repetition_penalty, scores / s.repetition_penalty)
        if s.presence_penalty or s.frequency_penalty:
            once = s.presence_penalty * times.clamp(max=1)
            scores = scores - once - s.frequency_penalty * times
        return scores

    def _count(self, scores: Tensor) -> None:
        """Count what was committed; `scores` give the device and the size of the vocabulary."""
        if not len(self._times):
            self._times = torch.zeros(len(scores), device=scores.device)
            self._ids = self._ids.to(scores.device)
        if self._new:
            new = torch.tensor(self._new, device=scores.device)
            self._times.index_add_(0, new, torch.ones(len(new), device=scores.device))
            first = sorted(set(self._new) - self._known)
            self._known.update(first)
            self._ids = torch.cat([self._ids, self._ids.new_tensor(first)])
            self._new = []


BLOCK = 512  # tokens; derived: near the root of a vocabulary of 150,000, where numbers are fewest
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64


def draw(weights: Tensor, seed: int, positions: Sequence[int]) -> Tensor:
    """A token for each row of `weights`, float32 (rows, vocabulary), not negative; int64 (rows,).

    `positions` are the rows' places in the text. A row's token is -1 where a weight is not a
    number, or none is above 0.
    """
    rows, size = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -size % BLOCK)).view(rows, -1, BLOCK)
    sums = padded.sum(-1, dtype=torch.float64)
    indices = torch.arange(max(sums.shape[1], BLOCK), device=weights.device)
    # A rounding error in the scores changes the winner of a race only where the two best differ by
    # less than the error; in a cumulative distribution errors would add up over all tokens.
    numbers = _numbers(seed, positions, 0, indices[None, : sums.shape[1]])
    blocks = (sums / numbers).argmax(-1)
    members = padded[torch.arange(rows, device=weights.device), blocks].double()
    tokens = blocks[:, None] * BLOCK + indices[None, :BLOCK]
    places = (members / _numbers(seed, positions, 1, tokens)).argmax(-1)
    good = sums.sum(-1)
    return (blocks * BLOCK + places).where((good > 0) & good.isfinite(), -1)


def _numbers(seed: int, positions: Sequence[int], level: int, indices: Tensor) -> Tensor:
    """Exponential numbers, float64 (rows, n), for `indices`, int64 (1 or rows, n), of a level."""
    keys = [_signed(_mix(_mix(_mix(seed) + position) + level)) for position in positions]
    state = torch.tensor(keys, device=indices.device)[:, None] + (indices + 1) * _signed(_GOLDEN)
    state = (state ^ _shifted(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shifted(state, 27)) * _signed(_MIX_2)
    state = state ^ _shifted(state, 31)
    # 52 bits and a half are exact in float64 and lie between 0 and 1, so that no number is 0.
    return -((_shifted(state, 12).double() + 0.5) * 2.0**-52).log()


def _shifted(values: Tensor, bits: int) -> Tensor:
    """`values` shifted to the right as unsigned numbers; torch shifts signed ones."""
    shifted: Tensor = (values >> bits) & ((1 << (64 - bits)) - 1)
    return shifted


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 after one step, for a Python number; 64 bits."""
    value = (value + _GOLDEN) % _BITS
    value = (value ^ (value >> 30)) * _MIX_1 % _BITS
    value = (value ^ (value >> 27)) * _MIX_2 % _BITS
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the bits of `value`, which torch takes."""
    return value - _BITS if value >= _BITS // 2 else value


_FIRST = 64  # of the likeliest tokens, looked at first for top-p; guess: mostly enough


class Sampler:
    """Chooses tokens for one run, behind the run's `prompt` and the output committed so far.

    Temperature 0 is greedy.
    """

    def __init__(self, settings: Settings, prompt: Sequence[int]) -> None:
        self.settings, self._length = settings, len(prompt)
        self._spoken = Spoken(settings, prompt) if penalizes(settings) else None

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
        if scores.device.type == "mps":  # which knows no float64
            scores = scores.cpu()
        scores = scores.float()
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
        if self.settings.temperature == 0.0:
            return first_highest(scores)
        weights = warp(scores, self.settings)
        tokens: list[int] = draw(weights, self.settings.seed, positions).tolist()
        return tokens


def warp(scores: Tensor, settings: Settings) -> Tensor:
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
        if weights.device.type == "cpu":
            # numpy sorts 150,000 weights in 0.5 ms with AVX-512, torch in 12 (measured)
            best = torch.from_numpy(np.sort(weights.numpy())).flip(-1)
        else:
            best = weights.sort(descending=True).values
        mass = best.cumsum(-1, dtype=torch.float64)
    last = ((mass - best) < wanted).sum(-1, keepdim=True) - 1
    return best.gather(-1, last.clamp_min(0))
