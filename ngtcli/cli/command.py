"""What a command of ngt is: a function, with the options that it declares and those of settings.

    @command("list", settings=("model", "max_mb"), view=table("name,tokens", cells))
    def docs_list(
        flags: SettingFlags,
        paths: Annotated[list[str], typer.Argument(help="Files, folders, globs.")],
        limits: LimitFlags,
        verbose: VerboseOption = False,
    ) -> list[Row]:
        '''List documents.'''

The parameters of the function are as Typer documents them. Three kinds are known by their types:

- `SettingFlags` gets the settings that were given. The command has an option for each setting of
  `settings`.
- A dataclass has a field for each of several options, and the function gets an instance.
- `typer.Context` gets the context.

A command with a `view` returns a report, or yields it and continues. It has `--json`, which prints
the report; else the view shows it. `report` is what `ngt schema` describes.

Typer makes a command of a function alone. So here `Declaration` makes the parameters of all three,
and the classes below are those that Typer documents for `cls`. Reading the command line, errors,
help pages and completion are Typer's.
"""

import inspect
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.utils import get_params_from_function

from ngtcli.cli.everywhere import EverywhereFlags
from ngtcli.cli.notes import Notes, is_silent
from ngtcli.cli.options import JsonOption
from ngtcli.cli.parameters import (
    Argument,
    Option,
    parameter_of,
    parameters_of,
    quickly_converted,
)
from ngtcli.cli.setting_flags import SettingFlags, options_of_settings, settings_given
from ngtcli.cli.show import View, show
from ngtcli.config import SETTINGS, Use
from ngtcli.errors import UsageError
from ngtcli.removed import removed_flag
from ngtcli.system.cache import cache_limit
from ngtcli.system.reporting import reporting_to

