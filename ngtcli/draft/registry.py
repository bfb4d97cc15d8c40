"""The registry of drafting methods by name. A method is one file and one line of `_METHODS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module

from ngtcli.draft.drafter import Drafter, DraftSettings, read_options
from ngtcli.errors import UsageError, nearest

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
    "none": Method("ngtcli.draft.methods.none"),
    "trie": Method("ngtcli.draft.methods.trie", documents=True),
    "auto": Method("ngtcli.draft.auto.drafter", costs=True),
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
