"""DFlash (arXiv 2602.06036): proposes all tokens of a block at once, from states of the target.

A block is the last token followed by mask tokens. Its positions attend to each other and to the
sequence before. The keys and values of the sequence are made of the target's hidden states at
several layers, and each layer of the network uses the same ones. The output at a mask goes through
the target's own LM head, or through one of a smaller vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import rotate_half

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.layers import layer, layer_config, norm, rotary, run_layer, target_ids
from ngtcli.heads.rows import AttentionSpan, HeadPass

_BLOCK_SIZE = 16  # tokens of a block unless config.json says it; that of published heads
# Fields of config.json that variants with other formulas have: DFlash 2, DSpark, norms before
# `fc`, and blocks that propose a token at their first position, too.
_UNSUPPORTED = (
    "selector_rank",
    "conv_kernel_size",
    "markov_rank",
    "fc_layernorm",
    "sample_from_anchor",
)


class DFlash(nn.Module):
    """The network of DFlash, with the parameter names of published files.

    Args:
        target: The target model.
        fields: config.json. `target_layer_ids` (the authors' files) are layers whose outputs are
            read, `aux_hidden_state_layer_ids` (the speculators library) layers whose inputs are.

    Attributes:
        block: Tokens of a block; all but the first are masks.
        mask: Id of the mask token.
        size: The network's hidden size.
        tokens: Size of the target's vocabulary that config.json names.

    Raises:
        ValueError: Something in `fields` is not supported.
    """

    ids: Tensor | None = None

    def __init__(self, target: Target, fields: Mapping[str, Any]) -> None:
        super().__init__()
        layer_fields = dict(fields.get("transformer_layer_config") or fields)
        values = {**layer_fields, **fields, **(fields.get("dflash_config") or {})}
        for name in _UNSUPPORTED:
            if values.get(name):
                raise ValueError(name)
        projector = values.get("projector_type", "dflash")
        if projector != "dflash":
            raise ValueError(f"projector_type {projector}")

        config = layer_config(layer_fields)
        self.target = target
        self.target_layers = layers_read(values, target.layers)
        self.block = int(values.get("block_size") or _BLOCK_SIZE)
        self.depth = self.block - 1
        self.mask = int(values["mask_token_id"])
        self.attention_spans = tuple(_attention_spans(values, config))
        self._embedding_scale = float(values.get("input_embedding_scale") or 1.0)
        self._logit_scale = float(values.get("output_multiplier") or 1.0)
        self._logit_cap = float(values.get("final_logit_softcapping") or 0.0)  # 0: no cap
        self.size = int(config.hidden_size)
        self.tokens = int(config.vocab_size)

        self.fc = nn.Linear(len(self.target_layers) * self.size, self.size, bias=False)
        self.hidden_norm = norm(self.size, config)
        self.norm = norm(self.size, config)
        self.layers = nn.ModuleList(layer(config, n) for n in range(config.num_hidden_layers))
        self.rotary = rotary(config, target)
        draft_vocab_size = int(values.get("draft_vocab_size") or self.tokens)
        self.lm_head = None
        if draft_vocab_size != self.tokens:
            self.lm_head = nn.Linear(self.size, draft_vocab_size, bias=False)

    def cache_sequence(self, states: Tensor, head_pass: HeadPass) -> None:
        """Cache the keys and values of positions of the sequence.

        Args:
            states: Hidden states of the target, (batch, rows, len(target_layers) * hidden size).
            head_pass: Their positions and the cache.
        """
        rows = self.hidden_norm(self.fc(states))
        rotation = self.rotary(rows, head_pass.positions[None])
        for decoder_layer in self.layers:
            _cache_keys_and_values(decoder_layer.self_attn, rows, rotation, head_pass)

    def run_blocks(self, tokens: Tensor, head_pass: HeadPass) -> Tensor:
        """Return the output, (1, rows, hidden size), for the tokens (rows,) of blocks."""
        rows = self.target.embed(tokens, scaled=False)[None] * self._embedding_scale
        rotation = self.rotary(rows, head_pass.positions[None])
        for decoder_layer in self.layers:
            rows = run_layer(decoder_layer, rows, rotation, head_pass)
        normed: Tensor = self.norm(rows)
        return normed

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits (…, vocab_size) of outputs (…, hidden size)."""
        lm_head = self.lm_head or self.target.logits
        logits: Tensor = lm_head(rows) * self._logit_scale
        if not self._logit_cap:
            return logits
        return (logits / self._logit_cap).tanh() * self._logit_cap

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        self.cache_sequence(states[None], head_pass)
        return head_pass.last_of(states)

    def propose(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        masks = root.new_full((self.depth,), self.mask)
        outputs = self.run_blocks(torch.cat([root, masks]), block(self.block))
        return self.logits(outputs[0, 1:])


def _cache_keys_and_values(
    attention: Any, rows: Tensor, rotation: tuple[Tensor, Tensor], head_pass: HeadPass
) -> None:
    """Cache an attention's keys and values of rows (batch, rows, hidden size)."""
    heads_shape = (*rows.shape[:-1], -1, attention.head_dim)
    keys = attention.k_proj(rows).view(heads_shape)
    values = attention.v_proj(rows).view(heads_shape)
    if hasattr(attention, "k_norm"):
        keys = attention.k_norm(keys)
    keys = keys.transpose(1, 2)
    cosines, sines = rotation
    rotated = keys * cosines[:, None] + rotate_half(keys) * sines[:, None]
    head_pass.cache.update(rotated, values.transpose(1, 2), attention.layer_idx)


def layers_read(values: Mapping[str, Any], depth: int) -> tuple[int, ...]:
    """Return the hidden states that are read of a target of `depth` layers.

    They are numbered as by transformers: i enters layer i, -1 leaves the last norm. Raises
    ValueError for layers that the target does not have.
    """
    layers = values.get("aux_hidden_state_layer_ids")
    if layers is None:
        layers = [layer + 1 for layer in values["target_layer_ids"]]
    trained_depth = int(values.get("num_target_layers") or depth)
    if trained_depth != depth or not all(0 <= layer <= depth for layer in layers):
        numbers = ", ".join(map(str, layers))
        raise ValueError(f"a model of {trained_depth} layers, states at {numbers}")
    return tuple(-1 if layer == depth else layer for layer in layers)


def _attention_spans(
    values: Mapping[str, Any], config: PreTrainedConfig
) -> Iterator[AttentionSpan]:
    """Yield what each layer sees: one with a window is causal unless config.json says otherwise."""
    causal = values.get("is_causal")
    if causal is None and values.get("sliding_window_non_causal"):
        causal = False
    layer_types = getattr(config, "layer_types", None)
    if not layer_types:
        layer_types = ["full_attention"] * config.num_hidden_layers
    for layer_type in layer_types:
        slides = layer_type == "sliding_attention"
        window = config.sliding_window if slides else None
        yield AttentionSpan(window, slides if causal is None else bool(causal))


def network(files: HeadFiles, target: Target) -> DFlash:
    """Build the network of these files. Raises ModelError for those of another target."""
    dflash = DFlash(target, files.fields)
    files.check(target, dflash.size, dflash.tokens)
    if not 0 <= dflash.mask < target.vocab_size:
        raise files.refused(f"the model has no token {dflash.mask}, its mask_token_id")
    if dflash.lm_head is not None:
        dflash.ids = target_ids(files, target, dflash.lm_head.out_features)
    else:
        files.stored.pop("lm_head.weight", None)  # a copy of the target's
    return dflash
