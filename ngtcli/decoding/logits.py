"""Logits of a vocabulary: the highest, and whether two rows of them are equal except for rounding.

On a CPU the highest are found quicker than by `topk` and `argmax`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.drafting.guesses import WIDTH, Guessed
from ngtcli.errors import ModelError
from ngtcli.models.weights.linear import quantized_bits

_BLOCK = 64  # logits; swept over 16 to 256 at 151,936 logits and k of 8, 40 and 256
_HIDDEN = -1e6  # logits below it are masked: compared is only whether both are
# The root mean square of differences, over the spread of the logits. Derived: rounding gives 1e-6
# to 1e-5 in float32 and 0.01 to 0.03 in bfloat16; a wrong mask or position gives about 1.
_MAX_ERROR_FLOAT32 = 3e-4
_MAX_ERROR_HALF = 0.15


def best_tokens(logits: Tensor) -> Tensor:
    """Return the index of the first highest logit of each row; -1 where that is not finite.

    int64 (rows,), on the device of the logits.
    """
    if logits.device.type == "cpu":  # numpy takes 10 us for 150,000 logits, torch 250 (measured)
        rows = logits.float().numpy()
        chosen = rows.argmax(-1)
        best = rows[np.arange(len(rows)), chosen]
        return torch.from_numpy(np.where(np.isfinite(best), chosen, -1))
    highest, choices = logits.max(-1)
    return choices.masked_fill(highest - highest != 0, -1)


def highest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest logits of each row in descending order, as `logits.topk(k)`.

    They are in the k blocks with the highest maxima, and finding a maximum is quick.

    Returns:
        Values and indices, (rows, k) each; of rows with fewer than k logits all of them.
    """
    rows, size = logits.shape
    k = min(k, size)
    full_blocks = size // _BLOCK
    if not k or full_blocks <= 2 * k or logits.device.type != "cpu":
        values, indices = logits.topk(k)
        return values, indices
    in_blocks = full_blocks * _BLOCK
    blocks = logits[:, :in_blocks].reshape(rows, full_blocks, _BLOCK)
    chosen = blocks.amax(-1).topk(k).indices
    candidates = (chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK)).flatten(1)
    behind_blocks = torch.arange(in_blocks, size).expand(rows, -1)
    candidates = torch.cat([candidates, behind_blocks], dim=1)
    values, best = logits.gather(1, candidates).topk(k)
    return values, candidates.gather(1, best)


def likeliest(logits: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens of each row, and their probabilities, (rows, WIDTH) each.

    Args:
        logits: (rows, vocab_size).
        ids: The token ids of a head's own vocabulary, int64 (vocab_size,); None: it is the model's.
    """
    logits = logits.float()
    values, indices = highest(logits, WIDTH)
    tokens = indices if ids is None else ids[indices]
    return tokens, (values - logits.logsumexp(-1, keepdim=True)).exp()


def as_guesses(tokens: Tensor, probabilities: Tensor) -> Guessed:
    """Bring the result of `likeliest` to the CPU, where it becomes float64: MPS has none."""
    return Guessed(tokens.to("cpu", torch.int32).numpy(), probabilities.cpu().double().numpy())


def same_logits(rows: Sequence[Tensor], truth: Sequence[Tensor] | Tensor, exact: bool) -> bool:
    """Return whether rows of logits agree except for rounding.

    Args:
        rows: (vocab_size,) each.
        truth: The expected rows.
        exact: Whether both are float32, and all rows have to agree. Of half precision half of them
            have to: a near tie, as between two experts, can change single rows.
    """
    errors = sorted(_difference(row, expected) for row, expected in zip(rows, truth, strict=True))
    if exact:
        return errors[-1] <= _MAX_ERROR_FLOAT32
    return errors[len(errors) // 2] <= _MAX_ERROR_HALF


def rounds(hf: Any) -> bool:
    """Return whether a model computes in less than float32, in its layers or between them.

    Some give float32 logits after passes in less.
    """
    return hf.dtype not in (torch.float32, torch.float64) or quantized_bits(hf) > 0


def _difference(row: Tensor, expected: Tensor) -> float:
    """Return the root mean square difference, in standard deviations of the expected logits.

    Infinite where other logits are masked, or one is not a number.
    """
    row = row.cpu().double()  # on the CPU, as MPS has no float64
    expected = expected.cpu().double()
    visible = expected > _HIDDEN
    if row.shape != expected.shape or not torch.equal(visible, row > _HIDDEN):
        return float("inf")
    if not visible.any():
        return float("inf")
    spread = expected[visible].std(correction=0).clamp_min(1e-12)
    error = float((row[visible] - expected[visible]).square().mean().sqrt() / spread)
    return error if error == error else float("inf")


def logits_are_not_numbers(name: str) -> ModelError:
    """The error for a model whose logits at some place are NaN or all infinite."""
    return ModelError(
        f"{name}: the model's logits are not numbers",
        hint="Try --dtype float32 without --quantize; if it runs so, its weights are damaged.",
    )


def padded_rows(logits: Tensor, min_rows: int) -> Tensor:
    """Pad logits to a number of rows: a GPU may add up one row in another order than several."""
    missing = min_rows - len(logits)
    if logits.device.type == "cpu" or missing < 1:
        return logits
    return torch.cat([logits, logits[:1].expand(missing, -1)])


def on_host(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Bring device tensors of one dtype to the host in a single copy; others pass unchanged."""
    on_device = [tensor for tensor in tensors if tensor is not None and tensor.device.type != "cpu"]
    if not on_device:
        return list(tensors)
    flat = [tensor.flatten() for tensor in on_device]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    copies = iter(torch.split(joined.cpu(), [tensor.numel() for tensor in on_device]))
    return [
        tensor if tensor is None or tensor.device.type == "cpu" else next(copies).view(tensor.shape)
        for tensor in tensors
    ]
