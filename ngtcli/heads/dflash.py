"""DFlash (arXiv 2602.06036): all tokens of a block at once, from states of the target.

The block is the last token and masks behind it. Its rows attend to each other and to the text,
whose keys and values are made of hidden states at several layers of the target; these enter the
attention of each layer as they are. What leaves the network at a mask goes to the target's own
scores, or to those of a smaller vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import rotate_half

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.layers import layer, layer_config, norm, own_ids, rotary, through
from ngtcli.heads.rows import HeadPass, Sight

_BLOCK = 16  # tokens of a block where the configuration names none; that of published heads
# What config.json says of variants that have other formulas: DFlash 2, DSpark, norms before `fc`,
# and blocks that guess at the last token, too.
_OTHER = ("selector_rank", "conv_kernel_size", "markov_rank", "fc_layernorm", "sample_from_anchor")


class DFlash(nn.Module):
    """The network; its state is that of a published file without its vocabulary.

    `fields` are those of config.json: `target_layer_ids` of the authors' form are layers whose
    outputs are read, `aux_hidden_state_layer_ids` of the speculators form those whose inputs are.
    Raises ValueError for what is not supported.
    """

    ids: Tensor | None = None

    def __init__(self, target: Target, fields: Mapping[str, Any]) -> None:
        super().__init__()
        own = dict(fields.get("transformer_layer_config") or fields)
        values = {**own, **fields, **(fields.get("dflash_config") or {})}
        other = [name for name in _OTHER if values.get(name)]
        if other or values.get("projector_type", "dflash") != "dflash":
            raise ValueError(other[0] if other else f"projector_type {values['projector_type']}")
        self.target, self.reads = target, layers_read(values, target.layers)
        config = layer_config(own)
        self.block = int(values.get("block_size") or _BLOCK)  # tokens, all but the first masks
        self.depth, self.mask = self.block - 1, int(values["mask_token_id"])
        self.sights = tuple(_sights(values, config))
        self._scale = float(values.get("input_embedding_scale") or 1.0)  # of embeddings
        self._multiplier = float(values.get("output_multiplier") or 1.0)  # of scores
        self._cap = float(values.get("final_logit_softcapping") or 0.0)  # of their size; 0: none
        self.size, self.tokens = int(config.hidden_size), int(config.vocab_size)
        self.fc = nn.Linear(len(self.reads) * self.size, self.size, bias=False)
        self.hidden_norm, self.norm = norm(self.size, config), norm(self.size, config)
        self.layers = nn.ModuleList(layer(config, n) for n in range(config.num_hidden_layers))
        self.rotary = rotary(config, target)
        draft = int(values.get("draft_vocab_size") or self.tokens)
        self.lm_head = None
        if draft != self.tokens:
            self.lm_head = nn.Linear(self.size, draft, bias=False)

    def remember(self, states: Tensor, head_pass: HeadPass) -> None:
        """Keep the keys and values of rows (batch, rows, layers x hidden size) of the text."""
        rows = self.hidden_norm(self.fc(states))
        rotation = self.rotary(rows, head_pass.positions[None])
        for one in self.layers:
            _remember(one.self_attn, rows, rotation, head_pass)

    def through(self, tokens: Tensor, head_pass: HeadPass) -> Tensor:
        """What leaves the network, (1, rows, hidden size), for tokens (rows,) of blocks."""
        rows = self.target.embed(tokens, scaled=False)[None] * self._scale
        rotation = self.rotary(rows, head_pass.positions[None])
        for one in self.layers:
            rows = through(one, rows, rotation, head_pass)
        out: Tensor = self.norm(rows)
        return out

    def scores(self, rows: Tensor) -> Tensor:
        """Scores (…, vocabulary) of what left the network."""
        found: Tensor = (self.lm_head or self.target.score)(rows) * self._multiplier
        return (found / self._cap).tanh() * self._cap if self._cap else found

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        self.remember(states[None], head_pass)
        return head_pass.last_of(states)

    def guess(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        tokens = torch.cat([root, root.new_full((self.depth,), self.mask)])
        return self.scores(self.through(tokens, block(self.block))[0, 1:])


def _remember(
    attention: Any, rows: Tensor, rotation: tuple[Tensor, Tensor], head_pass: HeadPass
) -> None:
    """Keep the keys and values of rows (batch, rows, hidden size)."""
    keys, values = (
        project(rows).view(*rows.shape[:-1], -1, attention.head_dim)
        for project in (attention.k_proj, attention.v_proj)
    )
    keys = attention.k_norm(keys) if hasattr(attention, "k_norm") else keys
    keys, (cosines, sines) = keys.transpose(1, 2), rotation
    turned = keys * cosines[:, None] + rotate_half(keys) * sines[:, None]
    head_pass.cache.update(turned, values.transpose(1, 2), attention.layer_idx)


def layers_read(values: Mapping[str, Any], depth: int) -> tuple[int, ...]:
    """The states that are read, numbered as transformers does. Raises ValueError."""
    layers = values.get("aux_hidden_state_layer_ids")
    if layers is None:
        layers = [layer + 1 for layer in values["target_layer_ids"]]
    told = int(values.get("num_target_layers") or depth)
    if told != depth or not all(0 <= layer <= depth for layer in layers):
        raise ValueError(f"a model of {told} layers, states at {', '.join(map(str, layers))}")
    return tuple(-1 if layer == depth else layer for layer in layers)


def _sights(values: Mapping[str, Any], layer: PreTrainedConfig) -> Iterator[Sight]:
    """What each layer sees: one with a window is causal, unless it is said otherwise."""
    causal = values.get("is_causal")
    if causal is None and values.get("sliding_window_non_causal"):
        causal = False
    for kind in getattr(layer, "layer_types", None) or layer.num_hidden_layers * ["full_attention"]:
        slides = kind == "sliding_attention"
        yield Sight(
            layer.sliding_window if slides else None, slides if causal is None else bool(causal)
        )


def network(files: HeadFiles, target: Target) -> DFlash:
    """The network of these files. Raises ModelError for those of another target."""
    made = DFlash(target, files.fields)
    files.check(target, made.size, made.tokens)
    if not 0 <= made.mask < target.vocabulary:
        raise files.refused(f"the model has no token {made.mask}, its mask_token_id")
    if made.lm_head is not None:
        made.ids = own_ids(files, target, made.lm_head.out_features)
    else:
        files.stored.pop("lm_head.weight", None)  # the target's
    return made
