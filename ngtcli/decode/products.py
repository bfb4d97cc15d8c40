"""Attention behind long texts by matrix products: in half precision on a CPU, if it is quicker.

The products round scores to half precision, whose error grows with a score's size. So a score near
the largest of its row is first subtracted from all: what weighs is then near zero, and rounded as
finely as the weights are. The largest of every 32nd key's scores serves: it need only be near.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Places from which on it is used, a trial's places, and its rows. Measured (bfloat16, AVX-512):
# behind 1,024 it takes 0.6 to 0.9 of SDPA's time in a 1B's layer, behind 256 up to three times.
LONG, _TRIED, _ROWS = 1024, 4096, (1, 8, 32)
MOST_ROWS = 256  # of a pass; more are a block of a prompt. Guess
_STEP = 32  # keys; swept (16, 32, 64): with 16 a row takes a fifth longer, errors differ by a third
_SCORES = 1 << 23  # numbers computed at once, or those of one head of keys; swept from 2^21 to 2^30
_REPEATS = 4  # the quickest counts; guess
# It pays where it takes this much of the other's time on average, and at most that of any. Guess.
_MEAN, _ANY = 0.9, 1.1

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, float | None], Tensor]


def by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """(1, heads, rows, value_dim) of queries (1, heads, rows, head_dim), in their dtype.

    Keys and values are (1, heads ÷ groups, length, …). `mask` (1, 1, rows, length) is added to the
    scores.
    """
    _, heads, rows, width = query.shape
    of_keys, length = key.shape[1:3]
    groups = heads // of_keys
    factor = width**-0.5 if scale is None else scale
    queries = query.reshape(of_keys, groups * rows, width)
    keys, sample, out = key[0].transpose(1, 2), mask[..., ::_STEP], []
    lowest = torch.finfo(mask.dtype).min / 2  # hidden keys have less
    together = max(1, _SCORES // (groups * rows * length))
    parts = (torch.split(states, together) for states in (queries, keys, value[0]))
    for some, k, v in zip(*parts, strict=True):
        count = len(some)
        near = sample.expand(count, groups, rows, -1).flatten(1, 2)
        top = torch.baddbmm(near, some, k[..., ::_STEP], alpha=factor).amax(-1)
        top = top.masked_fill(top < lowest, 0.0).view(count, groups, rows, 1)
        scores = (mask - top).view(count, groups * rows, length)
        scores.baddbmm_(some, k, alpha=factor)
        out.append(torch.bmm(torch.softmax(scores, -1, out=scores), v))
    return torch.cat(out).view(1, heads, rows, value.shape[-1])


@dataclass(frozen=True, slots=True)
class Products:
    """Whether they pay on this machine, for heads of a size. Raises ValueError for another type."""

    pay: bool

    def __post_init__(self) -> None:
        if type(self.pay) is not bool:
            raise ValueError("neither true nor false")


@torch.inference_mode()
def try_products(
    heads: int, of_keys: int, width: int, dtype: torch.dtype, other: Attention
) -> Products:
    """Time both behind 4,096 places over 1, 8 and 32 rows; a row's bits must not depend on others.

    Behind so many places SDPA has `other`.
    """
    source, least = torch.Generator().manual_seed(0), 4  # rows of a block
    query, key, value = (
        torch.randn((1, *shape, width), generator=source).to(dtype)
        for shape in ((heads, _ROWS[-1]), (of_keys, _TRIED), (of_keys, _TRIED))
    )
    mask, shares, known = torch.zeros((1, 1, _ROWS[-1], _TRIED), dtype=dtype), [], None
    for rows in _ROWS:
        times = -(-least * of_keys // (heads * rows))
        given = (
            query[:, :, :rows].repeat(1, 1, times, 1),
            key,
            value,
            mask[:, :, :rows].repeat(1, 1, times, 1),
            None,
        )
        found = by_products(*given)[:, :, :rows]
        if known is not None and not torch.equal(found[:, :, : known.shape[2]], known):
            return Products(False)
        known, seconds = found, [float("inf")] * 2
        for _ in range(_REPEATS):
            for at, attention in enumerate((by_products, other)):
                begin = time.perf_counter()
                attention(*given)
                seconds[at] = min(seconds[at], time.perf_counter() - begin)
        shares.append(seconds[0] / seconds[1])
        if shares[-1] > _ANY:
            return Products(False)
    return Products(sum(shares) / len(shares) <= _MEAN)
