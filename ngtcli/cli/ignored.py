"""What is wrong with settings is told before anything is read or loaded.

Options that would have no effect are refused.

Refused is what was asked for by a flag and would not happen. Settings of the environment, of files
and presets stand for many commands, and need not matter to each.
"""

from collections.abc import Mapping
from typing import Any

from ngtcli.config import OF_TRIE, SPREADING, Settings
from ngtcli.errors import UsageError
from ngtcli.model_files.checkpoint import NEEDS, check_models

_SAMPLING = ("top_p", "top_k", "min_p")
_OF_AUTO = ("pool", "pool_documents", "background", "draft_from", "calibrate")
_DRAFTING = (*OF_TRIE, *_OF_AUTO, "draft_model")


def flag(name: str) -> str:
    """The flag of a setting.

    >>> flag("num_draft")
    '--num-draft'
    """
    return f"--{name.replace('_', '-')}"


def check_session(settings: Settings, *, dry: bool = False) -> None:
    """Raise UsageError and ModelError as a session would, for what is wrong with its settings.

    No weights are read. With `dry` no model is to run.
    """
    needs = [part for part in NEEDS if part != "weights"] if dry else NEEDS
    check_models(settings.model, "" if dry else settings.draft_model, needs)
    if dry or settings.engine == "vllm":
        return
    if settings.device not in ("auto", "cpu"):
        from ngtcli.system.machine import pick_device  # here: it loads torch

        pick_device(settings.device)
    neutral = Settings()
    if (settings.method, settings.background) == (neutral.method, neutral.background):
        return
    from ngtcli.background.files import check_names  # here: they load numpy
    from ngtcli.draft.drafter import draft_settings
    from ngtcli.draft.registry import parse_method

    method = parse_method(settings.method, draft_settings(settings))
    if method.name != "draft-model":
        method.check()
    if method.entry.costs:
        check_names(settings.background)


def refuse_ignored(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for a flag that the other settings leave without an effect."""
    _refuse_engine(flags, settings)
    _refuse_sampling(flags, settings)
    if any(flags.get(name) for name in _DRAFTING):
        _refuse_drafting(flags, settings)


def _refuse_engine(flags: Mapping[str, Any], settings: Settings) -> None:
    """Flags of the other engine, and what vLLM cannot do."""
    if settings.engine == "ngt":
        for name in (n for n in SPREADING if n in flags):
            raise UsageError(f"{flag(name)} does nothing with ngt's engine", "Give --engine vllm.")
        return
    from ngtcli.engines.vllm_arguments import UNREAD, check

    for name in (n for n in UNREAD if n in flags):
        raise UsageError(f"{flag(name)} does nothing with --engine vllm", "Leave it out.")
    check(settings)


def _refuse_sampling(flags: Mapping[str, Any], settings: Settings) -> None:
    if settings.temperature > 0 or "temperature" in flags:
        return
    neutral = Settings()
    for name in _SAMPLING:
        if flags.get(name, getattr(neutral, name)) != getattr(neutral, name):
            raise UsageError(
                f"{flag(name)} does nothing at temperature 0, where the likeliest token is taken",
                "Give --temperature as well.",
            )


def _refuse_drafting(flags: Mapping[str, Any], settings: Settings) -> None:
    """Flags that the method does not read. `none` switches drafting off, whatever else is said."""
    from ngtcli.draft.drafter import DraftSettings
    from ngtcli.draft.registry import parse_method

    method = parse_method(settings.method, DraftSettings())
    readers = {
        **dict.fromkeys(OF_TRIE, ("trie", method.entry.documents)),
        **dict.fromkeys(_OF_AUTO, ("auto", method.entry.costs)),
        "draft_model": ("draft-model", method.name == "draft-model"),
    }
    for name in (n for n in _DRAFTING if flags.get(n)):
        reader, read = readers[name]
        if not read and (method.name != "none" or name == "draft_model"):
            raise UsageError(
                f"{flag(name)} does nothing with --method {method.name}",
                f"It is read by --method {reader}.",
            )
    if flags.get("pool_documents") and not settings.pool:
        raise UsageError("--pool-documents does nothing without the pool", "Leave out --no-pool.")


def refuse_colour(form: str, flags: Mapping[str, Any]) -> None:
    """Raise UsageError where colours are forced on what `form` puts out without any."""
    forced = flags.get("color") == "always"
    refuse_beside(form, {"--color always": forced}, "Nothing is coloured there.")


def refuse_beside(given: str, others: Mapping[str, object], hint: str) -> None:
    """Raise UsageError where one of `others`, {flag: whether given}, stands beside `given`."""
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{other} does nothing with {given}", hint)
