"""The origins of draft tokens, and reports of drafters. Imports only light modules."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ngtcli.system.json_form import json_key

PREDICTED = "predicted"  # a text that the user says the answer is like
OWN_TEXT = "own text"
PROMPT = "prompt"
POOL = "pool"
BACKGROUND = "background"
SCORES = "scores"
# The sources of `auto` that are asked order by order, in the order in which they are asked.
SOURCES = (PREDICTED, OWN_TEXT, PROMPT, POOL, BACKGROUND, SCORES)
DOCUMENT = "document"  # of those of the prompt's nodes that are in a document
HEAD = "head"  # a learned one
ORIGINS = (*SOURCES, DOCUMENT, HEAD)
DRAFT = "draft"  # of a method with one source
GRAMMAR = "grammar"  # what must follow by a grammar, whatever the method


@dataclass(frozen=True, slots=True)
class HeadReport:
    """The calls of a head, the tokens gained by its guesses, and the time of a call."""

    asked: int
    tokens: float = field(metadata=json_key(digits=3))
    first_s: float = field(metadata=json_key(digits=6))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """The decisions in a run of a drafter that sets its own budget, and their grounds.

    `budgets` counts steps by their nodes, `stand_downs` counts the pauses of drafting. `came_true`
    is the ratio of accepted to expected drafts, `trust` the same by the node's probability: above
    1/2, above 1/4, …. `cost_s` are the seconds of a pass by its rows, `drafting_s` those of a
    proposal. `heads` are the learned heads by their kind.
    """

    budgets: Mapping[int, int]
    stand_downs: int
    came_true: float = field(metadata=json_key(digits=3))
    trust: tuple[float, ...] = field(metadata=json_key(digits=3))
    drafting_s: float = field(metadata=json_key(digits=7))
    cost_s: Mapping[int, float] = field(metadata=json_key(digits=7))
    heads: Mapping[str, HeadReport] | None = field(default=None, metadata=json_key(omit=True))
