"""The registry of drafting methods by name.

A method is a file in methods/ with a subclass of `Drafter`, and an entry of `_METHODS` here. Tests
run every method of the registry. manual/methods.md describes the methods to users. If the drafts of
a method have a new origin, render/terminal.py needs a color for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Drafter, DraftSettings
from ngtcli.drafting.options import MethodOptions, read_options
from ngtcli.errors import UsageError
from ngtcli.words import nearest


@dataclass(frozen=True, slots=True)
class Method:
    """An entry of the registry. Its modules are imported only when the method is used.

    Attributes:
        module: The module of the drafter, below ngtcli.drafting.
        drafter: The class of the drafter in `module`.
        needs: What a drafter needs that may be missing, as error messages name it.
        documents: Whether the method drafts from the cached trie of the documents.
        live: Whether it works only with a running model.
        costs: Whether it uses the measured costs of forward passes and the pool of earlier answers.
        masks: Whether it uses the mask tokens of the model.
        options: The module of the dataclass `Options`, if it is not in `module`, because importing
            `module` would load numba.
        batch: The function of `module` that returns the `Drafting` of a batch; "" if the drafters
            of a batch are independent.
        heads: Whether it drafts only from learned heads, of the kind that it is named after.
        stand_in: The method that drafts while the code of this one is compiled.
        compiling: The module that compiles that code.
        compiled: Whether its drafters need the compiled loops of `auto`.
    """

    module: str
    drafter: str
    needs: str = ""
    documents: bool = False
    live: bool = False
    costs: bool = False
    masks: bool = False
    options: str = ""
    batch: str = ""
    heads: bool = False
    stand_in: str = ""
    compiling: str = ""
    compiled: bool = False


def _module(name: str) -> Any:
    return import_module(f"ngtcli.drafting.{name}")


_SCORES = "scores of a running model"
_METHODS = {
    "none": Method("methods.none", "NoDrafts"),
    "trie": Method("methods.trie", "TrieDrafter", documents=True),
    "auto": Method(
        "auto.drafter",
        "Auto",
        costs=True,
        options="auto.config",
        batch="batch_drafting",
        stand_in="prompt-lookup",
        compiling="auto.compiling",
        compiled=True,
    ),
    "prompt-lookup": Method("methods.prompt_lookup", "PromptLookup"),
    "llma": Method("methods.llma", "Llma"),
    "akunu": Method("methods.akunu", "Akunu"),
    "trtllm": Method("methods.trtllm", "Trtllm", batch="batch_drafting"),
    "rest": Method("methods.rest", "Rest", "a datastore (ngt trie build --rest)"),
    "suffix": Method("methods.suffix", "Suffix", "the package arctic-inference"),
    "lookahead": Method("methods.lookahead", "Lookahead", _SCORES, live=True),
    "recycling": Method("methods.recycling", "Recycling", _SCORES, live=True),
    "space": Method("methods.space", "Space", "a model tuned by SPACE", live=True, masks=True),
    "draft-model": Method(
        "methods.draft_model", "DraftModel", "a second model (--set draft_model)", live=True
    ),
}
_LEARNED = Method(
    "methods.learned",
    "Learned",
    "a head (--heads)",
    live=True,
    options="options",
    heads=True,
    compiled=True,
)
_METHODS |= dict.fromkeys(("medusa", "hydra", "eagle", "eagle3", "dflash", "mtp"), _LEARNED)
# Fields of DraftSettings that are objects, which no text can describe. A method's text may set the
# others, as `trie:lp=4` does.
_OBJECTS = ("assistant", "costs", "pool", "background", "heads", "masks")
_SHARED = tuple(f.name for f in fields(DraftSettings) if f.name not in _OBJECTS)


def method_names() -> list[str]:
    """Return the names of all methods."""
    return list(_METHODS)


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as users write it, `NAME[:KEY=VALUE]…`, parsed.

    Attributes:
        spec: The text.
        name: The name of the method.
        entry: Its entry of the registry.
        settings: The settings of drafting, with those that the text changes.
        options: The method's own options, an instance of its `Options`.
    """

    spec: str
    name: str
    entry: Method
    settings: DraftSettings
    options: Any

    def build(self) -> Drafter:
        """Make a new drafter. Raises UsageError if something that it needs is missing."""
        settings = self.settings
        if self.entry.heads and settings.heads is not None:
            settings = replace(settings, heads=settings.heads.of_kind(self.name))
        with _named(self.name):
            return self._prepared()(settings, self.options)

    def _prepared(self) -> type[Drafter]:
        """Compile what the drafters need; return their class."""
        if self.entry.compiled:
            _module("auto.drafter").compile_loops()
        drafter: type[Drafter] = getattr(_module(self.entry.module), self.entry.drafter)
        return drafter

    def build_batch(self) -> Drafting:
        """Make the drafters of a batch. Raises UsageError as `build` does."""
        if not self.entry.batch:
            return Drafting(lambda context: self.build(), self.settings.num_draft)
        self._prepared()
        batch_drafting: Any = getattr(_module(self.entry.module), self.entry.batch)
        drafting: Drafting = batch_drafting(self.settings, self.options)
        return drafting

    def available(self, stays: bool = True) -> "MethodSpec":
        """Return this method, or its stand-in while the code of this one is compiled.

        If it is not compiled, this starts the compilation in another process, unless the result
        could not be stored and this process ends soon. Both methods give the same answer.

        Args:
            stays: Whether more answers follow in this process.
        """
        if not self.entry.stand_in:
            return self
        compiling = _module(self.entry.compiling)
        if compiling.is_ready() or not compiling.begin(stays):
            return self
        return parse_method(self.entry.stand_in, self.settings)

    def check(self) -> None:
        """Raise UsageError if something that the method needs is missing; compile nothing.

        Methods with compiled loops are not checked here, because building them would compile:
        `auto` needs nothing, and engine/checks.py checks learned heads.
        """
        if not self.entry.compiled:
            self.build()


def parse_method(spec: str, settings: DraftSettings) -> MethodSpec:
    """Parse a method such as "trie" or "trtllm:max_draft_len=8"; `settings` are the defaults.

    Raises UsageError for an unknown name or an invalid option. Builds and compiles nothing.

    >>> parse_method("trie:lp=4", DraftSettings()).settings.lp
    4
    """
    name, *pairs = spec.split(":")
    if name not in _METHODS:
        raise UsageError(f"unknown method {name!r}", hint=nearest(name, _METHODS))
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise UsageError(
                f"method {spec!r}: {pair!r} is not an option", hint="Write NAME:KEY=VALUE."
            )
        options[key] = value
    shared = read_options(settings, {k: v for k, v in options.items() if k in _SHARED})
    entry = _METHODS[name]
    with _named(name):
        defaults = getattr(_module(entry.options or entry.module), "Options", MethodOptions)()
        own_options = {key: value for key, value in options.items() if key not in _SHARED}
        method_options = read_options(defaults, own_options)
    return MethodSpec(spec, name, entry, shared, method_options)


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Put the method's name before the message of a UsageError."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"method {method}: {error}", hint=error.hint) from None
