"""EAGLE and EAGLE-2 (arXiv 2401.15077, 2406.16858), and the head that they and EAGLE-3 have.

A row of the text stands for a state of the target there and for the token that follows. A layer
makes of it the state of the next row, which scores the token after that one, and which stands for
the state where the text goes on with a guess. The two differ in the trees that they draft alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ngtcli.draft.guesses import Guessed
from ngtcli.heads.attention import HeadLayer, Rows, configured, layer_config, rotary
from ngtcli.heads.cache import HeadCache
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.head import Head, guessed, nothing

KIND = "eagle"
# Rows that a row attends to at most: the positions that published heads were trained on.
WINDOW = 2048
DEPTH = 8  # tokens; that of the trees that the authors' program drafts
Scores = Callable[[Tensor], Tensor]  # the target's own, of what leaves its last norm


class EagleNetwork(nn.Module):
    """What networks of EAGLE's have.

    `reads` are the states of the target, numbered as transformers does, `layer` is the
    configuration of the layer, `embed_tokens` are embeddings of the network's own or None.
    """

    reads: tuple[int, ...]
    layer: PreTrainedConfig
    embed_tokens: nn.Module | None

    def fuse(self, states: Tensor) -> Tensor:
        """(…, hidden size) of the target's states (…, reads x width)."""
        raise NotImplementedError

    def step(
        self, states: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor, kept: Rows
    ) -> Tensor:
        """What leaves the layer, (batch, rows, hidden size): states of the next depth.

        `states` are fused or of the depth before, `embedded` the embeddings of the tokens that
        follow; `positions` are int64 (rows,), `mask` is bool (rows, all rows).
        """
        raise NotImplementedError

    def scores(self, states: Tensor, target: Scores) -> Tensor:
        """Scores (…, vocabulary) after rows that left the layer; `target` gives the target's."""
        raise NotImplementedError


class Eagle1Network(EagleNetwork):
    """The network of EAGLE and EAGLE-2; its state is that of a published file.

    `bias` and `embeds`: it has a bias of `fc`, and embeddings of its own.
    """

    def __init__(self, layer: PreTrainedConfig, bias: bool, embeds: bool) -> None:
        super().__init__()
        self.reads, self.layer, size = (-1,), layer, layer.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=bias)
        self.layers = nn.ModuleList([HeadLayer(layer, normed=False)])
        self.rotary = rotary(layer)
        self.embed_tokens = nn.Embedding(layer.vocab_size, size) if embeds else None

    def fuse(self, states: Tensor) -> Tensor:
        """As EagleNetwork.fuse."""
        return states

    def step(
        self, states: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor, kept: Rows
    ) -> Tensor:
        """As EagleNetwork.step."""
        rotation = self.rotary(states, positions[None])
        rows = self.fc(torch.cat([embedded, states], -1))
        out: Tensor = self.layers[0](rows, rotation, mask, kept)
        return out

    def scores(self, states: Tensor, target: Scores) -> Tensor:
        """As EagleNetwork.scores."""
        return target(states)


class EagleHead(Head):
    """Guesses of a network of EAGLE's; `ids` are the tokens of its own vocabulary, None: all.

    Positions are the text's own. Only their differences count, and `window` keeps those within
    what heads are trained on.
    """

    by_path, reads_all, depth = True, True, DEPTH

    def __init__(
        self,
        kind: str,
        network: EagleNetwork,
        target: Target,
        ids: Tensor | None = None,
        window: int = WINDOW,
    ) -> None:
        self.kind, self.layers = kind, network.reads
        self._network, self._target, self._ids = network, target, ids
        self._embed = network.embed_tokens or target.embed
        longest = int(network.layer.max_position_embeddings)
        self._cache = HeadCache(min(window, longest))
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self._cache.clear()
        self._states = torch.empty(0)  # (states, hidden size), as they left the layer
        self._last = torch.empty(0)  # the first of them, of the last row read

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        mask = self._cache.chain(len(states), start)
        fused = self._network.fuse(states.to(self._target.device, self._target.dtype))
        self._last = self._step(fused, following.to(fused.device), mask)[-1:]
        self._cache.keep()

    def _step(self, states: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """What leaves the layer, (rows, hidden size), for such states and the tokens (rows,)."""
        on, places = states.device, self._cache.positions(len(states))
        rows = states[None], self._embed(tokens)[None].to(states.dtype)
        return self._network.step(*rows, places.to(on), mask.to(on), self._cache)[0]

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first."""
        self._cache.drop()
        self._states = self._last
        if not len(self._last):
            return nothing(1)
        return self._guessed(self._states)

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """As Guesser.below."""
        if not len(self._states):
            return nothing(len(states))
        mask = self._cache.tree([state - 1 for state in states])  # state 0 is of a row that is kept
        ids = torch.tensor(tokens, dtype=torch.long, device=self._last.device)
        found = self._step(self._states[list(states)], ids, mask)
        self._states = torch.cat([self._states, found])
        return self._guessed(found)

    def _guessed(self, states: Tensor) -> Guessed:
        return guessed(self._network.scores(states, self._target.score), self._ids)


def read_layer(fields: Mapping[str, Any], depth: int) -> PreTrainedConfig:
    """The layer of a config.json. Raises ValueError for what is not supported."""
    layer = layer_config(dict(fields))
    if layer.num_hidden_layers != 1:
        raise ValueError(f"{layer.num_hidden_layers} layers")
    return layer


def recognise(files: HeadFiles) -> bool:
    """Whether the tensors are those of EAGLE: one layer that norms nothing before attention."""
    names = {"fc.weight", "layers.0.self_attn.q_proj.weight"}
    return names <= set(files.shapes) and "layers.0.input_layernorm.weight" not in files.shapes


def build(files: HeadFiles, target: Target) -> EagleHead:
    """The head of these files. Raises ModelError where they do not fill it or are not for it."""
    layer = configured(files, target, read_layer)
    files.check_width(layer.hidden_size, target)
    files.check_vocabulary(layer.vocab_size, target)
    stored = {name: name for name in files.shapes if not name.endswith("inv_freq")}
    with torch.device("meta"):
        network = Eagle1Network(layer, "fc.bias" in stored, "embed_tokens.weight" in stored)
    files.fill(network, target, stored)
    network.rotary = rotary(layer).to(target.device)
    return EagleHead(KIND, network, target)
