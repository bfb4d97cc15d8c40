"""Train the built-in model from scratch.

`python -m tests.tools.training.train --data DIR --out DIR`

Training starts from the circuit of `initial.py` and draws its exercises from `tasks.py`. Rows grow
to the full context. The schedule is in minutes, so a faster machine takes more steps.

A row of a batch is one document and several turns about it, laid out as a tree: a turn attends to
the document and to itself, not to other turns, and its positions continue from the document's end.
Each turn is thus like a prompt with a single question, but all share one pass over the document.

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

_HELD_OUT_BATCHES = 12  # Guess.
_REPORT_SECONDS = 20  # Guess.
# The first tokens of a sentence determine which sentence is quoted; the others are copied. Guess.
HARD_TOKENS = 4
# Batches drawn at a time. Their rows are sorted, so that a batch has rows of similar length. Guess.
_POOL_BATCHES = 40
_WARMUP_STEPS = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch: four lists of the same length.

    Attributes:
        ids: Token ids.
        weights: The weight of each token as a target in the loss.
        positions: Their positions.
        blocks: 0 for the document, k for turn k.
    """

    ids: list[int]
    weights: list[float]
    positions: list[int]
    blocks: list[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right: tensors (rows, length), `weights` float32, the others int64."""

    ids: Tensor
    weights: Tensor
    positions: Tensor
    blocks: Tensor

    def mask(self) -> Tensor:
        """Return the attention mask, bool (rows, 1, length, length).

        True where the token of the third dimension attends to that of the fourth.
        """
        length = self.ids.shape[1]
        key_blocks = self.blocks[:, None, :]
        query_blocks = self.blocks[:, :, None]
        is_causal = torch.ones(length, length).tril().bool()
        is_visible = (key_blocks == 0) | (key_blocks == query_blocks)
        return (is_visible & is_causal)[:, None]


class DocumentBatches:
    """Draws conversations from a task mixture and lays them out as batches."""

    def __init__(self, mixture: TaskMixture, tokenizer: Any, recipe: Recipe) -> None:
        self._mixture = mixture
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._user = tokenizer.token_to_id(USER)
        self._assistant = tokenizer.token_to_id(ASSISTANT)
        self._end = tokenizer.token_to_id(END)
        self._space = tokenizer.encode("a. b").ids[2]  # the space between two sentences

    def encode(self, conversation: Conversation, length: int) -> Row:
        """Encode a conversation as a row of at most `length` tokens, with the turns that fit."""
        texts = [f"{conversation.document}\n\n"]
        for turn in conversation.turns:
            texts += turn
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        document = [self._user, *encodings[0].ids]
        row = Row(
            ids=list(document),
            weights=[0.0] * len(document),
            positions=list(range(len(document))),
            blocks=[0] * len(document),
        )
        for number in range(1, len(conversation.turns) + 1):
            instruction = [*encodings[2 * number - 1].ids, self._end, self._assistant]
            answer = [*encodings[2 * number].ids, self._end]
            count = len(instruction) + len(answer)
            if len(row) + count > length:
                break
            row.ids.extend([*instruction, *answer])
            row.weights.extend([0.0] * len(instruction))
            row.weights.extend(self._weigh(answer))
            row.positions.extend(range(len(document), len(document) + count))
            row.blocks.extend([number] * count)
        return row

    def _weigh(self, answer: list[int]) -> list[float]:
        """Return a weight per token, higher for each sentence's first tokens and for the end."""
        hard = {len(answer) - 1, *range(HARD_TOKENS)}
        for index, token in enumerate(answer):
            if token == self._space:
                # Whether another sentence follows is a choice as well: the space itself is hard.
                hard.update(range(index, index + HARD_TOKENS + 1))
        return [self._recipe.hard_weight if index in hard else 1.0 for index in range(len(answer))]

    def stream(self, seed: int, max_length: int) -> Iterator[Batch]:
        """Yield batches without end, of rows of at most `max_length` tokens."""
        rng = random.Random(seed)
        max_words = int(max_length * 0.5)
        while True:
            pool: list[Row] = []
            while sum(map(len, pool)) < _POOL_BATCHES * self._recipe.batch_tokens:
                row = self.encode(self._mixture.sample(rng, max_words), max_length)
                if any(row.weights):
                    pool.append(row)
            pool.sort(key=len)
            batches = list(self._batch(pool))
            rng.shuffle(batches)
            yield from batches

    def _batch(self, sorted_rows: list[Row]) -> Iterator[Batch]:
        """Yield batches of consecutive rows, each of at most `batch_tokens` with its padding."""
        group: list[Row] = []
        for row in sorted_rows:
            if group and (len(group) + 1) * len(row) > self._recipe.batch_tokens:
                yield pad(group)
                group = []
            group.append(row)
        yield pad(group)


def pad(rows: list[Row]) -> Batch:
    """Make a batch of rows. Padding is in block -1 and has weight 0; no token attends to it."""
    shape = (len(rows), max(map(len, rows)))
    ids = torch.zeros(shape, dtype=torch.int64)
    weights = torch.zeros(shape)
    positions = torch.zeros(shape, dtype=torch.int64)
    blocks = torch.full(shape, -1)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row.ids)
        weights[index, : len(row)] = torch.tensor(row.weights)
        positions[index, : len(row)] = torch.tensor(row.positions)
        blocks[index, : len(row)] = torch.tensor(row.blocks)
    return Batch(ids, weights, positions, blocks)


