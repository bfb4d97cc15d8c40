"""EAGLE, EAGLE-2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840).

A row of the text stands for states of the target there and for the token that follows. A layer
makes of it the state of the next row, which scores the token after that one, and which stands for
the states where the text goes on with a guess (EAGLE-3, section 3.1). The first two read what
leaves the target's last norm and differ in the trees that they draft alone; EAGLE-3 reads states at
three layers, and has last layers and mostly a vocabulary of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ngtcli.heads.files import DAMAGED, HeadFiles, Target
from ngtcli.heads.layers import HeadLayer, Rotation, layer_config, norm, own_ids, rotary
from ngtcli.heads.rows import Depths, HeadPass, Sight

# Rows that a row attends to at most: the positions that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # tokens; that of the trees that the authors' program drafts


class _Network(nn.Module):
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
        """What leaves the layer: states of the next depth.

        `states` are fused or of the depth before, `embedded` the embeddings of the tokens that
        follow; all are (batch, rows, hidden size).
        """
        raise NotImplementedError

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        return given.last_of(self.step(self.fuse(states), following, (), given))

    def step(self, states: Tensor, tokens: Tensor, depths: Depths, given: HeadPass) -> Tensor:
        embedded = (self.embed_tokens or self.target.embed)(tokens).to(states.dtype)
        return self.layered(states[None], embedded[None], given)[0]


class Eagle(_Network):
    """The network of EAGLE and EAGLE-2; its state is that of a published file."""

    def __init__(self, target: Target, layer: PreTrainedConfig, bias: bool, embeds: bool) -> None:
        super().__init__(target, layer, (-1,), embeds)
        self.fc = nn.Linear(2 * layer.hidden_size, layer.hidden_size, bias=bias)
        self.layers = nn.ModuleList([HeadLayer(layer, normed=False)])

    def layered(self, states: Tensor, embedded: Tensor, given: HeadPass) -> Tensor:
        rows = self.fc(torch.cat([embedded, states], -1))
        out: Tensor = self.layers[0](rows, self.rotary(rows, given.positions[None]), given)
        return out

    def scores(self, states: Tensor, depths: Depths = ()) -> Tensor:
        return self.target.score(states)


class _Eagle3Layer(HeadLayer):
    """A layer whose attention reads an embedding beside the state."""

    def __init__(self, config: PreTrainedConfig, norm_residual: bool) -> None:
        super().__init__(config, inputs=2)
        self.hidden_norm, self._norm_residual = norm(config.hidden_size, config), norm_residual

    def beside(
        self, states: Tensor, embedded: Tensor, rotation: Rotation, given: HeadPass
    ) -> Tensor:
        """(batch, rows, hidden size), as are `states` and `embedded`."""
        normed = self.hidden_norm(states)
        rows = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = normed if self._norm_residual else states
        return self.perceived(residual + self.self_attn(rows, rotation, given))


class Eagle3(_Network):
    """The network of EAGLE-3; its state is that of a published file without its vocabulary.

    `fields` are those of config.json. `norm_before_residual`: the normed states, not the states,
    are added to what attention gives; `norm_before_fc`: there is a norm before `fc`. Raises
    ValueError for what is not supported.
    """

    def __init__(self, target: Target, fields: Mapping[str, Any], embeds: bool = False) -> None:
        own = fields.get("transformer_layer_config") or fields
        layer, reads = layer_config(own, most=1), layers_read(fields, target.layers)
        super().__init__(target, layer, reads, embeds)
        size = int(layer.hidden_size)
        width = fields.get("target_hidden_size") or own.get("target_hidden_size")
        self.width, self.size, self.tokens = int(width or size), size, int(layer.vocab_size)
        states = len(reads) * self.width
        has_norm = bool(fields.get("norm_before_fc"))
        self.input_norm = norm(states, layer) if has_norm else nn.Identity()
        self.fc = nn.Linear(states, size, bias=False)
        self.midlayer = _Eagle3Layer(layer, bool(fields.get("norm_before_residual")))
        self.norm = norm(size, layer)
        self.lm_head = nn.Linear(size, int(fields.get("draft_vocab_size") or self.tokens), False)

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def layered(self, states: Tensor, embedded: Tensor, given: HeadPass) -> Tensor:
        rotation = self.rotary(states, given.positions[None])
        return self.midlayer.beside(states, embedded, rotation, given)

    def scores(self, states: Tensor, depths: Depths = ()) -> Tensor:
        found: Tensor = self.lm_head(self.norm(states))
        return found


def layers_read(fields: Mapping[str, Any], depth: int) -> tuple[int, ...]:
    """The states that EAGLE-3 reads by a config.json, of a target of `depth` layers.

    In the speculators form `eagle_aux_hidden_state_layer_ids` are layers whose inputs are read; in
    `eagle_config` of the other form they are layers whose outputs are. Without them the inputs of
    layers 2, `depth` // 2 and `depth` - 3 are read. Raises ValueError for what is not supported.
    """
    nested = fields.get("eagle_config") or {}
    layers = fields.get("eagle_aux_hidden_state_layer_ids")
    if layers is None and nested.get("eagle_aux_hidden_state_layer_ids"):
        layers = [layer + 1 for layer in nested["eagle_aux_hidden_state_layer_ids"]]
    layers = tuple(layers or (2, depth // 2, depth - 3))
    if not all(0 <= layer < depth for layer in layers):
        raise ValueError(f"states at layers {', '.join(map(str, layers))} of {depth}")
    if nested.get("use_aux_hidden_state") is False:
        raise ValueError("use_aux_hidden_state")
    return layers


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
    layer = layer_config(files.fields, most=1)
    files.check(target, layer.hidden_size, layer.vocab_size)
    return Eagle(target, layer, "fc.bias" in files.stored, "embed_tokens.weight" in files.stored)


def network3(files: HeadFiles, target: Target) -> Eagle3:
    """That of EAGLE-3's files. Raises ModelError for those of another target."""
    embeds = "embed_tokens.weight" in files.stored
    made = Eagle3(target, files.fields, embeds)
    files.check(target, made.width, made.tokens)
    if not embeds and made.size != target.width:
        raise files.refused("its file has no embed_tokens.weight", DAMAGED)
    made.ids = own_ids(files, target, made.lm_head.out_features)
    return made
