"""What the commands that measure have in common: their flags, where these count, and results.

A flag says at its declaration where it counts: `Annotated[Path | None, typer.Option(…),
Counts(REPLAY)]`. A command is a function of what it runs with and of its flags, which returns a
result, or yields it and goes on below it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ngtcli.cli.checks import refuse_idle
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    ForceOption,
    JsonOption,
    PresetOption,
    VerboseOption,
    command_line,
    file_option,
    resolve,
    with_settings,
)
from ngtcli.cli.output import asked_form, check_written, write_forms
from ngtcli.config import SETTINGS, Resolved, Settings, Use
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.measure.results import Invocation, versions
from ngtcli.prompt.preset import Preset

LIVE, REPLAY = "live", "replay"  # ways of measuring
_ALWAYS = ("color", "max_mb", "cache_mb")  # settings that count in both
prompt_option = partial(typer.Option, rich_help_panel="Prompts")
measured_option = partial(typer.Option, rich_help_panel="Measuring")
result_option = partial(typer.Option, rich_help_panel="Results")
_file = partial(file_option, rich_help_panel="Results")
_DOCS = prompt_option("--docs", "-d", help="Texts to ask questions of.")
LINES = prompt_option(help="Prompts as JSON lines.")
TEXTS = "Texts to summarize; default: the examples."


@dataclass(frozen=True, slots=True)
class Counts:
    """Where a flag counts: in one way of measuring, not with another flag, or beside one of some.

    The others are named by their parameters.
    """

    only: str = ""
    instead_of: str = ""
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where a result goes, unread; of all commands that measure."""

    preset: PresetOption = None
    json: JsonOption = False
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    force: Annotated[ForceOption, Counts(beside=("output", "html"))] = False
    verbose: VerboseOption = False


@dataclass(frozen=True, kw_only=True)
class PageFlags(OutputFlags):
    """The same for tables."""

    markdown: Annotated[bool, result_option("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _file(help="Write a page as well.")] = None


@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """What is answered."""

    docs: Annotated[list[str] | None, _DOCS, Counts(LIVE)] = None
    prompts: Annotated[Path | None, LINES, Counts(LIVE)] = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a command runs with: its settings, `preset` (the task's own, if none was given)."""

    resolved: Resolved
    preset: Preset
    flags: Mapping[str, Any]
    notes: Notes

    @property
    def settings(self) -> Settings:
        """The settings from all layers."""
        return self.resolved.settings


Work = Callable[[Run, Any], Any]


def measures(names: Sequence[str]) -> Callable[[Work], Callable[..., None]]:
    """Make a command of a function: flags for these settings and for its own, forms of its result.

    An interruption before there is a result ends it; a result that is `interrupted` is shown.
    """

    def decorate(work: Work) -> Callable[..., None]:
        hints = get_type_hints(work)
        kind, result = hints["given"], hints["return"]

        def command(
            context: typer.Context, given: Any, flags: dict[str, Any] | None = None
        ) -> None:
            check_flags(context, kind, REPLAY if getattr(given, "replay", None) else LIVE)
            resolved, preset = resolve(flags or {}, given.preset, "summarize")
            refuse_idle(flags or {}, resolved.settings)
            run = Run(resolved, preset, flags or {}, Notes(given.verbose))
            asked = {name: getattr(given, name, False) for name in ("json", "markdown", "csv")}
            outputs = given.output, getattr(given, "html", None)
            form = asked_form(asked, *outputs)
            check_written(outputs, given.force)
            try:
                made = work(run, given)
                more: Iterator[Any] = made if inspect.isgenerator(made) else iter([made])
                found = next(more)
            except KeyboardInterrupt:
                run.notes.warn("interrupted; nothing was measured")
                raise typer.Exit(INTERRUPTED) from None
            _put_out(found, run, given, form)
            with suppress(StopIteration):
                next(more)

        command.__doc__, command.__name__ = work.__doc__, work.__name__
        command.__annotations__["given"] = kind
        command.printed = result if is_dataclass(result) else get_args(result)[0]  # type: ignore[attr-defined]
        return with_settings(names)(command)

    return decorate


def _put_out(result: Any, run: Run, given: OutputFlags, form: str) -> None:
    from ngtcli.render.results import forms_of  # here: help does without

    run.notes.clear()
    if hasattr(result, "invocation"):
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        invocation = Invocation(command=command_line(), date=date, versions=versions())
        result = replace(result, invocation=invocation)
    forms = forms_of(result, given.verbose)
    outputs = given.output, getattr(given, "html", None)
    write_forms(forms, form, *outputs, run.settings.color, given.force)


def check_flags(context: typer.Context, kind: type, way: str) -> None:
    """Raise UsageError for a flag that would be ignored, that is empty, or that says it twice.

    `kind` declares the command's own flags; `way` is how it measures.
    """
    given, rules, own = _given(context), rules_of(kind), get_type_hints(kind)
    idle = [flag for name, (flag, _) in given.items() if rules[name].only not in ("", way)]
    if idle:
        where = "without --replay" if way == LIVE else "with --replay"
        does, it = ("does", "it") if len(idle) == 1 else ("do", "them")
        raise UsageError(f"{', '.join(idle)} {does} nothing {where}", f"Leave {it} out.")
    for name, (flag, value) in given.items():
        rule = rules[name]
        if rule.beside and given.keys().isdisjoint(rule.beside):
            others = " or ".join(f"--{other}" for other in rule.beside)
            raise UsageError(f"{flag} does nothing without {others}", "Leave it out.")
        if rule.instead_of in given:
            raise UsageError(f"{flag} and {given[rule.instead_of][0]}", "Give one of them.")
        if own.get(name) is str and not str(value).strip(" ,"):
            raise UsageError(f"{flag} is empty", "Give it a value, or leave it out.")


def rules_of(kind: type) -> dict[str, Counts]:
    """Where each flag counts: a setting in a replay if that drafts as it says."""
    rules: dict[str, Counts] = {}
    for name, about in SETTINGS.items():
        counts = Counts("" if Use.REPLAYS in about.uses or name in _ALWAYS else LIVE)
        rules[name] = counts
    for name, hint in get_type_hints(kind, include_extras=True).items():
        rules[name] = next((one for one in get_args(hint) if isinstance(one, Counts)), Counts())
    return rules


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
