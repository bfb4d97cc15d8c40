"""Options and arguments as data, made of declarations wherever they stand.

Typer makes them of the signature of a function alone. Most of ours come from elsewhere: from the
settings in `config.py`, and from dataclasses of flags that several commands share. `parameter_of`
makes one of a declaration, which is `typer.Option(...)` or `typer.Argument(...)` as always.
"""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import typer
from typer._coercion import TypeDescriptor  # TyperOption takes it, and Typer exports it nowhere
from typer.core import TyperArgument, TyperOption, _TyperParameter
from typer.main import get_param_callback, get_param_completion
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo
from typer.utils import get_params_from_function

_LONGEST_NUMBER = 18  # digits; such a number is below 2**63
_NUMBERS: dict[Any, str] = {int: "whole number", float: "number"}


class _QuicklyConverted(_TyperParameter):
    """Converts plain values without pydantic, by which Typer converts all but switches.

    Importing pydantic takes 0.14 s (measured), half as long as an answer of a running server. So
    Typer converts only the rest, such as numbers out of range, and its errors are what users see.
    """

    def process_value(self, ctx: Any, value: Any) -> Any:
        """Return the value in the parameter's type. Raises Typer's error for a wrong one."""
        if self.callback is not None:  # Typer calls it
            return super().process_value(ctx, value)
        kind: Any = self.type_descriptor.annotation
        is_missing = value is None or (get_origin(kind) is list and not value)
        if is_missing and (not self.required or ctx.resilient_parsing):
            return self.default
        if not is_missing and (converted := self._converted(value)) is not None:
            return converted
        noun = _NUMBERS.get(kind)
        if noun and isinstance(value, str) and not _is_number(value, kind):
            raise typer.BadParameter(f"{value!r} is not a {noun}", ctx=ctx, param=self)
        return super().process_value(ctx, value)

    def _converted(self, value: Any) -> Any:
        """Return a plain value in the parameter's type; None for a value that is not plain."""
        kind, declared = self.type_descriptor.annotation, self.type_descriptor.parameter_info
        if kind == list[str]:
            return list(value)
        if not isinstance(value, str):
            return value if value == self.default else None
        if declared.parser is not None:
            return declared.parser(value)
        if kind is str:
            return value
        if kind is int and _has_only_digits(value):
            return _within(int(value), declared)
        if kind is float and _has_only_digits(value.replace(".", "", 1)):
            return _within(float(value), declared)
        return None


class Option(_QuicklyConverted, TyperOption):
    """An option of a command."""


class Argument(_QuicklyConverted, TyperArgument):
    """An argument of a command, without a flag."""


def parameter_of(name: str, annotation: Any, declaration: ParameterInfo) -> Option | Argument:
    """Return the option or the argument of a declaration.

    Args:
        name: The name under which a command gets its value.
        annotation: The type of its value: a class, `list[str]`, or either of them or None.
        declaration: What `typer.Option` or `typer.Argument` returns, with the default.
    """
    kind = _without_none(annotation)
    is_list = get_origin(kind) is list
    is_required = declaration.default is ...
    common: dict[str, Any] = {
        "type_descriptor": TypeDescriptor(kind, declaration, None),
        "required": is_required,
        "default": None if is_required else declaration.default,
        "callback": get_param_callback(callback=declaration.callback),
        "metavar": declaration.metavar,
        "expose_value": declaration.expose_value,
        "is_eager": declaration.is_eager,
        "autocompletion": get_param_completion(declaration.autocompletion),
        "show_default": declaration.show_default,
        "help": declaration.help,
        "hidden": declaration.hidden,
        "min": declaration.min,
        "max": declaration.max,
        "rich_help_panel": declaration.rich_help_panel,
    }
    if isinstance(declaration, ArgumentInfo):
        return Argument(param_decls=[name], nargs=-1 if is_list else None, **common)
    assert isinstance(declaration, OptionInfo)
    flags = declaration.param_decls or [f"--{name.replace('_', '-')}"]
    return Option(param_decls=[name, *flags], is_flag=kind is bool, multiple=is_list, **common)


def parameters_of(declaring: Callable[..., Any]) -> list[Option | Argument]:
    """Return the options and arguments that the fields of a dataclass declare."""
    declared = get_params_from_function(declaring)
    return [parameter_of(name, p.annotation, p.default) for name, p in declared.items()]


def quickly_converted(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command, after which Typer need not load pydantic for any.

    The help of `--help` names `-h`, which is a hidden option of each command. The switches that
    Typer adds, as `--help`, are None if they are not given, and Typer loads pydantic to convert
    that. It does not convert False.
    """
    for parameter in parameters:
        is_ours = isinstance(parameter, Option | Argument)
        if not is_ours and parameter.is_flag and parameter.default is None:
            parameter.default = False
        if not is_ours and parameter.opts == ["--help"]:
            parameter.help = "Show all options; -h shows the common ones."
    return parameters


def _without_none(annotation: Any) -> Any:
    """Return the type of a value that is given.

    >>> _without_none(int | None), _without_none(list[str])
    (<class 'int'>, list[str])
    """
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    (kind,) = (part for part in get_args(annotation) if part is not NoneType)
    return kind


def _has_only_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _within(number: float, declared: ParameterInfo) -> float | None:
    """Return the number if it is in the declared range, else None."""
    too_small = declared.min is not None and number < declared.min
    too_large = declared.max is not None and number > declared.max
    return None if too_small or too_large else number
