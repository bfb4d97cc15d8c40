"""Prompts with their answers as padded batches, in an order that a step's number decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from ngtcli.heads.training.folder import Text

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


def cut(texts: Sequence[Text], tokens: int) -> list[list[Text]]:
    """Texts in batches of so many tokens, padding counted in, or a single one; alike in length."""
    out: list[list[Text]] = []
    for text in sorted(texts, key=len):
        if not out or (len(out[-1]) + 1) * len(text) > tokens:
            out.append([])
        out[-1].append(text)
    return out


def of_step(batches: Sequence[list[Text]], step: int, seed: int) -> list[Text]:
    """The batch of a step: each once an epoch, in an order of its own.

    >>> "".join(of_step(["a", "b", "c"], step, seed=0) for step in range(6))
    'bcaacb'
    """
    epoch, place = divmod(step, len(batches))
    return Random(f"{seed} {epoch}").sample(batches, len(batches))[place]
