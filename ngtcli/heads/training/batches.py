"""Prompts with their answers as padded batches, in an order that a step's number decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from ngtcli.heads.training.folder import Text

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

    @classmethod
    def padded(
        cls, texts: Sequence[Text], longest: int, seed: int, device: torch.device
    ) -> "Batch":
        """A batch; of each text at most the first `longest` tokens."""
        whole = [torch.tensor([*text.prompt, *text.answer][:longest]) for text in texts]
        rows = [
            torch.arange(len(text.prompt) - 1, len(ids) - 1)
            for text, ids in zip(texts, whole, strict=True)
        ]
        of = torch.arange(len(texts)).repeat_interleave(torch.tensor([*map(len, rows)]))
        ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
        lengths = torch.tensor([*map(len, whole)])
        return cls(
            ids.to(device), lengths.to(device), of.to(device), torch.cat(rows).to(device), seed
        )

    def targets(self, ahead: int) -> Tensor:
        """The token so many behind each of the rows, int64 (n,); NONE behind the text's end."""
        return self.at(self.texts, self.rows + ahead)

    def at(self, texts: Tensor, places: Tensor) -> Tensor:
        """The tokens at places of texts, two int64 tensors alike; NONE behind a text's end."""
        found = self.ids[texts, places.clamp(max=self.ids.shape[1] - 1)]
        return torch.where(places < self.lengths[texts], found, NONE)

    def of_rows(self, values: Tensor) -> Tensor:
        """The values (n, …) of the rows, from those (texts, length, …) of all."""
        return values[self.texts, self.rows]


class Order:
    """Which texts the batch of a step has: each text once an epoch, in an order of its own.

    A batch has at most so many `tokens`, padding counted in, or a single text.

    >>> texts = [Text([0] * 20, [n] * 4) for n in range(3)]
    >>> [[a.answer[0] for a in Order(texts, 50, 0).at(step)] for step in range(4)]
    [[2], [0, 1], [0, 1], [2]]
    """

    def __init__(self, texts: Sequence[Text], tokens: int, seed: int) -> None:
        self._texts, self._tokens, self._seed, self._epoch = texts, tokens, seed, -1
        self._batches: list[list[Text]] = []
        self._first = 0  # step of the epoch's first batch

    def at(self, step: int) -> list[Text]:
        """The texts of a step; steps are asked for in ascending order."""
        while step >= self._first + len(self._batches):
            self._first += len(self._batches)
            self._epoch += 1
            self._batches = self._shuffled(Random(f"{self._seed} {self._epoch}"))
        return self._batches[step - self._first]

    def _shuffled(self, chance: Random) -> list[list[Text]]:
        texts = chance.sample(self._texts, len(self._texts))
        mean = sum(map(len, texts)) // len(texts) + 1
        pool = max(1, _POOL * self._tokens // mean)
        pools = [texts[i : i + pool] for i in range(0, len(texts), pool)]
        out = [batch for own in pools for batch in cut(own, self._tokens)]
        chance.shuffle(out)
        return out


def cut(texts: Sequence[Text], tokens: int) -> list[list[Text]]:
    """Texts in batches of so many tokens, as for Order, those of like length together."""
    out: list[list[Text]] = []
    for text in sorted(texts, key=len):
        if not out or (len(out[-1]) + 1) * len(text) > tokens:
            out.append([])
        out[-1].append(text)
    return out
