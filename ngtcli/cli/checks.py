"""Checks of what a command was given, made before anything is read or loaded.

A flag that would have no effect is refused. Settings of the environment, of files and of presets
are for many commands, and need not matter to each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ngtcli.cli.options import OF_OWN_ENGINE
from ngtcli.config import SETTINGS, Setting, Settings, Use
from ngtcli.errors import UsageError

LIVE, REPLAY = "live", "replay"
Table = Mapping[str, tuple[str, ...]]
_BOTH = (LIVE, REPLAY)
_PANELS = {
    **dict.fromkeys(("Reading", "Sampling", "Passages", "Answer", "Model"), (LIVE,)),
    "Drafting": _BOTH,
}
# For each parameter of `ngt tune` the ways of measuring in which it means something.
TUNE: Table = {
    **{name: _PANELS[SETTINGS[name].panel] for name in OF_OWN_ENGINE},
    **dict.fromkeys(("items", "sweep", "limit", "rounds", "preset", "state"), _BOTH),
    **dict.fromkeys(("write", "force", "markdown", "csv", "html", "output", "json"), _BOTH),
    **dict.fromkeys(("fresh", "verbose", "color", "max_mb", "cache_mb"), _BOTH),
    **dict.fromkeys(("docs", "prompts", "draft_model", "heads"), (LIVE,)),
    **dict.fromkeys(("calibrate", "exact"), (LIVE,)),
    **dict.fromkeys(("replay", "task", "ids", "costs"), (REPLAY,)),
}
# Of these an empty text would stand for the default.
_NAMED = ("methods", "tasks", "against", "num_draft", "ids")
# Two ways to say one thing.
_EITHER = (("methods", "method"), ("num_draft", "sweep_num_draft"))


def refuse_ignored(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for a flag that the other settings leave without an effect."""
    given = [SETTINGS[name] for name in flags]
    for about in given:
        if about.engine not in ("", settings.engine):
            engine, hint = "--engine vllm", "Leave it out."
            if settings.engine == "ngt":
                engine, hint = "ngt's engine", "Give --engine vllm."
            raise UsageError(f"{about.flag} does nothing with {engine}", hint)
    if settings.engine == "vllm":
        from ngtcli.engines.vllm_arguments import check

        check(settings)
    if not settings.log:
        refuse_with("--no-log", {"--set log_text": flags.get("log_text")}, "Leave one of them out.")
    refuse_idle(flags, settings)
    greedy = not settings.temperature and "temperature" not in flags
    for about in given:
        if greedy and Use.SAMPLES in about.uses and flags[about.name] != about.default:
            what = "does nothing at temperature 0, where the likeliest token is taken"
            raise UsageError(f"{about.flag} {what}", "Give --temperature as well.")
    _refuse_drafting([about for about in given if about.method and flags[about.name]], settings)


def refuse_idle(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for a flag that has no effect on a model that is quantised or placed."""
    idle = {"--set packed=no": flags.get("packed") is False}
    if settings.device_map == "auto":
        refuse_with("--set device_map=auto", idle, "Leave it out.")
    if settings.quantize != "none":
        refuse_with(f"--quantize {settings.quantize}", idle, "Leave it out.")


def _refuse_drafting(given: Sequence[Setting], settings: Settings) -> None:
    """Flags that the method does not read. `none` switches drafting off, whatever else is said."""
    if not given:
        return
    from ngtcli.draft.drafter import DraftSettings
    from ngtcli.draft.registry import parse_method

    method = parse_method(settings.method, DraftSettings())
    reads = {"trie": method.entry.documents, "auto": method.entry.costs, method.name: True}
    for about in given:
        off = method.name == "none" and about.method != "draft-model"
        heads = about.name == "heads" and method.entry.heads
        if not (reads.get(about.method) or off or heads):
            what = f"{about.flag} does nothing with --method {method.name}"
            raise UsageError(what, f"It is read by --method {about.method}.")
        if about.name == "pool_documents" and not settings.pool:
            what = "--set pool_documents does nothing without the pool"
            raise UsageError(what, "Leave out --set pool=no.")


def refuse_colour(form: str, flags: Mapping[str, Any]) -> None:
    """Raise UsageError where colours are forced on what `form` puts out without any."""
    forced = flags.get("color") == "always"
    refuse_with(form, {"--color always": forced}, "Nothing is coloured there.")


def refuse_with(given: str, others: Mapping[str, object], hint: str) -> None:
    """Raise UsageError where one of `others`, {flag: whether given}, comes with `given`."""
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{other} does nothing with {given}", hint)


def check_combination(context: typer.Context, table: Table, mode: str) -> None:
    """Raise UsageError where the command line that runs has a flag that would be ignored."""
    given = _given(context)
    idle = [name for name in given if mode not in table[name]]
    if idle:
        where = f"without --{table[idle[0]][0]}" if mode == LIVE else f"with --{mode}"
        does, it = ("does", "it") if len(idle) == 1 else ("do", "them")
        flags = ", ".join(given[name][0] for name in idle)
        raise UsageError(f"{flags} {does} nothing {where}", f"Leave {it} out.")
    check_given(context)


def check_given(context: typer.Context) -> None:
    """Raise UsageError for flags of the command that runs that say nothing, or one thing twice."""
    given = _given(context)
    if "force" in given and "write" not in given:
        raise UsageError("--force does nothing without --write", "Leave it out.")
    for one, two in _EITHER:
        if one in given and two in given:
            raise UsageError(f"{given[one][0]} and {given[two][0]}", "Give one of them.")
    for name in _NAMED:
        flag, value = given.get(name, ("", "some"))
        if isinstance(value, str) and not value.strip(" ,"):
            raise UsageError(f"{flag} is empty", "Give it a value, or leave it out.")


def _given(context: typer.Context) -> dict[str, tuple[str, object]]:
    """The parameters that stand on the command line: each as it is written, and its value."""
    found = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params.get(name)
            written = parameter.secondary_opts if value is False else parameter.opts
            flag = max(written or parameter.opts, key=len)
            found[name] = (flag if flag.startswith("-") else "naming texts", value)
    items = context.params.get("set") or () if found.pop("set", None) else ()
    names = [item.partition("=")[0].replace("-", "_") for item in items]
    return found | {name: (f"--set {name}", "set") for name in names}
