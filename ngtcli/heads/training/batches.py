"""Prompts with their answers as padded batches, in an order that a step's number decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.plain import accepted
from ngtcli.heads.training.answers import Answered

_POOL = 16  # batches whose texts are sorted together, so that lengths are alike; guess
NONE = -100  # a target that does not count, as cross entropy has it


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded on the right: `ids` int64 (texts, length).

    `texts` and `rows`, int64 (n,), are the rows after which tokens are to be guessed: those of the
    answers and the last one of each prompt. `lengths` are the texts' own; `seed` is for what is
    drawn at random.
    """

    ids: Tensor
    lengths: Tensor
    texts: Tensor
    rows: Tensor
    seed: int

    def targets(self, ahead: int) -> Tensor:
        """The token so many behind each of the rows, int64 (n,); NONE behind the text's end."""
        at = self.rows + ahead
        inside = at < self.lengths[self.texts]
        found = self.ids[self.texts, at.clamp(max=self.ids.shape[1] - 1)]
        return torch.where(inside, found, NONE)

    def of_rows(self, values: Tensor) -> Tensor:
        """The values (n, …) of the rows, from those (texts, length, …) of all."""
        return values[self.texts, self.rows]


def padded(answered: Sequence[Answered], longest: int, seed: int, device: torch.device) -> Batch:
    """A batch; of each text at most the first `longest` tokens."""
    texts = [[*a.prompt, *a.answer][:longest] for a in answered]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    where: list[tuple[int, int]] = []
    for i, (text, one) in enumerate(zip(texts, answered, strict=True)):
        ids[i, : len(text)] = torch.tensor(text)
        where += [(i, row) for row in range(len(one.prompt) - 1, len(text) - 1)]
    lengths = torch.tensor([len(text) for text in texts])
    at = torch.tensor(where, dtype=torch.int64).reshape(-1, 2)
    ids, lengths, at = ids.to(device), lengths.to(device), at.to(device)
    return Batch(ids, lengths, at[:, 0], at[:, 1], seed)


class Order:
    """Which texts the batch of a step has: each text once an epoch, in an order of its own.

    A batch has at most so many `tokens`, padding counted in, or a single text.

    >>> texts = [Answered(n, False, [0] * 20, [1] * 4) for n in range(3)]
    >>> [[a.number for a in Order(texts, 50, 0).at(step)] for step in range(4)]
    [[2], [0, 1], [0, 1], [2]]
    """

    def __init__(self, texts: Sequence[Answered], tokens: int, seed: int) -> None:
        self._texts, self._tokens, self._seed, self._epoch = texts, tokens, seed, -1
        self._batches: list[list[Answered]] = []
        self._first = 0  # step of the epoch's first batch

    def at(self, step: int) -> list[Answered]:
        """The texts of a step; steps are asked for in ascending order."""
        while step >= self._first + len(self._batches):
            self._first += len(self._batches)
            self._epoch += 1
            self._batches = self._shuffled(Random(f"{self._seed} {self._epoch}"))
        return self._batches[step - self._first]

    def _shuffled(self, chance: Random) -> list[list[Answered]]:
        texts = list(self._texts)
        chance.shuffle(texts)
        mean = sum(map(_length, texts)) // len(texts) + 1
        pool = max(1, _POOL * self._tokens // mean)
        pools = [texts[i : i + pool] for i in range(0, len(texts), pool)]
        out = [batch for own in pools for batch in cut(own, self._tokens)]
        chance.shuffle(out)
        return out


def cut(texts: Sequence[Answered], tokens: int) -> list[list[Answered]]:
    """Texts in batches of so many tokens, as for Order, those of like length together."""
    out: list[list[Answered]] = []
    for text in sorted(texts, key=lambda a: (_length(a), a.number)):
        if not out or (len(out[-1]) + 1) * _length(text) > tokens:
            out.append([])
        out[-1].append(text)
    return out


def _length(text: Answered) -> int:
    return len(text.prompt) + len(text.answer)


def states_of(hf: Any, ids: Tensor, layers: Sequence[int], **given: Tensor) -> Tensor:
    """The target's hidden states of padded texts, float32 (texts, length, layers * hidden size).

    `layers` are numbered as for `Head.layers`. Padding stands behind all that counts, and a row
    sees none behind it: no mask is needed. `given` are other arguments of the model.
    """
    last = int(hf.config.get_text_config().num_hidden_layers)
    wanted = [last if layer == -1 else layer for layer in layers]
    more = {"logits_to_keep": 1} if "logits_to_keep" in accepted(hf) else {}
    asked = sorted(set(wanted))
    output = hf(input_ids=ids, use_cache=False, output_hidden_states=asked, **more, **given)
    return torch.cat([output.hidden_states[layer] for layer in wanted], -1).float()
