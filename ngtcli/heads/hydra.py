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

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from ngtcli.draft.guesses import Guessed
from ngtcli.heads.cache import HeadCache, additive
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.head import Head, guessed, nothing
from ngtcli.heads.parts import ResidualBlock

KIND = "hydra"
_ARCHITECTURES = ("mlp", "prefix-mlp")
_HEAD = re.compile(r"^(hydra_lm_head\.\d{1,4})\.(?:\d{1,4}\.)?(weight|bias)$")
_BLOCK = re.compile(r"hydra_mlp\.(\d{1,4})\.(\d{1,4})\.(.+)")
_PREFIX = re.compile(r"^prefix_embedd?ing_layer\.")  # published code has it with one d
_UNUSED = ("input_embed_fn.weight", "embed_tokens.weight", "inv_freq")  # ends: the target's own


class Hydra(nn.Module):
    """The heads of a target with hidden states of `width` numbers, and a prefix layer or none.

    Without a `vocabulary` they have no last layers of their own.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int | None,
        depth: int,
        blocks: int = 1,
        bias: bool = True,
        prefix: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.depth = depth
        self.hydra_mlp = nn.ModuleList()
        for i in range(depth):
            others = [ResidualBlock(width) for _ in range(blocks - 1)]
            self.hydra_mlp.append(nn.Sequential(ResidualBlock(width, i + 1), *others))
        self.hydra_lm_head = nn.ModuleList()
        if vocabulary is not None:
            own = [nn.Linear(width, vocabulary, bias=bias) for _ in range(depth)]
            self.hydra_lm_head.extend(own)
        self.prefix_embedding_layer = prefix

    def forward(self, states: Tensor, embeddings: Tensor) -> list[Tensor]:
        """What each head makes of a text, before its last layer.

        `states` are hidden states (batch, rows, width) and `embeddings` those of the token after
        each. Of head i (batch, rows - i, width): at row r it is for the token r + i + 2.
        """
        states, rows = self.read(states), states.shape[-2]
        inputs, made = states, []
        for i in range(min(self.depth, rows)):
            inputs = torch.cat([inputs[:, : rows - i], embeddings[:, i:]], -1)
            made.append(self.hydra_mlp[i](inputs))
        return made

    def read(self, states: Tensor, start: int = 0, cache: HeadCache | None = None) -> Tensor:
        """Hidden states (batch, rows, width) after the prefix layer, if there is one.

        The first row is at position `start`; `cache` keeps keys and values from call to call, of a
        batch of one.
        """
        if self.prefix_embedding_layer is None:
            return states
        positions = torch.arange(start, start + states.shape[-2], device=states.device)
        mask = None
        if cache is not None:
            mask = additive(cache.chain(len(positions), start).to(states.device), states)
        output = self.prefix_embedding_layer(
            inputs_embeds=states,
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=cache,
            use_cache=cache is not None,
        )
        if cache is not None:
            cache.keep()
        after: Tensor = output.last_hidden_state
        return after

    def scores(self, i: int, made: Tensor, target: Target) -> Tensor:
        """The scores (…, vocabulary) of what head i made, (…, width)."""
        if not self.hydra_lm_head:
            return target.score(made)
        found: Tensor = self.hydra_lm_head[i](made)
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


class HydraHead(Head):
    """Answers by path; with a prefix layer it reads all rows, and keeps their keys and values."""

    kind = KIND
    by_path = True

    def __init__(self, network: Hydra, target: Target, layer: int = -1) -> None:
        self.network, self._target = network, target
        self.depth, self.layers = network.depth, (layer,)
        self.reads_all = network.prefix_embedding_layer is not None
        self._cache = HeadCache() if self.reads_all else None
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        if self._cache is not None:
            self._cache.clear()
        self._state: Tensor | None = None  # (width,), of the last row
        self._paths: list[Tensor] = []  # by states of `below`: hidden state and embeddings

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        own = states.to(self._target.device, self._target.dtype)
        self._state = self.network.read(own[None], start, self._cache)[0, -1]

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first."""
        self._paths = []
        if self._state is None:
            return nothing(1)
        return self._guess([self._state], [root])

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """As Guesser.below."""
        if not self._paths:
            return nothing(len(states))
        return self._guess([self._paths[state] for state in states], tokens)

    def _guess(self, before: Sequence[Tensor], tokens: Sequence[int]) -> Guessed:
        """The guesses after paths with one more token each."""
        embeddings = self._target.embed(torch.tensor(list(tokens)))
        paths = [torch.cat(both) for both in zip(before, embeddings, strict=True)]
        self._paths += paths
        width = embeddings.shape[-1]
        depths = [len(path) // width - 2 for path in paths]
        scores: list[Tensor] = [embeddings] * len(paths)
        for i in set(depths):
            rows = [row for row, depth in enumerate(depths) if depth == i]
            made = self.network.hydra_mlp[i](torch.stack([paths[row] for row in rows]))
            found = self.network.scores(i, made, self._target)
            for row, one in zip(rows, found, strict=True):
                scores[row] = one
        return guessed(torch.stack(scores))


def recognise(files: HeadFiles) -> bool:
    """Whether a tensor or config.json has a name of Hydra's."""
    named = any(name.startswith(("hydra_mlp.", "hydra_head.")) for name in files.shapes)
    return named or "hydra_head_arch" in files.config


def build(files: HeadFiles, target: Target) -> HydraHead:
    """The head of these files. Raises ModelError where they do not fill it or are not for it."""
    kind = files.config.get("hydra_head_arch", _ARCHITECTURES[0])
    if kind not in _ARCHITECTURES:
        known = " and ".join(_ARCHITECTURES)
        raise files.refused(f"a Hydra head of kind {str(kind)[:100]}, not {known}")
    stored = _names(files)
    first = files.shape(stored.get("hydra_mlp.0.0.linear.weight", "hydra_mlp.0.0.linear.weight"))
    if first == (target.width, target.width):
        raise files.refused("its heads do not read what was drafted (grounded_heads: false)")
    files.check_width(first[0], target)
    last = stored.get("hydra_lm_head.0.weight")
    if last is not None:
        files.check_vocabulary(files.shape(last)[0], target)
    depth = len({name.split(".")[1] for name in stored if name.startswith("hydra_mlp.")})
    blocks = len({name.split(".")[2] for name in stored if name.startswith("hydra_mlp.0.")})
    has_prefix = any(name.startswith("prefix_embedding_layer.") for name in stored)
    offset = files.number("hidden_state_offset", 0, int(target.config.num_hidden_layers))
    with torch.device("meta"):
        network = Hydra(
            target.width, target.vocabulary if last else None, depth, blocks,
            "hydra_lm_head.0.bias" in stored, prefix_layer(target.config) if has_prefix else None,
        )  # fmt: skip
    files.fill(network, target, stored)
    layer: Any = network.prefix_embedding_layer
    if hasattr(layer, "rotary_emb"):  # its angles are in no file
        with target.device:
            layer.rotary_emb = type(layer.rotary_emb)(layer.config)
    return HydraHead(
        network, target, int(target.config.num_hidden_layers) - offset if offset else -1
    )


def _names(files: HeadFiles) -> dict[str, str]:
    """The tensors that are used, by the names that they have in the network."""
    blocks: dict[str, set[int]] = {}  # the numbers of each head's, of which some may be left out
    plain = {name.removeprefix("hydra_head."): name for name in files.shapes}
    for found in filter(None, map(_BLOCK.fullmatch, plain)):
        blocks.setdefault(found[1], set()).add(int(found[2]))
    stored = {}
    for own, name in plain.items():
        if own.endswith(_UNUSED):
            continue
        if block := _BLOCK.fullmatch(own):
            number = sorted(blocks[block[1]]).index(int(block[2]))
            own = f"hydra_mlp.{block[1]}.{number}.{block[3]}"
        own = _HEAD.sub(r"\1.\2", own)
        own = _PREFIX.sub("prefix_embedding_layer.", own)
        stored[own] = name
    return stored
