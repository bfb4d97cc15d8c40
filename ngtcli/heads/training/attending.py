"""The kinds that attend to the text, as they are trained: EAGLE-3 and DFlash."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.decode.model import TargetModel
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

_LAYERS = 2  # of DFlash: a mask finds the last token by one, what follows it by another; guess
_BLOCKS = 8  # blocks of DFlash that are drawn of a text in a step; guess


class Eagle3Kind(Kind):
    """EAGLE-3, trained depth by depth on its own states (arXiv 2503.01840, section 3.2).

    It begins as the target's own layer behind the deepest of the states that it reads. (On the
    built-in model, after 80 steps of 1,024 tokens, 65% of the first guesses were right, and from
    random weights 9% after 150.)
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
        last = self.model.hf.get_output_embeddings().weight[self._ids]
        with torch.no_grad():
            made.lm_head.weight.copy_(last)
        copy_only(made.fc, 2)
        begin_as(made.midlayer, self.model, made.config.layers[-1])
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
    """DFlash, trained on blocks drawn from the answers (arXiv 2602.06036).

    Its layers begin as the target's own up to the one behind the deepest state that it reads.
    """

    rate = 5e-4  # guess
    depth = 7  # guess; published blocks guess 15
    network: DFlashNetwork

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        made = DFlashNetwork(read_dflash(self.config(), self.model.layers))
        copy_only(made.fc, 2)
        last = made.config.layers[-1]
        for number, layer in enumerate(made.layers):
            begin_as(layer, self.model, max(0, last + 1 - len(made.layers) + number))
        return made

    def config(self) -> dict[str, Any]:
        read = [layer - 1 for layer in layers_read(self.model.layers)]  # what leaves these layers
        own = {"mask_token_id": unused_token(self.model), "target_layer_ids": read}
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "llama",
            **attention_fields(self.model, self.plan.inner),
            "num_hidden_layers": _LAYERS,
            "block_size": self.depth + 1,
            "dflash_config": own,
        }

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


@torch.no_grad()
def begin_as(layer: nn.Module, model: TargetModel, number: int) -> None:
    """Give a layer the weights of the model's own of that number, where they have names and sizes.

    What reads an embedding beside a state reads both by the same weights: an embedding is where the
    states of the model's layers begin.
    """
    layers = getattr(model.hf.get_decoder(), "layers", None)
    own = dict(layers[number].named_parameters()) if layers is not None else {}
    for name, weight in layer.named_parameters():
        given = own.get({"hidden_norm.weight": "input_layernorm.weight"}.get(name, name))
        if given is None or given.ndim != weight.ndim or given.shape[0] != weight.shape[0]:
            continue
        times, left = divmod(weight.shape[-1], given.shape[-1])
        if not left:
            weight.copy_(given if given.ndim == 1 else given.repeat(1, times))


def frequent(texts: Sequence[Answered], count: int, vocabulary: int) -> Tensor:
    """The `count` tokens that are most frequent in the answers, ascending, int64 (count,).

    Where the answers have fewer, the first others of the vocabulary follow.
    """
    found = Counter(token for text in texts for token in text.answer)
    order = [token for token, _ in sorted(found.items(), key=lambda one: (-one[1], one[0]))]
    chosen = dict.fromkeys([*order, *range(vocabulary)])
    return torch.tensor(sorted([*chosen][:count]))
