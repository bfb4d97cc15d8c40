"""The base of `auto`'s sources: a table of one of three forms, learning, and first escapes.

A source is a file beside this one with a subclass of `Source`, and an entry in `table.py`. Compiled
code knows only the form of its table (core/forms.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.cells import NO_EVIDENCE
from ngtcli.drafting.auto.pool_counts import PoolCounts
from ngtcli.drafting.auto.prompts import PromptMemory
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.guesses import Heads
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.drafting.tries.counts import NONE

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
ORDERS = CONFIG.orders
BUCKETS = CONFIG.buckets
_ESCAPES = Path(__file__).parent.parent / "escapes.json"


@dataclass(frozen=True, slots=True)
class Resources:
    """The objects that outlive an answer, for the sources of each drafter.

    Attributes:
        answers: Counts of earlier answers.
        background: Counts of a general text; None if there are none.
        heads: The learned heads of the model; None if there are none.
        prompts: The counts of the last prompts.
    """

    answers: PoolCounts = field(default_factory=PoolCounts)
    background: BackgroundCounts | None = None
    heads: Heads | None = None
    prompts: PromptMemory = field(default_factory=PromptMemory)


@cache
def fitted(name: str) -> Floats:
    """Return the escape probabilities of a source that were fitted to recorded runs.

    They are float64 (rows, orders, buckets). The tool that fitted them was removed since: see
    `git show d643cb9d:tests/tools/fit_escapes.py`.
    """
    stored = json.loads(_ESCAPES.read_text(encoding="utf-8"))["escapes"]
    return np.array(stored[name]).reshape(-1, ORDERS, BUCKETS)


def same_everywhere(escape: float) -> Floats:
    """Return one escape probability for all orders and buckets of one row."""
    return np.full((1, ORDERS, BUCKETS), escape)


class Source:
    """A source of predictions; subclasses set the first attributes and override methods.

    Attributes:
        origin: The displayed origin of its tokens, a name in drafting/origins.py.
        origin_in_document: The same for tokens in a document of the prompt.
        form: TRIE, SORTED or ROW of core/forms.py.
        orders: The lowest and the highest order at which the source is queried.
        evidence: The kind of evidence of a match for the log-linear stage (core/cells.py).
        segment: Which segment of the copied text (core/copies.py) a TRIE counts; NONE if none.
        rows: How many rows of escape probabilities, and of matches, it has.
        matches: int32 (rows, orders), its rows of the matches of all sources.
        table: The arrays of the form, as a plain tuple; empty if it has no table.
        root: The match of no tokens at all; NONE if nothing can match.
    """

    origin: ClassVar[str]
    origin_in_document: ClassVar[str] = ""
    form: ClassVar[int]
    orders: ClassVar[tuple[int, int]] = (0, ORDERS - 1)
    evidence: ClassVar[int] = NO_EVIDENCE
    segment: ClassVar[int] = NONE
    rows: int = 1
    matches: Ints
    table: tuple[Any, ...] = ()
    root: int = 0

    def __init__(self, resources: Resources) -> None:
        """Store the needed `resources`."""

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return the initial escapes, float64 (rows, orders, buckets)."""
        raise NotImplementedError

    def begin(self, context: Context) -> None:
        """Begin an answer; the one before it has ended."""

    def start_matching(self) -> None:
        """Set the matches of no tokens at all."""
        self.matches[:] = NONE
        self.matches[:, 0] = self.root

    def refresh(self, tokens: int) -> bool:
        """Make room for `tokens` more tokens of the answer; return whether `table` is replaced."""
        return False

    def extend(self, tokens: Ints) -> None:
        """Learn the next tokens of the answer, int32 (n,), with which the matches now end."""

    def retract(self, count: int, output: Sequence[int]) -> None:
        """Remove the last `count` tokens of the answer; `output` remains."""

    def end(self) -> None:
        """End the answer."""
