"""Medusa-1 and Hydra: a perceptron for each token that is guessed, behind the model's own next one.

Medusa (Cai et al., 2024, section 2.1.1): each reads what leaves the model's last norm at a row, and
its guess does not know the tokens between. Tensors: `{h}.{k}.linear.weight|bias`, residual blocks
[H, H], and `{h}.{blocks}.weight` [V, H]. Of config.json nothing is read: published ones say 2 heads
where the file has 5.

Hydra (Ankner et al., 2024, sections 3 and 5): perceptron i reads beside it the target's embeddings
of the i + 1 tokens after the row. Tensors: `hydra_mlp.{i}.{k}.linear.*`, residual blocks, the first
[H, (i + 2) H] with a `res_connection.*` of that size, and `hydra_lm_head.{i}.*` [V, H]. With
`prefix_embedding_layer.*` (prefix-mlp, "Hydra++") one decoder layer of the target's kind and a norm
read the hidden states first. config.json says with `hidden_state_offset` how many layers before the
end the hidden states are from (0), with `hydra_head_arch` what is not known here.

Where none has a last layer, all guess by the target's own, from which published training starts.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.rows import HeadPass, Sight

_ARCHITECTURES = ("mlp", "prefix-mlp")


class ResidualBlock(nn.Module):
    """x + silu(linear(x)) on (…, width).

    With `more` the input is (…, (1 + more) width), and `res_connection` makes x of it.
    """

    def __init__(self, width: int, more: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, width)."""
        kept: Tensor = self.res_connection(inputs)
        return kept + nn.functional.silu(self.linear(inputs))


class Medusa(nn.ModuleList):
    """The heads of a target, which have last layers of their own or score by the target's."""

    ids: Tensor | None = None

    def __init__(
        self, target: Target, depth: int, blocks: int = 1, own_scores: bool = True
    ) -> None:
        super().__init__()
        self.reads: tuple[int, ...] = (-1,)
        self.sights: tuple[Sight, ...] = ()
        self.target, self.depth, self._own_scores = target, depth, own_scores
        for _ in range(depth):
            layers: list[nn.Module] = [ResidualBlock(target.width) for _ in range(blocks)]
            if own_scores:
                layers.append(nn.Linear(target.width, target.vocabulary, bias=False))
            self.append(nn.Sequential(*layers))

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(states)

    def guess(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        return self.scores(last)[:, 0]

    def scores(self, states: Tensor) -> Tensor:
        """Scores (depth, n, vocabulary) after rows of states (n, width)."""
        made = torch.stack([head(states) for head in self])
        return made if self._own_scores else self.target.score(made)


class Hydra(nn.Module):
    """The heads of a target, and a prefix layer or none. They read what enters `layer`.

    With `own_scores` they have last layers of their own, with a `bias` or without. A state has that
    of the last row, and embeddings of all tokens behind it.
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

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        if self.prefix_embedding_layer is not None:
            states = self.prefix_embedding_layer(
                inputs_embeds=states[None],
                attention_mask=head_pass.mask(0),
                position_ids=head_pass.positions[None],
                past_key_values=head_pass.cache,
                use_cache=True,
            ).last_hidden_state[0]
        path = nn.functional.pad(head_pass.last_of(states), (0, self.depth * self.target.width))
        return self.step(path, head_pass.last_of(following), 0, head_pass)

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        paths = states.view(len(states), -1, self.target.width).clone()
        paths[:, depth + 1] = self.target.embed(tokens)
        return paths.flatten(1)

    def scores(self, states: Tensor, depth: int) -> Tensor:
        last = self.hydra_lm_head[depth] if self.hydra_lm_head else self.target.score
        made = self.hydra_mlp[depth](states[:, : (depth + 2) * self.target.width])
        found: Tensor = last(made)
        return found


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


def medusa(files: HeadFiles, target: Target) -> Medusa:
    """The network of these files. Raises ModelError for those of another target."""
    last = [name for name in files.stored if re.fullmatch(r"\d+\.\d+\.weight", name)]
    first, width = "0.0.linear.weight", target.width
    if first in files.stored:
        width = files.shape(first)[1]
    for tokens in [files.shape(name)[0] for name in last] or [target.vocabulary]:
        files.check(target, width, tokens)
    depth, blocks = files.sizes(r"(\d+)\.(\d+)\.linear\.")
    return Medusa(target, depth, blocks, bool(last))


def hydra(files: HeadFiles, target: Target) -> Hydra:
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
    offset = files.number("hidden_state_offset", 0, target.layers)
    prefix = None
    if any(name.startswith("prefix_embedding_layer.") for name in files.stored):
        prefix = prefix_layer(target.config)
        if hasattr(prefix, "rotary_emb"):  # its angles are in no file
            with target.device:
                prefix.rotary_emb = type(prefix.rotary_emb)(prefix.config)
    depth, blocks = files.sizes(r"hydra_mlp\.(\d+)\.(\d+)\.")
    return Hydra(
        target,
        depth,
        blocks,
        own_scores,
        bias="hydra_lm_head.0.bias" in files.stored,
        prefix=prefix,
        layer=target.layers - offset if offset else -1,
    )
