"""EAGLE-3 (arXiv 2503.01840): one layer over states of the target and its own outputs.

A row of the text stands for its hidden states at three layers of the target and for the token that
follows. What leaves the layer there scores the token after that one, and stands for the states
where the text goes on with a guess (section 3.1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from ngtcli.draft.guesses import Guessed
from ngtcli.errors import ModelError
from ngtcli.heads.attention import (
    HeadAttention,
    Rotation,
    Rows,
    layer_config,
    norm,
    perceptron,
    rotary,
)
from ngtcli.heads.cache import HeadCache
from ngtcli.heads.head import Head, guessed, nothing

# Rows that a row attends to at most: the positions that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # tokens; that of the trees that the authors' program drafts


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """What a head is made of.

    `layer` is its transformer layer. `layers` are the states that it reads, each of `width`
    numbers, numbered as transformers does. Its own vocabulary has `vocabulary` tokens.
    `norm_residual`: the normed states, not the states, are added to what attention gives.
    `norm_states`: there is a norm before `fc`.
    """

    layer: PreTrainedConfig
    layers: tuple[int, ...]
    width: int
    vocabulary: int
    norm_residual: bool = False
    norm_states: bool = False


def read_config(fields: Mapping[str, Any], depth: int) -> Eagle3Config:
    """The configuration in a config.json, for a target of `depth` layers.

    In the speculators form `eagle_aux_hidden_state_layer_ids` are layers whose inputs are read; in
    `eagle_config` of the other form they are layers whose outputs are. Without them the inputs of
    layers 2, `depth` // 2 and `depth` - 3 are read. Raises ModelError for what is not supported.
    """
    own = fields.get("transformer_layer_config", fields)
    nested = fields.get("eagle_config") or {}
    layers = fields.get("eagle_aux_hidden_state_layer_ids")
    if layers is None and nested.get("eagle_aux_hidden_state_layer_ids"):
        layers = [layer + 1 for layer in nested["eagle_aux_hidden_state_layer_ids"]]
    layers = tuple(layers or (2, depth // 2, depth - 3))
    if not all(isinstance(layer, int) and 0 <= layer < depth for layer in layers):
        raise ModelError(
            f"an EAGLE-3 head reads states at layers {', '.join(map(str, layers))} of {depth}",
            "Choose a head that was trained for this model.",
        )
    if nested.get("use_aux_hidden_state") is False or int(own.get("num_hidden_layers", 1)) != 1:
        raise ModelError(
            "an EAGLE-3 head of several layers, or of the last state alone",
            "Supported are heads of one layer that read states of several.",
        )
    layer = layer_config(dict(own))
    width = fields.get("target_hidden_size") or own.get("target_hidden_size")
    return Eagle3Config(
        layer=layer,
        layers=layers,
        width=int(width or layer.hidden_size),
        vocabulary=int(fields.get("draft_vocab_size") or layer.vocab_size),
        norm_residual=bool(fields.get("norm_before_residual")),
        norm_states=bool(fields.get("norm_before_fc")),
    )


class Eagle3Layer(nn.Module):
    """A layer of llama or qwen3 whose attention reads an embedding beside the state."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer, size = config.layer, config.layer.hidden_size
        self.self_attn = HeadAttention(layer, 2 * size)
        self.mlp = perceptron(layer)
        self.input_layernorm, self.hidden_norm = norm(size, layer), norm(size, layer)
        self.post_attention_layernorm = norm(size, layer)
        self._norm_residual = config.norm_residual

    def forward(
        self, states: Tensor, embedded: Tensor, rotation: Rotation, mask: Tensor, kept: Rows
    ) -> Tensor:
        """(batch, rows, hidden size), as are `states` and `embedded`."""
        normed = self.hidden_norm(states)
        rows = torch.cat([self.input_layernorm(embedded), normed], -1)
        seen = self.self_attn(rows, rotation, mask, kept)
        out = (normed if self._norm_residual else states) + seen
        return torch.add(out, self.mlp(self.post_attention_layernorm(out)))


