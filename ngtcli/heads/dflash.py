"""DFlash (arXiv 2602.06036): all tokens of a block at once, from states of the target.

The block is the last token and masks behind it. Its rows attend to each other and to the text,
whose keys and values are made of hidden states at several layers of the target; these enter the
attention of each layer as they are. What leaves the network at a mask goes to the target's own
scores, or to those of a smaller vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from ngtcli.draft.guesses import Guessed
from ngtcli.heads.attention import (
    HeadLayer,
    Rows,
    configured,
    layer_config,
    norm,
    own_ids,
    rotary,
)
from ngtcli.heads.cache import HeadCache
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.head import Head, guessed

KIND = "dflash"
_BLOCK = 16  # tokens of a block where the configuration names none; that of published heads
# What config.json says of variants that have other formulas: DFlash 2, DSpark, norms before `fc`,
# and blocks that guess at the last token, too.
_OTHER = ("selector_rank", "conv_kernel_size", "markov_rank", "fc_layernorm", "sample_from_anchor")


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
    `aux_hidden_state_layer_ids` of the speculators form those whose inputs are. Raises ValueError
    for what is not supported.
    """
    own = dict(fields.get("transformer_layer_config") or fields)
    values = {**own, **fields, **(fields.get("dflash_config") or {})}
    other = [name for name in _OTHER if values.get(name)]
    if other or values.get("projector_type", KIND) != KIND:
        raise ValueError(other[0] if other else f"projector_type {values['projector_type']}")
    layers = values.get("aux_hidden_state_layer_ids")
    if layers is None:
        layers = [layer + 1 for layer in values["target_layer_ids"]]
    told = int(values.get("num_target_layers") or depth)
    if told != depth or not all(0 <= layer <= depth for layer in layers):
        raise ValueError(f"a model of {told} layers, states at {', '.join(map(str, layers))}")
    layer = layer_config(own)
    kinds = getattr(layer, "layer_types", None) or layer.num_hidden_layers * ["full_attention"]
    slides = [kind == "sliding_attention" for kind in kinds]
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
        scale=float(values.get("input_embedding_scale") or 1.0),
        multiplier=float(values.get("output_multiplier") or 1.0),
        cap=float(cap) if cap else None,
    )


class DFlashNetwork(nn.Module):
    """The network; its state is that of a published file.

    With a vocabulary of its own, `d2t` says how far each token's id is from its place there, and
    `t2d` which tokens of the target are in it.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config, layer = config, config.layer
        size = layer.hidden_size
        self.fc = nn.Linear(len(config.layers) * size, size, bias=False)
        self.hidden_norm, self.norm = norm(size, layer), norm(size, layer)
        self._stack = [HeadLayer(layer, n) for n in range(layer.num_hidden_layers)]
        self.layers = nn.ModuleList(self._stack)
        self.rotary = rotary(layer)
        self.lm_head: nn.Linear | None = None
        if (own := config.vocabulary) is not None:
            self.lm_head = nn.Linear(size, own, bias=False)
            self.register_buffer("d2t", torch.zeros(own, dtype=torch.long))
            self.register_buffer("t2d", torch.ones(layer.vocab_size, dtype=torch.bool))

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
    """Guesses of a DFlash network; `ids` are the tokens of its own vocabulary, None: all.

    Positions are the text's own.
    """

    kind, reads_all = KIND, True

    def __init__(self, network: DFlashNetwork, target: Target, ids: Tensor | None = None) -> None:
        config = network.config
        self.layers, self.depth = config.layers, config.block - 1
        self._network, self._target, self._ids = network, target, ids
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
        own = states.to(self._target.device, self._target.dtype)
        places = self._caches[0].positions(len(states)).to(own.device)
        self._network.remember(own[None], places, self._caches)
        for cache in self._caches:
            cache.keep()

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first: one for each mask."""
        config, on = self._network.config, self._target.device
        pairs = zip(self._caches, config.causal, strict=True)
        masks = [cache.block(config.block, causal).to(on) for cache, causal in pairs]
        tokens = torch.tensor([root] + self.depth * [config.mask], device=on)
        embedded = self._target.embed(tokens, scaled=False)[None]
        places = self._caches[0].positions(config.block).to(on)
        found = self._network.guess(embedded, places, masks, self._caches)[0, 1:]
        return guessed(self._network.scores(found, self._target.score), self._ids)


def recognise(files: HeadFiles) -> bool:
    """Whether the tensors are those of DFlash: one that fuses states, and one that norms them."""
    return {"fc.weight", "hidden_norm.weight", "layers.0.mlp.up_proj.weight"} <= set(files.shapes)


def build(files: HeadFiles, target: Target) -> DFlashHead:
    """The head of these files. Raises ModelError where they do not fill it or are not for it."""
    config = configured(files, target, read_config)
    files.check_width(config.layer.hidden_size, target)
    files.check_vocabulary(config.layer.vocab_size, target)
    if not 0 <= config.mask < target.vocabulary:
        raise files.refused(f"the model has no token {config.mask}, its mask_token_id")
    ids = None if (own := config.vocabulary) is None else own_ids(files, target, own)
    left = ("d2t", "t2d", "embed_tokens.weight", *(["lm_head.weight"] if own is None else []))
    stored = {
        name: name for name in files.shapes if name not in left and not name.startswith("verifier_")
    }
    with torch.device("meta"):
        network = DFlashNetwork(config)
    network.register_buffer("d2t", None)
    network.register_buffer("t2d", None)
    files.fill(network, target, stored)
    network.rotary = rotary(config.layer).to(target.device)
    return DFlashHead(network, target, ids)
