"""Settings: flag > NGT_* > ./ngt.yaml > user config > preset > default, and where each came from.

A settings file (`ngt.yaml`, the user's `config.yaml`, a preset) is a flat YAML mapping. Unknown
keys and values of the wrong type are errors that name the file and the nearest key.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ngtcli.errors import UsageError, nearest
from ngtcli.ranges import CHOICES, KINDS, RANGES, SWITCH, check_value
from ngtcli.system.storage import home
from ngtcli.system.yaml_file import parse_yaml, read_mapping, shown

PROJECT_FILE = "ngt.yaml"
OTHER_VARIABLES = ("NGT_HOME",)  # variables that are read and are no settings
_PREFIX = "NGT_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decode; the same names are flags (with dashes), NGT_* variables and YAML keys."""

    model: str = "builtin"
    method: str = "auto"
    draft_model: str = ""
    n: int = 13
    lp: int = 3
    num_draft: int = 32
    learn_output: bool = False
    pool: bool = True
    pool_documents: bool = False
    background: tuple[str, ...] = ("english",)
    draft_from: str = "prompt"
    calibrate: bool = True
    exact: str = "auto"
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    max_repeats: int = 6
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0
    packed: bool = True
    capture: bool = True
    compile: bool = False
    overflow: str = "auto"
    passages: int = 5
    passage_tokens: int = 200
    passage_overlap: int = 0
    whole_tokens: int = 0
    embedder: str = ""
    reranker: str = ""
    max_mb: int = 256
    max_files: int = 100_000
    max_depth: int = 100
    strict: bool = False
    password: str = ""
    field: str = ""
    parser_seconds: int = 60
    parser_mb: int = 1000
    cache_mb: int = 4000
    color: str = "auto"
    engine: str = "ngt"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    ray: bool = False

    def __post_init__(self) -> None:
        for name in (*RANGES, *CHOICES):
            check_value(name, getattr(self, name))
        if self.lp >= self.n:
            raise UsageError(
                f"lp is {self.lp} and n is {self.n}",
                "The prefix lp must be shorter than the window n.",
            )
        if self.passage_overlap >= self.passage_tokens:
            raise UsageError(
                f"passage_overlap is {self.passage_overlap} and passage_tokens"
                f" is {self.passage_tokens}",
                "Passages must be longer than what they share.",
            )


# The settings that decide what is drafted, and those of them that only methods with a trie read.
DRAFTING = ("method", "n", "lp", "num_draft", "learn_output")
OF_TRIE = ("n", "lp", "learn_output")
# The settings that decide how documents are read.
READING = (
    "max_mb", "max_files", "max_depth", "strict", "password", "field", "parser_seconds",
    "parser_mb",
)  # fmt: skip
# The settings that decide whether passages are read, and which.
RETRIEVING = (
    "passages", "passage_tokens", "passage_overlap", "whole_tokens", "embedder", "reranker",
)  # fmt: skip
# The settings that say how a vLLM engine spreads over devices, and whether there is one.
SPREADING = ("tensor_parallel", "pipeline_parallel", "data_parallel", "ray")
OF_ENGINE = ("engine", *SPREADING)
NAMES = ("background",)  # lists of names, which may also be written with commas
SECRET = ("password",)  # never shown
SETTING_NAMES = tuple(f.name for f in fields(Settings))
_DEFAULTS = Settings()


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The settings by name, as output may show them: of a password only that there is one."""
    values = asdict(settings)
    return {n: "(set)" if n in SECRET and v else v for n, v in values.items()}


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one place; `origin` is how `ngt config show` names that place."""

    origin: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The merged settings, and for each name the origin of its value."""

    settings: Settings
    origins: Mapping[str, str]


def merge(layers: list[Layer]) -> Resolved:
    """Merge layers; the first with a value decides. Raises UsageError for a value out of range."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTING_NAMES, "default")
    for layer in reversed(layers):
        for name, value in layer.values.items():
            values[name] = value
            origins[name] = layer.origin
    try:
        return Resolved(replace(_DEFAULTS, **values), origins)
    except UsageError as error:
        name = str(error).split(" ", 1)[0]
        raise UsageError(f"{error} (from {origins.get(name, 'default')})", error.hint) from None


def environment_and_file_layers() -> list[Layer]:
    """The layers between flags and preset: NGT_*, ./ngt.yaml, the user's config.yaml."""
    return [
        environment_layer(os.environ),
        file_layer(Path(PROJECT_FILE)),
        file_layer(home("config") / "config.yaml"),
    ]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Values from NGT_* variables; an empty one counts as unset.

    NGT_STOP is a YAML list or one string.
    """
    values = {}
    for name in SETTING_NAMES:
        if text := environ.get(variable(name)):
            values[name] = coerce(name, _from_text(name, text), variable(name))
    return Layer("environment", values)


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The NGT_* variables that are no settings and are not read, each with a hint.

    >>> unknown_variables({"NGT_NUM_DRAFTS": "16"})
    [('NGT_NUM_DRAFTS', 'Did you mean NGT_NUM_DRAFT?')]
    """
    known = [*map(variable, SETTING_NAMES), *OTHER_VARIABLES]
    unknown = [v for v in sorted(environ) if v.startswith(_PREFIX) and v not in known]
    return [(v, nearest(v, known, "See ngt config show.")) for v in unknown]


def _from_text(name: str, text: str) -> Any:
    """The value of an environment variable; its text if that is no value of the setting's type."""
    kind = type(getattr(_DEFAULTS, name))
    try:
        if kind in (int, float):
            return kind(text)
    except ValueError:
        return text
    if kind is str or (kind is tuple and not text.lstrip().startswith("[")):
        return text
    return parse_yaml(text, variable(name))


def file_layer(path: Path) -> Layer:
    """The values of one settings file; none if there is no such file."""
    if not os.path.lexists(path):
        return Layer(str(path))
    values = read_mapping(path)
    return Layer(str(path), {k: check_key(k, v, path) for k, v in values.items()})


def check_key(name: str, value: Any, where: object, extra: tuple[str, ...] = ()) -> Any:
    """`value` in the type of setting `name`. Raises UsageError if either is wrong."""
    if name not in SETTING_NAMES:
        hint = nearest(name, (*SETTING_NAMES, *extra))
        raise UsageError(f"{where}: unknown key {shown(name)}", hint)
    typed = coerce(name, value, where)
    try:
        check_value(name, typed)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", error.hint) from None
    return typed


def names_of(items: Sequence[str]) -> tuple[str, ...]:
    """The names in texts, each once; "none" stands for none.

    >>> names_of(["english,notes", "mail"]), names_of(["none"])
    (('english', 'notes', 'mail'), ())
    """
    names = [name.strip() for item in items for name in item.split(",")]
    return tuple(dict.fromkeys(name for name in names if name and names != ["none"]))


def coerce(name: str, value: Any, where: object) -> Any:
    """`value` in the type of setting `name`; ints pass for floats, a string for a list of one."""
    kind = type(getattr(_DEFAULTS, name))
    if CHOICES.get(name) == SWITCH and isinstance(value, bool):  # as YAML reads on and off
        return "on" if value else "off"
    if kind is tuple:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(i, str) for i in items):
            return names_of(items) if name in NAMES else tuple(items)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # `check_value` raises: out of every range
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise UsageError(f"{where}: {name} is {shown(value)}", f"It must be {KINDS[kind]}.")
