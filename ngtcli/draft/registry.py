"""The registry of drafting methods by name. A method is one file and one line of `_METHODS`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from ngtcli.draft.drafter import Drafter, Drafters, DraftSettings
from ngtcli.draft.options import read_options
from ngtcli.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Method:
    """An entry of the registry. `needs` says in words what a drafter cannot do without.

    `module` has `make(settings, options)`; the dataclass `Options` stands there too, or in the
    module `options_module` where importing `module` loads numba and building the drafter compiles.
    Both are imported when their method is named, and not before.
    `many`: the module that has `make_many(settings, options)`, where the drafters of several texts
    of one pass know of each other.
    `documents`: the method drafts from the documents' cached trie. `live`: it works only beside a
    running model. `costs`: it reads the measured cost of passes and the pool of earlier answers.
    """

    module: str
    needs: str = ""
    documents: bool = False
    live: bool = False
    costs: bool = False
    options_module: str = ""
    many: str = ""

    def read(self, options: dict[str, str]) -> Any:
        """The method's own options as its dataclass. Raises UsageError; compiles nothing."""
        return read_options(import_module(self.options_module or self.module).Options(), options)


_METHODS = {
    "none": Method("ngtcli.draft.methods.none"),
    "trie": Method("ngtcli.draft.methods.trie", documents=True),
    "auto": Method(
        "ngtcli.draft.auto.drafter",
        costs=True,
        options_module="ngtcli.draft.auto.config",
        many="ngtcli.draft.auto.batch",
    ),
    "prompt-lookup": Method("ngtcli.draft.methods.prompt_lookup"),
    "llma": Method("ngtcli.draft.methods.llma"),
    "akunu": Method("ngtcli.draft.methods.akunu"),
    "trtllm": Method("ngtcli.draft.methods.trtllm"),
    "rest": Method("ngtcli.draft.methods.rest", needs="a datastore (ngt trie build --rest)"),
    "suffix": Method("ngtcli.draft.methods.suffix", needs="the package arctic-inference"),
    "lookahead": Method("ngtcli.draft.methods.lookahead", "scores of a running model", live=True),
    "recycling": Method("ngtcli.draft.methods.recycling", "scores of a running model", live=True),
    "draft-model": Method(
        "ngtcli.draft.methods.draft_model", "a second model (--draft-model)", live=True
    ),
}
_OBJECTS = ("assistant", "costs", "pool", "background")
_SHARED = tuple(f.name for f in fields(DraftSettings) if f.name not in _OBJECTS)


def method_names() -> list[str]:
    """All names of methods."""
    return list(_METHODS)


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as its user wrote it, `NAME[:KEY=VALUE]…`, with all its options read.

    Shared settings among the keys are already in `settings`; `options` are the method's own, an
    instance of its dataclass.
    """

    spec: str
    name: str
    entry: Method
    settings: DraftSettings
    options: Any

    def build(self) -> Drafter:
        """A new drafter. Raises UsageError where something that it needs is missing."""
        drafter: Drafter
        with _named(self.name):
            drafter = import_module(self.entry.module).make(self.settings, self.options)
        return drafter

    def build_many(self) -> Drafters[Any]:
        """New drafters for the texts of one pass. Raises UsageError as `build` does."""
        if not self.entry.many:
            return Drafters(self.build, self.settings.num_draft)
        drafters: Drafters[Any]
        drafters = import_module(self.entry.many).make_many(self.settings, self.options)
        return drafters

    def check(self) -> None:
        """Raise UsageError where something is missing, as `build` does; compile nothing."""
        if not self.entry.options_module:
            self.build()


def parse_method(spec: str, settings: DraftSettings) -> MethodSpec:
    """Read a method such as "trie" or "trtllm:max_draft_len=8"; `settings` are the defaults.

    Raises UsageError for an unknown name and for a wrong option. Builds and compiles nothing.

    >>> parse_method("trie:lp=4", DraftSettings()).settings.lp
    4
    """
    name, *pairs = spec.split(":")
    if name not in _METHODS:
        raise UsageError(f"no method {name!r}", nearest(name, _METHODS))
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise UsageError(f"method {spec!r}: {pair!r} is not an option", "Write NAME:KEY=VALUE.")
        options[key] = value
    shared = read_options(settings, {k: v for k, v in options.items() if k in _SHARED})
    with _named(name):
        own = _METHODS[name].read({k: v for k, v in options.items() if k not in _SHARED})
    return MethodSpec(spec, name, _METHODS[name], shared, own)


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Put the method's name before the message of a UsageError."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"method {method}: {error}", error.hint) from None
