"""Conversations as batches of token ids. Knows nothing of the model.

A row is one document and several turns about it, laid out as a tree: every turn sees the document
and itself, not its sister turns, and its positions go on from the document's end. So each turn is
what a prompt with a single question will be, and the document is read once for all of them.

    document   0 1 2 3 4
    turn 1               5 6 7 8
    turn 2               5 6 7
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ngtcli.builtin.training.recipe import Recipe
from ngtcli.builtin.training.tasks import Conversation, TaskMixture
from ngtcli.builtin.training.tokenizer import ASSISTANT, END, USER

HARD_TOKENS = 4  # the tokens that choose a sentence; what follows is copying
_POOL = 40  # batches drawn at a time, so that rows of like length stand together


@dataclass(frozen=True, slots=True)
class Row:
    """Ids, target weights, positions and blocks (0: the document, k: turn k), all of one length."""

    ids: list[int]
    weights: list[float]
    positions: list[int]
    blocks: list[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded right to (rows, length): int64 all, but float32 weights."""

    ids: Tensor
    weights: Tensor
    positions: Tensor
    blocks: Tensor

    def mask(self) -> Tensor:
        """Who sees whom: bool (rows, 1, length, length), True where row index may read column."""
        length = self.ids.shape[1]
        read, asking = self.blocks[:, None, :], self.blocks[:, :, None]
        seen = ((read == 0) | (read == asking)) & torch.ones(length, length).tril().bool()
        return seen[:, None]


class DocumentBatches:
    """Batches drawn from a task mixture."""

    def __init__(self, mixture: TaskMixture, tokenizer: Any, recipe: Recipe) -> None:
        self._mixture, self._tokenizer, self._recipe = mixture, tokenizer, recipe
        self._marks = [tokenizer.token_to_id(t) for t in (USER, ASSISTANT, END)]
        self._gap = tokenizer.encode("a. b").ids[2]  # the space between two sentences

    def encode(self, talk: Conversation, length: int) -> Row:
        """One conversation as a row; whole turns are left out past `length` tokens."""
        user, assistant, end = self._marks
        texts = [f"{talk.document}\n\n", *(text for turn in talk.turns for text in turn)]
        coded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        document = [user, *coded[0].ids]
        row = Row(
            list(document), [0.0] * len(document), list(range(len(document))), [0] * len(document)
        )
        for turn in range(1, len(talk.turns) + 1):
            asked = [*coded[2 * turn - 1].ids, end, assistant]
            answer = [*coded[2 * turn].ids, end]
            count = len(asked) + len(answer)
            if len(row) + count > length:
                break
            row.ids.extend([*asked, *answer])
            row.weights.extend([0.0] * len(asked))
            row.weights.extend(self._weigh(answer))
            row.positions.extend(range(len(document), len(document) + count))
            row.blocks.extend([turn] * count)
        return row

    def _weigh(self, answer: list[int]) -> list[float]:
        """Hard are the first tokens of every sentence, and whether another sentence follows."""
        gaps = [i for i, token in enumerate(answer) if token == self._gap]
        hard = {len(answer) - 1, *range(HARD_TOKENS)}
        hard.update(i + k for i in gaps for k in range(HARD_TOKENS + 1))
        return [self._recipe.hard_weight if i in hard else 1.0 for i in range(len(answer))]

    def stream(self, seed: int, longest: int) -> Iterator[Batch]:
        """Endless batches of rows of at most `longest` tokens, the same for the same seed."""
        rng = random.Random(seed)
        while True:
            pool: list[Row] = []
            while sum(map(len, pool)) < _POOL * self._recipe.batch_tokens:
                row = self.encode(self._mixture.sample(rng, int(longest * 0.5)), longest)
                if any(row.weights):
                    pool.append(row)
            pool.sort(key=len)
            batches = list(self._cut(pool))
            rng.shuffle(batches)
            yield from batches

    def _cut(self, pool: list[Row]) -> Iterator[Batch]:
        group: list[Row] = []
        for row in pool:
            if group and (len(group) + 1) * len(row) > self._recipe.batch_tokens:
                yield pad(group)
                group = []
            group.append(row)
        yield pad(group)


def pad(group: list[Row]) -> Batch:
    """A batch of rows; padding is of no turn, carries no loss and is seen by nothing."""
    shape = (len(group), max(map(len, group)))
    ids, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    weights, blocks = torch.zeros(shape), torch.full(shape, -1)
    for number, row in enumerate(group):
        ids[number, : len(row)] = torch.tensor(row.ids)
        weights[number, : len(row)] = torch.tensor(row.weights)
        positions[number, : len(row)] = torch.tensor(row.positions)
        blocks[number, : len(row)] = torch.tensor(row.blocks)
    return Batch(ids, weights, positions, blocks)


def loss_of(model: Any, batch: Batch, device: str) -> tuple[Tensor, float]:
    """Weighted cross-entropy, float32 scalar, and the share of hard tokens predicted right.

    Scores are computed only where a target has weight.
    """
    weights = batch.weights[:, 1:]
    rows, columns = weights.nonzero(as_tuple=True)
    targets = batch.ids[rows, columns + 1].to(device)
    weight = weights[rows, columns].to(device)
    with torch.autocast(device, torch.bfloat16):
        # The compiled graph is slower than the plain one on long rows (measured on two CPU cores).
        compiled = torch.is_grad_enabled() and batch.ids.shape[1] <= 1024
        layers = model.model if compiled else model.model.forward
        hidden = layers(
            input_ids=batch.ids.to(device),
            attention_mask=batch.mask().to(device),
            position_ids=batch.positions.to(device),
            use_cache=False,
        ).last_hidden_state
        scores = model.lm_head(hidden[rows.to(device), columns.to(device)])
    losses = cross_entropy(scores.float(), targets, reduction="none")
    hard = weight >= weight.max()
    right = (scores.argmax(-1) == targets)[hard].float().mean().item()
    return (losses * weight).sum() / weight.sum(), right
