"""A learned head: it reads hidden states of the target model and guesses the tokens to follow.

There are two ways: `AtOnce` guesses all depths by one call of its network, `ByPath` goes on from
the likeliest nodes of each depth. What differs between kinds are the networks and their files
(kinds.py).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ngtcli.decoding.replays import Replays
from ngtcli.decoding.scores import likeliest
from ngtcli.drafting.guesses import Guessed
from ngtcli.heads.files import Notify, Target
from ngtcli.heads.rows import DraftRows, HeadPass, Sight

_SIZES = (8, 64)  # rows that are read with a plan, padded to one of these; guess
_BEAM = 8  # nodes of each depth that a plan has; guess
# Nodes of a depth that are together less likely end a plan where its shape is free; guess.
_UNLIKELY = 0.05
_NOTHING = Guessed(np.empty((1, 0), np.int32), np.empty((1, 0)), np.empty((2, 0), np.int32))


class Network(Protocol):
    """What every head computes with.

    `reads` are the hidden states that it wants, numbered as transformers numbers `hidden_states`:
    i is what enters layer i, -1 what leaves the last norm. `sights` are what its layers see of the
    rows before; a network without such layers reads the last row of a text alone. `ids`, int64, are
    the tokens of a vocabulary of its own, None: it has the target's.
    """

    reads: tuple[int, ...]
    depth: int
    sights: tuple[Sight, ...]
    ids: Tensor | None

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        """Read rows, (rows, len(reads) * hidden size), and the tokens after them, int64 (rows,).

        Returns the state (1, size) that guesses begin with.
        """

    # Of those that guess at once:
    def guess(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        """Scores (depth, vocabulary) behind `root`, int64 (1,), the token after a row with a state.

        `block` gives the places of so many rows behind the text.
        """

    # Of those that guess by path, whose states are those of nodes:
    def step(self, states: Tensor, tokens: Tensor, depth: int, given: HeadPass) -> Tensor:
        """The states (n, size) at nodes of a depth, reached from states by tokens (n,)."""

    def scores(self, states: Tensor, depth: int) -> Tensor:
        """Scores (n, vocabulary) of what follows nodes of a depth."""


class Head:
    """What both ways have; a Guesser (draft/guesses.py). Its network computes for `target`.

    `layers` are the hidden states that it wants. With `reads_all` it wants those of every row of
    the text, else of the last one alone. The last rows wait until it is asked: then they are read,
    and all that it may be asked in this step is planned. With `pads`, as elsewhere than on a CPU,
    that is in passes of few shapes, captured where `warn` is given, to be told why they are not.
    """

    by_path = False

    def __init__(self, kind: str, network: Any, target: Target, warn: Notify | None = None) -> None:
        self.kind, self.depth, self.layers = kind, network.depth, network.reads
        self.reads_all, self.pads = bool(network.sights), target.device.type != "cpu"
        self._target = target
        self.network: Network = network
        self._rows = DraftRows(network.sights, target.device, target.dtype)
        self._replays = Replays("guesses of heads are", target.device, warn)
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self._rows.clear()
        self._waiting: tuple[Tensor, Tensor, int] | None = None  # what `read` is to read
        self._guesses = _NOTHING  # of the last plan

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """Read rows of the text that were accepted.

        `states`, (rows, len(layers) * hidden size), are their hidden states, layer by layer;
        `following`, int64 (rows,) on the CPU, is the token after each; the first row stands at
        position `start`, the others behind it. What stood before may be missing.
        """
        if self._waiting is not None:
            self._read(*self._waiting)
        if cut := max(0, len(states) - _SIZES[-1]):
            self._read(states[:cut], following[:cut], start)
        self._waiting = states[cut:], following[cut:], start + cut

    def _read(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        """Read rows now; the state (1, size) that the network gives for the last."""
        on, given = self._target.device, self._rows.chain(self._rows.go_to(start), len(states))
        last = self.network.read(states.to(on, self._target.dtype), following.to(on), given)
        self._rows.keep(len(states))
        return last

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first; `root` is the last of `following`."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._guesses = self._planned(*waiting)
        return self._guesses

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        """What may be asked behind `root`, int64 (1,), as `likeliest` gives it.

        By path its nodes' parents and tokens follow. `last` is the state of the last of `length`
        rows.
        """
        raise NotImplementedError

    def _planned(self, states: Tensor, following: Tensor, start: int) -> Guessed:
        """Read rows, and make a plan behind them, all of which is sent to the CPU at once."""
        if self.pads:
            whole = self._replayed(states, following, start)
        else:
            last = self._read(states, following, start)
            length = self._rows.go_to(start + len(states))
            whole = self._flat(self._plan(last, length, following[-1:]))
        found, numbers = whole.cpu().numpy(), self._shape.numel()
        tokens, shares = (found[at : at + numbers].reshape(self._shape) for at in (0, numbers))
        guesses = Guessed(tokens, shares.view(np.float32).astype(np.float64))
        led = found[2 * numbers :].reshape(2, -1)
        return replace(guesses, led=led) if self.by_path else guesses

    def _replayed(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        """The plan as a tensor, by a pass that has the next size."""
        count, kept = len(states), self._rows.go_to(start)
        size = next(size for size in _SIZES if size >= count)
        if self._rows.reserve(size + _BEAM * (self.depth + 1)):
            self._replays.forget()
        buffer = self._replays.buffer(size, states.shape[1], self._target.dtype)
        buffer[:count] = states
        buffer[count:] = 0  # an earlier text may have left NaN, which a mask does not keep out
        given = torch.zeros(2 + size, dtype=torch.int64)
        given[0], given[1], given[2 : 2 + count] = kept, count, following
        (whole,) = self._replays.run(size, self._pass(buffer), given)
        self._rows.keep(count)
        return whole

    def _pass(self, states: Tensor) -> Callable[[Tensor], tuple[Tensor]]:
        """A pass over rows of the text with such states, and the plan behind those that count."""

        def run(given: Tensor) -> tuple[Tensor]:
            length, count, ids = given[:1], given[1:2], given[2:]
            own = self._rows.chain(length, len(states), count - 1)
            last = self.network.read(states, ids, own)
            return (self._flat(self._plan(last, length + count, own.last_of(ids))),)

        return run

    def _flat(self, plan: list[Tensor]) -> Tensor:
        """The bits of a plan's tensors, int32, one behind the other."""
        self._shape = plan[0].shape
        bits = [one.view(torch.int32) if one.is_floating_point() else one.int() for one in plan]
        return torch.cat([one.flatten() for one in bits])