Function = Callable[..., Any]
Parameters = list[Option | Argument]
_DEFAULTS = (
    "A model's card, a preset, settings files and NGT_* variables override these defaults:"
    r" ngt config show \[-p PRESET] prints the values in effect."
)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a command is made of.

    Attributes:
        function: What it runs.
        settings: The settings that it has an option for.
        view: How people see its report; None for a command that shows what it does itself.
        report: The type of its report, or a function that makes the schema of it; None without.
    """

    function: Function
    settings: Sequence[str] = ()
    view: View | None = None
    report: Any = None

    def parameters(self) -> Parameters:
        """Return the options and arguments: of the function, of settings, of every command."""
        parameters: Parameters = []
        for name, declared in get_params_from_function(self.function).items():
            kind = declared.annotation
            if _has_flags(kind):
                parameters += parameters_of(kind)
            elif kind not in (SettingFlags, typer.Context):
                parameters.append(parameter_of(name, kind, declared.default))
        if self.view is not None and not any("--json" in p.opts for p in parameters):
            parameters += parameters_of(_JsonFlag)
        parameters += options_of_settings(self.settings)
        parameters += parameters_of(EverywhereFlags)
        _check_distinct(parameters)
        return parameters

    def arguments(self, context: typer.Context) -> dict[str, Any]:
        """Return what the function is called with. Raises UsageError."""
        arguments: dict[str, Any] = {}
        for name, declared in get_params_from_function(self.function).items():
            kind = declared.annotation
            if kind is SettingFlags:
                arguments[name] = settings_given(context.params, self.settings)
            elif kind is typer.Context:
                arguments[name] = context
            elif _has_flags(kind):
                fields = get_params_from_function(kind)
                arguments[name] = kind(**{field: context.params[field] for field in fields})
            else:
                arguments[name] = context.params[name]
        return arguments

    @property
    def help(self) -> str:
        """The docstring of the function; a paragraph is one line, but examples keep theirs."""
        paragraphs = (inspect.getdoc(self.function) or "").split("\n\n")
        return "\n\n".join(map(_joined, paragraphs))

    @property
    def epilog(self) -> str | None:
        """What the page of a command that answers ends with: where its defaults come from."""
        return _DEFAULTS if "max_tokens" in self.settings else None


class Command(TyperCommand):
    """A command: see the module. Its function is called when the command line was read."""

    def __init__(self, name: str, declaration: Declaration) -> None:
        super().__init__(
            name,
            callback=declaration.function,
            params=[*declaration.parameters()],
            help=declaration.help,
            epilog=declaration.epilog,
        )
        self.report = declaration.report
        self._declaration = declaration

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with `--help`."""
        return quickly_converted(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises UsageError for a flag that ngt had once."""
        with _hints_for_flags(ctx, self._declaration.settings):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> None:
        """Call the function, and show its report."""
        with_json = _is_given("--json", ctx)
        _check_verbosity(ctx)
        is_verbose = _is_given("--verbose", ctx)
        with _cache_within_bound(verbose=is_verbose), reporting_to(Notes(is_verbose)):
            ctx.params = self._declaration.arguments(ctx)
            report = super().invoke(ctx)
            if self._declaration.view is not None:
                show(report, with_json, self._declaration.view)


class Group(TyperGroup):
    """A group of commands. One that does something by itself has a function, as a command has."""

    def __init__(self, name: str, declaration: Declaration | None = None) -> None:
        self._declaration = declaration
        if declaration is None:
            super().__init__(name=name, params=parameters_of(EverywhereFlags), no_args_is_help=True)
        else:
            super().__init__(
                name=name,
                callback=declaration.function,
                params=declaration.parameters(),
                help=declaration.help,
                epilog=declaration.epilog,
                invoke_without_command=True,
            )

    def command(
        self,
        name: str,
        *,
        settings: Sequence[str] = (),
        view: View | None = None,
        report: Any = None,
    ) -> Callable[[Function], Command]:
        """Make a command of this group of a function; the arguments are those of `command`."""

        def decorate(function: Function) -> Command:
            made = command(name, settings=settings, view=view, report=report)(function)
            self.add_command(made)
            return made

        return decorate

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with `--help`."""
        return quickly_converted(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises UsageError for a flag that ngt had once."""
        settings = self._declaration.settings if self._declaration else ()
        with _hints_for_flags(ctx, settings):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name. Raises UsageError for a file in its place."""
        name = args[0]
        is_unknown = self.get_command(ctx, name) is None and not ctx.resilient_parsing
        if is_unknown and "show" in self.commands and os.path.lexists(name):
            kind = "folder" if os.path.isdir(name) else "file"
            raise UsageError(
                f"{name} is a {kind}, not a command of {ctx.command_path}",
                hint=f"Try {ctx.command_path} show {shlex.quote(name)}.",
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Call the function of the group, if it has one, and then that of a command in it."""
        if self._declaration is None:
            return super().invoke(ctx)
        _check_verbosity(ctx)
        is_verbose = _is_given("--verbose", ctx)
        with _cache_within_bound(verbose=is_verbose), reporting_to(Notes(is_verbose)):
            ctx.params = self._declaration.arguments(ctx)
            return super().invoke(ctx)


def command(
    name: str, *, settings: Sequence[str] = (), view: View | None = None, report: Any = None
) -> Callable[[Function], Command]:
    """Make a command of a function; see the module.

    Args:
        name: Its name.
        settings: The settings that it has options for.
        view: How people see its report.
        report: The type of its report, or what makes the schema of that; without it, the type that
            the function returns.
    """

    def decorate(function: Function) -> Command:
        printed = report
        if printed is None and view is not None:
            printed = _type_of_report(function)
        return Command(name, Declaration(function, settings, view, printed))

    return decorate


def group(name: str, *, settings: Sequence[str] = ()) -> Callable[[Function], Group]:
    """Make a group of a function, which is called also where no command of the group is named."""

    def decorate(function: Function) -> Group:
        return Group(name, Declaration(function, settings))

    return decorate


@dataclass(frozen=True, slots=True)
class _JsonFlag:
    json: JsonOption = False


def _has_flags(kind: Any) -> bool:
    """Return whether each field of this type is a flag."""
    return is_dataclass(kind)


def _check_distinct(parameters: Parameters) -> None:
    """Raise TypeError where two parameters of a command have the same name."""
    names = [parameter.name for parameter in parameters]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"a command has two parameters of the name {', '.join(sorted(twice))}")


def _type_of_report(function: Function) -> Any:
    """Return the type of what a function returns, or yields first."""
    returned = inspect.signature(function, eval_str=True).return_annotation
    return get_args(returned)[0] if inspect.isgeneratorfunction(function) else returned


def _joined(paragraph: str) -> str:
    """Return a paragraph as one line; examples keep their lines, as Typer marks them."""
    lines = [line.strip() for line in paragraph.strip().split("\n")]
    return "\b\n" + "\n".join(lines) if lines[0].startswith("ngt ") else " ".join(lines)


def _is_given(flag: str, context: typer.Context) -> bool:
    """Return whether the command has this switch and it was given."""
    names = [p.name for p in context.command.params if flag in p.opts]
    return any(context.params.get(name) for name in names)


def _check_verbosity(context: typer.Context) -> None:
    """Raise UsageError where a command is to say more and only errors."""
    if is_silent() and _is_given("--verbose", context):
        raise UsageError("-q and -v are mutually exclusive", hint="Give one of them.")


@contextmanager
def _cache_within_bound(*, verbose: bool) -> Iterator[None]:
    """Bring the cache within its bound after this block, if the block wrote to it.

    With `verbose` what was removed is reported.
    """
    try:
        yield
    finally:
        removed = cache_limit.finish()
        if removed.bytes and verbose:
            limit = f"its limit is {removed.limit / 1e6:g} MB (--set cache_mb)"
            Notes().remark(
                f"Removed the least recently used {removed.words} from the cache: {limit}."
            )


@contextmanager
def _hints_for_flags(context: typer.Context, settings: Sequence[str]) -> Iterator[None]:
    """Raise UsageError with a hint for an unknown flag of which we know what was meant.

    That is a flag that ngt had once, or the name of one of the command's settings that `--set`
    gives.
    """
    try:
        yield
    except typer.TyperException as error:
        flag = getattr(error, "option_name", "")  # Typer's error of an unknown option has it
        is_known = any(flag in (*p.opts, *p.secondary_opts) for p in context.command.params)
        if not flag or is_known:
            raise
        hint = removed_flag(context.command_path.removeprefix("ngt "), flag)
        hint = hint or _hint_of_set(flag, settings)
        if not hint:
            raise
        raise UsageError(f"unknown option {flag}", hint=hint) from None


def _hint_of_set(flag: str, settings: Sequence[str]) -> str:
    """Return how to give the setting that a flag names, if it is one for `--set`; else ""."""
    name = flag.lstrip("-").replace("-", "_")
    setting = SETTINGS.get(name.removeprefix("no_"))
    if setting is None or setting.name not in settings or Use.SET not in setting.uses:
        return ""
    is_switched_off = name != setting.name
    if setting.kind is bool:
        value = "no" if is_switched_off else "yes"
    else:
        value = "none" if is_switched_off else "VALUE"
    return f"Give --set {setting.name}={value}."
