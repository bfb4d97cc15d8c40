"""The kinds of heads as they are trained: the network, what it guesses of a batch, its files.

Each takes the target's hidden states, which are not trained, and scores after the rows of the
answers the tokens that follow, depth by depth. The tokens are the model's own greedy ones, so the
loss is cross entropy with them: the probability of a guess is then that of being accepted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.decode.model import TargetModel
from ngtcli.errors import UsageError
from ngtcli.heads.files import Target, save_head
from ngtcli.heads.hydra import Hydra
from ngtcli.heads.medusa import Medusa
from ngtcli.heads.training.answers import Answered
from ngtcli.heads.training.batches import NONE, Batch, states_of

_SMALL = 8  # layers of a target below which others are read than of large ones; guess


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training was asked for; `steps` None: as many as fit in `minutes`.

    `depth` are the tokens guessed in a row, `inner` is the width of perceptrons of EAGLE-3 and
    DFlash, `vocabulary` that of EAGLE-3, `batch` the tokens of a step, `rate` the learning rate;
    0 stands for the kind's or the target's own. `own_scores`: the heads of Medusa and Hydra have
    last layers of their own, else they score by the target's.
    """

    minutes: float = 10.0
    steps: int | None = None
    depth: int = 0
    inner: int = 0
    vocabulary: int = 0
    own_scores: bool = True
    batch: int = 2048
    rate: float = 0.0
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores (n, vocabulary) after n rows, and the tokens that were to be guessed, int64 (n,).

    `ids`, int64 (vocabulary,), are the tokens of a vocabulary of the head's own. `is_guess`: not
    what the model chooses itself.
    """

    scores: Tensor
    targets: Tensor
    ids: Tensor | None = None
    is_guess: bool = True

    def right(self) -> Tensor:
        """Whether the likeliest token is the target, bool (n,)."""
        best = self.scores.argmax(-1)
        return (best if self.ids is None else self.ids[best]) == self.targets

    def loss(self) -> Tensor:
        """Mean cross entropy, in nats, over targets that the vocabulary has."""
        targets = self.targets
        if self.ids is not None:
            places = torch.searchsorted(self.ids, targets.clamp(min=0))
            places = places.clamp(max=len(self.ids) - 1)
            targets = torch.where(self.ids[places] == targets, places, NONE)
        if not bool((targets != NONE).any()):
            return self.scores.sum() * 0.0
        return nn.functional.cross_entropy(self.scores, targets, ignore_index=NONE)


class Kind(ABC):
    """A head in training: `network` is what is trained.

    `rate` is its learning rate and `depth` how many tokens it guesses, where nothing else is asked.
    """

    rate = 1e-3  # guess; that of Medusa-1's authors
    depth = 4  # guess: few answers go farther where a head guesses alone
    network: nn.Module

    def __init__(self, model: TargetModel, texts: Sequence[Answered], plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.target = Target(model.hf, model.device, torch.float32)
        self.depth = plan.depth or self.depth
        self.network = self.make(texts).to(model.device)

    @abstractmethod
    def make(self, texts: Sequence[Answered]) -> nn.Module:
        """The network with its first weights, float32."""

    @abstractmethod
    def scored(self, batch: Batch) -> Iterator[Scored]:
        """The scores after the rows of a batch, guesses in order of depth."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What config.json says."""

    def save(self, folder: Path) -> None:
        """Write config.json and the weights, in bfloat16, as heads are published."""
        state = self.network.state_dict().items()
        tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in state}
        save_head(folder, tensors, self.config())

    def states(self, batch: Batch, *layers: int) -> Tensor:
        """The target's hidden states, (texts, length, layers * hidden size)."""
        with torch.no_grad():
            return states_of(self.model.hf, batch.ids, layers)

    @property
    def own_vocabulary(self) -> int | None:
        """That of last layers of the head's own, or None."""
        return self.target.vocabulary if self.plan.own_scores else None


