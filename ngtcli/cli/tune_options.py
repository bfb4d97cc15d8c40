"""The flags of `ngt tune`, by what they decide."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, file_option

_data = partial(typer.Option, rich_help_panel="Data")
_output = partial(typer.Option, rich_help_panel="Output")
_ITEMS = typer.Argument(help="More of the sweep (NAME=VALUES), or texts to measure on.")
_SWEEP = typer.Option(help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C.")
_ROUNDS = typer.Option(min=1, max=1000, help="How often to measure each cell.")
_STATE = typer.Option(help="Keep finished measurements in this file.")
_FRESH = typer.Option("--fresh", help="Start again, whatever was measured before.")
_COSTS = "Seconds of a pass by its rows, as JSON, for a recording."
_PAGE = file_option(help="Write a page to this file.", rich_help_panel="Output")
_FILE = file_option("--output", "-o", help="Write the report to this file, whole.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What stands on the command line, unread; None stands for what is not there."""

    items: Annotated[list[str] | None, _ITEMS] = None
    sweep: Annotated[list[str] | None, _SWEEP] = None
    replay: Annotated[Path | None, _data(help="Measure on this recording.")] = None
    task: Annotated[list[str] | None, _data(help="Of a recording only this task.")] = None
    ids: Annotated[str, _data(help="Of a recording all, odd or even ids.")] = "all"
    limit: Annotated[int | None, _data(min=1, help="Most prompts of a task.")] = None
    costs: Annotated[Path | None, _data(help=_COSTS)] = None
    docs: Annotated[list[str] | None, _data("--docs", "-d", help="Texts to measure on.")] = None
    prompts: Annotated[Path | None, _data(help="Prompts as JSON lines.")] = None
    rounds: Annotated[int, _ROUNDS] = 3
    preset: PresetOption = None
    state: Annotated[Path | None, _STATE] = None
    fresh: Annotated[bool, _FRESH] = False
    write: Annotated[str | None, _output(help="Save the winner as this preset.")] = None
    force: Annotated[bool, _output("--force", help="Replace that preset.")] = False
    markdown: Annotated[bool, _output("--markdown", help="Print Markdown.")] = False
    csv: Annotated[bool, _output("--csv", help="Print CSV.")] = False
    html: Annotated[Path | None, _PAGE] = None
    output: Annotated[Path | None, _FILE] = None
    json: JsonOption = False
    verbose: VerboseOption = False
