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
from ngtcli.heads.layers import layer, layer_config, norm, own_ids, rotary, through
from ngtcli.heads.rows import HeadPass, Sight

# Rows that a row attends to at most: the positions that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # tokens; that of the trees that the authors' program drafts


class Eagle(nn.Module):
    """The network of EAGLE and EAGLE-2; its state is that of a published file.

    `embeds`: it has embeddings of its own.
    """

    depth = DEPTH
    reads: tuple[int, ...] = (-1,)
    ids: Tensor | None = None

    def __init__(
        self, target: Target, config: PreTrainedConfig, embeds: bool, bias: bool = False
    ) -> None:
        super().__init__()
        size = int(config.hidden_size)
        self.target, self.size, self.tokens = target, size, int(config.vocab_size)
        self.sights = (Sight(min(WINDOW, int(config.max_position_embeddings))),)
        self.rotary = rotary(config, target)
        self.embed_tokens = nn.Embedding(self.tokens, size) if embeds else None
        self._build(config, bias)

    def _build(self, config: PreTrainedConfig, bias: bool) -> None:
        self.fc = nn.Linear(2 * self.size, self.size, bias=bias)
        self.layers = nn.ModuleList([layer(config)])
        self.layers[0].input_layernorm = nn.Identity()

    def fuse(self, states: Tensor) -> Tensor:
        """(…, hidden size) of the target's states (…, reads x width)."""
        return states

    def layered(self, states: Tensor, embedded: Tensor, head_pass: HeadPass) -> Tensor:
        """What leaves the layer: states of the next depth.

        `states` are fused or of the depth before, `embedded` the embeddings of the tokens that
        follow; all are (batch, rows, hidden size).
        """
        rows = self.fc(torch.cat([embedded, states], -1))
        return through(
            self.layers[0], rows, self.rotary(rows, head_pass.positions[None]), head_pass
        )

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(self.step(self.fuse(states), following, 0, head_pass))

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        embedded = (self.embed_tokens or self.target.embed)(tokens).to(states.dtype)
        return self.layered(states[None], embedded[None], head_pass)[0]

    def scores(self, states: Tensor, depth: int = 0) -> Tensor:
        return self.target.score(states)


class Eagle3(Eagle):
    """The network of EAGLE-3; its state is that of a published file without its vocabulary.

    `fields` are those of config.json. `norm_before_residual`: the normed states, not the states,
    are added to what attention gives; `norm_before_fc`: there is a norm before `fc`. Raises
    ValueError for what is not supported.
    """

    def __init__(self, target: Target, fields: Mapping[str, Any], embeds: bool = False) -> None:
        own = fields.get("transformer_layer_config") or fields
        config, self.reads = layer_config(own, max_layers=1), layers_read(fields, target.layers)
        width = fields.get("target_hidden_size") or own.get("target_hidden_size")
        self.width, self._fields = int(width or config.hidden_size), fields
        super().__init__(target, config, embeds)

    def _build(self, config: PreTrainedConfig, bias: bool) -> None:
        size, states, fields = self.size, len(self.reads) * self.width, self._fields
        has_norm = bool(fields.get("norm_before_fc"))
        self.input_norm = norm(states, config) if has_norm else nn.Identity()
        self.fc = nn.Linear(states, size, bias=False)
        self.midlayer = layer(config, inputs=2)  # it reads an embedding beside the state
        self.midlayer.hidden_norm = norm(size, config)
        self.norm = norm(size, config)
        self.lm_head = nn.Linear(size, int(fields.get("draft_vocab_size") or self.tokens), False)

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def layered(self, states: Tensor, embedded: Tensor, head_pass: HeadPass) -> Tensor:
        own, rotation = self.midlayer, self.rotary(states, head_pass.positions[None])
        normed = own.hidden_norm(states)
        rows = torch.cat([own.input_layernorm(embedded), normed], -1)
        residual = normed if self._fields.get("norm_before_residual") else states
        rows = residual + through(own.self_attn, rows, rotation, head_pass)
        out: Tensor = rows + own.mlp(own.post_attention_layernorm(rows))
        return out

    def scores(self, states: Tensor, depth: int = 0) -> Tensor:
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


def network(files: HeadFiles, target: Target) -> Eagle:
    """That of EAGLE's files. Raises ModelError for those of another target."""
    config = layer_config(files.fields, max_layers=1)
    files.check(target, config.hidden_size, config.vocab_size)
    return Eagle(target, config, "embed_tokens.weight" in files.stored, "fc.bias" in files.stored)


def network3(files: HeadFiles, target: Target) -> Eagle3:
    """That of EAGLE-3's files. Raises ModelError for those of another target."""
    embeds = "embed_tokens.weight" in files.stored
    made = Eagle3(target, files.fields, embeds)
    files.check(target, made.width, made.tokens)
    if not embeds and made.size != target.width:
        raise files.refused("its file has no embed_tokens.weight", DAMAGED)
    made.ids = own_ids(files, target, made.lm_head.out_features)
    return made
