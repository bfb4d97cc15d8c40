"""Train the built-in model from scratch: `python -m ngtcli.builtin.train --data DIR --out DIR`.

It starts from the circuit of `initial.py`, and each phase uses all of it: what is not used is soon
unlearned, and so is all of it at a learning rate above about 5e-4.

1. finding: random tokens in "sentences", a few of one sentence's tokens as the question, that
   sentence as the answer, on short sequences, until it is learned or its time is up.
2. documents: the mixture of `tasks.py`, sequences growing to the full context.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ngtcli.builtin.corpus import Article, read_corpus
from ngtcli.builtin.initial import Marks, plant_circuit
from ngtcli.builtin.tasks import Conversation, TaskMixture
from ngtcli.builtin.tokenizer import ASSISTANT, END, USER, as_pretrained, train_tokenizer

FIRST_SPECIALS = 4
HARD_TOKENS = 4  # the tokens that choose the sentence; what follows is copying


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one run is made of; saved beside the weights."""

    layers: int = 5
    width: int = 256
    heads: int = 4
    inner: int = 704
    positions: int = 4096
    learning_rate: float = 6e-4
    table_rate: float = 2e-4  # of the embeddings: faster, and they drift away from what copies
    batch_tokens: int = 8192
    hard_weight: float = 2.0
    text_weight: float = 0.02
    find_goal: float = 0.97  # accuracy of the first two tokens that ends the finding phase,
    find_share: float = 0.1  # or else this share of the time
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids (rows, length), int64, padded right; weight of each position's target, float32."""

    ids: Tensor
    weights: Tensor


