"""SPACE (arXiv 2402.11809): the model itself, tuned to fill mask tokens behind an answer."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.heads.training.answers import Answered
from ngtcli.heads.training.batches import NONE, Batch, states_of
from ngtcli.heads.training.kinds import Kind, Scored, unused_token
from ngtcli.model_files.checkpoint import find

_GROUPS = 8  # of masks that are drawn of a text in a step; guess
_BESIDE = ("*token*", "vocab*", "merges.txt", "*.jinja", "generation_config.json", "*.model")


class SpaceKind(Kind):
    """A copy of the model in which masks stand behind some rows of the answers, in groups.

    A group sees the text up to its row; mask j stands j positions on, sees those before it, and is
    trained on the token j + 1 positions behind the row. The model's own next tokens are trained
    along, or its answers would fall apart (section 3.2); they do not stay the same.
    """

    rate = 1e-4  # guess
    network: Any

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        from transformers import AutoConfig, AutoModelForCausalLM

        self._folder = Path(find(self.model.name, ("config", "weights")))
        self._dtype = AutoConfig.from_pretrained(self._folder).dtype or torch.float32
        made: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)
        self._mask = unused_token(self.model)
        made.train()
        made.get_input_embeddings().padding_idx = None  # the mask may be that token, and is trained
        network: nn.Module = made
        return network

    def scored(self, batch: Batch) -> Iterator[Scored]:
        texts, length = batch.ids.shape
        anchors = self._anchors(batch)
        masks = torch.full((texts, _GROUPS * self.depth), self._mask, device=batch.ids.device)
        ahead = torch.arange(1, self.depth + 1, device=batch.ids.device)
        positions = (anchors[..., None] + ahead).flatten(1)
        rows = torch.arange(length, device=batch.ids.device).expand(texts, -1)
        states = states_of(
            self.network,
            torch.cat([batch.ids, masks], 1),
            (-1,),
            position_ids=torch.cat([rows, positions], 1),
            attention_mask=self._sees(length, anchors),
        )
        score = self.network.get_output_embeddings()
        yield Scored(score(batch.of_rows(states)), batch.targets(1), is_guess=False)
        made = states[:, length:].view(texts, _GROUPS, self.depth, -1)
        for depth in range(self.depth):
            at = anchors + depth + 2
            found = batch.ids.gather(1, at.clamp(max=length - 1))
            targets = torch.where(at < batch.lengths[:, None], found, NONE)
            yield Scored(score(made[:, :, depth]).flatten(0, 1), targets.flatten())

    def _anchors(self, batch: Batch) -> Tensor:
        """The rows of each text behind which masks stand, int64 (texts, groups)."""
        generator = torch.Generator().manual_seed(batch.seed)
        drawn = []
        for text in range(len(batch.ids)):
            rows = batch.rows[batch.texts == text]
            choice = torch.randint(len(rows), (_GROUPS,), generator=generator)
            drawn.append(rows[choice.to(rows.device)])
        return torch.stack(drawn)

    def _sees(self, length: int, anchors: Tensor) -> Tensor:
        """The mask (texts, 1, rows, rows): 0 where a row sees another, else the lowest number."""
        texts, masks = len(anchors), _GROUPS * self.depth
        sees = torch.zeros(texts, length + masks, length + masks, dtype=torch.bool)
        sees = sees.to(anchors.device)
        sees[:, :length, :length] = torch.ones(length, length).tril().bool()
        of = anchors.repeat_interleave(self.depth, 1)[..., None]
        sees[:, length:, :length] = torch.arange(length, device=anchors.device) <= of
        at = torch.arange(masks, device=anchors.device)
        together = at[:, None] // self.depth == at // self.depth
        sees[:, length:, length:] = together & (at[:, None] >= at)
        lowest = torch.finfo(torch.float32).min
        return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, lowest)[:, None]

    def config(self) -> dict[str, Any]:
        """As the authors' own arguments are named."""
        return {"mask_id": self._mask, "mask_num": self.depth, "mask_diff": False}

    def save(self, folder: Path) -> None:
        """Write the tuned model, in the dtype it had, with the tokenizer beside it."""
        for name, value in self.config().items():
            setattr(self.network.config, name, value)
        self.network.to(self._dtype).save_pretrained(folder)
        for pattern in _BESIDE:
            for file in self._folder.glob(pattern):
                shutil.copyfile(file, folder / file.name)
