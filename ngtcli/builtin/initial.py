"""Initial weights that already hold a rough circuit for finding and copying.

A small model needs millions of tokens before it finds out how to copy (an induction head: Olsson
et al. 2022), and many more before it can find a sentence. Starting near both saves that time, in
the spirit of mimetic initialisation (Trockman & Kolter 2023). One head of each of the first four
layers and all heads of the last are written; everything stays trainable, the rest is random:

0. attend to the previous token; note which it was
1. attend to the start of the sentence; note its first token
2. attend to the same token elsewhere; note how the sentence there starts
3. at the start of an answer, gather those notes over the question: a vote for a first token
4. attend to where the current token was the previous one; repeat what stands there

Notes go to blocks of the residual stream: with a random orthonormal basis cut into four blocks of
head size, block 0 names a token (by its embedding), 1 the previous token, 2 the sentence's first, 3
the vote. Rotary pairs that turn fast compare positions; those that hardly turn compare content.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LAYERS = 5
_SLOW_PAIRS = 16
_NOTE = 3.0  # how loud a note is beside the embedding


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids the circuit needs to know: what stands before a sentence, and who speaks."""

    before_sentence: tuple[int, ...]
    user: int
    assistant: int


def plant_circuit(model: Any, marks: Marks, seed: int) -> None:
    """Write the circuit into a fresh LlamaForCausalLM of five layers and four heads, in place."""
    config = model.config
    if config.num_hidden_layers != LAYERS or config.num_attention_heads != 4:
        raise ValueError(f"the circuit needs {LAYERS} layers and 4 heads")
    with torch.no_grad():
        _Planter(model, marks, torch.Generator().manual_seed(seed)).plant()


