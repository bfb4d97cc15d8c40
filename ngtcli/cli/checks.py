"""Checks of what a command was given, made before anything is read or loaded.

A flag that would have no effect is refused. Settings of the environment, of files and of presets
are for many commands, and need not matter to each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ngtcli.config import SETTINGS, Setting, Settings, Use
from ngtcli.errors import UsageError


def refuse_ignored(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for a flag that the other settings leave without an effect."""
    given = [SETTINGS[name] for name in flags]
    for about in given:
        if about.engine not in ("", settings.engine.engine):
            engine, hint = "--engine vllm", "Leave it out."
            if settings.engine.engine == "ngt":
                engine, hint = "ngt's engine", "Give --engine vllm."
            raise UsageError(f"{about.flag} does nothing with {engine}", hint=hint)
    if settings.engine.engine == "vllm":
        from ngtcli.engine.vllm.process import check

        check(settings)
    refuse_idle(flags, settings)
    greedy = not settings.answer.temperature and "temperature" not in flags
    for about in given:
        if greedy and Use.SAMPLES in about.uses and flags[about.name] != about.default:
            what = "does nothing at temperature 0, where the likeliest token is taken"
            raise UsageError(f"{about.flag} {what}", hint="Give --temperature as well.")
    _refuse_drafting([about for about in given if about.method and flags[about.name]], settings)


def refuse_idle(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for a flag that has no effect on a model that is quantised or placed."""
    idle = {"--set packed=no": flags.get("packed") is False}
    if settings.model.device_map == "auto":
        refuse_with("--set device_map=auto", idle, "Leave it out.")
    if settings.model.quantize != "none":
        refuse_with(f"--quantize {settings.model.quantize}", idle, "Leave it out.")


def _refuse_drafting(given: Sequence[Setting], settings: Settings) -> None:
    """Flags that the method does not read. `none` switches drafting off, whatever else is said."""
    if not given:
        return
    from ngtcli.drafting.drafter import DraftSettings
    from ngtcli.drafting.registry import parse_method

    method = parse_method(settings.drafting.method, DraftSettings())
    reads = {"trie": method.entry.documents, "auto": method.entry.costs, method.name: True}
    for about in given:
        off = method.name == "none" and about.method != "draft-model"
        heads = about.name == "heads" and method.entry.heads
        if not (reads.get(about.method) or off or heads):
            what = f"{about.flag} does nothing with --method {method.name}"
            raise UsageError(what, hint=f"It is read by --method {about.method}.")
        if about.name == "pool_documents" and not settings.drafting.pool:
            what = "--set pool_documents does nothing without the pool"
            raise UsageError(what, hint="Leave out --set pool=no.")


def refuse_colour(form: str, flags: Mapping[str, Any]) -> None:
    """Raise UsageError where colours are forced on what `form` puts out without any."""
    forced = flags.get("color") == "always"
    refuse_with(form, {"--color always": forced}, "Nothing is coloured there.")


def refuse_with(given: str, others: Mapping[str, object], hint: str, how: str = "with") -> None:
    """Raise UsageError where one of `others`, {flag: whether given}, comes with `given`."""
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{other} does nothing {how} {given}", hint=hint)
