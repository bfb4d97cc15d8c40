"""Hands the rows that a model accepted to the heads that want their hidden states."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ngtcli.heads.head import Head

_WAITING = 1024  # rows that wait to be read at most, as many as a chunk of a prompt; a guess


class HeadRows:
    """The rows of one text, as the model gives them; heads read them when they are to guess.

    `layers` are the hidden states that any of the heads wants.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        self.guessers = tuple(heads)
        self.layers = tuple(sorted({layer for head in heads for layer in head.layers}))
        self.reads_all = any(head.reads_all for head in heads)
        self._ids: list[int] = []  # of the rows that wait
        self._states: list[Tensor] = []
        self._start = 0  # position of the first of them

    def of_kind(self, kind: str) -> "HeadRows | None":
        """As Heads.of_kind."""
        heads = [head for head in self.guessers if head.kind == kind]
        return HeadRows(heads) if heads else None

    def reset(self, start: int = 0) -> None:
        """A new text, whose rows before `start` are not given."""
        self._ids, self._states, self._start = [], [], start
        for head in self.guessers:
            head.reset()

    def add(self, ids: list[int], states: Tensor) -> None:
        """As StateReader.add."""
        if not self.reads_all:  # only the last one counts
            self._start += len(self._ids) + len(ids) - 1
            self._ids, self._states = [ids[-1]], [states[-1:].clone()]
            return
        self._ids += ids
        self._states.append(states)  # no part of a larger tensor, and changed by nobody
        if len(self._ids) > _WAITING:
            self._hand_over(self._ids[-1], keep=1)

    @torch.inference_mode()
    def follow(self, ids: Sequence[int]) -> bool:
        """As Heads.follow: hand over all rows, if the last of `ids` is the token after them."""
        if self._start + len(self._ids) != len(ids) - 1:
            return False
        if self._ids:
            self._hand_over(ids[-1], keep=0)
        return True

    def _hand_over(self, last: int, keep: int) -> None:
        """All rows but the last `keep`; `last` follows the last of those handed over."""
        states = torch.cat(self._states) if len(self._states) > 1 else self._states[0]
        count = len(self._ids) - keep
        following = torch.tensor([*self._ids[1:count], last])
        for head in self.guessers:
            rows = count if head.reads_all else 1
            own = states[count - rows : count]
            if head.layers != self.layers:
                own = own[:, [self.layers.index(layer) for layer in head.layers]]
            head.read(own.flatten(1), following[-rows:], self._start + count - rows)
        self._ids, self._states = self._ids[count:], [states[count:]] if keep else []
        self._start += count
