"""Train the built-in model from scratch.

`python -m tests.tools.training.train --data DIR --out DIR`

Training starts from the circuit of `initial.py` and draws its exercises from `tasks.py`; rows grow
to the full context. The plan is in minutes, so a faster machine takes more steps.

A row of a batch is one document and several turns about it, laid out as a tree: a turn attends to
the document and to itself, not to other turns, and its positions continue from the document's end.
Each turn is thus what a prompt with a single question is; the document is computed once for all.

    document   0 1 2 3 4
    turn 1               5 6 7 8
    turn 2               5 6 7
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.tools.training.corpus import read_corpus
from tests.tools.training.recipe import (
    ASSISTANT,
    END,
    USER,
    Recipe,
    as_pretrained,
    make_lexicon,
    make_model,
    make_optimizers,
    make_tokenizer,
    mark_tokens,
)
from tests.tools.training.tasks import Conversation, TaskMixture

_HELD_BATCHES = 12  # guess
_REPORT_SECONDS = 20  # guess

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


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0  # seconds of training, without measuring and saving
    score: float = 0.0  # `held_out_score`, at the last save


class Trainer:
    """A training run in the folder `out`."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe) -> None:
        from tokenizers import Tokenizer

        self.recipe, self.out, self.device = recipe, args.out, args.device
        self.budget = args.minutes * 60.0
        self.out.mkdir(parents=True, exist_ok=True)
        articles = read_corpus(args.data)
        train = [a for a in articles if not a.held_out]
        path = self.out / "tokenizer.json"
        if not path.exists():
            say("training the tokenizer")
            make_tokenizer(train, recipe.seed).save(str(path))
        self.tokenizer = Tokenizer.from_file(str(path))
        lexicon = make_lexicon(self.tokenizer, train, recipe.seed)
        vocabulary = self.tokenizer.get_vocab_size()
        self.model = make_model(recipe, vocabulary, mark_tokens(self.tokenizer), lexicon)
        self.model.to(self.device)
        if args.compile:
            self.model.model.compile(dynamic=True)
        self.optimizers = make_optimizers(self.model, recipe)
        self.documents = DocumentBatches(TaskMixture(train), self.tokenizer, recipe)
        held_out = TaskMixture([a for a in articles if a.held_out])
        stream = DocumentBatches(held_out, self.tokenizer, recipe).stream(1, 512)
        self.held_out = list(islice(stream, _HELD_BATCHES))
        self.progress = Progress()

    def save(self) -> None:
        """Measure on held-out documents; write `OUT/model` in bfloat16, with the recipe."""
        self.progress.score = self.held_out_score()
        say(f"held-out choice accuracy {self.progress.score:.3f}")
        folder = self.out / "model"
        wrapped = as_pretrained(self.tokenizer, self.recipe.positions)
        wrapped.save_pretrained(folder)
        master = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.to(torch.bfloat16).save_pretrained(folder)
        self.model.to(torch.float32).load_state_dict(master)
        (folder / "recipe.json").write_text(json.dumps(asdict(self.recipe), indent=1) + "\n")

    def done(self) -> float:
        """Share of the time used so far, 0 to 1."""
        share: float = min(1.0, self.progress.elapsed / max(1.0, self.budget))
        return share

    def longest(self) -> int:
        """The most tokens of a row, at this share of the time."""
        return next(length for share, length in self.recipe.lengths if self.done() < share)

    def batches(self) -> Iterator[Batch]:
        """Batches without end, of rows of at most `longest()` tokens."""
        while True:
            longest = self.longest()
            for batch in self.documents.stream(self.progress.step + 7, longest):
                yield batch
                if self.longest() != longest:
                    break

    @torch.no_grad()
    def held_out_score(self) -> float:
        """Share, 0 to 1, of hard tokens predicted right on held-out documents."""
        scores = [loss_of(self.model, batch, self.device)[1] for batch in self.held_out]
        return sum(scores) / len(scores)

    def run(self) -> None:
        """Train until the time is used, then save."""
        progress, reported = self.progress, time.monotonic()
        loss, right = 0.0, 0.0  # running means
        for batch in self.batches():
            if progress.elapsed >= self.budget:
                break
            started = time.monotonic()
            measured = self._step(batch)
            now = time.monotonic()
            progress.elapsed += now - started
            rate = 0.04 if loss else 1.0  # of the running means; guess
            loss, right = (a + rate * (b - a) for a, b in zip((loss, right), measured, strict=True))
            if now - reported > _REPORT_SECONDS:
                line = {**asdict(progress), "loss": round(loss, 4), "right": round(right, 4)}
                say(f"{progress.elapsed / 60:6.1f} min  {line}")
                reported = now
        self.save()

    def _step(self, batch: Batch) -> tuple[float, float]:
        loss, right = loss_of(self.model, batch, self.device)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        # The rates go up over 50 steps, are constant, then go down to zero.
        warm = min(1.0, (self.progress.step + 1) / 50)
        scale = warm * min(1.0, max(0.01, (1 - self.done()) / self.recipe.decay))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += batch.ids.numel()
        return loss.item(), right


def say(message: str) -> None:
    """Print a line to stderr."""
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description="Train the built-in model from scratch.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl.xz texts")
    parser.add_argument("--out", type=Path, required=True, help="the model goes here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    Trainer(args, Recipe(seed=args.seed)).run()


if __name__ == "__main__":
    main()
