"""Models whose rounding shows, or never does, and drafts for them."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Context, Draft, Drafter, Outcome, Room
from ngtcli.drafting.log import Mark, TokenLog
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.steps import Reused
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend
from tests.support.runs import Run
from tests.support.tiny_models import VOCABULARY, check_tree


def capacity(length: int, rows: int) -> int:
    """Places that a pass attends to, in tiers of 7."""
    return -(-(length + rows) // 7) * 7


def rows_in_place(rows: PassRows, length: int) -> int:
    """As `PassRows.rows_in_place` in these tiers."""
    return capacity(length, rows.max) - length - rows.max + 1


class RoundingModel:
    """A model whose scores are random functions of the text, with many near ties, and whose
    rounding depends on everything that it may: the shape of the pass, the place of the row, the
    places of all rows that it attends to, and how these were rounded themselves.
    """

    context_why = ""
    takes_drafts = True
    name = "rounding"
    takes_chains = took_longer = False
    draws = None  # nothing is captured
    reused = Reused()

    def __init__(self, seed: int = 0, context: int = 60) -> None:
        self.seed, self.context = seed, context
        self.tokenizer = Tokenizer(FakeBackend())
        self.end_ids: frozenset[int] = frozenset()
        self.count = 0

    def start(self, room: int, numerics: Numerics = NOT_EXACT, *_: Any, **__: Any) -> None:
        most = numerics.rows and numerics.rows.max
        self.shape = self.pass_shape = (room, most)
        self.kept: list[tuple[int, int]] = []  # token and rounding of each place of the cache

    @property
    def length(self) -> int:
        return len(self.kept)

    def prefill(self, ids: Sequence[int], *_: Any) -> None:
        for token in ids:
            self.kept.append((token, self._row(token, len(self.kept), self._seen())))

    def _seen(self) -> list[tuple[int, int, int]]:
        """(place, token, rounding) of the rows in the cache."""
        return [(place, *row) for place, row in enumerate(self.kept)]

    def _row(self, token: int, place: int, seen: list[tuple[int, int, int]]) -> int:
        return hash((self.seed, self.pass_shape, token, place, tuple(seen)))

    def lay_out(self, roots: Sequence[tuple[int, DraftTree]]) -> tuple[int, DraftTree]:
        ((token, tree),) = roots
        check_tree(tree)
        room, rows = self.shape
        assert len(self.kept) + len(tree) + 1 <= self.context
        assert len(self.kept) + (rows or len(tree) + 1) <= room + (rows or 0)
        assert rows is None or len(tree) < rows
        return token, tree

    def score(self, layout: tuple[int, DraftTree]) -> list[torch.Tensor]:
        token, tree = layout
        self.count += 1
        rows = self.shape[1] or len(tree) + 1
        self.pass_shape = (capacity(self.length, rows), rows)
        length, scores = len(self.kept), []
        self.scored: list[tuple[int, int]] = []
        seen_by: dict[int, list[tuple[int, int, int]]] = {}
        for node, own in enumerate((token, *tree.tokens), ROOT):
            seen = self._seen() if node == ROOT else seen_by[tree.parents[node]]
            rounding = self._row(own, length + node + 1, seen)
            seen_by[node] = [*seen, (length + node + 1, own, rounding)]
            self.scored.append((own, rounding))
            scores.append(self._scores([t for _, t, _ in seen_by[node]], rounding))
        return [torch.stack(scores)]

    def _scores(self, text: list[int], rounding: int) -> torch.Tensor:
        exact = random.Random(hash((self.seed, *text[-3:])))
        rounded = random.Random(rounding)
        return torch.tensor(
            [exact.choice((0.0, 2.0, 4.0, 6.0)) + 0.01 * rounded.random() for _ in range(12)]
        )

    def keep(self, nodes: Sequence[int]) -> None:
        self.kept += [self.scored[node + 1] for node in (ROOT, *nodes)]

    def context_left(self, tokens: int) -> int:
        return self.context - tokens

    def must_restart(self, tokens: int) -> bool:
        return False

    def close(self, at: int, last: int) -> None:
        pass

    def finish_device_work(self) -> None:
        pass


class Guessing(Drafter):
    """Proposes random trees in which the text that it is shown often continues.

    It follows its log by marks, and holds that against the log itself.
    """

    def __init__(self, truth: Sequence[int], seed: int, top_k: int = 2) -> None:
        self.truth, self.random, self.top_k = list(truth), random.Random(seed), top_k
        self.told: list[int] = []
        self.retracted = 0
        self.proposed = DraftTree()

    def begin(self, context: Context) -> None:
        self.told, self.prompt = list(context.ids), len(context.ids)
        self.mark = Mark(self.prompt)
        self.log: TokenLog | None = None

    def sync(self, log: TokenLog) -> None:
        self.log = log
        known, new = log.since(self.mark)
        assert self.prompt <= known <= len(self.told)
        self.retracted += known < len(self.told)
        self.told[known:] = new
        self.mark = log.mark
        assert self.told == log.token_ids

    def propose(self, log: TokenLog, room: Room) -> Draft:
        self.sync(log)
        assert room.nodes >= 1
        rng, tokens, parents, place = self.random, [], [], {ROOT: len(log) - self.prompt}
        taken: set[tuple[int, int]] = set()
        for _ in range(rng.randrange(12)):
            parent = rng.choice(list(place)) if rng.random() < 0.4 else max(place)
            at = place[parent]
            right = at < len(self.truth) and rng.random() < 0.7
            token = self.truth[at] if right else rng.randrange(12)
            if (parent, token) not in taken:
                taken.add((parent, token))
                place[len(tokens)] = at + 1
                tokens.append(token)
                parents.append(parent)
        probes = rng.randrange(len(tokens) + 1) if rng.random() < 0.2 else 0
        while any(p >= len(tokens) - probes for p in parents[: len(tokens) - probes]):
            probes -= 1
        self.proposed = DraftTree(tuple(tokens), tuple(parents), probes)
        return Draft(self.proposed, self.top_k)

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        self.sync(log)
        if outcome.top is not None:
            assert outcome.top.shape == (len(outcome.tree) + 1, self.top_k)
            own = len(outcome.tree) - outcome.tree.drafts_of(GRAMMAR)
            assert own <= len(self.proposed)

    def close(self, keep: bool = True) -> None:
        if self.log is not None:
            self.sync(self.log)
            assert not self.log.expected  # what has not come was taken back


def run(
    model: Any,
    drafter: Drafter,
    prompt: Sequence[int],
    sampling: Settings,
    limits: Limits,
    rows: Numerics | int | None,
) -> tuple[Run, str]:
    """With a number of rows all passes have it."""
    numerics = Numerics(PassRows.fixed(rows)) if isinstance(rows, int) else rows or NOT_EXACT
    context = Context(prompt, outside=(prompt,), references=(prompt,), vocabulary=VOCABULARY)
    done = Run(model, drafter, context, sampling, limits, numerics=numerics)
    text = "".join(token.text for step in done for token in step.tokens)
    return done, text


SAMPLINGS = st.sampled_from(
    [
        Settings(),
        Settings.of(temperature=0.7, seed=3),
        Settings.of(temperature=1.5, top_p=0.8, seed=4, presence_penalty=0.6),
        Settings.of(repetition_penalty=1.3, frequency_penalty=0.5),
    ]
)


def rounding(module: Any, _: Any, out: Any) -> Any:
    return torch.round(out, decimals=3)


def rounded(hf: Any, name: str = "rounded") -> TargetModel:
    """A model that is exact with any kernel: each product is rounded so coarsely that the order
    in which it was added up does not show."""
    hf.double()
    for name_, module in hf.named_modules():
        if isinstance(module, nn.Linear) or name_.endswith("experts"):
            module.register_forward_hook(rounding)
    return target_model(hf, Tokenizer(FakeBackend()), name)
