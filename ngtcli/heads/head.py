"""A learned head: it reads hidden states of the target model and guesses the tokens to follow.

There are two ways: `AtOnce` guesses all depths by one call of its network, `ByPath` goes on from
each node that is drafted. What differs between kinds are the networks and their files (kinds.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ngtcli.decode.replays import Replays
from ngtcli.decode.scores import as_guesses, likeliest
from ngtcli.draft.guesses import Guessed
from ngtcli.heads.files import Notify, Target
from ngtcli.heads.rows import Depths, DraftRows, HeadPass, Sight

_SIZES = (8, 64)  # rows that are read with a plan, padded to one of these; guess
_BEAM = 8  # nodes of each depth that a plan has; guess: as many as are asked after at once


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
    def step(self, states: Tensor, tokens: Tensor, depths: Depths, given: HeadPass) -> Tensor:
        """The states (n, size) at nodes of such depths, reached from states by tokens (n,)."""

    def scores(self, states: Tensor, depths: Depths) -> Tensor:
        """Scores (n, vocabulary) of what follows nodes of such depths."""


class Head:
    """What both ways have; a Guesser (draft/guesses.py). Its network computes for `target`.

    `layers` are the hidden states that it wants. With `reads_all` it wants those of every row of
    the text, else of the last one alone. The last rows wait until it is asked: then they are read,
    and all that it may be asked in this step is planned. But on a CPU that is in passes of few
    shapes, which are captured where `warn` is given, to be told why they are not.
    """

    by_path, plans = False, True

    def __init__(self, kind: str, network: Any, target: Target, warn: Notify | None = None) -> None:
        self.kind, self.depth, self.layers = kind, network.depth, network.reads
        self.reads_all = bool(network.sights)
        self._target, self._on_cpu = target, target.device.type == "cpu"
        self.network: Network = network
        self._rows = DraftRows(network.sights, target.device, target.dtype)
        self._replays = Replays("guesses of heads are", target.device, warn)
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self._rows.clear()
        self._waiting: tuple[Tensor, Tensor, int] | None = None  # what `read` is to read
        self._guesses: Guessed | None = None  # of the last plan

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """Read rows of the text that were accepted.

        `states`, (rows, len(layers) * hidden size), are their hidden states, layer by layer;
        `following`, int64 (rows,) on the CPU, is the token after each; the first row stands at
        position `start`, the others behind it. What stood before may be missing.
        """
        if self._waiting is not None:
            self._read(*self._waiting)
            self._waiting = None
        cut = max(0, len(states) - _SIZES[-1]) if self.plans else len(states)
        if cut:
            self._read(states[:cut], following[:cut], start)
        if self.plans:
            self._waiting = states[cut:], following[cut:], start + cut

    def _read(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        """Read rows now; the state (1, size) that the network gives for the last."""
        on, given = self._target.device, self._rows.chain(len(states), start)
        last = self.network.read(states.to(on, self._target.dtype), following.to(on), given)
        self._rows.keep(len(states))
        return last

    def first(self, root: int) -> Guessed:
        """As Guesser.first; `root` is the last of `following`."""
        raise NotImplementedError

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        """What may be asked behind `root`, int64 (1,), as `likeliest` gives it.

        Other int64 tensors may follow. `last` is the state of the last of `length` rows.
        """
        raise NotImplementedError

    def _planned(self, behind: int) -> tuple[Guessed, npt.NDArray[np.int32]] | None:
        """Read what waits, and make a plan, whose draft has `behind` rows; None: nothing waits.

        What `_plan` gives is read at once: guesses, and its other tensors, flat.
        """
        if self._waiting is None:
            return None
        (states, following, start), self._waiting = self._waiting, None
        if self._on_cpu and not self.by_path:
            last = self._read(states, following, start)
            whole = self._flat(self._plan(last, self._rows.length, following[-1:]))
        else:
            whole = self._replayed(states, following, start, behind)
        found, numbers = whole.cpu().numpy(), self._shape.numel()
        tokens, shares = (found[at : at + numbers].reshape(self._shape) for at in (0, numbers))
        guesses = Guessed(tokens, shares.view(np.float32).astype(np.float64))
        return guesses, found[2 * numbers :]

    def _replayed(self, states: Tensor, following: Tensor, start: int, behind: int) -> Tensor:
        """The same as a tensor, by a pass that has the next size."""
        count, kept = len(states), self._rows.go_to(start)
        size = next(size for size in _SIZES if size >= count)
        if self._rows.reserve(size + behind):
            self._replays.forget()
        buffer = self._replays.buffer(size, states.shape[1], self._target.dtype)
        buffer[:count] = states
        given = torch.zeros(2 + size, dtype=torch.int64)
        given[0], given[1], given[2 : 2 + count] = kept, count, following
        (whole,) = self._replays.run(size, self._pass(buffer), given)
        self._rows.keep(count)
        return whole

    def _pass(self, states: Tensor) -> Callable[[Tensor], tuple[Tensor]]:
        """A pass over rows of the text with such states, and the plan behind those that count."""

        def run(given: Tensor) -> tuple[Tensor]:
            length, count, ids = given[:1], given[1:2], given[2:]
            depths = torch.arange(len(states), device=ids.device)
            sees = depths <= depths[:, None]
            own = self._rows.given(length, sees, depths, 0, last=count - 1)
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

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        if (plan := self._planned(self.depth + 1)) is not None:
            self._guesses = plan[0]
        return self._guesses or _nothing(self.depth)

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        def block(rows: int) -> HeadPass:
            sees = torch.ones((rows, rows), dtype=torch.bool, device=last.device)
            return self._rows.given(length, sees, torch.arange(rows, device=last.device), 0)

        return [*likeliest(self.network.guess(last, root, block), self.network.ids)]


class ByPath(Head):
    """Guesses by the tokens that lead to a node; a node has a state and a depth.

    A plan has the likeliest nodes of each depth by what leads to them, and all come with the first.
    On a CPU there is none: it guesses after the nodes that it is asked about.
    """

    by_path = True

    def __init__(self, kind: str, network: Any, target: Target, warn: Notify | None = None) -> None:
        self.plans = target.device.type != "cpu"
        super().__init__(kind, network, target, warn)

    def reset(self) -> None:
        super().reset()
        self._last = self._states = torch.empty(
            0
        )  # (1, size), of the last row; (n, size), of nodes

    def _read(self, states: Tensor, following: Tensor, start: int) -> Tensor:
        self._last = super()._read(states, following, start)
        return self._last

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        if (plan := self._planned(_BEAM * (self.depth - 1))) is not None:
            self._guesses = self._with_led(*plan)
        if self._guesses is not None:
            return self._guesses
        self._rows.drop()
        self._states, self._depths = self._last, [0]
        return self._guessed(self._states, [0]) if len(self._states) else _nothing(1)

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        if not len(self._states):
            return _nothing(len(states))
        given = self._rows.tree([state - 1 for state in states])  # state 0 is of a row that is kept
        depths = [self._depths[state] + 1 for state in states]
        ids = torch.tensor(list(tokens), device=self._target.device)
        found = self.network.step(self._states[list(states)], ids, depths, given)
        self._states = torch.cat([self._states, found])
        self._depths += depths
        return self._guessed(found, depths)

    def _guessed(self, states: Tensor, depths: Sequence[int]) -> Guessed:
        return as_guesses(*likeliest(self.network.scores(states, depths), self.network.ids))

    def _plan(self, last: Tensor, length: int | Tensor, root: Tensor) -> list[Tensor]:
        """Guesses after the root and the nodes of each depth; their parents and tokens follow."""
        network = self.network
        tokens, paths = likeliest(network.scores(last, [0]), network.ids)
        found, led, width = [(tokens, paths)], list[tuple[Tensor, Tensor]](), tokens.shape[1]
        beam = min(_BEAM, width)
        states = last.expand(beam, -1)
        nodes = torch.arange(beam * (self.depth - 1), device=last.device)
        sees = torch.zeros((beam, len(nodes)), dtype=torch.bool, device=last.device)
        for depth in range(1, self.depth):
            best, at = paths.flatten().topk(beam)
            parents, ids, before = at // width, tokens.flatten()[at], (depth - 1) * beam
            sees = sees.index_select(0, parents) | (nodes == nodes[before : before + beam, None])
            given = self._rows.given(length, sees, nodes // beam, before)
            states = network.step(states.index_select(0, parents), ids, beam * [depth], given)
            tokens, own = likeliest(network.scores(states, beam * [depth]), network.ids)
            paths = best[:, None] * own
            found.append((tokens, own))
            led.append((parents, ids))
        return [torch.cat(part) for part in (*zip(*found, strict=True), *zip(*led, strict=True))]

    def _with_led(self, found: Guessed, led: npt.NDArray[np.int32]) -> Guessed:
        """A plan's guesses, with what leads to them; parents are numbered by depth there."""
        parents, tokens = led.reshape(2, -1)
        beam = max(1, len(tokens) // max(1, self.depth - 1))
        before = np.maximum(0, (np.arange(len(tokens)) // beam - 1) * beam + 1)
        return replace(found, led=np.stack([parents + before, tokens]))


def _nothing(states: int) -> Guessed:
    """The guesses of a head that has read no row."""
    return Guessed(np.empty((states, 0), np.int32), np.empty((states, 0)))
