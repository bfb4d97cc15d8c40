"""The features that a model supports: drafts, batches, a prefix cache, CUDA graphs. No torch.

Code decides by enums; a sentence (`why`) is for people alone.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Self


class Ability(Enum):
    """The answer to whether something is possible with a model."""

    YES = "yes"
    NO = "no"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True)
class Support:
    """An answer, and the reason against it, for people."""

    ability: Ability
    why: str = ""

    @classmethod
    def no(cls, why: str) -> Self:
        """Return a refusal with this reason."""
        return cls(Ability.NO, why)

    @property
    def is_supported(self) -> bool:
        """Return whether the thing is known to be possible."""
        return self.ability is Ability.YES

    @property
    def is_refused(self) -> bool:
        """Return whether the thing is known to be impossible."""
        return self.ability is Ability.NO


SUPPORTED = Support(Ability.YES)
UNTRIED = Support(Ability.UNTRIED)


class DraftSupport(Enum):
    """The drafts that a model verifies."""

    TREES = "trees"  # any, in a cache that can be rolled back
    CHAINS = "chains"  # those without branches, in the model's own cache
    NONE = "steps"  # no drafts: one token per forward pass (files have this value)


class Obstacle(Enum):
    """An obstacle to verifying draft trees."""

    KEEPS_STATE = "keeps-state"
    STARTS_ANEW = "starts-anew"
    ATTENDS_IN_CHUNKS = "attends-in-chunks"
    CHOOSES_TOKENS = "chooses-tokens"
    NO_TREE_MASK = "no-tree-mask"
    UNKNOWN_LAYERS = "unknown-layers"
    LONG_WINDOW = "long-window"


# What messages say about each obstacle; {} is the detail.
SENTENCES = {
    Obstacle.KEEPS_STATE: "its layers keep a running state",
    Obstacle.STARTS_ANEW: (
        "its passes over several tokens do not go on from the state that its layers keep"
    ),
    Obstacle.ATTENDS_IN_CHUNKS: (
        "its layers attend within chunks, which the mask of a draft tree does not follow"
    ),
    Obstacle.CHOOSES_TOKENS: (
        "its layers choose the tokens they attend to, from a cache of their own"
    ),
    Obstacle.NO_TREE_MASK: "it does not honour a tree attention mask",
    Obstacle.UNKNOWN_LAYERS: "its layers are of a kind unknown here ({})",
    Obstacle.LONG_WINDOW: "its {} is too long to be tried",
}
_MAX_DETAIL = 100  # characters


@dataclass(frozen=True, slots=True)
class NoTrees:
    """Why a model verifies no draft trees. `detail` completes the sentence of some obstacles.

    Raises:
        ValueError: The detail is not a short printable text, because a stored object is damaged.
    """

    obstacle: Obstacle
    detail: str = ""

    def __post_init__(self) -> None:
        if len(self.detail) > _MAX_DETAIL or not self.detail.isprintable():
            raise ValueError("invalid detail")

    @property
    def why(self) -> str:
        """The sentence for people."""
        return SENTENCES[self.obstacle].format(self.detail)


@dataclass(frozen=True, slots=True)
class ExecutionMode:
    """The way in which the forward passes of a model are run.

    Attributes:
        support: The drafts that it verifies.
        no_trees: Why it verifies no draft trees; None if it does.
        crops: With CHAINS, whether the model's own cache crops rejected tokens. If not, the state
            before the forward pass is restored, and the accepted tokens are read again.
        window: With TREES, whether the tree mask applies the sliding window of the configuration.
        chunks: With CHAINS or NONE, whether a prompt may be prefilled in several forward passes.

    Raises:
        ValueError: `support` and `no_trees` contradict each other.
    """

    support: DraftSupport = DraftSupport.TREES
    no_trees: NoTrees | None = None
    crops: bool = False
    window: bool = True
    chunks: bool = True

    def __post_init__(self) -> None:
        if (self.support is DraftSupport.TREES) != (self.no_trees is None):
            raise ValueError("a model that verifies no trees has a reason, and no other has one")

    @property
    def why(self) -> str:
        """For people: why it verifies no draft trees; "" if it does."""
        return self.no_trees.why if self.no_trees else ""
