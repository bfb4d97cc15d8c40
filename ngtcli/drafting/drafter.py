"""The interface of drafters, their inputs and outputs. It imports no torch.

A drafter proposes tokens; the target model decides. So a bad drafter makes decoding slower, but
cannot change its output.
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
    """The prompt of a sequence, and the properties of its model that drafters need.

    Attributes:
        ids: The token ids of the prompt.
        documents: The cached corpus of the documents in the prompt, None if it has none.
        outside: The token ids of each stretch of the prompt outside `documents`. Stretches overlap
            the documents beside them by a few tokens. If the method drafts from documents, a
            predicted text is the last of these stretches (`Prompt.with_prediction_as_document`).
        references: The token ids of each document of the prompt, and of such a predicted text.
        tokenizer: The fingerprint of the tokenizer.
        vocabulary: The number of token ids that the model has logits for.
        free_nodes: Whether all forward passes have one shape, so that a node costs nothing.
        probes_count: Whether probes count against the budget of nodes.
        chains: Whether drafts must not have branches.
        private: Whether drafters must not draft from other sequences, nor learn for them.
        predicted: The token ids of a text that the answer should resemble, which is not in the
            prompt; empty if there is none, or if it is among `references`.
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
        """Draft `count` tokens that follow a log, or fewer at the end of the model's context.

        Args:
            log: The log of the sequence whose prompt `begin` got last.
            count: The number of tokens.

        Raises:
            MemoryError: There is not enough memory; torch may raise its own errors instead.
        """


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The settings of all drafters; each drafter uses some of them.

    Attributes:
        n: The length of n-grams in tokens.
        lp: The maximum length in tokens of a prefix that is looked up in the trie.
        num_draft: The maximum number of nodes of a draft.
        learn_output: Also draft from the answer itself.
        assistant: The draft model; None if there is none.
        costs: The costs of forward passes, None if they are not measured.
        pool: Earlier answers, None if they are not used.
        background: Counts of general text, None if they are not used.
        heads: The learned heads; None if there are none.
        masks: The ids of the mask tokens that the model was tuned to fill, in order (SPACE).
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
    """Return the settings that drafters use."""
    return DraftSettings(
        settings.drafting.n,
        settings.drafting.lp,
        settings.drafting.num_draft,
        settings.drafting.learn_output,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a draft.

    Attributes:
        nodes: The maximum number of nodes, without probes, or with them if
            `Context.probes_count`.
        forced: How many of the log's expected tokens a grammar forces. They precede the draft in
            the same forward pass: each costs a query token and is certain to be emitted.
    """

    nodes: int
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal of a drafter.

    Attributes:
        tree: The tree that follows the log; if it is empty, the step is plain decoding.
        top_k: How many of the likeliest token ids after each node the drafter wants to see.
    """

    tree: DraftTree = _EMPTY
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one forward pass for a draft, accepted or not.

    Attributes:
        tree: The tree that was verified: the proposed one, perhaps cut.
        top: int64 (k + 1, top_k): the token ids of the highest logits after the root and after each
            of the k nodes, probes included, best first. There are fewer columns if the vocabulary
            is smaller. None if the draft asked for none, or was not verified.
        stop: The last accepted node, after which the last token was chosen, ROOT if none was
            accepted. None if the walk ended in the expected tokens before this draft.
        after: Returns the likeliest tokens after some nodes; valid until the next forward pass.
        rows: The number of query tokens of the forward pass, of all sequences.
        seconds: The duration of the forward pass, from its layout to the update of the cache; None
            if it is not typical, such as that of a pass that was captured.
    """

    tree: DraftTree = _EMPTY
    top: npt.NDArray[np.int64] | None = None
    stop: int | None = ROOT
    after: Callable[[Sequence[int]], Guessed] = lambda _: NOTHING
    rows: int = 0
    seconds: float | None = None

    def without_front(self, front: int) -> "Outcome | None":
        """Drop the first `front` nodes, a chain; return the outcome of the draft below it.

        Returns:
            None if memory has cut the chain, so that nothing of the draft was verified.
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
    """A drafter, which proposes draft trees for one sequence at a time by `propose`.

    For each sequence: `begin` with its prompt; for every forward pass `propose` and `learn`; at the
    end `close`. The log has the tokens of the sequence. The last of them may be expected tokens,
    such as those that a grammar forces: they are not emitted yet, and are taken back if the model
    chooses others (log.py). So a drafter that indexes tokens remembers a mark of the log. After
    tokens were taken back, it drafts as if it had never seen them.

    A drafter may remember what it has learned after the end of a sequence.

    Args:
        settings: The settings of drafting.
        options: The options of the method.

    Attributes:
        origins: The names of the origins of its drafts.
        drafts: False for a drafter that never proposes anything.
        heads: The learned heads that read the hidden states of the sequence.

    Raises:
        UsageError: Something that the method needs is missing.
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
        """Return a draft that follows the last token of a log."""
        raise NotImplementedError

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Learn from a forward pass. Its tokens are in the log; expected tokens may follow them."""

    def close(self, keep: bool = True) -> PolicyReport | None:
        """End the sequence.

        Args:
            keep: Whether to learn from the sequence. False if another drafter continues it, which
                learns from the whole sequence.

        Returns:
            A report on the decisions of the drafter's policy; None if it has no policy.
        """
