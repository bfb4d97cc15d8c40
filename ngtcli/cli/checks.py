"""Warn of flags that have no effect, by one table, before anything is read or loaded.

Only flags are checked: settings of variables, files and presets are for many commands, which ignore
those they do not use. Mutually exclusive flags are errors where they are read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from ngtcli.config import FORMS, SETTINGS, Settings, Use, settings_where
from ngtcli.system import reporting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Flags = TypeVar("Flags", bound="DataclassInstance")


class Situation(Enum):
    """A property of a command line, in which some flags have no effect."""

    GREEDY = auto()
    OWN_ENGINE = auto()
    VLLM = auto()
    QUANTIZED = auto()
    MAPPED = auto()
    NO_AUTO = auto()
    NO_TRIE = auto()
    NO_DRAFT_MODEL = auto()
    NO_HEADS = auto()
    NO_POOL = auto()
    ALL_IS_READ = auto()
    ONE_SUMMARY = auto()
    ONE_ANSWER = auto()
    NO_DOCUMENTS = auto()
    EACH = auto()
    EACH_ON_STDOUT = auto()
    TABLE = auto()
    JSON = auto()
    SCHEMA = auto()
    DRY_RUN = auto()
    NO_FILE = auto()
    BATCH_ON_STDOUT = auto()
    STREAM = auto()
    EXTRACT_ON_STDOUT = auto()
    NO_COLOR = auto()
    DATASTORE = auto()
    NO_PASSAGES = auto()


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Flags without effect in a situation; `words` end the warning."""

    situation: Situation
    flags: tuple[str, ...]
    words: str


def _flags_of(use: Use) -> tuple[str, ...]:
    return tuple(SETTINGS[name].flag for name in settings_where(use))


COLORED = "--color always"
_OF_NGT = tuple(  # structured output with vLLM is an error
    SETTINGS[name].flag for name in settings_where(Use.NGT) if name not in FORMS
)
_AUTO = tuple(flag for flag in _flags_of(Use.AUTO) if flag != SETTINGS["heads"].flag)
TABLE = (
    NoEffect(Situation.GREEDY, _flags_of(Use.SAMPLES), "without --temperature"),
    NoEffect(Situation.OWN_ENGINE, _flags_of(Use.VLLM), "without --engine vllm"),
    NoEffect(Situation.VLLM, _OF_NGT, "with --engine vllm"),
    NoEffect(Situation.QUANTIZED, (SETTINGS["packed"].flag,), "with --quantize"),
    NoEffect(Situation.MAPPED, (SETTINGS["packed"].flag,), "with --set device_map=auto"),
    NoEffect(Situation.NO_AUTO, _AUTO, "without --method auto"),
    NoEffect(Situation.NO_HEADS, (SETTINGS["heads"].flag,), "without a method that reads heads"),
    NoEffect(Situation.NO_TRIE, _flags_of(Use.TRIE), "without --method trie"),
    NoEffect(Situation.NO_DRAFT_MODEL, _flags_of(Use.DRAFT_MODEL), "without --method draft-model"),
    NoEffect(Situation.NO_POOL, (SETTINGS["pool_documents"].flag,), "with --set pool=no"),
    NoEffect(
        Situation.ALL_IS_READ,
        (*_flags_of(Use.RETRIEVE), "--show-passages"),
        "without --overflow retrieve",
    ),
    NoEffect(Situation.ONE_SUMMARY, ("--restart", "--limit"), "without -o FOLDER/ or --per-file"),
    NoEffect(Situation.ONE_ANSWER, ("--restart", "--limit"), "without --each"),
    NoEffect(Situation.NO_DOCUMENTS, ("--cite", "--show-passages"), "without --docs"),
    NoEffect(
        Situation.EACH,
        ("--show-passages", "--predict", "--html", SETTINGS["keep_warm"].flag),
        "with --each or --per-file",
    ),
    NoEffect(Situation.EACH_ON_STDOUT, ("--restart", "--force"), "without -o"),
    NoEffect(Situation.TABLE, ("--json", "--show-thinking"), "on a table; -o FOLDER/ makes files"),
    NoEffect(Situation.JSON, ("--cite", "--show-thinking"), "with --json, which has both"),
    NoEffect(Situation.SCHEMA, ("--cite",), "with structured output; --json includes the sources"),
    NoEffect(
        Situation.DRY_RUN,
        ("--cite", "--show-thinking", "--html", "--predict", "-o"),
        "with --dry-run, which prints the prompt",
    ),
    NoEffect(Situation.NO_FILE, ("--force",), "without a file to write"),
    NoEffect(
        Situation.BATCH_ON_STDOUT, ("--retry-failed", "--restart", "--force"), "without -o FILE"
    ),
    NoEffect(Situation.STREAM, ("--retry-failed",), "on lines from standard input"),
    NoEffect(Situation.EXTRACT_ON_STDOUT, ("--sources", "--restart"), "without -o TABLE"),
    NoEffect(Situation.NO_COLOR, (COLORED,), "on output without color"),
    NoEffect(Situation.DATASTORE, ("--set n", "--set lp"), "with --rest"),
    NoEffect(
        Situation.NO_PASSAGES,
        ("--set passage_tokens", "--set passage_overlap"),
        "without --passages",
    ),
)


