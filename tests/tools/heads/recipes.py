"""The kinds of heads as they are trained: the network, what it guesses of a batch, its files.

Each takes the target's hidden states, which are not trained, and scores after the rows of the
answers the tokens that follow, depth by depth.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ngtcli.decoding.model import TargetModel
from ngtcli.errors import UsageError
from ngtcli.heads import dflash, eagle
from ngtcli.heads.files import Target
from ngtcli.heads.perceptrons import Hydra, Medusa
from ngtcli.heads.rows import HeadPass
from tests.tools.heads.folder import Plan, Text

_SMALL = 8  # layers of a target below which others are read than of large ones; guess
_LAYERS = 2  # of DFlash: a mask finds the last token by one, what follows it by another; guess
_BLOCKS = 8  # blocks of DFlash that are drawn of a text in a step; guess
_OF_LAYERS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
)
NONE = -100  # a target that does not count, as cross entropy has it
Guesses = Iterator[tuple[Tensor, Tensor]]


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


@dataclass(frozen=True, slots=True)
class Subject:
    """What a head is trained for: a model, `target` to the network; the plan says its depth."""

    model: TargetModel
    target: Target
    plan: Plan


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kind of head in training.

    `make` gives the network with its first weights, float32. `scored` gives, of the network, the
    hidden states that it reads, (texts, length, size), a batch and a depth, for each depth scores
    (n, vocabulary) and the tokens that were to be guessed, int64 (n,). `config` is what config.json
    says. `rate` and `depth` are for plans that say nothing else.
    """

    make: Callable[[Subject, Sequence[Text]], Any]
    scored: Callable[[Any, Tensor, Batch, int], Guesses]
    config: Callable[[Subject], dict[str, Any]]
    rate: float = 1e-3  # guess; that of Medusa-1's authors
    depth: int = 4  # guess: few answers go farther where a head guesses alone


# --- Medusa-1 (arXiv 2401.10774, section 2.1.1); all weights begin at 0 ---


def _medusa(s: Subject, texts: Sequence[Text]) -> Medusa:
    made = Medusa(s.target, s.plan.depth, own_scores=s.plan.own_scores)
    for one in made.parameters():
        nn.init.zeros_(one)
    return made


def _medusa_scored(network: Medusa, states: Tensor, batch: Batch, depths: int) -> Guesses:
    for depth, scores in enumerate(network.logits(batch.of_rows(states))):
        yield scores, batch.targets(depth + 2)


# --- Hydra without a prefix layer (arXiv 2402.05109, section 3) ---


def _hydra(s: Subject, texts: Sequence[Text]) -> Hydra:
    made = Hydra(s.target, s.plan.depth, own_scores=s.plan.own_scores)
    for name, one in made.named_modules():  # they begin by handing on the state
        if isinstance(one, nn.Linear):
            _begin_with(one, 0 if name.endswith(".0.res_connection") else None)
    return made


def _hydra_scored(network: Hydra, states: Tensor, batch: Batch, depths: int) -> Guesses:
    inputs = batch.of_rows(states)
    for depth in range(depths):
        before = network.target.embed(batch.targets(depth + 1).clamp(min=0))
        inputs = torch.cat([inputs, before], -1)
        yield network.logits(inputs, depth), batch.targets(depth + 2)


# --- EAGLE-3, trained depth by depth on its own states (arXiv 2503.01840, section 3.2) ---


def _eagle3(s: Subject, texts: Sequence[Text]) -> eagle.Eagle3:
    """It begins as the target's own layer behind the deepest of the states that it reads.

    (On the built-in model, after 80 steps of 1,024 tokens, 65% of the first guesses were right, and
    from random weights 9% after 150.)
    """
    made = eagle.Eagle3(s.target, _eagle3_config(s))
    made.ids = frequent(texts, made.lm_head.out_features, s.model.vocabulary).to(s.model.device)
    with torch.no_grad():
        made.lm_head.weight.copy_(s.model.hf.get_output_embeddings().weight[made.ids])
    _begin_with(made.fc, 2)
    begin_as(made.midlayer, s.model, made.reads[-1])
    return made