class AtOnce(Head):
    """Guesses the same for all nodes of a depth."""

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        def block(rows: int) -> HeadPass:
            sees = torch.ones((rows, rows), dtype=torch.bool, device=last.device)
            return self._rows.tree(length, sees, torch.arange(rows, device=last.device))

        return [*likeliest(self.network.guess(last, root, block), self.network.ids)]


class ByPath(Head):
    """Guesses after the likeliest nodes of each depth, by the tokens that lead to them."""

    by_path = True

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        network = self.network
        tokens, paths = likeliest(network.scores(last, 0), network.ids)
        found, led, width = [(tokens, paths)], list[tuple[Tensor, Tensor]](), tokens.shape[1]
        beam = min(_BEAM, width)
        states = last.expand(beam, -1)
        nodes = torch.arange(beam * (self.depth - 1), device=last.device)
        sees = torch.zeros((beam, len(nodes)), dtype=torch.bool, device=last.device)
        first = 0  # number of the first node of the depth before
        for depth in range(1, self.depth):
            best, at = paths.flatten().topk(beam)
            if not self.pads and float(best.sum()) < _UNLIKELY:
                break
            parents, ids = at // width, tokens.flatten()[at]
            before, end = (depth - 1) * beam, depth * beam
            sees = sees.index_select(0, parents) | (nodes == nodes[before:end, None])
            given = self._rows.tree(length, sees[:, :end], nodes[:end] // beam, before)
            states = network.step(states.index_select(0, parents), ids, depth, given)
            led.append((first + parents, ids))
            tokens, own = likeliest(network.scores(states, depth), network.ids)
            paths, first = best[:, None] * own, before + 1
            found.append((tokens, own))
        parts = [torch.cat(part) for part in zip(*found, strict=True)]
        return parts + [torch.cat(part) for part in zip(*led, strict=True)]
