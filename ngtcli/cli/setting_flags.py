"""The options that stand for settings: made of the fields of `Settings`, and read again.

`options_of_settings` makes them for a command, and `settings_given` reads what was given. A setting
of `Use.SET` has no option of its own: `--set NAME=VALUE` gives it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from typer.models import OptionInfo

from ngtcli import config, removed
from ngtcli.cli.completion import of_setting, of_settings
from ngtcli.cli.parameters import Argument, Option, parameter_of
from ngtcli.config import SETTINGS, Setting, Use
from ngtcli.errors import UsageError
from ngtcli.words import nearest

_SHORT_FLAGS = {"model": ["-m"], "system": ["-s"], "temperature": ["-t"]}  # by setting
_SET = "set"  # the parameter of --set
_MAX_SHOWN = 80  # characters of NAME=VALUE in a message (guess)


class SettingFlags(dict[str, Any]):
    """The settings that were given as flags or by `--set`, by name.

    The function of a command gets them as the parameter of this type.
    """


def options_of_settings(names: Sequence[str]) -> list[Option | Argument]:
    """Return an option for each of these settings, and `--set` for those that have none."""
    with_flag = [SETTINGS[name] for name in names if Use.SET not in SETTINGS[name].uses]
    options = [_option(setting) for setting in with_flag]
    if len(options) < len(names):
        options.append(_set_option(names))
    return options


def settings_given(values: Mapping[str, Any], names: Sequence[str]) -> SettingFlags:
    """Return which of these settings were given, with their values.

    Args:
        values: What the options of `options_of_settings` got; None for what was not given.
        names: The settings of the command.

    Raises:
        UsageError: A value is wrong, or a setting was given twice.
    """
    flags = SettingFlags()
    by_set = set_values(values.get(_SET) or (), names)
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        setting = SETTINGS[name]
        if name in by_set:
            raise UsageError(
                f"{setting.flag} and --set {name} are mutually exclusive", hint="Give one of them."
            )
        flags[name] = _value_of_option(setting, value)
    flags.update(by_set)
    for name in config.FORMS:
        if name in flags and flags[name] in ("", ()):
            what = f"{SETTINGS[name].flag} is empty"
            raise UsageError(what, hint="Give it a value, or leave it out.")
    return flags


def set_values(items: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the settings in NAME=VALUE texts, as their options would have them.

    Args:
        items: The values of `--set`.
        names: The settings of the command.

    Raises:
        UsageError: There is no such setting, or a value is wrong.

    >>> set_values(["n=16", "packed=no", "stop=a", "stop=b"], tuple(config.SETTINGS))
    {'n': 16, 'packed': False, 'stop': ('a', 'b')}
    """
    values: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        name = key.strip().replace("-", "_")
        shown = f"--set {item}"
        if len(item) > _MAX_SHOWN:
            shown = f"--set {item[: _MAX_SHOWN - 1]}…"  # its name is at the beginning
        if name in removed.SETTINGS:
            raise UsageError(f"{shown}: this setting was removed", hint=removed.SETTINGS[name])
        if not equals:
            raise UsageError(f"{shown}: no value", hint="Write --set NAME=VALUE.")
        if name not in names:
            raise UsageError(f"{shown}: not a setting of this command", hint=nearest(name, names))
        value = SETTINGS[name].from_text(text, "--set")
        if isinstance(value, tuple):
            value = (*values.get(name, ()), *value)
        values[name] = value
    return values


def _option(setting: Setting) -> Option | Argument:
    """Return the option of a setting that has a flag of its own."""
    kind: Any = setting.kind
    if setting.is_switch:
        kind = bool
    elif kind is tuple:
        kind = list[str]
    flag = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.is_switch else setting.flag
    declaration = OptionInfo(
        default=None,
        param_decls=[flag, *_SHORT_FLAGS.get(setting.name, [])],
        help=f"{setting.help} {_default_text(setting.default)}".rstrip(),
        rich_help_panel=setting.panel,
        show_default=False,
        autocompletion=of_setting(setting),
    )
    return parameter_of(setting.name, kind, declaration)


def _set_option(names: Sequence[str]) -> Option | Argument:
    """Return the option `--set NAME=VALUE` for these settings."""
    declaration = OptionInfo(
        default=None,
        param_decls=["--set"],
        metavar="NAME=VALUE",
        help="Set any setting by name; ngt config show lists them.",
        autocompletion=of_settings(names),
    )
    return parameter_of(_SET, list[str], declaration)


def _default_text(value: Any) -> str:
    """Return the default as help pages show it; its bracket is escaped, as rich has markup."""
    if isinstance(value, bool):
        value = "on" if value else "off"
    text = ", ".join(value) if isinstance(value, tuple) else value
    return "" if text == "" else rf"\[default: {text}]"


def _value_of_option(setting: Setting, value: Any) -> Any:
    """Return the value of a setting whose option got `value`. Raises UsageError."""
    if setting.choices and setting.is_switch:
        return "on" if value else "off"
    if not isinstance(value, list):
        return value
    if Use.CHOICES in setting.uses:
        value = [choice for text in value for choice in config.choices_of(text, setting.flag)]
    return setting.typed(value, setting.flag)