class _Planter:
    """Holds what the five steps share. Dimension 0 of every embedding becomes one constant."""

    def __init__(self, model: Any, marks: Marks, rng: torch.Generator) -> None:
        self.model, self.marks = model, marks
        config = model.config
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.size = self.width // self.heads
        self.half = self.size // 2
        pairs = torch.arange(self.half)
        self.turn = config.rope_parameters["rope_theta"] ** (-2.0 * pairs / self.size)
        slow = range(self.half - _SLOW_PAIRS, self.half)
        self.slow = [*slow, *(self.half + p for p in slow)]
        self.basis = _orthonormal(self.width, rng)
        self.copy_basis = _orthonormal(self.width, rng)
        self.name, self.previous, self.start, self.vote = torch.split(self.basis, self.size)
        self.attention = [layer.self_attn for layer in model.model.layers]

    def plant(self) -> None:
        table = self.model.model.embed_tokens.weight
        table.mul_(2.5)  # large enough for tied embeddings to name a token with confidence
        self.scale = float(table.std())
        table[:, 0] = 4.0 * self.scale
        for layer in self.model.model.layers:  # quiet branches, so that the notes are heard
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        self._attend_to_previous()
        self._attend_to_sentence_start()
        self._attend_to_same_token()
        self._gather_votes()
        self._copy()

    def _clear(self, layer: int) -> Any:
        """Head 0 of a layer, emptied."""
        attention = self.attention[layer]
        for matrix in (attention.q_proj, attention.k_proj, attention.v_proj):
            matrix.weight[: self.size] = 0.0
        return attention

    def _note(self, attention: Any, read: Tensor, write: Tensor, loud: float = _NOTE) -> None:
        attention.v_proj.weight[: self.size] = read
        attention.o_proj.weight[:, : self.size] = loud * self.scale * write.T

    def _direction(self, token: int) -> Tensor:
        """Unit vector, head size, that names a token in block 0."""
        named = self.name @ (self.model.model.embed_tokens.weight[token] / self.scale)
        unit: Tensor = named / named.norm()
        return unit

    def _pairs(self, low: float, high: float) -> list[int]:
        """Rotary pairs that turn by `low` to `high` radians a position."""
        return [i for i in range(self.half) if low < float(self.turn[i]) < high]

    def _attend_to_previous(self) -> None:
        """The key is the query's vector turned by one position, so it fits best at distance 1."""
        attention, fast = self._clear(0), torch.arange(8)
        attention.q_proj.weight[fast, 0] = 2.0
        attention.k_proj.weight[fast, 0] = 2.0 * torch.cos(self.turn[fast])
        attention.k_proj.weight[self.half + fast, 0] = 2.0 * torch.sin(self.turn[fast])
        self._note(attention, self.name, self.previous)

    def _attend_to_sentence_start(self) -> None:
        """The nearest token whose previous token stands before sentences."""
        attention = self._clear(1)
        names = sum(self._direction(t) for t in self.marks.before_sentence)
        for pair in self._pairs(0.008, 0.05):
            attention.q_proj.weight[pair, 0] = 2.0
            attention.k_proj.weight[pair] = 2.0 * self.previous.T @ names
        self._note(attention, self.name, self.start)

    def _attend_to_same_token(self) -> None:
        attention = self._clear(2)
        for matrix in (attention.q_proj, attention.k_proj):
            matrix.weight[self.slow] = 3.0 * self.name[: len(self.slow)]
        self._note(attention, self.start, self.vote)

    def _gather_votes(self) -> None:
        """Where an answer starts, attend to the last tokens; elsewhere rest on the first token."""
        attention = self._clear(3)
        answering = self.name.T @ self._direction(self.marks.assistant)
        for pair in self._pairs(0.04, 0.25):
            attention.q_proj.weight[pair] = 2.4 * answering
            attention.k_proj.weight[pair, 0] = 2.4
        opening = self.name.T @ self._direction(self.marks.user)
        for pair in range(self.half - 4, self.half):
            attention.q_proj.weight[pair, 0] = 2.5
            attention.k_proj.weight[pair] = 2.5 * opening
        rest = self._state_of_first_token(layer=3)
        read = self.vote - (self.vote @ rest)[:, None] * rest[None, :]
        self._note(attention, read, self.name, loud=20.0)

    def _state_of_first_token(self, layer: int) -> Tensor:
        """Unit vector that a layer's attention reads at position 0, where every prompt is alike."""
        seen: dict[str, Tensor] = {}
        norm = self.model.model.layers[layer].input_layernorm
        hook = norm.register_forward_hook(lambda _m, _i, output: seen.update(state=output[0, 0]))
        self.model.model(input_ids=torch.tensor([[self.marks.user]]), use_cache=False)
        hook.remove()
        unit: Tensor = seen["state"] / seen["state"].norm()
        return unit

    def _copy(self) -> None:
        """All heads: match the name of the current token with the note of the previous one.

        The token that opens an answer is left out: what followed it before says nothing now.
        """
        attention, part = self.attention[4], len(self.slow)
        attention.q_proj.weight.zero_()
        attention.k_proj.weight.zero_()
        opening = self.model.model.embed_tokens.weight[self.marks.assistant].clone()
        opening[0] = 0.0
        opening /= opening.norm()
        ask = self.name - (self.name @ opening)[:, None] * opening[None, :]
        for head in range(self.heads):
            rows = [head * self.size + d for d in self.slow]
            block = slice((head % 2) * part, (head % 2 + 1) * part)
            attention.q_proj.weight[rows] = 5.2 * ask[block]
            attention.k_proj.weight[rows] = 5.2 * self.previous[block]
        attention.v_proj.weight.copy_(self.copy_basis)
        attention.o_proj.weight.copy_(4.0 * self.scale * self.copy_basis.T)


def _orthonormal(size: int, rng: torch.Generator) -> Tensor:
    """A random orthonormal basis, its rows blind to dimension 0."""
    matrix: Tensor = torch.linalg.qr(torch.randn(size, size, generator=rng))[0]
    matrix[:, 0] = 0.0
    return matrix
