"""What wins a sweep, as a preset of the user's that says where it comes from."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ngtcli import __version__
from ngtcli.config import Use, settings_where
from ngtcli.errors import InputError, UsageError, reason_of
from ngtcli.measure.grid import Grid
from ngtcli.measure.results import SweepReport
from ngtcli.prompt.preset import PROVENANCE, Preset
from ngtcli.system.files import home, write_atomically
from ngtcli.system.json_form import to_json
from ngtcli.system.yaml_file import read_mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)  # of a preset


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: texts of several lines as blocks, and every value written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip("\n") else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def preset_path(name: str, force: bool) -> Path:
    """Where a preset of that name is written. Raises UsageError for a bad name or a taken one."""
    if not _NAME.fullmatch(name):
        what = f"{name!r} is not a name for a preset"
        raise UsageError(what, "Use letters, digits, dots, dashes and underscores.")
    path = home("config") / "presets" / f"{name}.yaml"
    if path.exists() and not force:
        what = f"{path}: there is such a preset already"
        raise UsageError(what, "Choose another name, or give --force.")
    return path


def write_winner(path: Path, base: Preset, grid: Grid, report: SweepReport) -> None:
    """Write `base` with the chosen cell's settings to `path`, whole or not at all.

    All that decides drafts is written, as it was measured, swept or not, and what was run, on what,
    with the figures of the cell. Raises InputError.
    """
    settings = next(cell.settings for cell in grid.cells if cell.key == report.chosen)
    row = next(row for row in to_json(report)["cells"] if row["cell"] == report.chosen)
    facts = ("model", "device", "data", "data_sha256", "prompts")
    body = {k: v for k, v in read_mapping(base.path).items() if k != PROVENANCE}
    for name in dict.fromkeys((*settings_where(Use.REPLAYS), *grid.axes)):
        value = getattr(settings, name)
        body[name] = list(value) if isinstance(value, tuple) else value
    body[PROVENANCE] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": report.command,
        "ngt": __version__,
        "based_on": base.name,
        **{name: getattr(report.about, name) for name in facts},
        "rounds": report.rounds,
        "chosen": report.chosen,
        "reason": report.reason,
        "figures": {k: v for k, v in row.items() if k not in ("cell", "values", "standing")},
    }
    text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", "See ngt env.") from None
