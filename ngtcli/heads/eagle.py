"""EAGLE, EAGLE-2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840).

At each position of the sequence the network reads states of the target there and the token that
follows. From these a layer makes the state of the next position, which gives the logits of the
token after that one. If the sequence continues with draft tokens, this state takes the place of
the target's (EAGLE-3, section 3.1). EAGLE and EAGLE-2 read the output of the target's last norm
and differ only in the trees that they draft. EAGLE-3 reads states at three layers, and has an LM
head and mostly a vocabulary of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ngtcli.heads.files import DAMAGED, HeadFiles, Target
from ngtcli.heads.layers import layer, layer_config, norm, rotary, run_layer, target_ids
from ngtcli.heads.rows import AttentionSpan, HeadPass

# Positions that a position attends to: those that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # draft tokens in a row; that of the trees that the authors' program drafts


class Eagle(nn.Module):
    """The network of EAGLE and EAGLE-2, with the parameter names of published files.

    Args:
        target: The target model.
        config: Configuration of its layer.
        embeds: Whether it has embeddings of its own, or uses the target's.
        bias: Whether `fc` has a bias.
    """

    depth = DEPTH
    target_layers: tuple[int, ...] = (-1,)
    ids: Tensor | None = None

    def __init__(
        self, target: Target, config: PreTrainedConfig, embeds: bool, bias: bool = False
    ) -> None:
        super().__init__()
        self.target = target
        self.size = int(config.hidden_size)
        self.tokens = int(config.vocab_size)
        self.attention_spans = (AttentionSpan(min(WINDOW, int(config.max_position_embeddings))),)
        self.rotary = rotary(config, target)
        self.embed_tokens = nn.Embedding(self.tokens, self.size) if embeds else None
        self._build(config, bias)

    def _build(self, config: PreTrainedConfig, bias: bool) -> None:
        self.fc = nn.Linear(2 * self.size, self.size, bias=bias)
        self.layers = nn.ModuleList([layer(config)])
        self.layers[0].input_layernorm = nn.Identity()

    def fuse(self, states: Tensor) -> Tensor:
        """Combine the states of the target's layers.

        Args:
            states: (…, len(target_layers) * hidden size of the target).

        Returns:
            (…, hidden size of the head).
        """
        return states

    def next_states(self, states: Tensor, embedded: Tensor, head_pass: HeadPass) -> Tensor:
        """Compute the states of the next positions. All tensors are (batch, rows, hidden size).

        Args:
            states: The target's states, fused, or the states of the depth before.
            embedded: Embeddings of the tokens that follow them.
            head_pass: Positions, mask and cache of these rows.
        """
        rows = self.fc(torch.cat([embedded, states], -1))
        rotation = self.rotary(rows, head_pass.positions[None])
        return run_layer(self.layers[0], rows, rotation, head_pass)

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(self.step(self.fuse(states), following, 0, head_pass))

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        embed = self.embed_tokens or self.target.embed
        embedded = embed(tokens).to(states.dtype)
        return self.next_states(states[None], embedded[None], head_pass)[0]

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return self.target.logits(states)


class Eagle3(Eagle):
    """The network of EAGLE-3, with the parameter names of published files.

    Args:
        target: The target model.
        fields: config.json. With `norm_before_residual` the normed states, not the states, are
            added to what the attention returns; with `norm_before_fc` there is a norm before `fc`.
        embeds: Whether it has embeddings of its own, or uses the target's.

    Raises:
        ValueError: Something in `fields` is not supported.
    """

    def __init__(self, target: Target, fields: Mapping[str, Any], embeds: bool = False) -> None:
        layer_fields = fields.get("transformer_layer_config") or fields
        config = layer_config(layer_fields, max_layers=1)
        width = fields.get("target_hidden_size") or layer_fields.get("target_hidden_size")
        self.target_layers = layers_read(fields, target.layers)
        self.width = int(width or config.hidden_size)  # the target's hidden size
        self._fields = fields
        super().__init__(target, config, embeds)

    def _build(self, config: PreTrainedConfig, bias: bool) -> None:
        width = len(self.target_layers) * self.width
        has_norm = bool(self._fields.get("norm_before_fc"))
        self.input_norm = norm(width, config) if has_norm else nn.Identity()
        self.fc = nn.Linear(width, self.size, bias=False)
        self.midlayer = layer(config, inputs=2)  # reads an embedding and a state, concatenated
        self.midlayer.hidden_norm = norm(self.size, config)
        self.norm = norm(self.size, config)
        draft_vocab_size = int(self._fields.get("draft_vocab_size") or self.tokens)
        self.lm_head = nn.Linear(self.size, draft_vocab_size, bias=False)

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(self.input_norm(states))
        return fused

    def next_states(self, states: Tensor, embedded: Tensor, head_pass: HeadPass) -> Tensor:
        midlayer = self.midlayer
        rotation = self.rotary(states, head_pass.positions[None])
        normed = midlayer.hidden_norm(states)
        inputs = torch.cat([midlayer.input_layernorm(embedded), normed], -1)
        residual = normed if self._fields.get("norm_before_residual") else states
        rows = residual + run_layer(midlayer.self_attn, inputs, rotation, head_pass)
        outputs: Tensor = rows + midlayer.mlp(midlayer.post_attention_layernorm(rows))
        return outputs

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


def layers_read(fields: Mapping[str, Any], depth: int) -> tuple[int, ...]:
    """Return the layers of a target of `depth` layers whose inputs EAGLE-3 reads.

    In config.json of the speculators library, `eagle_aux_hidden_state_layer_ids` are layers whose
    inputs are read; inside `eagle_config` they are layers whose outputs are read. Without them the
    inputs of layers 2, depth // 2 and depth - 3 are read.

    Raises:
        ValueError: The target does not have these layers, or no such states are used.
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
    """Build the network of EAGLE's files. Raises ModelError for those of another target."""
    config = layer_config(files.fields, max_layers=1)
    files.check(target, config.hidden_size, config.vocab_size)
    embeds = "embed_tokens.weight" in files.stored
    return Eagle(target, config, embeds, bias="fc.bias" in files.stored)


def network3(files: HeadFiles, target: Target) -> Eagle3:
    """Build the network of EAGLE-3's files. Raises ModelError for those of another target."""
    embeds = "embed_tokens.weight" in files.stored
    eagle3 = Eagle3(target, files.fields, embeds)
    files.check(target, eagle3.width, eagle3.tokens)
    if not embeds and eagle3.size != target.width:
        raise files.refused("its file has no embed_tokens.weight", DAMAGED)
    eagle3.ids = target_ids(files, target, eagle3.lm_head.out_features)
    return eagle3
