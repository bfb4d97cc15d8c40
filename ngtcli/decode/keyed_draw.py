"""One draw from a distribution over the vocabulary, keyed by (seed, position). Integer arithmetic.

The numbers are those of SplitMix64 (Steele, Lea & Flood 2014), which is counter-based: number i of
a key is a hash of key and i. There is a key for each (seed, position, level), and the arithmetic is
that of 64-bit integers, so each number is the same on every device, whatever else is drawn.

A draw is an exponential race: of all entries the one whose exponential number, divided by its
weight, is least wins with a probability in proportion to its weight. It has two levels: a race of
blocks of BLOCK tokens by their sums, then one of the tokens of the block that won. That is the same
distribution, and of 150,000 tokens only some 800 need a number.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

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
    blocks = _race(sums, _numbers(seed, positions, 0, indices[None, : sums.shape[1]]))
    members = padded[torch.arange(rows, device=weights.device), blocks].double()
    tokens = blocks[:, None] * BLOCK + indices[None, :BLOCK]
    places = _race(members, _numbers(seed, positions, 1, tokens))
    good = sums.sum(-1)
    return (blocks * BLOCK + places).where((good > 0) & good.isfinite(), -1)


def _race(weights: Tensor, numbers: Tensor) -> Tensor:
    """The winner of each row: the entry with the most weight over its number.

    A rounding error in the scores changes it only where the two best differ by less than the error;
    in a cumulative distribution errors would add up over all tokens.
    """
    return (weights / numbers).argmax(-1)


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
