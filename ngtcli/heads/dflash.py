"""DFlash (arXiv 2602.06036): all tokens of a block at once, from states of the target.

The block is the last token and masks behind it. Its rows attend to each other and to the text,
whose keys and values are made of hidden states at several layers of the target; these enter the
attention of each layer as they are. What leaves the network at a mask goes to the target's own
scores, or to those of a smaller vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.layers import HeadLayer, configured, layer_config, norm, own_ids, rotary
from ngtcli.heads.rows import DraftRows, HeadPass, Sight

_BLOCK = 16  # tokens of a block where the configuration names none; that of published heads
# What config.json says of variants that have other formulas: DFlash 2, DSpark, norms before `fc`,
# and blocks that guess at the last token, too.
_OTHER = ("selector_rank", "conv_kernel_size", "markov_rank", "fc_layernorm", "sample_from_anchor")


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """What a head is made of.

    `layer` is that of its transformer layers, `sights` what they see. `layers` are the states that
    it reads, numbered as transformers does. A block has `block` tokens, all but the first of them
    `mask`. Its own vocabulary has `vocabulary` tokens; None: it has the target's. Embeddings are
    multiplied by `scale`, scores by `multiplier`, and then they are capped at `cap` in size, None:
    not.
    """

    layer: PreTrainedConfig
    layers: tuple[int, ...]
    block: int
    mask: int
    sights: tuple[Sight, ...]
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
    if other or values.get("projector_type", "dflash") != "dflash":
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
        sights=tuple(
            Sight(layer.sliding_window if slid else None, slid if causal is None else bool(causal))
            for slid in slides
        ),
        vocabulary=int(draft) if draft and draft != layer.vocab_size else None,
        scale=float(values.get("input_embedding_scale") or 1.0),
        multiplier=float(values.get("output_multiplier") or 1.0),
        cap=float(cap) if cap else None,
    )


class DFlash(nn.Module):
    """The network; its state is that of a published file without its vocabulary."""

    ids: Tensor | None = None

    def __init__(self, target: Target, config: DFlashConfig) -> None:
        super().__init__()
        self.target, self.config, layer = target, config, config.layer
        self.reads, self.sights, self.depth = config.layers, config.sights, config.block - 1
        size = layer.hidden_size
        self.fc = nn.Linear(len(config.layers) * size, size, bias=False)
        self.hidden_norm, self.norm = norm(size, layer), norm(size, layer)
        self._stack = [HeadLayer(layer, n) for n in range(layer.num_hidden_layers)]
        self.layers = nn.ModuleList(self._stack)
        self.rotary = rotary(layer, target)
        own = config.vocabulary
        self.lm_head = None if own is None else nn.Linear(size, own, bias=False)

    def remember(self, states: Tensor, given: HeadPass) -> None:
        """Keep the keys and values of rows (batch, rows, layers x hidden size) of the text."""
        rows = self.hidden_norm(self.fc(states))
        rotation = self.rotary(rows, given.positions[None])
        for layer in self._stack:
            layer.self_attn.remember(rows, rotation, given)

    def through(self, tokens: Tensor, given: HeadPass) -> Tensor:
        """What leaves the network, (1, rows, hidden size), for tokens (rows,) of blocks."""
        rows = self.target.embed(tokens, scaled=False)[None] * self.config.scale
        rotation = self.rotary(rows, given.positions[None])
        for layer in self._stack:
            rows = layer(rows, rotation, given)
        out: Tensor = self.norm(rows)
        return out

    def scores(self, rows: Tensor) -> Tensor:
        """Scores (…, vocabulary) of what left the network."""
        found: Tensor = (self.lm_head or self.target.score)(rows) * self.config.multiplier
        cap = self.config.cap
        return found if cap is None else (found / cap).tanh() * cap

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        """As Network.read."""
        self.remember(states[None], given)
        return states[-1:]

    def guess(self, last: Tensor, root: int, rows: DraftRows) -> Tensor:
        """As AtOnceNetwork.guess: one for each mask."""
        tokens = torch.tensor([root] + self.depth * [self.config.mask], device=last.device)
        return self.scores(self.through(tokens, rows.block(len(tokens)))[0, 1:])


def marks(files: HeadFiles) -> bool:
    """Whether the tensors are those of DFlash: one that fuses states, and one that norms them."""
    return {"fc.weight", "hidden_norm.weight", "layers.0.mlp.up_proj.weight"} <= set(files.shapes)


def network(files: HeadFiles, target: Target) -> DFlash:
    """The network of these files. Raises ModelError for those of another target."""
    config = configured(files, target, read_config)
    files.check_width(config.layer.hidden_size, target)
    files.check_vocabulary(config.layer.vocab_size, target)
    if not 0 <= config.mask < target.vocabulary:
        raise files.refused(f"the model has no token {config.mask}, its mask_token_id")
    made = DFlash(target, config)
    if config.vocabulary is not None:
        made.ids = own_ids(files, target, config.vocabulary)
    return made
