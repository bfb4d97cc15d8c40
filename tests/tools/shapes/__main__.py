"""Replay a recording with forward passes of a model's shape: `python -m tests.tools.shapes FOLDER`.

The weights are random and the recording decides what is accepted. `auto` learns the real costs of
forward passes, and times are measured without prefill. On a CPU the dtype is float32 unless --dtype
names another. --shape takes one of the names in this folder or a config.json.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from ngtcli.bench.results import Invocation, versions
from ngtcli.cli.options import command_line
from ngtcli.config import Settings
from ngtcli.errors import NgtError
from ngtcli.render.tables import Column, Table
from ngtcli.system.json_form import dump_json
from tests.tools.measuring.replaying import ReplayOptions
from tests.tools.measuring.tables import to_markdown
from tests.tools.shapes.model import shape_names
from tests.tools.shapes.replay import ShapeResult, run_shape

_METHODS = "none,prompt-lookup,suffix:max_spec_factor=64,trie,auto"
_FIGURES = ("speedup", "mean_acceptance_length", "tokens_per_s", "step_ms", "draft_ms")
_SETTINGS = ("dtype", "quantize", "device", "threads")


def table(result: ShapeResult) -> Table:
    """Make a table of the main figures of each row."""
    columns = [Column("method", left=True), Column("drafts"), Column("task", left=True)]
    columns += map(Column, _FIGURES)
    rows = []
    for row in result.rows:
        cells = [row.method, str(row.num_draft or ""), row.task]
        for figure in _FIGURES:
            value = getattr(row, figure)
            cells.append("–" if value is None else f"{value:.2f}")
        rows.append(cells)
    return Table(result.label, columns, rows)


def _names(text: str) -> list[str]:
    """Split names that are separated by commas."""
    return [name for name in text.split(",") if name]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; print a Markdown table or JSON."""
    parser = argparse.ArgumentParser(
        description="Replay a recording with forward passes of a model's shape."
    )
    add = parser.add_argument
    add("folder", type=Path, help="a recording made by python -m tests.tools.record")
    add("--shape", required=True, help=f"{', '.join(shape_names())}, or a config.json")
    add("--methods", type=_names, default=_names(_METHODS))
    add("--tasks", type=_names, default=[])
    add("--limit", type=int, help="maximum number of questions per task")
    add(
        "--num-draft",
        default="32",
        help="maximum number of draft nodes; several, separated by commas",
    )
    add("--rounds", type=int, default=1)
    add("--fresh", action="store_true", help="forget at each prompt what was learned")
    add("--no-background", action="store_true")
    add("--json", action="store_true")
    for name in _SETTINGS:
        default = Settings().get(name)
        add(f"--{name}", default=default, type=type(default))
    args = parser.parse_args(arguments)
    settings = Settings().replace(**{name: getattr(args, name) for name in _SETTINGS})
    if args.no_background:
        settings = settings.replace(background="none")
    options = ReplayOptions(
        methods=args.methods,
        num_drafts=[int(number) for number in _names(args.num_draft)],
        tasks=args.tasks,
        limit=args.limit,
        rounds=args.rounds,
        fresh=args.fresh,
    )
    try:
        progress = partial(print, file=sys.stderr)
        result = run_shape(args.folder, args.shape, options, settings, progress)
    except NgtError as error:
        sys.exit(f"{error}. {error.hint}")
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    invocation = Invocation(command=command_line(), date=date, versions=versions())
    result = replace(result, invocation=invocation)
    print(dump_json(result) if args.json else to_markdown([table(result)]))


if __name__ == "__main__":
    main()
