"""What a drafter is and what it learns from. Knows no torch.

A drafter proposes; it never decides. Whatever it proposes, verification emits the target model's
own tokens, so a drafter can make a run slower but not different.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ngtcli.config import SETTINGS, Settings
from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.drafting.ahead import Ahead, Behind, behind
from ngtcli.drafting.costs import Costs
from ngtcli.drafting.guesses import NOTHING, Guessed, Heads
from ngtcli.drafting.options import check_range
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tree import ROOT, DraftTree, Path
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.drafting.tries.corpus import Corpus

_DEFAULTS = Settings()
_EMPTY = DraftTree()


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before decoding starts.

    `ids` is the whole prompt; `documents` the cached corpus of the documents in it, None without;
    `outside` the runs of prompt ids that it does not hold; `references` the runs of prompt ids that
    are documents. `tokenizer` is its fingerprint, `vocabulary` the model's size of it. With
    `free_nodes` all forward passes have one shape, so a node costs nothing; with `probes_count`
    probes take nodes of the budget. With `chains` drafts have no branches. `private`: nothing is
    drafted from other texts, and nothing learned for them. `predicted` are the ids of a text beside
    the prompt that the answer is said to be like.
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
    """A second, smaller model that continues a text."""

    def reset(self, ids: Sequence[int]) -> None:
        """Start on a new prompt."""

    def continue_(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens to follow `ids`, fewer where its context ends.

        `ids` are those of the last call, or of `reset`, without some at the end, and with others.
        """


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The settings that every drafter may read; each reads the ones it knows.

    `assistant`, `costs` (of passes), `pool` (earlier answers), `background` (counts of a general
    text) and `heads` are None where there is none. `masks` are the ids of the tokens that the model
    was tuned to fill, in their order below a token.
    """

    n: int = _DEFAULTS.n
    lp: int = _DEFAULTS.lp
    num_draft: int = _DEFAULTS.num_draft
    learn_output: bool = _DEFAULTS.learn_output
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
    """The part of the settings that drafters read."""
    return DraftSettings(settings.n, settings.lp, settings.num_draft, settings.learn_output)


class Drafter:
    """Anything that proposes a draft tree: subclasses write `propose`, and what else they want.

    `options` are the method's own. The other methods do nothing here; `reset` comes before all of
    them. What is learned may outlive it, if a drafter says so. `origins` names what its drafts may
    come from; `top_k` is how many of the best ids of each row `learn` is to be given after a
    proposal, 0 for none; `heads` are those that read the hidden states of the text, if any do.
    `sure` of the last ids that `propose` gets were not emitted yet, but will be. Raises UsageError
    if something is missing.
    """

    origins: tuple[str, ...] = ()
    drafts = True  # whether anything is ever proposed
    top_k: int = 0
    sure: int = 0
    heads: Heads | None = None

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        self.settings, self.options = settings, options

    @classmethod
    def prepare(cls) -> None:
        """Have all compiled that drafters of this class need."""

    def reset(self, context: Context) -> None:
        """Start on a new prompt."""

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """A tree of at most `budget` nodes to follow `ids` (prompt and output so far).

        If it is empty the step decodes plainly. Probes come on top of the budget.
        """
        raise NotImplementedError

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the next tokens of the text, in order; `propose` has them in its ids.

        They were emitted in a step, or are expected: what a grammar forces, what an exact pass
        found in a branch. Expected tokens are not observed again when they are emitted.
        """

    def retract(self, count: int, ids: Sequence[int]) -> None:
        """The last `count` tokens observed were not emitted after all; the text is `ids`.

        Drafts are then those of a drafter that never observed them.
        """

    def learn(self, feedback: "Feedback") -> None:
        """Learn from one pass, before `observe`.

        Called only where `top_k` is not 0, and after each pass with probes.
        """

    def spent(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows took `seconds`, from its layout to the upkeep of the cache."""

    def finish(self) -> None:
        """The answer has ended."""

    def leave(self) -> None:
        """Another drafter goes on with the answer, and learns all of it when it has ended."""

    def report(self) -> PolicyReport | None:
        """What was decided in this run; None where it decides nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one pass said of a draft, accepted or not.

    `tree` is the tree that was scored, which may be a cut of the one proposed; `top`, int64 of
    shape (k + 1, top_k), holds the ids of the highest scores after the root and after each of its
    k nodes, probes included, best first; all ids where the vocabulary has fewer than `top_k`.
    `stop` is the node where verification stopped, whose row gave the last token, None where that
    is above the root; `after` gives the likeliest tokens after some nodes, until the next pass.
    """

    tree: DraftTree
    top: npt.NDArray[np.int64]
    stop: int | None = ROOT
    after: Callable[[Sequence[int]], Guessed] = lambda _: NOTHING

    def behind(self, head: int) -> "Feedback | None":
        """What the pass said of the draft below the chain of its first `head` nodes.

        None where the chain was cut.
        """
        tree = self.tree
        if not head or len(tree) < head:
            return None if head else self
        parents = tuple([max(ROOT, parent - head) for parent in tree.parents[head:]])
        origins = tree.origins[head:]
        below = DraftTree(tree.tokens[head:], parents, tree.probes, origins, tree.names)
        stop = None if self.stop is None or self.stop < head - 1 else self.stop - head

        def after(nodes: Sequence[int]) -> Guessed:
            return self.after([node + head for node in nodes])

        return Feedback(below, self.top[head:], stop, after)


class Text(Protocol):
    """A text that drafts are to follow."""

    ids: list[int]  # of prompt and output

    @property
    def depth(self) -> int:
        """How deep a draft may be: behind it one more token can be emitted."""

    @property
    def left(self) -> int:
        """Tokens of the context that are left."""

    @property
    def matcher(self) -> Matcher | None:
        """The state of the grammar that decides what follows, None where none does."""


AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class Drafters(Generic[AnyDrafter]):
    """The drafters of the texts that one pass serves, one text or several.

    Here each drafts by itself, and the `most` nodes of a pass are divided evenly, what is left over
    in turns. `make` makes a drafter; one whose text has ended is used again. `proposed` says
    whether a drafter was queried in the last step. Where a context wants chains, a tree is cut to
    its first. Where a grammar decides what follows, a draft has what must in front, and nothing
    that is refused.
    """

    def __init__(self, make: Callable[[], AnyDrafter], most: int) -> None:
        self.most, self.proposed = most, False
        self._make, self._chains, self._turn = make, False, 0
        self._active = dict[AnyDrafter, bool]()  # and whether its text is private
        self._free: list[AnyDrafter] = []
        self._ahead = dict[AnyDrafter, Ahead]()  # of texts with a grammar

    def start(self, context: Context) -> AnyDrafter:
        """The drafter of a text that begins."""
        is_new = context.private or not self._free
        drafter = self._make() if is_new else self._free.pop()
        self._chains = context.chains
        drafter.reset(context)
        self._active[drafter] = context.private
        return drafter

    def propose(self, drafters: Sequence[AnyDrafter], texts: Sequence[Text]) -> list[DraftTree]:
        """A draft for each text, no deeper than its `depth`.

        The tree, with all its rows, also fits what is `left` of the context: some models keep
        tables with a row for each place in the cache. Probes, which are not emitted, may be as deep
        as that allows.
        """
        self.proposed, count = False, max(1, len(drafters))
        share, over = divmod(self.most, count)
        first, self._turn = self._turn, (self._turn + over) % count
        trees: list[DraftTree] = []
        for i, (drafter, text) in enumerate(zip(drafters, texts, strict=True)):
            most = min(share + ((i - first) % count < over), text.left)
            place = self._behind(drafter, text, most)
            tree = self._ask(drafter, place.ids, place.depth, place.room, place.left)
            trees.append(place.whole(tree))
        return trees

    def _behind(self, drafter: AnyDrafter, text: Text, room: int) -> Behind:
        """A text behind what must follow, of which the drafter is told."""
        ahead = self._ahead.get(drafter)
        if ahead is None and text.matcher is not None and drafter.drafts:
            ahead = self._ahead[drafter] = Ahead(drafter, text.ids)
        place = behind(text, room, ahead)
        drafter.sure = len(place.head)
        return place

    def _ask(
        self, drafter: AnyDrafter, ids: Sequence[int], depth: int, most: int, left: int
    ) -> DraftTree:
        if depth < 1 or most < 1:
            return _EMPTY
        self.proposed = True
        tree = drafter.propose(ids, most)
        return (tree.first_chain() if self._chains else tree).cut(depth, most, left, left)

    def accept(self, tree: DraftTree, path: Path) -> Path:
        """What counts of the path that verification found in a tree."""
        return path

    def learn(self, drafter: AnyDrafter, feedback: Feedback) -> None:
        """Give a drafter the best ids after each row of its tree."""
        if below := feedback.behind(drafter.sure):
            drafter.learn(below)

    def observe(self, drafters: Sequence[AnyDrafter], emitted: Sequence[Sequence[int]]) -> None:
        """Give each drafter the tokens that a step emitted."""
        for drafter, tokens in zip(drafters, emitted, strict=True):
            if new := self._unknown(drafter, tokens):
                drafter.observe(new)

    def _unknown(self, drafter: AnyDrafter, tokens: Sequence[int]) -> Sequence[int]:
        """Those of the emitted tokens that the drafter was not told before."""
        ahead = self._ahead.get(drafter)
        return tokens if ahead is None else ahead.emit(tokens)

    def spent(self, rows: int, seconds: float) -> None:
        """A step over `rows` rows of all texts took `seconds`, drafting left out."""
        for drafter in self._active:
            drafter.spent(rows, seconds)

    def report(self, drafter: AnyDrafter) -> PolicyReport | None:
        """What was decided in a text's run; None where nothing is."""
        return drafter.report()

    def finish(self, drafter: AnyDrafter) -> None:
        """A text has ended."""
        if ahead := self._ahead.pop(drafter, None):
            ahead.take_back()
        drafter.sure = 0
        drafter.finish()
        if not self._active.pop(drafter, True):
            self._free.append(drafter)

    def end(self) -> None:
        """No more passes come: the texts have ended, or were broken off."""
