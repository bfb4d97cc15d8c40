"""EAGLE-3 (arXiv 2503.01840): one layer over states of the target and its own outputs.

A row of the text stands for its hidden states at three layers of the target and for the token that
follows. What leaves the layer there scores the token after that one, and stands for the states
where the text goes on with a guess (section 3.1).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from ngtcli.heads.attention import (
    HeadAttention,
    Rotation,
    Rows,
    configured,
    layer_config,
    norm,
    own_ids,
    perceptron,
    rotary,
)
from ngtcli.heads.eagle import EagleHead, EagleNetwork, Scores
from ngtcli.heads.files import DAMAGED, HeadFiles, Target

KIND = "eagle3"


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
    layers 2, `depth` // 2 and `depth` - 3 are read. Raises ValueError for what is not supported.
    """
    own = fields.get("transformer_layer_config") or fields
    nested = fields.get("eagle_config") or {}
    layers = fields.get("eagle_aux_hidden_state_layer_ids")
    if layers is None and nested.get("eagle_aux_hidden_state_layer_ids"):
        layers = [layer + 1 for layer in nested["eagle_aux_hidden_state_layer_ids"]]
    layers = tuple(layers or (2, depth // 2, depth - 3))
    if not all(0 <= layer < depth for layer in layers):
        raise ValueError(f"states at layers {', '.join(map(str, layers))} of {depth}")
    if nested.get("use_aux_hidden_state") is False:
        raise ValueError("use_aux_hidden_state")
    layer = layer_config(dict(own))
    if layer.num_hidden_layers != 1:
        raise ValueError(f"{layer.num_hidden_layers} layers")
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


class Eagle3Network(EagleNetwork):
    """The network; its state is that of a published file.

    `d2t` says how far each token's id is from its place in the head's vocabulary, `t2d` which
    tokens of the target are in it. `embeds`: it has embeddings of its own.
    """

    def __init__(self, config: Eagle3Config, embeds: bool = False) -> None:
        super().__init__()
        self.config, size = config, config.layer.hidden_size
        self.reads, self.layer = config.layers, config.layer
        states = len(config.layers) * config.width
        self.input_norm = norm(states, config.layer) if config.norm_states else nn.Identity()
        self.fc = nn.Linear(states, size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = norm(size, config.layer)
        self.lm_head = nn.Linear(size, config.vocabulary, bias=False)
        self.rotary = rotary(config.layer)
        self.embed_tokens = nn.Embedding(config.layer.vocab_size, size) if embeds else None
        self.register_buffer("d2t", torch.zeros(config.vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.ones(config.layer.vocab_size, dtype=torch.bool))

    def fuse(self, states: Tensor) -> Tensor:
        """As EagleNetwork.fuse."""
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def step(
        self, states: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor, kept: Rows
    ) -> Tensor:
        """As EagleNetwork.step."""
        rotation = self.rotary(states, positions[None])
        out: Tensor = self.midlayer(states, embedded, rotation, mask, kept)
        return out

    def scores(self, states: Tensor, target: Scores | None = None) -> Tensor:
        """As EagleNetwork.scores: those of its own vocabulary."""
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


def recognise(files: HeadFiles) -> bool:
    """Whether the tensors are those of EAGLE-3 in either form."""
    names = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")
    return "fc.weight" in files.shapes and any(name in files.shapes for name in names)


def build(files: HeadFiles, target: Target) -> EagleHead:
    """The head of these files. Raises ModelError where they do not fill it or are not for it."""
    config = configured(files, target, read_config)
    files.check_width(config.width, target)
    files.check_vocabulary(config.layer.vocab_size, target)
    ids = own_ids(files, target, config.vocabulary)
    stored = {
        re.sub(r"^layers\.0\.", "midlayer.", name): name
        for name in files.shapes
        if name not in ("d2t", "t2d") and not name.startswith("verifier_")
    }
    embeds = "embed_tokens.weight" in stored
    if not embeds and config.layer.hidden_size != target.width:
        raise files.refused("its file has no embed_tokens.weight", DAMAGED)
    with torch.device("meta"):
        network = Eagle3Network(config, embeds)
    network.register_buffer("d2t", None)
    network.register_buffer("t2d", None)
    files.fill(network, target, stored)
    network.rotary = rotary(config.layer).to(target.device)
    return EagleHead(KIND, network, target, ids)
