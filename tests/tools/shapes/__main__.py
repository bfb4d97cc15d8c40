"""A recording replayed with real passes of a model's shape: `python -m tests.tools.shapes FOLDER`.

The weights are random, the recording says what is accepted, `auto` learns what passes really cost,
and times are measured, prefill apart; on a CPU in float32 unless --dtype says otherwise. --shape
takes one of the names here or a config.json.
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
_SHOWN = ("speedup", "mean_acceptance_length", "tokens_per_s", "step_ms", "draft_ms")
_OF_SETTINGS = ("dtype", "quantize", "device", "threads")


def table(found: ShapeResult) -> Table:
    """The chief figures of every row."""
    rows = [
        [row.method, str(row.num_draft or ""), row.task]
        + [f"{value:.2f}" if (value := getattr(row, name)) is not None else "–" for name in _SHOWN]
        for row in found.rows
    ]
    named = [Column("method", left=True), Column("drafts"), Column("task", left=True)]
    return Table(found.label, [*named, *map(Column, _SHOWN)], rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measure; print a table in Markdown, or JSON."""

    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description="Replay a recording by a model's shape.")
    add = parser.add_argument
    add("folder", type=Path, help="a recording, as of python -m tests.tools.record")
    add("--shape", required=True, help=f"{', '.join(shape_names())}, or a config.json")
    add("--methods", type=names, default=names(_METHODS))
    add("--tasks", type=names, default=[])
    add("--limit", type=int, help="most questions of a task")
    add(
        "--num-draft",
        default="32",
        help="maximum number of draft nodes; several, separated by commas",
    )
    add("--rounds", type=int, default=1)
    add("--fresh", action="store_true", help="forget at each prompt what was learned")
    add("--no-background", action="store_true")
    add("--json", action="store_true")
    for name in _OF_SETTINGS:
        default = Settings().get(name)
        add(f"--{name}", default=default, type=type(default))
    args = parser.parse_args(words)
    settings = Settings().replace(**{name: getattr(args, name) for name in _OF_SETTINGS})
    settings = settings.replace(background="none") if args.no_background else settings
    options = ReplayOptions(
        methods=args.methods,
        num_drafts=[int(k) for k in names(args.num_draft)],
        tasks=args.tasks,
        limit=args.limit,
        rounds=args.rounds,
        fresh=args.fresh,
    )
    try:
        say = partial(print, file=sys.stderr)
        found = run_shape(args.folder, args.shape, options, settings, say)
    except NgtError as error:
        sys.exit(f"{error}. {error.hint}")
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    about = Invocation(command=command_line(), date=date, versions=versions())
    found = replace(found, invocation=about)
    print(dump_json(found) if args.json else to_markdown([table(found)]))


if __name__ == "__main__":
    main()
