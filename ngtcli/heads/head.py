"""Learned heads: they read hidden states of the target model and propose the next tokens.

There are two classes. `AtOnce` proposes tokens of all depths by one call of its network. `ByPath`
continues from the likeliest nodes of each depth. The kinds of heads differ in their networks and
files (kinds.py).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ngtcli.decoding.logits import likeliest
from ngtcli.decoding.replays import Replays
from ngtcli.drafting.guesses import Guessed
from ngtcli.heads.files import Target
from ngtcli.heads.rows import AttentionSpan, DraftRows, HeadPass

_SIZES = (8, 64)  # the numbers of rows that captured passes are padded to (guess)
_BEAM = 8  # nodes of each depth that a plan continues from (guess)
# On a CPU a plan ends at a depth whose nodes have a lower probability in total (guess).
_UNLIKELY = 0.05
_NOTHING = Guessed(np.empty((1, 0), np.int32), np.empty((1, 0)), np.empty((2, 0), np.int32))


class Network(Protocol):
    """The network of a head.

    The network of an `AtOnce` has `propose`; that of a `ByPath` has `step` and `logits`.

    Attributes:
        target_layers: The hidden states of the target that it reads, by their index in
            `hidden_states` of transformers: i is the input of layer i, -1 the output of the last
            norm.
        depth: The maximum depth of its draft tokens.
        attention_spans: For each layer of the head, the rows that it attends to. A network without
            attention layers reads only the last row of a sequence.
        ids: For each id of the head's own vocabulary, the target's id, int64. None: the head has
            the vocabulary of the target.
    """

    target_layers: tuple[int, ...]
    depth: int
    attention_spans: tuple[AttentionSpan, ...]
    ids: Tensor | None

    def read(self, states: Tensor, following: Tensor, head_pass: HeadPass) -> Tensor:
        """Read rows of the sequence.

        Args:
            states: Their hidden states, (rows, len(target_layers) * hidden size).
            following: The token after each, int64 (rows,).
            head_pass: Their positions, mask and cache.

        Returns:
            The state (1, size) after the last row, where drafts begin.
        """

    def propose(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        """Compute the logits of all depths, (depth, vocab_size).

        Args:
            last: The state that `read` returned.
            root: The token after it, int64 (1,).
            block: Makes a pass over some number of rows that follow the sequence.
        """

    def step(self, states: Tensor, tokens: Tensor, depth: int, head_pass: HeadPass) -> Tensor:
        """Compute the states of nodes.

        Args:
            states: The states of their parents, (n, size).
            tokens: The tokens of the nodes, int64 (n,).
            depth: Their depth.
            head_pass: Their positions, mask and cache.

        Returns:
            The states of the nodes, (n, size).
        """

    def logits(self, states: Tensor, depth: int) -> Tensor:
        """Compute the logits (n, vocab_size) after nodes at a depth, from their states."""


class Head:
    """Base class of heads; it implements `Guesser` (drafting/guesses.py).

    The newest rows wait until a draft is needed. Then they are read, and all drafts that this step
    may need are computed at once, as a plan. On other devices than the CPU the forward passes for
    this have few shapes.

    Args:
        kind: Name of its kind.
        network: Its network.
        target: The target model.
        captures: Whether forward passes are captured as CUDA graphs.

    Attributes:
        layers: The hidden states of the target that it reads, as `Network.target_layers`.
        reads_all: Whether it reads the hidden states of every row, not only of the last one.
        pads: Whether its forward passes are padded.
    """

    by_path = False

    def __init__(self, kind: str, network: Any, target: Target, captures: bool = False) -> None:
        self.kind = kind
        self.depth = network.depth
        self.layers = network.target_layers
        self.reads_all = bool(network.attention_spans)
        self.pads = target.device.type != "cpu"
        self.network: Network = network
        self._target = target
        self._rows = DraftRows(network.attention_spans, target.device, target.dtype)
        self._replays = Replays("guesses of heads are", target.device, captures=captures)
        self.reset()

    def reset(self) -> None:
        """Begin another sequence."""
        self._rows.clear()
        self._unread: tuple[Tensor, Tensor, int] | None = None  # the arguments of `_read`
        self._plan = _NOTHING

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """Read rows of the sequence that were accepted.

        Args:
            states: Their hidden states, (rows, len(layers) * hidden size), layer by layer.
            following: The token after each row, int64 (rows,) on the CPU.
            start: The position of the first row; the others follow. Rows before it may be missing.
        """
        if self._unread is not None:
            self._read(*self._unread)
        cut = max(0, len(states) - _SIZES[-1])
        if cut:
            self._read(states[:cut], following[:cut], start)
        self._unread = states[cut:], following[cut:], start + cut

    def _read(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        """Read rows now; return the state (1, size) of the network after the last."""
        device = self._target.device
        head_pass = self._rows.chain(self._rows.go_to(start), len(states))
        states_here = states.to(device, self._target.dtype)
        last = self.network.read(states_here, following.to(device), head_pass)
        self._rows.keep(len(states))
        return last

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """Return the plan; see `Guesser.first`. `root` is the last of `following`."""
        if self._unread is not None:
            unread = self._unread
            self._unread = None
            self._plan = self._make_plan(*unread)
        return self._plan

    def _draft(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        """Propose what may follow a token.

        Args:
            last: The network's state of the row before the token.
            length: The number of rows up to that row.
            root: The token, int64 (1,).

        Returns:
            The tokens and probabilities of `likeliest`. A `ByPath` adds the number of each node's
            parent, and the token that leads to the node.
        """
        raise NotImplementedError

    def _make_plan(self, states: Tensor, following: Tensor, start: int) -> Guessed:
        """Read rows and draft after them; the result is copied to the CPU in one transfer."""
        if self.pads:
            packed = self._replay_plan(states, following, start)
        else:
            last = self._read(states, following, start)
            length = self._rows.go_to(start + len(states))
            packed = self._pack(self._draft(last, length, following[-1:]))

        numbers = packed.cpu().numpy()
        count = self._shape.numel()
        tokens = numbers[:count].reshape(self._shape)
        probabilities = numbers[count : 2 * count].reshape(self._shape)
        plan = Guessed(tokens, probabilities.view(np.float32).astype(np.float64))
        if self.by_path:
            return replace(plan, led=numbers[2 * count :].reshape(2, -1))
        return plan

    def _replay_plan(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        """Make a plan by a padded pass, which may be captured; return it packed (`_pack`)."""
        count = len(states)
        length = self._rows.go_to(start)
        size = next(size for size in _SIZES if size >= count)
        if self._rows.reserve(size + _BEAM * (self.depth + 1)):
            self._replays.forget()

        buffer = self._replays.buffer(size, states.shape[1], self._target.dtype)
        buffer[:count] = states
        buffer[count:] = 0  # An earlier sequence may have left NaN, which no mask hides.
        inputs = torch.zeros(2 + size, dtype=torch.int64)
        inputs[0] = length
        inputs[1] = count
        inputs[2 : 2 + count] = following
        (packed,) = self._replays.run(size, self._padded_pass(buffer), inputs)
        self._rows.keep(count)
        return packed

    def _padded_pass(self, states: Tensor) -> Callable[[Tensor], tuple[Tensor]]:
        """Return a function that reads padded rows and drafts after the last one of them."""

        def run(inputs: Tensor) -> tuple[Tensor]:
            length = inputs[:1]
            count = inputs[1:2]
            following = inputs[2:]
            head_pass = self._rows.chain(length, len(states), count - 1)
            last = self.network.read(states, following, head_pass)
            draft = self._draft(last, length + count, head_pass.last_of(following))
            return (self._pack(draft),)

        return run

    def _pack(self, draft: list[Tensor]) -> Tensor:
        """Concatenate the bits of the tensors of a draft, as int32."""
        self._shape = draft[0].shape
        parts = []
        for tensor in draft:
            bits = tensor.view(torch.int32) if tensor.is_floating_point() else tensor.int()
            parts.append(bits.flatten())
        return torch.cat(parts)


class AtOnce(Head):
    """A head that proposes the same draft tokens for all nodes of a depth."""

    def _draft(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        def block(rows: int) -> HeadPass:
            sees = torch.ones((rows, rows), dtype=torch.bool, device=last.device)
            return self._rows.tree(length, sees, torch.arange(rows, device=last.device))

        return [*likeliest(self.network.propose(last, root, block), self.network.ids)]


class ByPath(Head):
    """A head that proposes draft tokens after the likeliest nodes of each depth, by their paths."""

    by_path = True

    def _draft(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        network = self.network
        tokens, probabilities = likeliest(network.logits(last, 0), network.ids)
        paths = probabilities  # of whole paths
        drafted = [(tokens, probabilities)]
        leading: list[tuple[Tensor, Tensor]] = []  # parents and tokens

        width = tokens.shape[1]
        beam = min(_BEAM, width)
        states = last.expand(beam, -1)
        nodes = torch.arange(beam * (self.depth - 1), device=last.device)
        sees = torch.zeros((beam, len(nodes)), dtype=torch.bool, device=last.device)
        first_parent = 0  # number of the first node of the depth before
        for depth in range(1, self.depth):
            best, chosen = paths.flatten().topk(beam)
            if not self.pads and float(best.sum()) < _UNLIKELY:
                break
            parents = chosen // width
            chosen_tokens = tokens.flatten()[chosen]
            leading.append((first_parent + parents, chosen_tokens))

            first = (depth - 1) * beam
            end = depth * beam
            sees = sees.index_select(0, parents) | (nodes == nodes[first:end, None])
            head_pass = self._rows.tree(length, sees[:, :end], nodes[:end] // beam, first)
            states = network.step(states.index_select(0, parents), chosen_tokens, depth, head_pass)
            tokens, probabilities = likeliest(network.logits(states, depth), network.ids)
            drafted.append((tokens, probabilities))
            paths = best[:, None] * probabilities
            first_parent = first + 1  # node 0 is the root

        columns = [*zip(*drafted, strict=True), *zip(*leading, strict=True)]
        return [torch.cat(column) for column in columns]
