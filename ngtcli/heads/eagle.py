"""EAGLE, EAGLE-2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840).

A row of the text stands for states of the target there and for the token that follows. A layer
makes of it the state of the next row, which scores the token after that one, and which stands for
the states where the text goes on with a guess (EAGLE-3, section 3.1). The first two read what
leaves the target's last norm and differ in the trees that they draft alone; EAGLE-3 reads states at
three layers, and has last layers and mostly a vocabulary of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ngtcli.heads.files import DAMAGED, HeadFiles, Target
from ngtcli.heads.layers import (
    HeadAttention,
    HeadLayer,
    configured,
    layer_config,
    norm,
    own_ids,
    perceptron,
    rotary,
)
from ngtcli.heads.rows import HeadPass, Sight

# Rows that a row attends to at most: the positions that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # tokens; that of the trees that the authors' program drafts


class _EagleNetwork(nn.Module):
    """What both have; `embeds`: it has embeddings of its own."""

    depth = DEPTH
    ids: Tensor | None = None

    def __init__(
        self, target: Target, layer: PreTrainedConfig, reads: tuple[int, ...], embeds: bool
    ) -> None:
        super().__init__()
        self.target, self.reads = target, reads
        self.sights = (Sight(min(WINDOW, int(layer.max_position_embeddings))),)
        self.rotary = rotary(layer, target)
        self.embed_tokens = nn.Embedding(layer.vocab_size, layer.hidden_size) if embeds else None

    def fuse(self, states: Tensor) -> Tensor:
        """(…, hidden size) of the target's states (…, reads x width)."""
        return states

    def layered(self, states: Tensor, embedded: Tensor, given: HeadPass) -> Tensor:
        """What leaves the layer, (batch, rows, hidden size): states of the next depth.

        `states` are fused or of the depth before, `embedded` the embeddings of the tokens that
        follow, both of that shape.
        """
        raise NotImplementedError

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        """As Network.read."""
        return self.step(self.fuse(states), following, (), given)[-1:]

    def step(
        self, states: Tensor, tokens: Tensor, depths: Sequence[int], given: HeadPass
    ) -> Tensor:
        """As ByPathNetwork.step."""
        embedded = (self.embed_tokens or self.target.embed)(tokens).to(states.dtype)
        return self.layered(states[None], embedded[None], given)[0]


class Eagle(_EagleNetwork):
    """The network of EAGLE and EAGLE-2; its state is that of a published file."""

    def __init__(self, target: Target, layer: PreTrainedConfig, bias: bool, embeds: bool) -> None:
        super().__init__(target, layer, (-1,), embeds)
        self.fc = nn.Linear(2 * layer.hidden_size, layer.hidden_size, bias=bias)
        self.layers = nn.ModuleList([HeadLayer(layer, normed=False)])

    def layered(self, states: Tensor, embedded: Tensor, given: HeadPass) -> Tensor:
        rows = self.fc(torch.cat([embedded, states], -1))
        out: Tensor = self.layers[0](rows, self.rotary(states, given.positions[None]), given)
        return out

    def scores(self, states: Tensor, depths: Sequence[int] = ()) -> Tensor:
        """As ByPathNetwork.scores: the target's own."""
        return self.target.score(states)


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
    layer = layer_config(own, most=1)
    width = fields.get("target_hidden_size") or own.get("target_hidden_size")
    return Eagle3Config(
        layer=layer,
        layers=layers,
        width=int(width or layer.hidden_size),
        vocabulary=int(fields.get("draft_vocab_size") or layer.vocab_size),
        norm_residual=bool(fields.get("norm_before_residual")),
        norm_states=bool(fields.get("norm_before_fc")),
    )


class _Eagle3Layer(nn.Module):
    """A layer of llama or qwen3 whose attention reads an embedding beside the state."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer, size = config.layer, config.layer.hidden_size
        self.self_attn = HeadAttention(layer, 2 * size)
        self.mlp = perceptron(layer)
        self.input_layernorm, self.hidden_norm = norm(size, layer), norm(size, layer)
        self.post_attention_layernorm = norm(size, layer)
        self._norm_residual = config.norm_residual

    def forward(self, states: Tensor, embedded: Tensor, rotation: Any, given: HeadPass) -> Tensor:
        """(batch, rows, hidden size), as are `states` and `embedded`."""
        normed = self.hidden_norm(states)
        rows = torch.cat([self.input_layernorm(embedded), normed], -1)
        out = (normed if self._norm_residual else states) + self.self_attn(rows, rotation, given)
        return torch.add(out, self.mlp(self.post_attention_layernorm(out)))


class Eagle3(_EagleNetwork):
    """The network of EAGLE-3; its state is that of a published file without its vocabulary."""

    def __init__(self, target: Target, config: Eagle3Config, embeds: bool = False) -> None:
        super().__init__(target, config.layer, config.layers, embeds)
        size, states = config.layer.hidden_size, len(config.layers) * config.width
        self.input_norm = norm(states, config.layer) if config.norm_states else nn.Identity()
        self.fc = nn.Linear(states, size, bias=False)
        self.midlayer = _Eagle3Layer(config)
        self.norm = norm(size, config.layer)
        self.lm_head = nn.Linear(size, config.vocabulary, bias=False)

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def layered(self, states: Tensor, embedded: Tensor, given: HeadPass) -> Tensor:
        rotation = self.rotary(states, given.positions[None])
        out: Tensor = self.midlayer(states, embedded, rotation, given)
        return out

    def scores(self, states: Tensor, depths: Sequence[int] = ()) -> Tensor:
        """As ByPathNetwork.scores: those of its own vocabulary."""
        found: Tensor = self.lm_head(self.norm(states))
        return found


def marks(files: HeadFiles) -> bool:
    """Whether the tensors are those of EAGLE: one layer that norms nothing before attention."""
    names = {"fc.weight", "layers.0.self_attn.q_proj.weight"}
    return names <= files.shapes.keys() and "layers.0.input_layernorm.weight" not in files.shapes


def marks3(files: HeadFiles) -> bool:
    """Whether the tensors are those of EAGLE-3 in either form."""
    names = {"midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"}
    return "fc.weight" in files.shapes and bool(names & files.shapes.keys())


def network(files: HeadFiles, target: Target) -> Eagle:
    """That of EAGLE's files. Raises ModelError for those of another target."""
    layer = configured(files, target, lambda fields, depth: layer_config(fields, most=1))
    files.check_width(layer.hidden_size, target)
    files.check_vocabulary(layer.vocab_size, target)
    return Eagle(target, layer, "fc.bias" in files.stored, "embed_tokens.weight" in files.stored)


def network3(files: HeadFiles, target: Target) -> Eagle3:
    """That of EAGLE-3's files. Raises ModelError for those of another target."""
    config = configured(files, target, read_config)
    files.check_width(config.width, target)
    files.check_vocabulary(config.layer.vocab_size, target)
    embeds = "embed_tokens.weight" in files.stored
    if not embeds and config.layer.hidden_size != target.width:
        raise files.refused("its file has no embed_tokens.weight", DAMAGED)
    made = Eagle3(target, config, embeds)
    made.ids = own_ids(files, target, config.vocabulary)
    return made
