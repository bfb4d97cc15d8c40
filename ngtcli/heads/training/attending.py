"""The kinds that attend to the text, as they are trained: EAGLE-3 and DFlash."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.heads.dflash import DFlashNetwork
from ngtcli.heads.dflash import read_config as read_dflash
from ngtcli.heads.eagle3 import Eagle3Network
from ngtcli.heads.eagle3 import read_config as read_eagle3
from ngtcli.heads.training.answers import Answered
from ngtcli.heads.training.batches import Batch
from ngtcli.heads.training.kinds import (
    Kind,
    Scored,
    attention_fields,
    copy_only,
    layers_read,
    unused_token,
)

_BLOCKS = 8  # blocks of DFlash that are drawn of a text in a step; guess


class Eagle3Kind(Kind):
    """EAGLE-3, trained depth by depth on its own states (arXiv 2503.01840, section 3.2).

    At first it guesses by the target's own last layer what the deepest of its states says.
    """

    rate = 5e-4  # guess
    network: Eagle3Network

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        made = Eagle3Network(read_eagle3(self._fields(), self.model.layers))
        chosen = frequent(texts, made.config.vocabulary, self.model.vocabulary)
        own: dict[str, Tensor] = dict(made.named_buffers())
        own["d2t"].copy_(chosen - torch.arange(len(chosen)))
        own["t2d"].zero_()[chosen] = True
        self._ids = chosen.to(self.model.device)
        with torch.no_grad():
            last = self.model.hf.get_output_embeddings().weight[self._ids]
            made.lm_head.weight.copy_(last)
        copy_only(made.fc, 2)
        return made

    def _fields(self) -> dict[str, Any]:
        vocabulary = min(self.plan.vocabulary or self.model.vocabulary, self.model.vocabulary)
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **attention_fields(self.model, self.plan.inner),
            "draft_vocab_size": vocabulary,
            "eagle_aux_hidden_state_layer_ids": layers_read(self.model.layers),
        }

    def scored(self, batch: Batch) -> Iterator[Scored]:
        states = self.states(batch, *self.network.config.layers)[:, :-1]
        following = nn.functional.pad(batch.ids[:, 1:], (0, self.depth - 1))
        for depth, out in enumerate(self.network(states, self.target.embed(following))):
            scores = self.network.scores(batch.of_rows(out))
            yield Scored(scores, batch.targets(depth + 2), self._ids)

    def config(self) -> dict[str, Any]:
        return self._fields()


class DFlashKind(Kind):
    """DFlash, trained on blocks drawn from the answers (arXiv 2602.06036)."""

    rate = 5e-4  # guess
    depth = 7  # guess; published blocks guess 15
    network: DFlashNetwork

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        made = DFlashNetwork(read_dflash(self.config(), self.model.layers))
        copy_only(made.fc, 2)
        return made

    def config(self) -> dict[str, Any]:
        mask = unused_token(self.model)
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            **attention_fields(self.model, self.plan.inner),
            "block_size": self.depth + 1,
            # They are told by what leaves them.
            "dflash_config": {"mask_token_id": mask, "target_layer_ids": self._layers},
        }

    @property
    def _layers(self) -> list[int]:
        return layers_read(self.model.layers)

    def scored(self, batch: Batch) -> Iterator[Scored]:
        states = self.states(batch, *self.network.config.layers)
        generator = torch.Generator().manual_seed(batch.seed)
        guesses: list[Tensor] = []
        targets: list[Tensor] = []
        for text in range(len(batch.ids)):
            rows = batch.rows[batch.texts == text].cpu()
            drawn = torch.randint(len(rows), (_BLOCKS,), generator=generator)
            anchors = rows[drawn].to(batch.ids.device) + 1  # a block begins with the row's token
            out, wanted = self._of_text(batch, states, text, anchors)
            guesses.append(out)
            targets.append(wanted)
        made, wanted = torch.cat(guesses), torch.cat(targets)
        for depth in range(self.depth):
            scores = self.network.scores(made[:, depth], self.target.score)
            yield Scored(scores, wanted[:, depth])

    def _of_text(
        self, batch: Batch, states: Tensor, text: int, anchors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What leaves the network (blocks, depth, hidden size), and its targets (blocks, depth)."""
        config, length = self.network.config, int(batch.lengths[text])
        block = torch.full((len(anchors), config.block), config.mask, device=anchors.device)
        block[:, 0] = batch.ids[text, anchors]
        embedded = self.target.embed(block.flatten()[None], scaled=False)
        out = self.network(states[text : text + 1, :length], embedded, anchors)[0]
        at = anchors[:, None] + torch.arange(1, config.block, device=anchors.device)
        inside = at < length
        return out, torch.where(inside, batch.ids[text, at.clamp(max=length - 1)], -100)


def frequent(texts: Sequence[Answered], count: int, vocabulary: int) -> Tensor:
    """The `count` tokens that are most frequent in the answers, ascending, int64 (count,).

    Where the answers have fewer, the first others of the vocabulary follow.
    """
    found = Counter(token for text in texts for token in text.answer)
    order = [token for token, _ in sorted(found.items(), key=lambda one: (-one[1], one[0]))]
    chosen = dict.fromkeys([*order, *range(vocabulary)])
    return torch.tensor(sorted([*chosen][:count]))
