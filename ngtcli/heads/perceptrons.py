"""Medusa-1 and Hydra: one MLP for each draft token after the model's own next token.

Medusa (Cai et al., 2024, section 2.1.1): each MLP reads the output of the model's last norm at one
position, and does not know the tokens in between. Tensors: `{h}.{k}.linear.weight|bias`, residual
blocks [H, H], and `{h}.{blocks}.weight` [V, H]. config.json is not read: published ones say 2 heads
where the file has 5.

Hydra (Ankner et al., 2024, sections 3 and 5): MLP i also reads the target's embeddings of the i + 1
tokens after the position. Tensors: `hydra_mlp.{i}.{k}.linear.*`, residual blocks, the first
[H, (i + 2) H] with a `res_connection.*` of that size, and `hydra_lm_head.{i}.*` [V, H]. With
`prefix_embedding_layer.*` (prefix-mlp, "Hydra++"), one decoder layer of the target's kind and a
norm read the hidden states first. In config.json, `hidden_state_offset` is the number of layers
before the end that the hidden states come from (0), and `hydra_head_arch` names other
architectures, which are not supported.

MLPs without a last layer of their own use the target's, from which published training starts.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.rows import AttentionSpan, HeadPass

_ARCHITECTURES = ("mlp", "prefix-mlp")


class ResidualBlock(nn.Module):
    """x + silu(linear(x)) for x of shape (…, width).

    Args:
        width: Size of the output.
        more: How many further vectors of this size the input has; `res_connection` reduces them
            to the x that is added.
    """

    def __init__(self, width: int, more: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (…, (1 + more) width) to (…, width)."""
        residual: Tensor = self.res_connection(inputs)
        return residual + nn.functional.silu(self.linear(inputs))


class Medusa(nn.ModuleList):
    """The Medusa heads of a target.

    Args:
        target: The target model.
        depth: Number of heads.
        blocks: Residual blocks of each head.
        own_scores: Whether heads have last layers of their own, or use the target's.
    """

    ids: Tensor | None = None

    def __init__(
        self, target: Target, depth: int, blocks: int = 1, own_scores: bool = True
    ) -> None:
        super().__init__()
        self.target_layers: tuple[int, ...] = (-1,)
        self.attention_spans: tuple[AttentionSpan, ...] = ()
        self.target = target
        self.depth = depth
        self._own_scores = own_scores
        for _ in range(depth):
            layers: list[nn.Module] = [ResidualBlock(target.width) for _ in range(blocks)]
            if own_scores:
                layers.append(nn.Linear(target.width, target.vocab_size, bias=False))
            self.append(nn.Sequential(*layers))

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        return head_pass.last_of(states)

    def propose(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        return self.logits(last)[:, 0]

    def logits(self, states: Tensor) -> Tensor:
        """Compute the logits (depth, n, vocab_size) after hidden states (n, width)."""
        outputs = torch.stack([head(states) for head in self])
        return outputs if self._own_scores else self.target.logits(outputs)


class Hydra(nn.Module):
    """The Hydra heads of a target.

    The state of a node is the hidden state of the last position, followed by the embeddings of all
    tokens after it.

    Args:
        target: The target model.
        depth: Number of heads.
        blocks: Residual blocks of each head.
        own_scores: Whether heads have last layers of their own, or use the target's.
        bias: Whether their own last layers have a bias.
        prefix: The layer that reads the hidden states first, if there is one.
        layer: The layer whose input the heads read; -1 for the output of the last norm.
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
        self.target = target
        self.depth = depth
        self.target_layers = (layer,)
        width = target.width
        self.attention_spans = () if prefix is None else (AttentionSpan(),)
        self.hydra_mlp = nn.ModuleList()
        self.hydra_lm_head = nn.ModuleList()
        for i in range(depth):
            others = [ResidualBlock(width) for _ in range(blocks - 1)]
            self.hydra_mlp.append(nn.Sequential(ResidualBlock(width, i + 1), *others))
            if own_scores:
                self.hydra_lm_head.append(nn.Linear(width, target.vocab_size, bias=bias))
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

    def logits(self, states: Tensor, depth: int) -> Tensor:
        inputs = states[:, : (depth + 2) * self.target.width]
        outputs = self.hydra_mlp[depth](inputs)
        lm_head = self.hydra_lm_head[depth] if self.hydra_lm_head else self.target.logits
        logits: Tensor = lm_head(outputs)
        return logits


def prefix_layer(config: Any) -> nn.Module:
    """Make one decoder layer with its norm, of the same kind as a model of this configuration."""
    layer_config = deepcopy(config)
    layer_config.num_hidden_layers = 1
    layer_config.vocab_size = 1
    layer_config.pad_token_id = None
    if getattr(layer_config, "layer_types", None):
        layer_config.layer_types = ["full_attention"]
    elif getattr(layer_config, "sliding_window", None):
        layer_config.sliding_window = None
    # The target's attention function is ngt's own, for forward passes over trees.
    layer_config._attn_implementation = None
    layer: nn.Module = AutoModel.from_config(layer_config)
    layer.embed_tokens = None  # type: ignore[assignment]  # it reads states
    return layer


def medusa(files: HeadFiles, target: Target) -> Medusa:
    """Make the network of these files. Raises ModelError for those of another target."""
    lm_heads = [name for name in files.stored if re.fullmatch(r"\d+\.\d+\.weight", name)]
    width = target.width
    if "0.0.linear.weight" in files.stored:
        width = files.shape("0.0.linear.weight")[1]
    vocab_sizes = [files.shape(name)[0] for name in lm_heads] or [target.vocab_size]
    for vocab_size in vocab_sizes:
        files.check(target, width, vocab_size)
    depth, blocks = files.sizes(r"(\d+)\.(\d+)\.linear\.")
    return Medusa(target, depth, blocks, bool(lm_heads))


def hydra(files: HeadFiles, target: Target) -> Hydra:
    """Make the network of these files. Raises ModelError for those of another target or kind."""
    kind = files.config.get("hydra_head_arch", _ARCHITECTURES[0])
    if kind not in _ARCHITECTURES:
        known = " and ".join(_ARCHITECTURES)
        raise files.refused(f"a Hydra head of kind {str(kind)[:100]}, not {known}")
    first_shape = files.shape("hydra_mlp.0.0.linear.weight")
    if first_shape == (target.width, target.width):
        raise files.refused("its heads do not read what was drafted (grounded_heads: false)")
    own_scores = "hydra_lm_head.0.weight" in files.stored
    vocab_size = target.vocab_size
    if own_scores:
        vocab_size = files.shape("hydra_lm_head.0.weight")[0]
    files.check(target, first_shape[0], vocab_size)
    offset = files.number("hidden_state_offset", 0, target.layers)
    prefix = None
    if any(name.startswith("prefix_embedding_layer.") for name in files.stored):
        prefix = prefix_layer(target.config)
        if hasattr(prefix, "rotary_emb"):  # its frequencies are computed and not stored
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
