"""Conversations as batches of token ids. Independent of the model.

A row is one document and several turns about it, laid out as a tree: a turn attends to the document
and to itself, not to other turns, and its positions continue from the document's end. Each turn is
thus what a prompt with a single question is, and the document is computed once for all turns.

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

from tests.tools.training.recipe import Recipe
from tests.tools.training.tasks import Conversation, TaskMixture
from tests.tools.training.tokenizer import ASSISTANT, END, USER

# Tokens at a sentence's start that determine which sentence is quoted; those after are copied.
# Guess.
HARD_TOKENS = 4
_POOL = 40  # batches drawn at a time and sorted, so that a batch has rows of like length; guess


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
    """Rows padded on the right, each array (rows, length): `weights` float32, the others int64."""

    ids: Tensor
    weights: Tensor
    positions: Tensor
    blocks: Tensor

    def mask(self) -> Tensor:
        """Attention mask, bool (rows, 1, length, length): True where a row attends to a column."""
        length = self.ids.shape[1]
        key, query = self.blocks[:, None, :], self.blocks[:, :, None]
        seen = ((key == 0) | (key == query)) & torch.ones(length, length).tril().bool()
        return seen[:, None]


class DocumentBatches:
    """Draws conversations from a task mixture and lays them out as batches."""

    def __init__(self, mixture: TaskMixture, tokenizer: Any, recipe: Recipe) -> None:
        self._mixture, self._tokenizer, self._recipe = mixture, tokenizer, recipe
        self._marks = [tokenizer.token_to_id(t) for t in (USER, ASSISTANT, END)]
        self._space = tokenizer.encode("a. b").ids[2]  # the space between two sentences

    def encode(self, talk: Conversation, length: int) -> Row:
        """A conversation as a row of at most `length` tokens; the turns beyond are left out."""
        user, assistant, end = self._marks
        texts = [f"{talk.document}\n\n", *(text for turn in talk.turns for text in turn)]
        coded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        document = [user, *coded[0].ids]
        row = Row(
            list(document), [0.0] * len(document), list(range(len(document))), [0] * len(document)
        )
        for turn in range(1, len(talk.turns) + 1):
            instruction = [*coded[2 * turn - 1].ids, end, assistant]
            answer = [*coded[2 * turn].ids, end]
            count = len(instruction) + len(answer)
            if len(row) + count > length:
                break
            row.ids.extend([*instruction, *answer])
            row.weights.extend([0.0] * len(instruction))
            row.weights.extend(self._weigh(answer))
            row.positions.extend(range(len(document), len(document) + count))
            row.blocks.extend([turn] * count)
        return row

    def _weigh(self, answer: list[int]) -> list[float]:
        """A weight per token, larger for a sentence's first tokens and for the choice to end."""
        spaces = [i for i, token in enumerate(answer) if token == self._space]
        hard = {len(answer) - 1, *range(HARD_TOKENS)}
        hard.update(i + k for i in spaces for k in range(HARD_TOKENS + 1))
        return [self._recipe.hard_weight if i in hard else 1.0 for i in range(len(answer))]

    def stream(self, seed: int, longest: int) -> Iterator[Batch]:
        """Batches without end, of rows of at most `longest` tokens; equal for equal seeds."""
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
    """A batch of `group`; padding is in block -1, has weight 0, and no token attends to it."""
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
    """Weighted cross-entropy, float32 (), and the share, 0 to 1, of hard tokens predicted right.

    Logits are computed only where a target has weight.
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
        logits = model.lm_head(hidden[rows.to(device), columns.to(device)])
    losses = cross_entropy(logits.float(), targets, reduction="none")
    hard = weight >= weight.max()
    right = (logits.argmax(-1) == targets)[hard].float().mean().item()
    return (losses * weight).sum() / weight.sum(), right
