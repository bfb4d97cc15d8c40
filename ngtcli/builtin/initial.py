"""Initial weights that already hold a rough induction circuit, which training then refines.

A small model needs millions of tokens before it finds out how to copy (an induction head: Olsson
et al. 2022). Starting near one saves that time, in the spirit of mimetic initialisation (Trockman
& Kolter 2023): layer 0 gets a head that attends to the previous token and notes which it was, layer
1 gets heads that attend to where the current token was the previous one, and repeat what stands
there. Everything stays trainable; all other weights are random.
"""

from typing import Any

import torch
from torch import Tensor

_SHARP_PAIRS = 8  # fast rotary pairs, which tell neighbouring positions apart
_SLOW_PAIRS = 16  # slow rotary pairs, which hardly turn and so compare content at any distance


def plant_induction(model: Any, seed: int, gain: float = 4.0) -> None:
    """Write the circuit into a fresh LlamaForCausalLM with rotary embeddings, in place.

    Embedding dimension 0 becomes the same for all tokens: attention by position alone needs
    something to hold on to.
    """
    config = model.config
    width, heads = config.hidden_size, config.num_attention_heads
    head = width // heads
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table.mul_(2.5)  # large enough for tied embeddings to name a token with confidence
        scale = float(table.std())
        table[:, 0] = 4.0 * scale
        for layer in model.model.layers:  # quiet branches, so that the planted ones are heard
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
        read = _orthonormal(head, width, rng)  # what the first head notes of a token
        write = _orthonormal(head, width, rng)  # where in the stream it notes it
        base = config.rope_parameters["rope_theta"]
        _previous_token_head(first, read, 3.0 * scale * write, head, base)
        basis = _orthonormal(width, width, rng)
        slow = _slow_dimensions(head)
        second.q_proj.weight.zero_()
        second.k_proj.weight.zero_()
        for h in range(heads):
            part = slice((h % 2) * len(slow), (h % 2 + 1) * len(slow))
            rows = [h * head + d for d in slow]
            second.q_proj.weight[rows] = 1.3 * gain * read[part]
            second.k_proj.weight[rows] = 1.3 * gain * write[part]
        second.v_proj.weight.copy_(basis)
        second.o_proj.weight.copy_(gain * scale * basis.T)


def _previous_token_head(
    attention: Any, read: Tensor, write: Tensor, head: int, base: float
) -> None:
    """Head 0: the key is the query's vector turned by one position, to fit best at distance 1."""
    pairs = torch.arange(_SHARP_PAIRS)
    angle = base ** (-2.0 * pairs / head)
    half = head // 2
    attention.q_proj.weight[:head] = 0.0
    attention.k_proj.weight[:head] = 0.0
    attention.q_proj.weight[pairs, 0] = 2.0
    attention.k_proj.weight[pairs, 0] = 2.0 * torch.cos(angle)
    attention.k_proj.weight[half + pairs, 0] = 2.0 * torch.sin(angle)
    attention.v_proj.weight[:head] = read
    attention.o_proj.weight[:, :head] = write.T


def _slow_dimensions(head: int) -> list[int]:
    half = head // 2
    pairs = range(half - _SLOW_PAIRS, half)
    return [*pairs, *(half + p for p in pairs)]


def _orthonormal(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    """Random orthonormal rows that ignore dimension 0."""
    matrix: Tensor = torch.linalg.qr(torch.randn(columns, columns, generator=rng))[0][:rows]
    matrix[:, 0] = 0.0
    return matrix
