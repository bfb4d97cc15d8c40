"""The queue of accepted tokens' hidden states, for the heads that read them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ngtcli.heads.head import Head

_MAX_WAITING = 1024  # rows that may wait to be read (guess: a chunk of a prompt)


class HeadRows:
    """The accepted tokens of one sequence and their hidden states, until heads read them.

    Heads read them when they are asked for a draft.

    Attributes:
        guessers: The heads.
        layers: The hidden states that any of them reads, ascending.
        reads_all: Whether any of them reads the states of every row, not of the last row alone.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        self.guessers = tuple(heads)
        self.layers = tuple(sorted({layer for head in heads for layer in head.layers}))
        self.reads_all = any(head.reads_all for head in heads)
        self._ids: list[int] = []  # tokens of the rows that wait
        self._states: list[Tensor] = []  # their states, (rows, layers, hidden size) each
        self._start = 0  # position of the first row that waits

    def of_kind(self, kind: str) -> "HeadRows | None":
        """Return the heads of a kind, as `Heads.of_kind` does."""
        heads = [head for head in self.guessers if head.kind == kind]
        return HeadRows(heads) if heads else None

    def reset(self, start: int = 0) -> None:
        """Begin a new sequence; its first row has position `start`."""
        self._ids = []
        self._states = []
        self._start = start
        for head in self.guessers:
            head.reset()

    def add(self, ids: list[int], states: Tensor) -> None:
        """Add accepted tokens with their hidden states, as `StateReader.add` does."""
        if not self.reads_all:  # the last row replaces all others
            self._start += len(self._ids) + len(ids) - 1
            self._ids = [ids[-1]]
            self._states = [states[-1:].clone()]
            return
        self._ids += ids
        self._states.append(states)  # needs no copy: it is a tensor of its own, never changed
        if len(self._ids) > _MAX_WAITING:
            self._hand_over(self._ids[-1], keep=1)

    @torch.inference_mode()
    def follow(self, ids: Sequence[int]) -> bool:
        """Let the heads read all rows if the last of `ids` is the token after them."""
        if self._start + len(self._ids) != len(ids) - 1:
            return False
        if self._ids:
            self._hand_over(ids[-1], keep=0)
        return True

    def _hand_over(self, last: int, keep: int) -> None:
        """Let the heads read all rows but the last `keep`; `last` is the token after those."""
        states = torch.cat(self._states) if len(self._states) > 1 else self._states[0]
        count = len(self._ids) - keep
        following = torch.tensor([*self._ids[1:count], last])
        for head in self.guessers:
            rows = count if head.reads_all else 1
            head_states = states[count - rows : count]
            if head.layers != self.layers:
                indices = [self.layers.index(layer) for layer in head.layers]
                head_states = head_states[:, indices]
            head.read(head_states.flatten(1), following[-rows:], self._start + count - rows)
        self._ids = self._ids[count:]
        self._states = [states[count:]] if keep else []
        self._start += count
