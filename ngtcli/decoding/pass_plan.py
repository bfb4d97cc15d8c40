"""The plan of a forward pass: where it writes keys and values, and what it attends to."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ngtcli.models.hf import PassAttention


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The places of one forward pass in the cache: those it writes to, and those it attends to.

    KV positions are counted from the beginning of the buffers.

    Attributes:
        write_at: The KV position of each query token, int64 (queries,).
        write_windows_at: The same in the buffers of layers with a sliding window; None: they have
            no buffers of their own.
        full: The KV positions that layers with full attention are given.
        sliding: Those that layers with a sliding window are given, in their buffers; a tensor,
            int64 (keys,), names them in the order of the mask.
        length: The tokens before the query tokens, for a model that asks its cache.
        mask: What the model takes as its attention mask, None: it makes its own.
        attention: None: the model's own attention of one sequence.
        has_long_rope: Whether positions have the factors of long sequences (LongRoPE).
    """

    write_at: Tensor
    full: range
    sliding: range | Tensor
    length: int
    mask: Any = None
    attention: PassAttention | None = None
    write_windows_at: Tensor | None = None
    has_long_rope: bool = False
