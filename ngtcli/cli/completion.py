"""What Tab offers for the values of options: read from what is cheap to read, never an error.

Where nothing is offered, the shell offers files.
"""

from collections.abc import Callable, Iterable, Sequence

from ngtcli.config import SETTINGS, Setting
from ngtcli.prompts.preset import preset_files

Complete = Callable[[str], list[str]]


def quietly(words: Callable[[str], Iterable[str]]) -> Complete:
    """Offer what begins with what was typed, and nothing at all where that fails."""

    def offered(incomplete: str) -> list[str]:
        try:
            return [word for word in words(incomplete) if word.startswith(incomplete)]
        except Exception:  # a message would stand in the middle of what is being typed
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
    """What completes the value of a setting's option; None where there is nothing to offer."""
    if setting.choices:
        return quietly(lambda _: setting.choices)
    return quietly(_OFFERED[setting.complete]) if setting.complete else None


def of_settings(names: Sequence[str]) -> Complete:
    """What completes NAME=VALUE: a name, then what completes its value."""

    def words(incomplete: str) -> list[str]:
        name, given, value = incomplete.partition("=")
        if not given:
            return [f"{name}=" for name in names]
        about = SETTINGS[name]
        found = (
            ["yes", "no"] if about.kind is bool else (of_setting(about) or (lambda _: []))(value)
        )
        return [f"{name}={word}" for word in found]

    return quietly(words)
