"""What a drafter is, and the registry of drafters by name. Knows no torch.

A drafter proposes; it never decides. Whatever it proposes, verification emits the target model's
own tokens, so a drafter can make a run slower but not different.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from ngtcli.draft.costs import Costs
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import UsageError, nearest, plain_number
from ngtcli.trie.ngram import NGramTrie
from ngtcli.trie.pool import Pool


@dataclass(frozen=True, slots=True)
class Context:
    """What is known before decoding starts.

    `ids` is the whole prompt; `documents` the cached trie of the documents in it, if there is one;
    `outside` the runs of prompt ids that the trie does not hold; `references` the runs of prompt
    ids that are documents. `tokenizer` is its fingerprint, `vocabulary` the model's size of it.
    """

    ids: Sequence[int]
    documents: NGramTrie | None = None
    outside: Sequence[Sequence[int]] = ()
    references: Sequence[Sequence[int]] = ()
    tokenizer: str = ""
    vocabulary: int = 0


class Assistant(Protocol):
    """A second, smaller model that continues a text."""

    def reset(self, ids: Sequence[int]) -> None:
        """Start on a new prompt."""

    def continue_(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens to follow `ids`, fewer where its context ends."""


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """The settings that every drafter may read; each reads the ones it knows.

    `assistant`, `costs` (of passes) and `pool` (earlier answers) are None where there is none.
    """

    n: int = 13
    lp: int = 3
    num_draft: int = 32
    learn_output: bool = False
    assistant: Assistant | None = None
    costs: Costs | None = None
    pool: Pool | None = None

    def __post_init__(self) -> None:
        check_range("n", self.n, 2, 64)
        check_range("lp", self.lp, 1, self.n - 1)
        check_range("num_draft", self.num_draft, 0, 1024)


class Drafter(Protocol):
    """Anything that proposes a draft tree. What is learned may outlive `reset`, if it says so."""

    def reset(self, context: Context) -> None:
        """Start on a new prompt."""

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """A tree of at most `budget` nodes to follow `ids` (prompt and output so far).

        It may be empty: then the step is a plain one. Probes come on top of the budget.
        """

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were emitted in a step, in order."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one pass said of a draft, accepted or not.

    `tree` is the tree that was scored, which may be a cut of the one proposed; `top`, int64 of
    shape (k + 1, top_k), holds the ids of the highest scores after the root and after each of its
    k nodes, probes included, best first.
    """

    tree: DraftTree
    top: npt.NDArray[np.int64]


@runtime_checkable
class ReadsScores(Protocol):
    """A drafter that also learns from scores: `learn` is called after each pass, before
    `observe`. Further results of a pass, such as hidden states, would be fields of Feedback."""

    @property
    def top_k(self) -> int:
        """How many ids of each row are wanted; 0 after a proposal whose scores are not."""

    def learn(self, feedback: Feedback) -> None:
        """Learn from one pass."""


@runtime_checkable
class ReadsCosts(Protocol):
    """A drafter that weighs its drafts against what passes cost; `spent` is called after each."""

    def spent(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows took `seconds`, from its layout to the upkeep of the cache."""


@runtime_checkable
class Explains(Protocol):
    """A drafter that decides how much to draft, and says why."""

    def explain(self) -> str:
        """Why the last step had the drafts it had, in a few words."""

    def report(self) -> dict[str, Any]:
        """What was decided in this run, JSON-ready: budgets ({nodes: steps}), stand_downs, …"""


@runtime_checkable
class Remembers(Protocol):
    """A drafter that keeps something of an answer: `finish` is called when it has ended."""

    def finish(self) -> None:
        """End an answer."""


Factory = Callable[[DraftSettings, Mapping[str, str]], Drafter]


@dataclass(frozen=True, slots=True)
class Method:
    """An entry of the registry. `needs` says what a drafter cannot do without, in words.

    Modules are imported when their method is asked for. `documents` is true where the method
    drafts from the documents' cached trie; `live` where it works only beside a running model;
    `costs` where it wants the measured cost of passes.
    """

    module: str
    needs: str = ""
    documents: bool = False
    live: bool = False
    costs: bool = False


_METHODS = {
    "none": Method("ngtcli.draft.none"),
    "trie": Method("ngtcli.draft.trie", documents=True),
    "auto": Method("ngtcli.draft.auto", costs=True),
    "prompt-lookup": Method("ngtcli.draft.prompt_lookup"),
    "llma": Method("ngtcli.draft.llma"),
    "akunu": Method("ngtcli.draft.akunu"),
    "trtllm": Method("ngtcli.draft.trtllm"),
    "rest": Method("ngtcli.draft.rest", needs="a datastore (ngt trie build --rest)"),
    "suffix": Method("ngtcli.draft.suffix", needs="the package arctic-inference"),
    "lookahead": Method("ngtcli.draft.lookahead", "scores of a running model", live=True),
    "recycling": Method("ngtcli.draft.recycling", "scores of a running model", live=True),
    "draft-model": Method("ngtcli.draft.draft_model", "a second model (--draft-model)", live=True),
}
_OBJECTS = ("assistant", "costs", "pool")
_SHARED = tuple(f.name for f in fields(DraftSettings) if f.name not in _OBJECTS)


def method_names() -> list[str]:
    """All names of methods."""
    return list(_METHODS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A method as it was asked for, `NAME[:KEY=VALUE]…`.

    Shared settings among the keys are already in `settings`; `options` are the method's own.
    """

    spec: str
    name: str
    method: Method
    settings: DraftSettings
    options: Mapping[str, str]

    def make(self) -> Drafter:
        """A new drafter. Raises UsageError for a wrong option."""
        factory: Factory = import_module(self.method.module).make
        try:
            return factory(self.settings, self.options)
        except UsageError as error:
            raise UsageError(f"method {self.name}: {error}", error.hint) from None


def want(spec: str, settings: DraftSettings) -> Wanted:
    """Read a method such as "trie" or "trtllm:max_draft_len=8". Raises UsageError.

    >>> want("trie:lp=4", DraftSettings()).settings.lp
    4
    """
    name, *pairs = spec.split(":")
    if name not in _METHODS:
        raise UsageError(f"no method {name!r}", nearest(name, _METHODS))
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise UsageError(f"method {spec!r}: {pair!r} is no option", "Write NAME:KEY=VALUE.")
        options[key] = value
    shared = {k: v for k, v in options.items() if k in _SHARED}
    own = {k: v for k, v in options.items() if k not in _SHARED}
    return Wanted(spec, name, _METHODS[name], read_options(settings, shared), own)


def make_drafter(spec: str, settings: DraftSettings) -> Drafter:
    """A new drafter. Raises UsageError for an unknown method or a wrong option."""
    return want(spec, settings).make()


Options = TypeVar("Options")


def read_options(defaults: Options, options: Mapping[str, str]) -> Options:
    """`defaults`, a dataclass, with fields replaced by values written as text. Raises UsageError.

    Fields may be int, float, bool ("true" or "false") or str.
    """
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in known:
            raise UsageError(f"no option {key!r}", nearest(key, known) if known else "It has none.")
        values[key] = _read(key, text, type(known[key]))
    return replace(defaults, **values)  # type: ignore[type-var]


def _read(key: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UsageError(f"{key} is {text!r}", f"It must be of type {kind.__name__}.") from None


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise UsageError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise UsageError(
            f"{name} is {plain_number(value)}",
            f"Give a value from {plain_number(low)} to {plain_number(high)}.",
        )
