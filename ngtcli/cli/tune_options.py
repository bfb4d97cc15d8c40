"""The flags of `ngt tune`, by what they decide."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption

_DATA, _OUTPUT = "Data", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What stands on the command line, unread; None stands for what is not there."""

    items: Annotated[
        list[str] | None,
        typer.Argument(help="More of the sweep (NAME=VALUES), or texts to measure on."),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C."),
    ] = None
    replay: Annotated[
        Path | None,
        typer.Option("--replay", help="Measure on this recording.", rich_help_panel=_DATA),
    ] = None
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="Of a recording only this task.", rich_help_panel=_DATA),
    ] = None
    ids: Annotated[
        str,
        typer.Option("--ids", help="Of a recording all, odd or even ids.", rich_help_panel=_DATA),
    ] = "all"
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Most prompts of a task.", rich_help_panel=_DATA),
    ] = None
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            help="Seconds of a pass by its rows, as JSON, for a recording.",
            rich_help_panel=_DATA,
        ),
    ] = None
    docs: Annotated[
        list[str] | None,
        typer.Option("--docs", "-d", help="Texts to measure on.", rich_help_panel=_DATA),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Prompts as JSON lines.", rich_help_panel=_DATA),
    ] = None
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="How often to measure each cell.")
    ] = 3
    preset: PresetOption = None
    state: Annotated[
        Path | None, typer.Option("--state", help="Keep finished measurements in this file.")
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew, whatever was measured before.")
    ] = False
    write: Annotated[
        str | None,
        typer.Option("--write", help="Save the winner as this preset.", rich_help_panel=_OUTPUT),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace that preset.", rich_help_panel=_OUTPUT)
    ] = False
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown.", rich_help_panel=_OUTPUT)
    ] = False
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.", rich_help_panel=_OUTPUT)] = False
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page to this file.", rich_help_panel=_OUTPUT),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the report to this file, whole."),
    ] = None
    json: JsonOption = False
    verbose: VerboseOption = False
