"""DFlash (arXiv 2602.06036): all tokens of a block at once, from states of the target.

The block is the last token and masks behind it. Its rows attend to each other and to the text,
whose keys and values are made of hidden states at several layers of the target. What leaves the
network at a mask goes to the target's own scores, or to those of a smaller vocabulary.
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
from ngtcli.heads.head import Head, guessed

_BLOCK = 16  # tokens of a block where the configuration names none; that of published heads


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """What a head is made of.

    `layer` is that of its transformer layers. `layers` are the states that it reads, numbered as
    transformers does. A block has `block` tokens, all but the first of them `mask`. Its own
    vocabulary has `vocabulary` tokens; None: it has the target's. `windows` has for each layer the
    positions that a row attends to at most, or None, and `causal` whether it sees those before it
    only. Embeddings are multiplied by `scale`, scores by `multiplier`, and then they are capped at
    `cap` in size, None: not.
    """

    layer: PreTrainedConfig
    layers: tuple[int, ...]
    block: int
    mask: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    vocabulary: int | None = None
    scale: float = 1.0
    multiplier: float = 1.0
    cap: float | None = None


def read_config(fields: Mapping[str, Any], depth: int) -> DFlashConfig:
    """The configuration in a config.json, for a target of `depth` layers.

    `target_layer_ids` of the authors' form are layers whose outputs are read,
    `aux_hidden_state_layer_ids` of the speculators form those whose inputs are. Raises ModelError
    for what is not supported.
    """
    own = dict(fields.get("transformer_layer_config") or fields)
    values = {**own, **fields, **(fields.get("dflash_config") or {})}
    _refuse(values)
    layers = values.get("aux_hidden_state_layer_ids")
    if layers is None:
        layers = [layer + 1 for layer in values.get("target_layer_ids") or ()]
    if not layers or not all(0 <= layer <= depth for layer in layers):
        raise ModelError(
            f"a DFlash head reads states at layers {', '.join(map(str, layers))} of {depth}",
            "Choose a head that was trained for this model.",
        )
    if values.get("mask_token_id") is None:
        raise ModelError("a DFlash head without mask_token_id", "Choose another head.")
    layer = layer_config(own)
    kinds = list(getattr(layer, "layer_types", None) or ()) or ["full_attention"]
    slides = [
        kinds[at % len(kinds)] == "sliding_attention" for at in range(layer.num_hidden_layers)
    ]
    causal = values.get("is_causal")
    if causal is None and values.get("sliding_window_non_causal"):
        causal = False
    draft, cap = values.get("draft_vocab_size"), values.get("final_logit_softcapping")
    return DFlashConfig(
        layer=layer,
        layers=tuple(-1 if layer == depth else layer for layer in layers),
        block=int(values.get("block_size") or _BLOCK),
        mask=int(values["mask_token_id"]),
        windows=tuple(layer.sliding_window if slid else None for slid in slides),
        causal=tuple(slid if causal is None else bool(causal) for slid in slides),
        vocabulary=int(draft) if draft and draft != layer.vocab_size else None,
        scale=float(values.get("input_embedding_scale", 1.0)),
        multiplier=float(values.get("output_multiplier", 1.0)),
        cap=float(cap) if cap else None,
    )


def _refuse(values: Mapping[str, Any]) -> None:
    """Raise ModelError for a variant that these formulas are not those of."""
    named = {
        "selector_rank": "DFlash 2",
        "markov_rank": "DSpark",
        "sample_from_anchor": "DFlash that guesses at the last token",
        "fc_layernorm": "DFlash with norms before fc",
    }
    found = [name for field, name in named.items() if values.get(field)]
    if values.get("projector_type", "dflash") != "dflash":
        found.append(str(values["projector_type"]))
    if found:
        raise ModelError(f"a head of the form {found[0]}", "Such heads are not supported.")


class DFlashLayer(nn.Module):
    """A layer of llama or qwen3; the rows of the text enter its attention as they are."""

    def __init__(self, config: PreTrainedConfig, layer: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = HeadAttention(config, size, layer)
        self.mlp = perceptron(config)
        self.input_layernorm = norm(size, config)
        self.post_attention_layernorm = norm(size, config)

    def forward(self, rows: Tensor, rotation: Rotation, mask: Tensor, kept: Rows) -> Tensor:
        """(batch, rows, hidden size) of rows of blocks."""
        rows = rows + self.self_attn(self.input_layernorm(rows), rotation, mask, kept)
        return torch.add(rows, self.mlp(self.post_attention_layernorm(rows)))


class DFlashNetwork(nn.Module):
    """The network; its state is that of a published file.

    With a vocabulary of its own, `d2t` says how far each token's id is from its place there, and
    `t2d` which tokens of the target are in it.
    """

    d2t: Tensor

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config, layer = config, config.layer
        size = layer.hidden_size
        self.fc = nn.Linear(len(config.layers) * size, size, bias=False)
        self.hidden_norm, self.norm = norm(size, layer), norm(size, layer)
        self._stack = [DFlashLayer(layer, n) for n in range(layer.num_hidden_layers)]
        self.layers = nn.ModuleList(self._stack)
        self.rotary = rotary(layer)
        self.lm_head: nn.Linear | None = None
        if (own := config.vocabulary) is not None:
            self.lm_head = nn.Linear(size, own, bias=False)
            self.register_buffer("d2t", torch.zeros(own, dtype=torch.long))
            self.register_buffer("t2d", torch.ones(layer.vocab_size, dtype=torch.bool))

    @property
    def ids(self) -> Tensor | None:
        """The token, int64 (vocabulary,), at each place of the head's own vocabulary."""
        if self.lm_head is None:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def remember(self, states: Tensor, positions: Tensor, kept: Sequence[Rows]) -> None:
        """Give each layer's `kept` the keys and values of rows of the text.

        `states` are (batch, rows, layers x hidden size), `positions` int64 (rows,).
        """
        rows = self.hidden_norm(self.fc(states))
        rotation = self.rotary(rows, positions[None])
        for layer, own in zip(self._stack, kept, strict=True):
            layer.self_attn.remember(rows, rotation, own)

    def guess(
        self, embedded: Tensor, positions: Tensor, masks: Sequence[Tensor], kept: Sequence[Rows]
    ) -> Tensor:
        """What leaves the network for rows of blocks, both (batch, rows, hidden size).

        `positions` are int64 (rows,); each layer has its own of `masks`, bool (rows, all rows).
        """
        rows = embedded * self.config.scale
        rotation = self.rotary(rows, positions[None])
        for layer, mask, own in zip(self._stack, masks, kept, strict=True):
            rows = layer(rows, rotation, mask, own)
        out: Tensor = self.norm(rows)
        return out

    def scores(self, rows: Tensor, target: Callable[[Tensor], Tensor]) -> Tensor:
        """Scores (…, vocabulary) of what left the network; `target` gives the target's own."""
        found: Tensor = (self.lm_head or target)(rows) * self.config.multiplier
        cap = self.config.cap
        return found if cap is None else (found / cap).tanh() * cap

    def forward(self, states: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """What leaves the network for several blocks, (batch, blocks, block - 1, hidden size).

        For training: `states`, (batch, rows, layers x hidden size), are the target's of a text;
        `embedded`, (batch, blocks x block, hidden size), are the embeddings of each block's first
        token and of its masks, and `anchors`, int64 (blocks,), the position of that token. Behind
        it the mask of number m guesses the token m positions on. A block sees the text before it.
        """
        config, on = self.config, states.device
        kept = [DynamicCache()] * len(self._stack)
        text = torch.arange(states.shape[1], device=on)
        self.remember(states, text, kept)
        positions = (anchors[:, None] + torch.arange(config.block, device=on)).flatten()
        block = torch.arange(len(anchors), device=on).repeat_interleave(config.block)
        before = text < anchors.repeat_interleave(config.block)[:, None]
        seen = torch.cat([before, block == block[:, None]], 1)
        away = positions[:, None] - torch.cat([text, positions])
        masks = [
            seen & ~(causal & (away < 0)) & (away.abs() < (window or len(text) + config.block))
            for window, causal in zip(config.windows, config.causal, strict=True)
        ]
        out = self.guess(embedded, positions, masks, kept)
        return out.view(len(out), len(anchors), config.block, -1)[:, :, 1:]


class DFlashHead(Head):
    """Guesses of a DFlash network.

    `embed` gives embeddings of tokens (rows,), (rows, hidden size), `target` the target's scores of
    rows that left its last norm. Positions are the text's own.
    """

    kind, reads_all = "dflash", True

    def __init__(
        self,
        network: DFlashNetwork,
        embed: Callable[[Tensor], Tensor],
        target: Callable[[Tensor], Tensor],
    ) -> None:
        config = network.config
        self.layers, self.depth = config.layers, config.block - 1
        self._network, self._embed, self._target, self._ids = network, embed, target, network.ids
        self._caches = [HeadCache(window) for window in config.windows]

    def reset(self) -> None:
        """A new text begins."""
        for cache in self._caches:
            cache.clear()

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        for cache in self._caches:
            cache.put(len(states), start)
        places = self._caches[0].positions(len(states)).to(states.device)
        self._network.remember(states[None], places, self._caches)
        for cache in self._caches:
            cache.keep()

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first: one for each mask."""
        config, on = self._network.config, self._network.fc.weight.device
        pairs = zip(self._caches, config.causal, strict=True)
        masks = [cache.block(config.block, causal).to(on) for cache, causal in pairs]
        tokens = torch.tensor([root] + self.depth * [config.mask], device=on)
        embedded = self._embed(tokens)[None].to(self._network.fc.weight.dtype)
        places = self._caches[0].positions(config.block).to(on)
        found = self._network.guess(embedded, places, masks, self._caches)[0, 1:]
        return guessed(self._network.scores(found, self._target), self._ids)