class Eagle3Network(nn.Module):
    """The network; its state is that of a published file.

    `d2t` says how far each token's id is from its place in the head's vocabulary, `t2d` which
    tokens of the target are in it.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config, size = config, config.layer.hidden_size
        states = len(config.layers) * config.width
        self.input_norm = norm(states, config.layer) if config.norm_states else nn.Identity()
        self.fc = nn.Linear(states, size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = norm(size, config.layer)
        self.lm_head = nn.Linear(size, config.vocabulary, bias=False)
        self.rotary = rotary(config.layer)
        self.register_buffer("d2t", torch.zeros(config.vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.ones(config.layer.vocab_size, dtype=torch.bool))

    @property
    def ids(self) -> Tensor:
        """The token, int64 (vocabulary,), at each place of the head's vocabulary."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, states: Tensor) -> Tensor:
        """(…, hidden size) of the target's states (…, layers x width)."""
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def step(
        self, states: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor, kept: Rows
    ) -> Tensor:
        """What leaves the layer, (batch, rows, hidden size): states of the next depth.

        `states` are fused or of the depth before, `embedded` the embeddings of the tokens that
        follow; `positions` are int64 (rows,), `mask` is bool (rows, all rows).
        """
        rotation = self.rotary(states, positions[None])
        out: Tensor = self.midlayer(states, embedded, rotation, mask, kept)
        return out

    def scores(self, states: Tensor) -> Tensor:
        """Scores (…, vocabulary) of the head's own vocabulary after rows that left the layer."""
        found: Tensor = self.lm_head(self.norm(states))
        return found

    def forward(self, states: Tensor, embedded: Tensor) -> list[Tensor]:
        """What leaves the layer at several depths, as `step` gives it, for training (section 3.2).

        `states`, (batch, rows, layers x width), are the target's of rows in turn; `embedded`,
        (batch, rows + depths - 1, hidden size), are the embeddings of the tokens that follow the
        first row and those behind it. At depth d row i has read the tokens that follow rows i to
        i + d, and its `scores` are for the token after. It sees what a draft would see: the states
        of rows up to i, and the head's own of row i at each depth before.
        """
        rows = states.shape[1]
        kept, out, fused = DynamicCache(), [], self.fuse(states)
        places = torch.arange(rows, device=states.device)
        past, own = (places[:, None] >= places), places[:, None] == places
        for depth in range(embedded.shape[1] - rows + 1):
            mask = torch.cat([past] + depth * [own], 1)
            following = embedded[:, depth : depth + rows]
            fused = self.step(fused, following, places + depth, mask, kept)
            out.append(fused)
        return out


class Eagle3Head(Head):
    """Guesses of an EAGLE-3 network; `embed` gives embeddings of tokens (rows,), (rows, size).

    Positions are the text's own. Only their differences count, and `window` keeps those within
    what heads are trained on.
    """

    kind, by_path, reads_all = "eagle3", True, True

    def __init__(
        self,
        network: Eagle3Network,
        embed: Callable[[Tensor], Tensor],
        window: int = WINDOW,
        depth: int = DEPTH,
    ) -> None:
        self.layers, self.depth = network.config.layers, depth
        self._network, self._embed, self._ids = network, embed, network.ids
        longest = int(network.config.layer.max_position_embeddings)
        self._cache = HeadCache(min(window, longest))
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self._cache.clear()
        self._states = torch.empty(0)  # (states, hidden size), as they left the layer
        self._last = torch.empty(0)  # the first of them, of the last row read

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        mask = self._cache.chain(len(states), start)
        self._last = self._step(self._network.fuse(states), following, mask)[-1:]
        self._cache.keep()

    def _step(self, states: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """What leaves the layer, (rows, hidden size), for such states and the tokens (rows,)."""
        on, places = states.device, self._cache.positions(len(states))
        rows = states[None], self._embed(tokens)[None].to(states.dtype)
        return self._network.step(*rows, places.to(on), mask.to(on), self._cache)[0]

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first."""
        self._cache.drop()
        self._states = self._last
        if not len(self._last):
            return nothing(1)
        return self._guessed(self._states)

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """As Guesser.below."""
        if not len(self._states):
            return nothing(len(states))
        mask = self._cache.tree([state - 1 for state in states])  # state 0 is of a row that is kept
        ids = torch.tensor(tokens, dtype=torch.long, device=self._last.device)
        found = self._step(self._states[list(states)], ids, mask)
        self._states = torch.cat([self._states, found])
        return self._guessed(found)

    def _guessed(self, states: Tensor) -> Guessed:
        return guessed(self._network.scores(states), self._ids)