class MedusaKind(Kind):
    """Medusa-1 (arXiv 2401.10774, section 2.1.1). All weights begin at 0."""

    network: Medusa

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        made = Medusa(self.target.width, self.own_vocabulary, self.depth)
        for one in made.parameters():
            nn.init.zeros_(one)
        return made

    def scored(self, batch: Batch) -> Iterator[Scored]:
        states = batch.of_rows(self.states(batch, -1))
        found = self.network.scores(self.network(states), self.target)
        for depth, scores in enumerate(found):
            yield Scored(scores, batch.targets(depth + 2))

    def config(self) -> dict[str, Any]:
        return {"medusa_num_heads": self.depth, "medusa_num_layers": 1}


class HydraKind(Kind):
    """Hydra without a prefix layer (arXiv 2402.05109, section 3)."""

    network: Hydra

    def make(self, texts: Sequence[Answered]) -> nn.Module:
        made = Hydra(self.target.width, self.own_vocabulary, self.depth)
        for name, one in made.named_modules():  # they begin by handing on the state
            if isinstance(one, nn.Linear) and name.endswith(".0.res_connection"):
                copy_only(one, 0)
            elif isinstance(one, nn.Linear):
                nn.init.zeros_(one.weight)
                nn.init.zeros_(one.bias)
        return made

    def scored(self, batch: Batch) -> Iterator[Scored]:
        inputs = batch.of_rows(self.states(batch, -1))
        for depth, head in enumerate(self.network.hydra_mlp):
            before = batch.targets(depth + 1).clamp(min=0)
            inputs = torch.cat([inputs, self.target.embed(before)], -1)
            scores = self.network.scores(depth, head(inputs), self.target)
            yield Scored(scores, batch.targets(depth + 2))

    def config(self) -> dict[str, Any]:
        return {"hydra_head_arch": "mlp", "hydra_num_heads": self.depth, "grounded_heads": True}


@torch.no_grad()
def copy_only(layer: nn.Linear, place: int) -> None:
    """Let a layer hand on one of the vectors side by side that it reads, by number, and no more."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    size = layer.weight.shape[0]
    layer.weight[:, place * size : (place + 1) * size] = torch.eye(size)


def layers_read(layers: int) -> list[int]:
    """Which states EAGLE-3 and DFlash read of a target of so many layers, by what enters them.

    Those of EAGLE-3's authors; of a target with few layers those farther up, which know more.

    >>> layers_read(32), layers_read(5)
    ([2, 16, 29], [1, 3, 4])
    """
    return [2, layers // 2, layers - 3] if layers >= _SMALL else [1, layers // 2 + 1, layers - 1]


def attention_fields(model: TargetModel, inner: int) -> dict[str, Any]:
    """The fields of config.json for layers of the target's own sizes; `inner` 0: its own, too."""
    own, heads = model.config, int(model.config.num_attention_heads)
    size = int(own.hidden_size)
    return {
        "hidden_size": size,
        "intermediate_size": inner or int(getattr(own, "intermediate_size", 4 * size)),
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(own, "num_key_value_heads", heads)),
        "head_dim": int(getattr(own, "head_dim", None) or size // heads),
        "hidden_act": "silu",
        "rms_norm_eps": float(getattr(own, "rms_norm_eps", 1e-6)),
        "max_position_embeddings": model.context,
        "rope_parameters": getattr(own, "rope_parameters", None),
        "vocab_size": model.vocabulary,
        "num_hidden_layers": 1,
    }


def unused_token(model: TargetModel) -> int:
    """A token that stands in no text and for a mask: padding, one without a text, a special one.

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
    raise UsageError(what, "Choose another kind of head: medusa, hydra or eagle3.")


def kind_of(name: str, model: TargetModel, texts: Sequence[Answered], plan: Plan) -> Kind:
    """A kind by its name, with first weights that the plan's seed decides."""
    from ngtcli.heads.training import attending, space  # here: they are made of what is above

    kinds: dict[str, type[Kind]] = {
        "medusa": MedusaKind,
        "hydra": HydraKind,
        "eagle3": attending.Eagle3Kind,
        "dflash": attending.DFlashKind,
        "space": space.SpaceKind,
    }
    torch.manual_seed(plan.seed)
    return kinds[name](model, texts, plan)