def make_model(recipe: Recipe, vocabulary: int, marks: Marks) -> Any:
    """A fresh LlamaForCausalLM with tied embeddings and the planted circuit."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=recipe.width,
            intermediate_size=recipe.inner,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=recipe.positions,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    plant_circuit(model, marks, recipe.seed)
    return model


def mark_ids(tokenizer: Any) -> dict[str, int]:
    """Ids of the tokens that the made-up exercises of the second phase are put together with."""
    ids = {t: tokenizer.token_to_id(t) for t in (USER, ASSISTANT, END)}
    for mark, text, place in ((".", "a.b", 1), ("\n", "a\nb", 1), (" ", "a. b", 2)):
        ids[mark] = tokenizer.encode(text).ids[place]
    ids["Question"], ids[":"] = (tokenizer.encode("Question:").ids[k] for k in (0, -1))
    return ids


def finding_batch(
    rng: np.random.Generator, counts: np.ndarray, marks: dict[str, int], tokens: int, length: int
) -> Batch:
    """Rows of `length`: random sentences, then questions (some tokens of one) and that sentence."""
    rows = tokens // length
    ids = np.zeros((rows, length), np.int64)
    weights = np.zeros((rows, length), np.float32)
    pool = rng.choice(len(counts), size=rows * length, p=counts)
    uniform = rng.integers(FIRST_SPECIALS, len(counts), rows * length)
    pool = np.where(rng.random(rows * length) < 0.5, pool, uniform)
    for row in range(rows):
        _fill_finding_row(rng, pool[row * length :][:length], marks, ids[row], weights[row])
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights))


def _fill_finding_row(
    rng: np.random.Generator,
    pool: np.ndarray,
    marks: dict[str, int],
    ids: np.ndarray,
    weights: np.ndarray,
) -> None:
    budget = int(len(ids) * 0.55)
    out, at = [marks[USER]], 0
    sentences = []
    while len(out) < budget:
        size = int(rng.integers(5, 16))
        sentences.append(pool[at : at + size].tolist())
        at += size
        out += [*sentences[-1], marks["."], marks[" "]]
    ids[: len(out)] = out
    fill = len(out)
    while True:
        chosen = sentences[int(rng.integers(len(sentences)))]
        order = rng.permutation(len(chosen))[: int(rng.integers(2, 6))]
        asked = [chosen[i] for i in (order if rng.random() < 0.5 else np.sort(order))]
        answer = [*chosen, marks["."], marks[END]]
        turn = [marks["\n"], marks["Question"], marks[":"], *asked, marks[END], marks[ASSISTANT]]
        if fill + len(turn) + len(answer) > len(ids):
            return
        ids[fill : fill + len(turn)] = turn
        fill += len(turn)
        ids[fill : fill + len(answer)] = answer
        weights[fill : fill + len(answer)] = 1.0
        weights[fill : fill + 2] = 2.0
        fill += len(answer)


class DocumentBatches:
    """Conversations as padded batches of similar length; drawn from the task mixture."""

    def __init__(self, mixture: TaskMixture, tokenizer: Any, recipe: Recipe) -> None:
        self._mixture, self._tokenizer, self._recipe = mixture, tokenizer, recipe
        self._marks = [tokenizer.token_to_id(t) for t in (USER, ASSISTANT, END)]

    def encode(self, talk: Conversation, length: int) -> tuple[list[int], list[float]]:
        """Ids and target weights of one conversation; whole turns are left out past `length`."""
        user, assistant, end = self._marks
        text = self._recipe.text_weight
        ids: list[int] = []
        weights: list[float] = []
        first, *rest = [i for i, _ in talk.turns]
        asked = [f"{talk.document}\n\n{first}", *rest]
        answers = [a for _, a in talk.turns]
        coded = self._tokenizer.encode_batch([*asked, *answers], add_special_tokens=False)
        for turn in range(len(asked)):
            question = coded[turn].ids
            answer = coded[len(asked) + turn].ids
            if len(ids) + len(question) + len(answer) + 4 > length:
                break
            ids += [user, *question, end, assistant, *answer, end]
            hard = min(HARD_TOKENS, len(answer))
            weights += [0.0] + [text if turn == 0 else 0.0] * len(question) + [0.0, 0.0]
            weights += [self._recipe.hard_weight] * hard + [1.0] * (len(answer) - hard + 1)
        return ids, weights

    def stream(self, seed: int, longest: int) -> Iterator[Batch]:
        """Endless batches with conversations of at most `longest` tokens."""
        rng = random.Random(seed)
        while True:
            pool: list[tuple[list[int], list[float]]] = []
            while sum(len(i) for i, _ in pool) < 24 * self._recipe.batch_tokens:
                talk = self._mixture.sample(rng, int(longest * 0.5))
                ids, weights = self.encode(talk, longest)
                if ids:
                    pool.append((ids, weights))
            pool.sort(key=lambda pair: len(pair[0]))
            batches = list(self._cut(pool))
            rng.shuffle(batches)
            yield from batches

    def _cut(self, pool: list[tuple[list[int], list[float]]]) -> Iterator[Batch]:
        group: list[tuple[list[int], list[float]]] = []
        for pair in pool:
            if group and (len(group) + 1) * len(pair[0]) > self._recipe.batch_tokens:
                yield pad(group)
                group = []
            group.append(pair)
        yield pad(group)


def pad(group: list[tuple[list[int], list[float]]]) -> Batch:
    """Right-padded batch; causal attention never sees the padding, and it carries no loss."""
    length = max(len(ids) for ids, _ in group)
    ids = torch.zeros((len(group), length), dtype=torch.int64)
    weights = torch.zeros((len(group), length))
    for row, (line, weight) in enumerate(group):
        ids[row, : len(line)] = torch.tensor(line)
        weights[row, : len(line)] = torch.tensor(weight)
    return Batch(ids, weights)


def loss_of(model: Any, batch: Batch, device: str, rng: torch.Generator) -> tuple[Tensor, float]:
    """Weighted cross-entropy and the share of hard tokens (weight > 1, else 1) predicted right.

    Scores are computed only where a target has weight; low weights are met by sampling instead.
    """
    weights = batch.weights[:, 1:]
    keep = (weights >= 1.0) | (torch.rand(weights.shape, generator=rng) < weights)
    rows, columns = keep.nonzero(as_tuple=True)
    targets = batch.ids[rows, columns + 1].to(device)
    weight = weights[rows, columns].clamp(min=1.0).to(device)
    with torch.autocast(device, torch.bfloat16):
        # The compiled graph is slower than the plain one on long rows (measured on two CPU cores).
        layers = model.model if batch.ids.shape[1] <= 1024 else model.model.forward
        hidden = layers(input_ids=batch.ids.to(device), use_cache=False).last_hidden_state
        scores = model.lm_head(hidden[rows.to(device), columns.to(device)])
    losses = cross_entropy(scores.float(), targets, reduction="none")
    hard = weights[rows, columns].to(device) >= min(2.0, float(weights.max()))
    right = (scores.argmax(-1) == targets)[hard].float().mean().item() if hard.any() else 0.0
    return (losses * weight).sum() / weight.sum(), right


class Optimizer:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, AdamW for the rest."""

    def __init__(self, model: Any, recipe: Recipe, device: str) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
        inside = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in inside]
        rate = recipe.learning_rate
        self.rates = (rate, recipe.table_rate)
        self.parts = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(
                others, lr=recipe.table_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
            ),
        ]

    def step(self, scale: float) -> None:
        for part, rate in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[Any]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[Any]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