def _eagle3_scored(network: eagle.Eagle3, states: Tensor, batch: Batch, depths: int) -> Guesses:
    following = nn.functional.pad(batch.ids[:, 1:], (0, depths - 1))
    made = depths_of(network, states[:, :-1], network.target.embed(following))
    for depth, out in enumerate(made):
        yield network.logits(batch.of_rows(out)), batch.targets(depth + 2)


def depths_of(network: eagle.Eagle3, states: Tensor, embedded: Tensor) -> Iterator[Tensor]:
    """What leaves the layer at several depths, (batch, rows, hidden size) each.

    `states`, (batch, rows, layers x width), are the target's of rows in turn; `embedded`, (batch,
    rows + depths - 1, hidden size), are the embeddings of the tokens that follow the first row and
    those after it. At depth d row i has read the tokens that follow rows i to i + d, and its
    scores are for the token after. It sees what a draft would see: the states of rows up to i, and
    the head's own of row i at each depth before.
    """
    rows, kept, out = states.shape[1], DynamicCache(), network.fuse(states)
    places = torch.arange(rows, device=states.device)
    seen = places[:, None] >= places
    for depth in range(embedded.shape[1] - rows + 1):
        given = HeadPass(kept, places + depth, lambda layer, mask=seen: mask)  # type: ignore[misc]
        out = network.next_states(out, embedded[:, depth : depth + rows], given)
        seen = torch.cat([seen, places[:, None] == places], 1)
        yield out


def _eagle3_config(s: Subject) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_fields(s),
        "draft_vocab_size": min(s.plan.vocabulary or s.model.vocabulary, s.model.vocabulary),
        "eagle_aux_hidden_state_layer_ids": layers_read(s.model.config.num_hidden_layers),
    }


# --- DFlash, trained on blocks drawn from the answers (arXiv 2602.06036) ---


def _dflash(s: Subject, texts: Sequence[Text]) -> dflash.DFlash:
    """Its layers begin as the target's own up to the one behind the deepest state it reads."""
    made = dflash.DFlash(s.target, _dflash_config(s))
    _begin_with(made.fc, 2)
    for number, layer in enumerate(made.layers, made.reads[-1] + 1 - len(made.layers)):
        begin_as(layer, s.model, max(0, number))
    return made


def _dflash_scored(network: dflash.DFlash, states: Tensor, batch: Batch, depths: int) -> Guesses:
    generator = torch.Generator().manual_seed(batch.seed)
    ahead = torch.arange(network.block, device=batch.ids.device)
    made, wanted = [], []
    for text, length in enumerate(batch.lengths.tolist()):
        rows = batch.rows[batch.texts == text]
        drawn = torch.randint(len(rows), (_BLOCKS,), generator=generator).to(rows.device)
        anchors = rows[drawn] + 1  # a block begins with the token after the row
        found = batch.at(torch.tensor(text), anchors[:, None] + ahead)
        made.append(blocks_of(network, states[text : text + 1, :length], found[:, 0], anchors))
        wanted.append(found[:, 1:])
    out, targets = torch.cat(made), torch.cat(wanted)
    for depth in range(depths):
        yield network.logits(out[:, depth]), targets[:, depth]


