"""Models whose logits depend on rounding as much as they may, or never; and drafts for them."""

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
    """The KV positions that a forward pass attends to: a multiple of 7."""
    return -(-(length + rows) // 7) * 7


def rows_in_place(rows: PassRows, length: int) -> int:
    """As `PassRows.rows_in_place`, with these capacities."""
    return capacity(length, rows.max) - length - rows.max + 1


class RoundingModel:
    """A model whose logits are random functions of the text, with many near ties.

    Rounding depends on everything that it may depend on: the shape of the forward pass, the
    position of the row, the positions of all rows that it attends to, and how these were rounded.
    """

    context_why = ""
    takes_drafts = True
    name = "rounding"
    takes_chains = was_unusually_slow = False
    draws = None  # nothing is captured
    reused = Reused()

    def __init__(self, seed: int = 0, context: int = 60) -> None:
        self.seed, self.context = seed, context
        self.tokenizer = Tokenizer(FakeBackend())
        self.end_ids: frozenset[int] = frozenset()
        self.count = 0

    def start(self, room: int, numerics: Numerics = NOT_EXACT, *_: Any, **__: Any) -> None:
        max_rows = numerics.rows and numerics.rows.max
        self.shape = self.pass_shape = (room, max_rows)
        self.cache: list[tuple[int, int]] = []  # token and rounding of each position

    @property
    def length(self) -> int:
        return len(self.cache)

    def prefill(self, ids: Sequence[int], *_: Any) -> None:
        for token in ids:
            self.cache.append((token, self._rounding(token, len(self.cache), self._seen())))

    def _seen(self) -> list[tuple[int, int, int]]:
        """The position, token and rounding of the rows in the cache."""
        return [(position, *row) for position, row in enumerate(self.cache)]

    def _rounding(self, token: int, position: int, seen: list[tuple[int, int, int]]) -> int:
        """Return the seed of the rounding of a row that attends to the rows `seen`."""
        return hash((self.seed, self.pass_shape, token, position, tuple(seen)))

    def lay_out(self, roots: Sequence[tuple[int, DraftTree]]) -> tuple[int, DraftTree]:
        ((token, tree),) = roots
        check_tree(tree)
        room, rows = self.shape
        assert len(self.cache) + len(tree) + 1 <= self.context
        assert len(self.cache) + (rows or len(tree) + 1) <= room + (rows or 0)
        assert rows is None or len(tree) < rows
        return token, tree

    def score(self, layout: tuple[int, DraftTree]) -> list[torch.Tensor]:
        token, tree = layout
        self.count += 1
        rows = self.shape[1] or len(tree) + 1
        self.pass_shape = (capacity(self.length, rows), rows)
        length = len(self.cache)
        logits: list[torch.Tensor] = []
        self.scored: list[tuple[int, int]] = []
        seen_by: dict[int, list[tuple[int, int, int]]] = {}
        for node, node_token in enumerate((token, *tree.tokens), ROOT):
            seen = self._seen() if node == ROOT else seen_by[tree.parents[node]]
            position = length + node + 1
            rounding = self._rounding(node_token, position, seen)
            seen_by[node] = [*seen, (position, node_token, rounding)]
            self.scored.append((node_token, rounding))
            text = [seen_token for _, seen_token, _ in seen_by[node]]
            logits.append(self._logits(text, rounding))
        return [torch.stack(logits)]

    def _logits(self, text: list[int], rounding: int) -> torch.Tensor:
        exact = random.Random(hash((self.seed, *text[-3:])))
        rounded = random.Random(rounding)
        return torch.tensor(
            [exact.choice((0.0, 2.0, 4.0, 6.0)) + 0.01 * rounded.random() for _ in range(12)]
        )

    def keep(self, nodes: Sequence[int]) -> None:
        self.cache += [self.scored[node + 1] for node in (ROOT, *nodes)]

    def context_left(self, tokens: int) -> int:
        return self.context - tokens

    def must_restart(self, tokens: int) -> bool:
        return False

    def close(self, number: int, last: int) -> None:
        pass

    def finish_device_work(self) -> None:
        pass


class Guessing(Drafter):
    """Proposes random trees, in which the true continuation is frequent.

    It follows its log by marks, and compares its own copy with the log.

    Attributes:
        followed: The token ids that it knows by following the log.
        retracted: How often tokens that it knew were taken back.
    """

    def __init__(self, truth: Sequence[int], seed: int, top_k: int = 2) -> None:
        self.truth = list(truth)
        self.random = random.Random(seed)
        self.top_k = top_k
        self.followed: list[int] = []
        self.retracted = 0
        self.proposed = DraftTree()

    def begin(self, context: Context) -> None:
        self.followed = list(context.ids)
        self.prompt_length = len(context.ids)
        self.mark = Mark(self.prompt_length)
        self.log: TokenLog | None = None

    def sync(self, log: TokenLog) -> None:
        self.log = log
        known, new = log.since(self.mark)
        assert self.prompt_length <= known <= len(self.followed)
        self.retracted += known < len(self.followed)
        self.followed[known:] = new
        self.mark = log.mark
        assert self.followed == log.token_ids

    def propose(self, log: TokenLog, room: Room) -> Draft:
        self.sync(log)
        assert room.nodes >= 1
        rng = self.random
        tokens: list[int] = []
        parents: list[int] = []
        depths = {ROOT: len(log) - self.prompt_length}  # output tokens up to each node
        children: set[tuple[int, int]] = set()
        for _ in range(rng.randrange(12)):
            parent = rng.choice(list(depths)) if rng.random() < 0.4 else max(depths)
            depth = depths[parent]
            is_true = depth < len(self.truth) and rng.random() < 0.7
            token = self.truth[depth] if is_true else rng.randrange(12)
            if (parent, token) not in children:
                children.add((parent, token))
                depths[len(tokens)] = depth + 1
                tokens.append(token)
                parents.append(parent)
        probes = rng.randrange(len(tokens) + 1) if rng.random() < 0.2 else 0
        # No draft may be below a probe.
        while any(p >= len(tokens) - probes for p in parents[: len(tokens) - probes]):
            probes -= 1
        self.proposed = DraftTree(tuple(tokens), tuple(parents), probes)
        return Draft(self.proposed, self.top_k)

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        self.sync(log)
        if outcome.top is not None:
            assert outcome.top.shape == (len(outcome.tree) + 1, self.top_k)
            own_nodes = len(outcome.tree) - outcome.tree.drafts_of(GRAMMAR)
            assert own_nodes <= len(self.proposed)

    def close(self, keep: bool = True) -> None:
        if self.log is not None:
            self.sync(self.log)
            assert not self.log.expected  # what did not come was taken back


def run(
    model: Any,
    drafter: Drafter,
    prompt: Sequence[int],
    sampling: Settings,
    limits: Limits,
    rows: Numerics | int | None,
) -> tuple[Run, str]:
    """Decode, and return the run with its text. A number of `rows` is that of every pass."""
    numerics = Numerics(PassRows.fixed(rows)) if isinstance(rows, int) else rows or NOT_EXACT
    context = Context(prompt, outside=(prompt,), references=(prompt,), vocabulary=VOCABULARY)
    steps = Run(model, drafter, context, sampling, limits, numerics=numerics)
    text = "".join(token.text for step in steps for token in step.tokens)
    return steps, text


SAMPLINGS = st.sampled_from(
    [
        Settings(),
        Settings.of(temperature=0.7, seed=3),
        Settings.of(temperature=1.5, top_p=0.8, seed=4, presence_penalty=0.6),
        Settings.of(repetition_penalty=1.3, frequency_penalty=0.5),
    ]
)


def round_output(module: Any, inputs: Any, output: Any) -> Any:
    return torch.round(output, decimals=3)


def rounded(hf: Any, name: str = "rounded") -> TargetModel:
    """Return a model that is exact with any kernel.

    Each product is rounded so coarsely that the order of its summands does not show.
    """
    hf.double()
    for module_name, module in hf.named_modules():
        if isinstance(module, nn.Linear) or module_name.endswith("experts"):
            module.register_forward_hook(round_output)
    return target_model(hf, Tokenizer(FakeBackend()), name)
