"""The interface of drafters, and what they learn from. Imports no torch.

A drafter proposes; it never decides. Whatever it proposes, verification emits the target model's
own tokens, so a drafter can make a run slower but not different.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ngtcli.config import SETTINGS, Settings
from ngtcli.drafting.costs import Costs
from ngtcli.drafting.guesses import NOTHING, Guessed, Heads
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import check_range
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.drafting.tries.corpus import Corpus

_DEFAULTS = Settings()
_EMPTY = DraftTree()


@dataclass(frozen=True, slots=True)
class Context:
    """The prompt of a sequence, and the facts that bound its drafts.

    Attributes:
        ids: The token ids of the whole prompt.
        documents: The cached corpus of the documents in it; None without.
        outside: The runs of prompt ids outside `documents`.
        references: The runs of prompt ids that are documents.
        tokenizer: The tokenizer's fingerprint.
        vocabulary: The number of token ids that the model has logits for.
        free_nodes: All forward passes have one shape, so that a node costs nothing.
        probes_count: Probes take nodes of the budget.
        chains: Drafts have no branches.
        private: Nothing is drafted from other sequences, and nothing learned for them.
        predicted: The token ids of a text, beside the prompt, that the answer should resemble.
    """

    ids: Sequence[int]
    documents: Corpus | None = None
    outside: Sequence[Sequence[int]] = ()
    references: Sequence[Sequence[int]] = ()
    tokenizer: str = ""
    vocabulary: int = 0
    free_nodes: bool = False
    probes_count: bool = False
    chains: bool = False
    private: bool = False
    predicted: Sequence[int] = ()


class Assistant(Protocol):
    """A second, smaller model that continues a sequence."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Start on a new prompt."""

    def draft(self, log: TokenLog, count: int) -> list[int]:
        """Draft `count` tokens behind those of a log, fewer where the model's context ends.

        The log is that of the sequence that began with the last prompt. Raises MemoryError and the
        like where memory ends.
        """


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The settings of drafters; each drafter reads those that it knows.

    Attributes:
        n: Tokens of the longest n-gram.
        lp: Tokens of the longest prefix that is looked up.
        num_draft: The most nodes of a draft.
        learn_output: Whether the answer itself is drafted from.
        assistant: The draft model; None without.
        costs: Of forward passes, as measured; None: not measured.
        pool: Earlier answers; None without.
        background: Counts of general text; None without.
        heads: The learned heads; None without.
        masks: The ids of the tokens that the model was tuned to fill, in their order below a token.
    """

    n: int = _DEFAULTS.drafting.n
    lp: int = _DEFAULTS.drafting.lp
    num_draft: int = _DEFAULTS.drafting.num_draft
    learn_output: bool = _DEFAULTS.drafting.learn_output
    assistant: Assistant | None = None
    costs: Costs | None = None
    pool: Pool | None = None
    background: BackgroundCounts | None = None
    heads: Heads | None = None
    masks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        SETTINGS["n"].check(self.n)
        SETTINGS["num_draft"].check(self.num_draft)
        check_range("lp", self.lp, SETTINGS["lp"].within[0], self.n - 1)


def draft_settings(settings: Settings) -> DraftSettings:
    """Return the part of the settings that drafters read."""
    return DraftSettings(
        settings.drafting.n,
        settings.drafting.lp,
        settings.drafting.num_draft,
        settings.drafting.learn_output,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Bounds of a draft: it may have `nodes` nodes. Probes come on top of them.

    Of the expected tokens of the log, which stand in front of the draft in the same forward pass,
    `forced` are those that a grammar forces. They are certain to come: each takes a row, and each
    is a token that the pass yields.
    """

    nodes: int
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree to follow a log; if it is empty the step decodes plainly.

    `top_k` is how many of the best token ids of each row the drafter wants to learn, 0 for none.
    """

    tree: DraftTree = _EMPTY
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one forward pass for a draft, accepted or not.

    Attributes:
        tree: The tree that was verified, which may be a cut of the one proposed.
        top: int64 (k + 1, top_k): token ids of the highest logits after the root and after each of
            the k nodes, probes included, best first; all ids where the vocabulary has fewer. None
            where the draft asked for none, or was not verified.
        stop: The node where verification stopped, whose row chose the last token; None where that
            is above the root.
        after: Gives the likeliest tokens after some nodes; valid until the next forward pass.
        rows: Number of rows of the whole forward pass, those of other sequences included.
        seconds: What it took, from its layout to the upkeep of the cache; None where that says
            nothing about other passes.
    """

    tree: DraftTree = _EMPTY
    top: npt.NDArray[np.int64] | None = None
    stop: int | None = ROOT
    after: Callable[[Sequence[int]], Guessed] = lambda _: NOTHING
    rows: int = 0
    seconds: float | None = None

    def without_front(self, front: int) -> "Outcome | None":
        """Return the outcome of the draft below the chain of its first `front` nodes.

        None where the chain was cut.
        """
        tree = self.tree
        if not front:
            return self
        if len(tree) < front:
            return None
        parents = tuple([max(ROOT, parent - front) for parent in tree.parents[front:]])
        below = replace(
            tree, tokens=tree.tokens[front:], parents=parents, origins=tree.origins[front:]
        )
        stop = None if self.stop is None or self.stop < front - 1 else self.stop - front
        top = None if self.top is None else self.top[front:]

        def after(nodes: Sequence[int]) -> Guessed:
            return self.after([node + front for node in nodes])

        return replace(self, tree=below, top=top, stop=stop, after=after)


class Drafter:
    """Proposes draft trees for one sequence at a time. Subclasses write `propose`.

    The life of a draft: `begin` with a prompt; then, for every forward pass, `propose` and `learn`;
    at last `close`. The log holds the tokens of the sequence. Its last tokens may be expected only,
    and be taken back: a drafter that indexes them keeps a mark of the log (log.py). Whatever was
    taken back, its drafts are those of a drafter that never saw it.

    What is learned may outlive a sequence, if a drafter says so. `options` are the method's own.
    `origins` names what the drafts may come from; `drafts` is False where nothing is ever proposed;
    `heads` are those that read the hidden states of the sequence. Making one raises UsageError if
    something that it needs is missing.
    """

    origins: tuple[str, ...] = ()
    drafts = True
    heads: Heads | None = None

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        self.settings = settings
        self.options = options

    def begin(self, context: Context) -> None:
        """Start on a new prompt."""

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Return a draft to follow all tokens of `log`."""
        raise NotImplementedError

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Learn from a forward pass; `log` holds the tokens that it emitted, and expected ones."""

    def close(self, keep: bool = True) -> PolicyReport | None:
        """End the sequence; return what was decided in it, None where nothing is.

        Without `keep` another drafter goes on with the sequence, and learns all of it at its end.
        """
