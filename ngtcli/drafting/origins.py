"""The origins of draft tokens, and reports of drafters. Imports only light modules."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ngtcli.system.json_form import json_key

PREDICTED = "predicted"  # a text that the user expects the answer to resemble
OWN_TEXT = "own text"
PROMPT = "prompt"
POOL = "pool"
BACKGROUND = "background"
SCORES = "scores"
# The sources of `auto` that are asked order by order, in the order in which they are asked.
SOURCES = (PREDICTED, OWN_TEXT, PROMPT, POOL, BACKGROUND, SCORES)
DOCUMENT = "document"  # a token of the prompt that is in one of its documents
HEAD = "head"  # a learned head
ORIGINS = (*SOURCES, DOCUMENT, HEAD)
DRAFT = "draft"  # the only origin of a method that does not tell sources apart
GRAMMAR = "grammar"  # a token that a grammar forces, whatever the method


@dataclass(frozen=True, slots=True)
class HeadReport:
    """The calls of a head, the tokens gained by its guesses, and the time of a call."""

    asked: int
    tokens: float = field(metadata=json_key(digits=3))
    first_s: float = field(metadata=json_key(digits=6))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """The decisions in a run of a drafter that sets its own budget, and their grounds.

    Attributes:
        budgets: How many steps had drafts of each number of nodes.
        stand_downs: How often drafting paused.
        came_true: The ratio of accepted drafts to expected ones.
        trust: The same ratio for nodes of a probability above 1/2, above 1/4, ….
        drafting_s: The seconds of a proposal.
        cost_s: The seconds of a forward pass by its rows.
        heads: The reports on the learned heads by their kind.
    """

    budgets: Mapping[int, int]
    stand_downs: int
    came_true: float = field(metadata=json_key(digits=3))
    trust: tuple[float, ...] = field(metadata=json_key(digits=3))
    drafting_s: float = field(metadata=json_key(digits=7))
    cost_s: Mapping[int, float] = field(metadata=json_key(digits=7))
    heads: Mapping[str, HeadReport] | None = field(default=None, metadata=json_key(omit=True))
