"""Hydra (Ankner et al., 2024, sections 3 and 5): heads that know what was drafted before them.

Head i reads what leaves the model's last norm at a row and the target's embeddings of the i + 1
tokens after it, side by side, and guesses the next. Tensors: `hydra_mlp.{i}.{k}.linear.*`, residual
blocks, the first [H, (i + 2) H] with a `res_connection.*` of that size, and `hydra_lm_head.{i}.*`
[V, H]; where no head has the last one, all guess by the target's own, from which published training
starts. With `prefix_embedding_layer.*` (prefix-mlp, "Hydra++") one decoder layer of the target's
kind and a norm read the hidden states first. Numbers of layers that only drop values in training,
which published files count too, do not matter. config.json says with `hidden_state_offset` how many
layers before the end the hidden states are from (0), with `hydra_head_arch` what is not known here.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.layers import ResidualBlock
from ngtcli.heads.rows import Depths, HeadPass, Sight

_ARCHITECTURES = ("mlp", "prefix-mlp")


class Hydra(nn.Module):
    """The heads of a target, and a prefix layer or none. They read what enters `layer`.

    With `own_scores` they have last layers of their own, with a `bias` or without.
    """

    ids: Tensor | None = None

    def __init__(
        self,
        target: Target,
        depth: int,
        blocks: int = 1,
        own_scores: bool = True,
        bias: bool = True,
        prefix: nn.Module | None = None,
        layer: int = -1,
    ) -> None:
        super().__init__()
        self.target, self.depth, self.reads, width = target, depth, (layer,), target.width
        self.sights = () if prefix is None else (Sight(),)
        self.hydra_mlp = nn.ModuleList()
        self.hydra_lm_head = nn.ModuleList()
        for i in range(depth):
            others = [ResidualBlock(width) for _ in range(blocks - 1)]
            self.hydra_mlp.append(nn.Sequential(ResidualBlock(width, i + 1), *others))
            if own_scores:
                self.hydra_lm_head.append(nn.Linear(width, target.vocabulary, bias=bias))
        self.prefix_embedding_layer = prefix

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        # A state has that of the last row, and embeddings of all tokens behind it.
        if self.prefix_embedding_layer is not None:
            states = self.prefix_embedding_layer(
                inputs_embeds=states[None],
                attention_mask=given.mask(0),
                position_ids=given.positions[None],
                past_key_values=given.cache,
                use_cache=True,
            ).last_hidden_state[0]
        last = given.last_of(states)
        path = nn.functional.pad(last, (0, self.depth * self.target.width))
        return self.step(path, given.last_of(following), [0], given)

    def step(self, states: Tensor, tokens: Tensor, depths: Depths, given: HeadPass) -> Tensor:
        paths = states.view(len(states), -1, self.target.width).clone()
        embedded = self.target.embed(tokens)
        for depth, rows in _by_depth(depths):
            paths[rows, depth + 1] = embedded[rows]
        return paths.flatten(1)

    def scores(self, states: Tensor, depths: Depths) -> Tensor:
        found = [
            (rows, self.scores_at(depth, states[rows, : (depth + 2) * self.target.width]))
            for depth, rows in _by_depth(depths)
        ]
        if len(found) == 1:
            return found[0][1]
        whole = states.new_empty(len(states), self.target.vocabulary)
        for rows, scores in found:
            whole[rows] = scores
        return whole

    def scores_at(self, i: int, inputs: Tensor) -> Tensor:
        """The scores (n, vocabulary) of head i for inputs (n, (i + 2) * width)."""
        last = self.hydra_lm_head[i] if self.hydra_lm_head else self.target.score
        found: Tensor = last(self.hydra_mlp[i](inputs))
        return found


def _by_depth(depths: Depths) -> Iterator[tuple[int, slice | list[int]]]:
    """Each depth, and the nodes that have it."""
    for depth in (found := set(depths)):
        nodes = [node for node, own in enumerate(depths) if own == depth]
        yield depth, slice(None) if len(found) == 1 else nodes


def prefix_layer(config: Any) -> nn.Module:
    """One decoder layer, with its norm, of the kind of a model with that configuration."""
    own = deepcopy(config)
    own.num_hidden_layers, own.vocab_size, own.pad_token_id = 1, 1, None
    if getattr(own, "layer_types", None):
        own.layer_types = ["full_attention"]
    elif getattr(own, "sliding_window", None):
        own.sliding_window = None
    own._attn_implementation = None  # that of ngt is for passes over trees
    layer: nn.Module = AutoModel.from_config(own)
    layer.embed_tokens = None  # type: ignore[assignment]
    return layer


def marks(files: HeadFiles) -> bool:
    """Whether a tensor or config.json has a name of Hydra's."""
    named = any(name.startswith(("hydra_mlp.", "hydra_head.")) for name in files.shapes)
    return named or "hydra_head_arch" in files.config


def network(files: HeadFiles, target: Target) -> Hydra:
    """The network of these files. Raises ModelError for those of another target or kind."""
    kind = files.config.get("hydra_head_arch", _ARCHITECTURES[0])
    if kind not in _ARCHITECTURES:
        known = " and ".join(_ARCHITECTURES)
        raise files.refused(f"a Hydra head of kind {str(kind)[:100]}, not {known}")
    first = files.shape("hydra_mlp.0.0.linear.weight")
    if first == (target.width, target.width):
        raise files.refused("its heads do not read what was drafted (grounded_heads: false)")
    last, tokens = "hydra_lm_head.0.weight", target.vocabulary
    if own_scores := last in files.stored:
        tokens = files.shape(last)[0]
    files.check(target, first[0], tokens)
    mlp = [name.split(".") for name in files.stored if name.startswith("hydra_mlp.")]
    offset = files.number("hidden_state_offset", 0, target.layers)
    prefix = None
    if any(name.startswith("prefix_embedding_layer.") for name in files.stored):
        prefix = prefix_layer(target.config)
        if hasattr(prefix, "rotary_emb"):  # its angles are in no file
            with target.device:
                prefix.rotary_emb = type(prefix.rotary_emb)(prefix.config)
    return Hydra(
        target,
        depth=len({i for _, i, *_ in mlp}),
        blocks=len({k for _, i, k, *_ in mlp if i == "0"}),
        own_scores=own_scores,
        bias="hydra_lm_head.0.bias" in files.stored,
        prefix=prefix,
        layer=target.layers - offset if offset else -1,
    )