def blocks_of(network: dflash.DFlash, states: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
    """What leaves the network for several blocks of a text, (blocks, block - 1, hidden size).

    `states`, (1, rows, layers x hidden size), are the target's; `tokens`, int64 (blocks,), are the
    first of each block, and `anchors` their positions. Behind one the mask of number m guesses the
    token m positions on. A block sees the text before it.
    """
    blocks, size, on, rows = len(anchors), network.block, states.device, states.shape[1]
    kept, text = DynamicCache(), torch.arange(rows, device=on)
    network.cache_sequence(states, HeadPass(kept, text, lambda layer: text))
    positions = (anchors[:, None] + torch.arange(size, device=on)).flatten()
    block = torch.arange(blocks, device=on).repeat_interleave(size)
    before = text < anchors.repeat_interleave(size)[:, None]
    mask = torch.cat([before, block == block[:, None]], 1)
    ids = torch.full((blocks, size), network.mask, device=on)
    ids[:, 0] = tokens
    out = network.run_blocks(ids.flatten(), HeadPass(kept, positions, lambda layer: mask))
    return out[0].view(blocks, size, -1)[:, 1:]


def _dflash_config(s: Subject) -> dict[str, Any]:
    read = [
        layer - 1 for layer in layers_read(s.model.config.num_hidden_layers)
    ]  # what leaves these layers
    return {
        "architectures": ["DFlashDraftModel"],
        **_layer_fields(s),
        "num_hidden_layers": _LAYERS,
        "block_size": s.plan.depth + 1,
        "dflash_config": {"mask_token_id": unused_token(s.model), "target_layer_ids": read},
    }


# --- what recipes share ---


@torch.no_grad()
def _begin_with(layer: nn.Linear, place: int | None) -> None:
    """Let a layer hand on one of the vectors side by side that it reads, by number, or none."""
    for one in layer.parameters():
        nn.init.zeros_(one)
    if place is not None:
        size = layer.weight.shape[0]
        layer.weight[:, place * size : (place + 1) * size] = torch.eye(size)


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


def frequent(texts: Sequence[Text], count: int, vocabulary: int) -> Tensor:
    """The `count` tokens that are most frequent in the answers, ascending, int64 (count,).

    Where the answers have fewer, the first others of the vocabulary follow.
    """
    found = Counter(token for text in texts for token in text.answer)
    order = sorted(found, key=lambda token: (-found[token], token))
    return torch.tensor(sorted([*dict.fromkeys([*order, *range(vocabulary)])][:count]))


def layers_read(layers: int) -> list[int]:
    """Which states EAGLE-3 and DFlash read of a target of so many layers, by what enters them.

    Those of EAGLE-3's authors; of a target with few layers those farther up, which know more.

    >>> layers_read(32), layers_read(5)
    ([2, 16, 29], [1, 3, 4])
    """
    return [2, layers // 2, layers - 3] if layers >= _SMALL else [1, layers // 2 + 1, layers - 1]


def _layer_fields(s: Subject) -> dict[str, Any]:
    """The fields of config.json for layers of the target's own sizes."""
    own, size = s.model.config, int(s.model.config.hidden_size)
    known = {name: getattr(own, name, None) for name in _OF_LAYERS}
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        **{name: value for name, value in known.items() if value is not None},
        "intermediate_size": s.plan.inner or known["intermediate_size"] or 4 * size,
        "max_position_embeddings": s.model.context,
        "vocab_size": s.model.vocabulary,
        "num_hidden_layers": 1,
    }


def unused_token(model: TargetModel) -> int:
    """A token that is in no text and for a mask: padding, one without a text, a special one.

    Raises UsageError where there is none.
    """
    backend: Any = model.tokenizer.backend
    known = len(backend) if hasattr(backend, "__len__") else model.vocabulary
    special = getattr(backend, "all_special_ids", ())
    used = {*model.end_ids, model.config.bos_token_id}
    for token in (model.config.pad_token_id, *range(known, model.vocabulary), *special):
        if token is not None and 0 <= token < model.vocabulary and token not in used:
            return int(token)
    what = f"{model.name} has no token left that can stand for a mask"
    raise UsageError(what, hint="Choose another kind of head: medusa, hydra or eagle3.")


RECIPES = {
    "medusa": Recipe(
        _medusa,
        _medusa_scored,
        lambda s: {"medusa_num_heads": s.plan.depth, "medusa_num_layers": 1},
    ),
    "hydra": Recipe(
        _hydra,
        _hydra_scored,
        lambda s: {
            "hydra_head_arch": "mlp",
            "hydra_num_heads": s.plan.depth,
            "grounded_heads": True,
        },
    ),
    "eagle3": Recipe(_eagle3, _eagle3_scored, _eagle3_config, rate=5e-4),  # guess
    # Guesses; published blocks guess 15.
    "dflash": Recipe(_dflash, _dflash_scored, _dflash_config, rate=5e-4, depth=7),
}
