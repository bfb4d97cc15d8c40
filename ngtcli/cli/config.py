"""`ngt config`: the settings and where they come from."""

from pathlib import Path
from typing import Any

import typer

from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    JsonOption,
    PresetOption,
    resolve,
    resolve_without_preset,
    with_settings,
)
from ngtcli.cli.output import print_line, print_table
from ngtcli.config import PROJECT_FILE, SETTINGS, Resolved, shown_settings
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import load_preset
from ngtcli.render.sinks import dump_json
from ngtcli.system.storage import home

config_app = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)


@config_app.command("show")
@with_settings
def config_show(
    preset: PresetOption = None, json: JsonOption = False, flags: dict[str, Any] | None = None
) -> None:
    """Print each setting with its origin."""
    resolved = _resolved(flags or {}, preset)
    values = shown_settings(resolved.settings)
    if json:
        body = {n: {"value": values[n], "origin": resolved.origins[n]} for n in SETTINGS}
        print_line(dump_json(body))
        return
    rows = [[name, _shown(values[name]), resolved.origins[name]] for name in SETTINGS]
    print_table(["setting", "value", "origin"], rows)


def _resolved(flags: dict[str, Any], preset: str | None) -> Resolved:
    """The settings; those of a task's broken preset, where none was asked for, are left out."""
    if preset is None:
        try:
            load_preset("summarize")
        except UsageError as error:
            resolved = resolve_without_preset(flags)
            Notes().warn(f"without the settings of preset summarize: {error}")
            return resolved
    return resolve(flags, preset, "summarize")[0]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


@config_app.command("path")
def config_path(json: JsonOption = False) -> None:
    """Print the settings files, the strongest first."""
    files = [str(Path(PROJECT_FILE).absolute()), str(home("config") / "config.yaml")]
    print_line(dump_json(files) if json else "\n".join(files))
