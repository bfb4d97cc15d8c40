"""Logits of a vocabulary: the highest, and whether two rows of them are equal but for rounding.

On a CPU the highest are found quicker than by `topk` and `argmax`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.drafting.guesses import WIDTH, Guessed
from ngtcli.errors import ModelError
from ngtcli.models.weights.linear import bits_of

_BLOCK = 64  # logits; swept over 16 to 256 at 151,936 logits and k of 8, 40 and 256
_HIDDEN = -1e6  # logits below it are masked: compared is only whether both are
# The root mean square of differences, over the spread of the logits. Derived: rounding gives 1e-6
# to 1e-5 in float32 and 0.01 to 0.03 in bfloat16; a wrong mask or position gives about 1.
_FLOAT32, _HALF = 3e-4, 0.15


def best_tokens(logits: Tensor) -> Tensor:
    """The index of the first highest of each row, int64 (rows,), -1 where that is not finite.

    It is where the logits are.
    """
    if logits.device.type == "cpu":  # numpy takes 10 us for 150,000 logits, torch 250 (measured)
        rows = logits.float().numpy()
        chosen = rows.argmax(-1)
        best = rows[np.arange(len(rows)), chosen]
        return torch.from_numpy(np.where(np.isfinite(best), chosen, -1))
    highest, choices = logits.max(-1)
    return choices.masked_fill(highest - highest != 0, -1)


def highest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(values, indices), each (rows, k), of the k highest of each row, falling: `logits.topk(k)`.

    Of fewer than k logits all are given. The highest stand in the k blocks with the highest maxima,
    and finding a maximum is quick.
    """
    rows, size = logits.shape
    k = min(k, size)
    whole = size // _BLOCK
    if not k or whole <= 2 * k or logits.device.type != "cpu":
        values, indices = logits.topk(k)
        return values, indices
    blocks = logits[:, : whole * _BLOCK].reshape(rows, whole, _BLOCK)
    chosen = blocks.amax(-1).topk(k).indices
    places = (chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK)).flatten(1)
    rest = torch.arange(whole * _BLOCK, size).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    values, found = logits.gather(1, places).topk(k)
    return values, places.gather(1, found)


def likeliest(logits: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The likeliest tokens by logits (m, vocabulary), and their probabilities, both (m, WIDTH).

    `ids`, int64 (vocabulary,), are the tokens of a vocabulary of the logits' own.
    """
    logits = logits.float()
    values, found = highest(logits, WIDTH)
    tokens = found if ids is None else ids[found]
    return tokens, (values - logits.logsumexp(-1, keepdim=True)).exp()


def as_guesses(tokens: Tensor, probabilities: Tensor) -> Guessed:
    """What `likeliest` gave, on the CPU; MPS knows no float64."""
    return Guessed(tokens.to("cpu", torch.int32).numpy(), probabilities.cpu().double().numpy())


def same_logits(rows: Sequence[Tensor], truth: Sequence[Tensor] | Tensor, exact: bool) -> bool:
    """Whether rows agree but for rounding; unless `exact`, whether most of them do.

    In half precision a near tie, as between two experts, can change single rows.
    """
    errors = sorted(_difference(row, true) for row, true in zip(rows, truth, strict=True))
    if exact:
        return errors[-1] <= _FLOAT32
    return errors[len(errors) // 2] <= _HALF


def rounds(hf: Any) -> bool:
    """Whether a model computes in less than float32, in its layers or between them.

    Some give float32 logits after passes in less.
    """
    return hf.dtype not in (torch.float32, torch.float64) or bits_of(hf) > 0


def _difference(row: Tensor, true: Tensor) -> float:
    """Root mean square of the difference, in standard deviations of the true logits."""
    row, true = row.cpu().double(), true.cpu().double()  # MPS knows no float64
    visible = true > _HIDDEN
    if row.shape != true.shape or not torch.equal(visible, row > _HIDDEN) or not visible.any():
        return float("inf")
    spread = true[visible].std(correction=0).clamp_min(1e-12)
    error = float((row[visible] - true[visible]).square().mean().sqrt() / spread)
    return error if error == error else float("inf")


def logits_are_not_numbers(name: str) -> ModelError:
    """The error for a model whose logits at some place are NaN or all infinite."""
    return ModelError(
        f"{name}: the model's scores are not numbers",
        hint="Try --dtype float32 without --quantize; if it runs so, its weights are damaged.",
    )


def padded_rows(logits: Tensor, min_rows: int) -> Tensor:
    """As many rows for any draft: a GPU may add up one row in another order than several."""
    missing = min_rows - len(logits)
    if logits.device.type == "cpu" or missing < 1:
        return logits
    return torch.cat([logits, logits[:1].expand(missing, -1)])


def on_host(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors of one dtype in the memory of the host, which one copy brings there."""
    away = [tensor for tensor in tensors if tensor is not None and tensor.device.type != "cpu"]
    if not away:
        return list(tensors)
    joined = away[0].flatten() if len(away) == 1 else torch.cat([one.flatten() for one in away])
    parts = iter(torch.split(joined.cpu(), [one.numel() for one in away]))
    return [
        tensor if tensor is None or tensor.device.type == "cpu" else next(parts).view(tensor.shape)
        for tensor in tensors
    ]
