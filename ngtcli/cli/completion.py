"""Shell completion for the values of options.

Only values that are quick to read are offered, and errors are silent. If nothing is offered, the
shell offers files.
"""

from collections.abc import Callable, Iterable, Sequence

from ngtcli.config import SETTINGS, Setting
from ngtcli.prompts.preset import preset_files

Complete = Callable[[str], list[str]]


def quietly(words: Callable[[str], Iterable[str]]) -> Complete:
    """Return a completer that offers the words that begin with the typed text.

    It offers nothing if the words cannot be read.

    Args:
        words: Returns the words for a typed text.
    """

    def offered(incomplete: str) -> list[str]:
        try:
            return [word for word in words(incomplete) if word.startswith(incomplete)]
        except Exception:  # a message would appear in the middle of the command line
            return []

    return offered


def _methods(_: str) -> list[str]:
    from ngtcli.drafting.registry import method_names

    return method_names()


def _models(_: str) -> list[str]:
    from ngtcli.models.hub import cached_ids

    return ["builtin", *cached_ids()]


presets = quietly(lambda _: preset_files())
models = quietly(_models)
_OFFERED = {"methods": _methods, "models": _models}


def of_setting(setting: Setting) -> Complete | None:
    """Return the completer of a setting's values; None if it has none."""
    if setting.choices:
        return quietly(lambda _: setting.choices)
    if setting.complete:
        return quietly(_OFFERED[setting.complete])
    return None


def of_settings(names: Sequence[str]) -> Complete:
    """Return a completer of NAME=VALUE: first of the names, then of the values."""

    def words(incomplete: str) -> list[str]:
        name, equals, value = incomplete.partition("=")
        if not equals:
            return [f"{name}=" for name in names]
        return [f"{name}={word}" for word in _values(SETTINGS[name], value)]

    return quietly(words)


def _values(setting: Setting, incomplete: str) -> list[str]:
    """Return the words for the value of a setting after `--set NAME=`."""
    if setting.kind is bool:
        return ["yes", "no"]
    complete = of_setting(setting)
    return complete(incomplete) if complete else []