def warn_of_no_effect(situations: Collection[Situation], values: Mapping[str, object]) -> None:
    """Warn of each flag that has no effect in one of these situations.

    Args:
        situations: What holds of the command line.
        values: The value of each flag, as the table writes it; false where it was not given.
    """
    named = set()
    for row in TABLE:
        if row.situation not in situations:
            continue
        for flag in row.flags:
            if values.get(flag) and flag not in named:
                reporting.warn(f"{flag} has no effect {row.words}")
                named.add(flag)


def effective(
    values: Flags, field_of: Mapping[str, str], situations: Collection[Situation]
) -> Flags:
    """Return values of flags as if those without effect were not given.

    Args:
        values: A dataclass whose fields have defaults.
        field_of: The field that a flag sets, for each flag as the table has it.
        situations: What holds.
    """
    defaults = {field.name: field.default for field in fields(values)}
    names = [field_of[flag] for flag in without_effect(situations) if flag in field_of]
    return replace(values, **{name: defaults[name] for name in names})


def without_effect(situations: Collection[Situation]) -> set[str]:
    """Return the flags that have no effect in one of these situations."""
    return {flag for row in TABLE if row.situation in situations for flag in row.flags}


def without_unused_models(settings: Settings) -> Settings:
    """Return settings without the heads and the draft model that their method does not use.

    So these are not loaded, and need not be there.
    """
    if not (settings.model.heads or settings.model.draft_model):
        return settings
    unused = without_effect(_situations_of_method(settings))
    names = [name for name in ("heads", "draft_model") if SETTINGS[name].flag in unused]
    return settings.replace(**{name: SETTINGS[name].default for name in names})


def given_settings(flags: Mapping[str, Any]) -> dict[str, object]:
    """Return for the flag of each setting that was given whether that is not the default."""
    values: dict[str, object] = {
        SETTINGS[name].flag: value != SETTINGS[name].default for name, value in flags.items()
    }
    return values | {COLORED: flags.get("color") == "always"}


def check_settings(flags: Mapping[str, Any], settings: Settings) -> None:
    """Warn of settings among the flags that the other settings leave without an effect.

    Raises UsageError for what vLLM cannot do.
    """
    warn_of_no_effect(_situations_of(flags, settings), given_settings(flags))
    if settings.engine.engine == "vllm":
        from ngtcli.engine.vllm.process import check  # other engines do not need it

        check(settings)


def check_weights(flags: Mapping[str, Any], settings: Settings) -> None:
    """Warn of flags without effect on the weights that are loaded, whatever the method."""
    warn_of_no_effect(_situations_of_weights(settings), given_settings(flags))


def _situations_of(flags: Mapping[str, Any], settings: Settings) -> set[Situation]:
    situations = _situations_of_weights(settings)
    if any(SETTINGS[name].method for name in flags):
        situations |= _situations_of_method(settings)
    is_vllm = settings.engine.engine == "vllm"
    situations.add(Situation.VLLM if is_vllm else Situation.OWN_ENGINE)
    if not settings.answer.temperature and "temperature" not in flags:
        situations.add(Situation.GREEDY)
    return situations


def _situations_of_weights(settings: Settings) -> set[Situation]:
    situations = set[Situation]()
    if settings.model.quantize != "none":
        situations.add(Situation.QUANTIZED)
    if settings.model.device_map == "auto":
        situations.add(Situation.MAPPED)
    return situations


def _situations_of_method(settings: Settings) -> set[Situation]:
    """Return the situations of a method. `none` switches drafting off and ignores all flags."""
    from ngtcli.drafting.drafter import DraftSettings  # these load numpy
    from ngtcli.drafting.registry import parse_method

    method = parse_method(settings.drafting.method, DraftSettings())
    situations = set[Situation]()
    if method.name != "draft-model":
        situations.add(Situation.NO_DRAFT_MODEL)
    if not settings.drafting.pool:
        situations.add(Situation.NO_POOL)
    if not (method.entry.costs or method.entry.heads):
        situations.add(Situation.NO_HEADS)
    if method.name == "none":
        return situations
    if not method.entry.costs:
        situations.add(Situation.NO_AUTO)
    if not (method.entry.documents or method.name == "trie"):
        situations.add(Situation.NO_TRIE)
    return situations
