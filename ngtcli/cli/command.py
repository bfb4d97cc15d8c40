"""Commands of ngt: functions, with an option for each parameter and each setting.

    @command("list", settings=("model", "max_mb"), view=table("name,tokens", cells))
    def docs_list(
        flags: SettingFlags,
        paths: Annotated[list[str], typer.Argument(help="Files, folders, globs.")],
        limits: LimitFlags,
        verbose: VerboseOption = False,
    ) -> list[Row]:
        '''List documents.'''

The parameters of the function are declared as Typer's documentation says, except for three types:

- `SettingFlags` receives the settings that were given on the command line. The command has an
  option for each name in `settings`.
- A dataclass stands for several options, one per field; the function receives an instance.
- `typer.Context` receives the context.

A command with a `view` returns a report (a dataclass, or a list of them). Or it yields the report
once, and continues; `yield` returns True if the report was shown to people, False if as JSON. With
`--json` the report is printed as JSON; otherwise the view shows it. `ngt schema` describes the type
of the report.

By itself Typer makes a command only from a function's own parameters. So `Declaration` collects the
parameters from the function, the settings and the flags of all commands, and passes them to
`Command` and `Group`, which are subclasses of Typer's classes. Typer itself parses the command
line, reports errors, and prints help pages and completions.
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
# By command and unknown flag: the flag of the command that does what the other does elsewhere.
_OTHER_FLAGS = {
    ("summarize", "--each"): "Give --per-file to summarize each file separately.",
    ("ask", "--per-file"): "Give --each to ask about each file separately.",
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """The parts of a command.

    Attributes:
        function: The function that it runs.
        settings: The names of the settings that it has an option for.
        view: How its report is shown to people; None if the function shows its own output.
        report: The type of its report, or a function that makes its schema; None if it has none.
    """

    function: Function
    settings: Sequence[str] = ()
    view: View | None = None
    report: Any = None

    def parameters(self) -> Parameters:
        """Return the options and arguments of the function, of settings, and of every command."""
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
        """Return the arguments to call the function with. Raises UsageError."""
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
        """The docstring of the function, with each paragraph on one line, except for examples."""
        paragraphs = (inspect.getdoc(self.function) or "").split("\n\n")
        return "\n\n".join(map(_joined, paragraphs))

    @property
    def epilog(self) -> str | None:
        """The end of its help page: for commands that answer, where defaults come from."""
        return _DEFAULTS if "max_tokens" in self.settings else None


class Command(TyperCommand):
    """A command; see the module. Its function is called after the command line is parsed."""

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
        """Return the parameters and `--help`, none of which makes Typer load pydantic."""
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
    """A group of commands. A group that can run without a command has a function."""

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
        """Make a function a command of this group; for the arguments see `command`."""

        def decorate(function: Function) -> Command:
            made = command(name, settings=settings, view=view, report=report)(function)
            self.add_command(made)
            return made

        return decorate

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters and `--help`, none of which makes Typer load pydantic."""
        return quickly_converted(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises UsageError for a flag that ngt had once."""
        settings = self._declaration.settings if self._declaration else ()
        with _hints_for_flags(ctx, settings):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name.

        Raises:
            UsageError: They name a file or a folder instead, which the command `show` would read.
        """
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
        """Call the function of the group, if it has one, and then that of the named command."""
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
    """Turn a function into a command; see the module.

    Args:
        name: The name of the command.
        settings: The settings that it has options for.
        view: How its report is shown to people.
        report: The type of its report, or a function that makes its schema; None: the type that the
            function returns.
    """

    def decorate(function: Function) -> Command:
        printed = report
        if printed is None and view is not None:
            printed = _type_of_report(function)
        return Command(name, Declaration(function, settings, view, printed))

    return decorate


def group(name: str, *, settings: Sequence[str] = ()) -> Callable[[Function], Group]:
    """Turn a function into a group, which calls it even if no command of the group is named."""

    def decorate(function: Function) -> Group:
        return Group(name, Declaration(function, settings))

    return decorate


@dataclass(frozen=True, slots=True)
class _JsonFlag:
    json: JsonOption = False


def _has_flags(kind: Any) -> bool:
    """Return whether the fields of this type are flags, as those of all dataclasses are."""
    return is_dataclass(kind)


def _check_distinct(parameters: Parameters) -> None:
    """Raise TypeError if two parameters of a command have the same name."""
    names = [parameter.name for parameter in parameters]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"a command has two parameters named {', '.join(sorted(twice))}")


def _type_of_report(function: Function) -> Any:
    """Return the type that a function returns, or yields first."""
    returned = inspect.signature(function, eval_str=True).return_annotation
    return get_args(returned)[0] if inspect.isgeneratorfunction(function) else returned


def _joined(paragraph: str) -> str:
    """Return a paragraph as one line, or an example with the mark that keeps its lines."""
    lines = [line.strip() for line in paragraph.strip().split("\n")]
    return "\b\n" + "\n".join(lines) if lines[0].startswith("ngt ") else " ".join(lines)


def _is_given(flag: str, context: typer.Context) -> bool:
    """Return whether the command has this switch and it was given."""
    names = [p.name for p in context.command.params if flag in p.opts]
    return any(context.params.get(name) for name in names)


def _check_verbosity(context: typer.Context) -> None:
    """Raise UsageError if both -q and -v are given."""
    if is_silent() and _is_given("--verbose", context):
        raise UsageError("-q and -v are mutually exclusive", hint="Give one of them.")


@contextmanager
def _cache_within_bound(*, verbose: bool) -> Iterator[None]:
    """Shrink the cache to its limit after this block, if the block wrote to it.

    If `verbose`, report what was removed.
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
    """Turn the error for an unknown flag into a UsageError with a hint, where there is one.

    There is one for flags of earlier versions, for settings of the command that only `--set` gives,
    and for flags of another command that do the same.
    """
    try:
        yield
    except typer.TyperException as error:
        flag = getattr(error, "option_name", "")  # only the error for an unknown option has it
        has_flag = any(flag in (*p.opts, *p.secondary_opts) for p in context.command.params)
        if not flag or has_flag:
            raise
        hint = removed_flag(context.command_path.removeprefix("ngt "), flag)
        hint = hint or _hint_of_set(flag, settings)
        hint = hint or _OTHER_FLAGS.get((context.info_name or "", flag), "")
        if not hint:
            raise
        raise UsageError(f"unknown option {flag}", hint=hint) from None


def _hint_of_set(flag: str, settings: Sequence[str]) -> str:
    """Return how `--set` gives the setting that an unknown flag names; "" if it cannot."""
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