def loss_of(model: Any, batch: Batch, device: str) -> tuple[Tensor, float]:
    """Return the weighted cross-entropy, float32 (), and the accuracy on hard tokens, 0 to 1.

    Logits are computed only where a target has weight.
    """
    target_weights = batch.weights[:, 1:]
    rows, columns = target_weights.nonzero(as_tuple=True)
    targets = batch.ids[rows, columns + 1].to(device)
    weights = target_weights[rows, columns].to(device)
    with torch.autocast(device, torch.bfloat16):
        # The compiled graph is slower than the plain one on long rows (measured on two CPU cores).
        use_compiled = torch.is_grad_enabled() and batch.ids.shape[1] <= 1024
        layers = model.model if use_compiled else model.model.forward
        hidden = layers(
            input_ids=batch.ids.to(device),
            attention_mask=batch.mask().to(device),
            position_ids=batch.positions.to(device),
            use_cache=False,
        ).last_hidden_state
        logits = model.lm_head(hidden[rows.to(device), columns.to(device)])
    losses = cross_entropy(logits.float(), targets, reduction="none")
    is_hard = weights >= weights.max()
    is_right = logits.argmax(-1) == targets
    accuracy = is_right[is_hard].float().mean().item()
    return (losses * weights).sum() / weights.sum(), accuracy


@dataclass(slots=True)
class Progress:
    """The state of a run."""

    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0  # seconds of training, without measuring and saving
    score: float = 0.0  # `held_out_score` at the last save


class Trainer:
    """A training run that writes to the folder `out`."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe) -> None:
        from tokenizers import Tokenizer

        self.recipe = recipe
        self.out = args.out
        self.device = args.device
        self.budget = args.minutes * 60.0  # seconds
        self.out.mkdir(parents=True, exist_ok=True)
        articles = read_corpus(args.data)
        train = [article for article in articles if not article.held_out]
        held_out = [article for article in articles if article.held_out]
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
        stream = DocumentBatches(TaskMixture(held_out), self.tokenizer, recipe).stream(1, 512)
        self.held_out = list(islice(stream, _HELD_OUT_BATCHES))
        self.progress = Progress()

    def save(self) -> None:
        """Measure on held-out documents, and write `OUT/model` in bfloat16 with the recipe."""
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
        """Return the share of the time used so far, 0 to 1."""
        share: float = min(1.0, self.progress.elapsed / max(1.0, self.budget))
        return share

    def max_length(self) -> int:
        """Return the most tokens of a row at this share of the time."""
        return next(length for share, length in self.recipe.lengths if self.done() < share)

    def batches(self) -> Iterator[Batch]:
        """Yield batches without end, of rows of at most `max_length()` tokens."""
        while True:
            max_length = self.max_length()
            for batch in self.documents.stream(self.progress.step + 7, max_length):
                yield batch
                if self.max_length() != max_length:
                    break

    @torch.no_grad()
    def held_out_score(self) -> float:
        """Return the share, 0 to 1, of hard tokens predicted right on held-out documents."""
        scores = [loss_of(self.model, batch, self.device)[1] for batch in self.held_out]
        return sum(scores) / len(scores)

    def run(self) -> None:
        """Train until the time is used, then save."""
        progress = self.progress
        reported = time.monotonic()
        mean_loss = 0.0  # running means
        mean_accuracy = 0.0
        for batch in self.batches():
            if progress.elapsed >= self.budget:
                break
            started = time.monotonic()
            loss, accuracy = self._step(batch)
            now = time.monotonic()
            progress.elapsed += now - started
            rate = 0.04 if mean_loss else 1.0  # of the running means; guess
            mean_loss += rate * (loss - mean_loss)
            mean_accuracy += rate * (accuracy - mean_accuracy)
            if now - reported > _REPORT_SECONDS:
                figures = {"loss": round(mean_loss, 4), "right": round(mean_accuracy, 4)}
                say(f"{progress.elapsed / 60:6.1f} min  {asdict(progress) | figures}")
                reported = now
        self.save()

    def _step(self, batch: Batch) -> tuple[float, float]:
        """Take one step; return the loss and the accuracy on hard tokens before it."""
        loss, accuracy = loss_of(self.model, batch, self.device)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        # The learning rates rise during the warm-up, stay constant, then fall almost to zero.
        warmup = min(1.0, (self.progress.step + 1) / _WARMUP_STEPS)
        decay = min(1.0, max(0.01, (1 - self.done()) / self.recipe.decay))
        scale = warmup * decay
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.tokens += batch.ids.numel()
        return loss.item(), accuracy


def say(message: str) -> None:
    """Print a line to stderr."""
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(description="Train the built-in model from scratch.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl.xz texts")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    Trainer(args, Recipe(seed=args.seed)).run()


if __name__ == "__main__":
    main()