@dataclass(slots=True)
class Progress:
    """Where a run stands; all that is needed, with weights and optimizer, to go on."""

    phase: int = 0
    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    phase_start: float = 0.0
    score: float = 0.0


class Trainer:
    """One training run in `out`; `run` goes on where a checkpoint there left off."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe) -> None:
        self.recipe, self.out, self.device = recipe, args.out, args.device
        self.budget = args.minutes * 60.0
        self.out.mkdir(parents=True, exist_ok=True)
        articles = read_corpus(args.data)
        train = [a for a in articles if not a.held_out]
        self.tokenizer = self._tokenizer(train)
        vocabulary = self.tokenizer.get_vocab_size()
        self.marks = mark_ids(self.tokenizer)
        planted = Marks(
            tuple(self.marks[t] for t in (" ", "\n", USER)), self.marks[USER], self.marks[ASSISTANT]
        )
        self.model = make_model(recipe, vocabulary, planted).to(self.device)
        if args.compile:
            self.model.model.compile(dynamic=True)
        self.optimizer = Optimizer(self.model, recipe, self.device)
        self.documents = DocumentBatches(TaskMixture(train), self.tokenizer, recipe)
        held = DocumentBatches(
            TaskMixture([a for a in articles if a.held_out]), self.tokenizer, recipe
        )
        held_stream = held.stream(1, 512)
        self.held = [next(held_stream) for _ in range(6)]
        self.counts = self._unigrams(train, vocabulary)
        self.progress = Progress()
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self._resume()

    def _tokenizer(self, articles: list[Article]) -> Any:
        from tokenizers import Tokenizer

        path = self.out / "tokenizer.json"
        if path.exists():
            return Tokenizer.from_file(str(path))
        self.say("training the tokenizer")
        repeat = {"newwiki-qa": 5, "sherlock": 4, "scitldr": 2}
        rng = random.Random(self.recipe.seed)
        texts = []
        for article in articles:
            text = "\n\n".join(" ".join(p.sentences) for p in article.paragraphs)
            questions = "\n".join(q for p in article.paragraphs for q, _ in p.questions)
            if article.source != "qmsum" or rng.random() < 0.4:
                texts += [f"{text}\n{questions}"] * repeat.get(article.source, 1)
        tokenizer = train_tokenizer(texts)
        tokenizer.save(str(path))
        return tokenizer

    def _unigrams(self, articles: list[Article], vocabulary: int) -> np.ndarray:
        """Probability of each token for the finding phase, flattened by a square root."""
        rng = random.Random(0)
        sample = rng.sample(articles, min(400, len(articles)))
        texts = [" ".join(p.sentences) for a in sample for p in a.paragraphs[:20]]
        ids = [i for code in self.tokenizer.encode_batch(texts) for i in code.ids]
        counts = np.sqrt(np.bincount(ids, minlength=vocabulary).astype(float))
        counts[:FIRST_SPECIALS] = 0.0
        result: np.ndarray = counts / counts.sum()
        return result

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if path.exists():
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])
            self.say(f"resuming at {self.progress.elapsed / 60:.1f} minutes")

    def checkpoint(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        partial = self.out / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.out / "checkpoint.pt")

    def export(self) -> None:
        """Write `OUT/model`: bfloat16 weights, config, tokenizer, recipe."""
        folder = self.out / "model"
        wrapped = as_pretrained(self.tokenizer, self.recipe.positions)
        wrapped.save_pretrained(folder)
        dtype = next(self.model.parameters()).dtype
        self.model.to(torch.bfloat16).save_pretrained(folder)
        self.model.to(dtype)
        (folder / "recipe.json").write_text(json.dumps(asdict(self.recipe), indent=1) + "\n")

    def longest(self) -> int:
        """Sequence limit of the document phase: grows with the share of its time that is spent."""
        done = (self.progress.elapsed - self.progress.phase_start) / max(
            1.0, self.budget - self.progress.phase_start
        )
        for share, length in ((0.5, 384), (0.94, 768), (0.97, 1536), (2.0, self.recipe.positions)):
            if done < share:
                return length
        return self.recipe.positions

    def batches(self) -> Iterator[Batch]:
        rng = np.random.default_rng(self.recipe.seed + self.progress.step)
        tokens = self.recipe.batch_tokens
        while self.progress.phase == 0:
            length = int(rng.choice((64, 96, 128, 192)))
            yield finding_batch(rng, self.counts, self.marks, tokens // 4, length)
        while True:
            longest = self.longest()
            for batch in self.documents.stream(self.progress.step + 7, longest):
                yield batch
                if self.longest() != longest:
                    break

    def scale(self) -> float:
        """Learning rate: warm-up over 100 steps, flat, then linear to zero over the last 45%."""
        done = self.progress.elapsed / self.budget
        warm = min(1.0, (self.progress.step + 1) / 100)
        scale: float = warm * min(1.0, max(0.01, (1 - done) / 0.45))
        return scale

    @torch.no_grad()
    def held_score(self) -> float:
        """Share of sentence-choosing tokens predicted right on held-out documents."""
        scores = [loss_of(self.model, b, self.device, self.generator)[1] for b in self.held]
        mean: float = sum(scores) / len(scores)
        return mean

    def run(self) -> None:
        """Train until the time is up, then export."""
        smooth, accuracy, clock, spoke = 0.0, 0.0, time.monotonic(), time.monotonic()
        saved = clock
        progress = self.progress
        for batch in self.batches():
            loss, right = loss_of(self.model, batch, self.device, self.generator)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step(self.scale())
            now = time.monotonic()
            progress.elapsed += now - clock
            clock = now
            progress.step += 1
            progress.tokens += batch.ids.numel()
            smooth = loss.item() if not smooth else 0.98 * smooth + 0.02 * loss.item()
            accuracy = 0.95 * accuracy + 0.05 * right
            if now - spoke > 20:
                self._report(smooth, accuracy)
                spoke = now
            if now - saved > 240:
                progress.score = self.held_score()
                self.say(f"held-out choice accuracy {progress.score:.3f}")
                self.checkpoint()
                self.export()
                clock = saved = time.monotonic()
            if self._advance(accuracy):
                smooth = accuracy = 0.0
            if progress.elapsed >= self.budget:
                break
        progress.score = self.held_score()
        self.say(f"held-out choice accuracy {progress.score:.3f}")
        self.checkpoint()
        self.export()

    def _advance(self, accuracy: float) -> bool:
        """On to documents when finding is learned or has had its share of the time."""
        p, r = self.progress, self.recipe
        spent = p.elapsed > r.find_share * self.budget
        if p.phase or not (accuracy > r.find_goal or spent):
            return False
        p.phase, p.phase_start = p.phase + 1, p.elapsed
        self.say(f"phase {p.phase + 1} from {p.elapsed / 60:.1f} minutes")
        return True

    def _report(self, loss: float, accuracy: float) -> None:
        p = self.progress
        line = {**asdict(p), "loss": round(loss, 4), "accuracy": round(accuracy, 4)}
        with (self.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        self.say(
            f"{p.elapsed / 60:6.1f} min  phase {p.phase + 1}  step {p.step}  "
            f"{p.tokens / 1e6:.1f}M tokens  loss {loss:.3f}  choice {accuracy:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the built-in model from scratch.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl.xz texts")
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoints, log and model go here"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    Trainer(args, Recipe(seed=args.seed)).run()


if __name__ == "__main__":
    main()
