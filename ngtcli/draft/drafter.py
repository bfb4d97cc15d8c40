"""What a drafter is, and the registry of drafters by name. Knows no torch.

A drafter proposes; it never decides. Whatever it proposes, verification emits the target model's
own tokens, so a drafter can make a run slower but not different.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from ngtcli.draft.tree import DraftTree
from ngtcli.errors import UsageError, nearest
from ngtcli.trie.ngram import NGramTrie


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before decoding starts.

    `ids` is the whole prompt; `documents` the cached trie of the documents in it, if there is one;
    `outside` the runs of prompt ids that the trie does not hold.
    """

    ids: Sequence[int]
    documents: NGramTrie | None = None
    outside: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The settings that drafters may read; each reads the ones it knows."""

    n: int = 13
    lp: int = 3
    num_draft: int = 32
    learn_output: bool = False


class Drafter(Protocol):
    """Anything that proposes a draft tree."""

    def reset(self, context: Context) -> None:
        """Start on a new prompt."""

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """A tree of at most `budget` nodes to follow `ids` (prompt and output so far).

        It may be empty: then the step is a plain one.
        """

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were emitted in a step, in order."""


Factory = Callable[[DraftSettings], Drafter]

# Modules by method name: a method's module is imported when it is asked for.
_METHODS = {"none": "ngtcli.draft.none", "trie": "ngtcli.draft.trie"}


def method_names() -> list[str]:
    return list(_METHODS)


def make_drafter(method: str, settings: DraftSettings) -> Drafter:
    """A new drafter. Raises UsageError for an unknown method."""
    if method not in _METHODS:
        raise UsageError(f"no method {method!r}", nearest(method, _METHODS))
    factory: Factory = import_module(_METHODS[method]).make
    return factory(settings)
