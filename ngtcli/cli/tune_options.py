"""The flags of `ngt tune`, by what they decide."""

from pathlib import Path
from typing import Annotated

import typer

_DATA, _OUTPUT = "Data", "Output"

ItemsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="More of the sweep (NAME=VALUES), or texts to measure on."),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option("--sweep", help="What to try: NAME=A..B, A..B+STEP, A..B*FACTOR or A,B,C."),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option("--replay", help="Measure on this recording.", rich_help_panel=_DATA),
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option("--task", help="Of a recording only this task.", rich_help_panel=_DATA),
]
IdsOption = Annotated[
    str,
    typer.Option("--ids", help="Of a recording all, odd or even ids.", rich_help_panel=_DATA),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Most prompts of a task.", rich_help_panel=_DATA),
]
CostsOption = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        help="Seconds of a pass by its rows, as JSON, for a recording.",
        rich_help_panel=_DATA,
    ),
]
DocsOption = Annotated[
    list[str] | None,
    typer.Option("--docs", "-d", help="Texts to measure on.", rich_help_panel=_DATA),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option("--prompts", help="Prompts as JSON lines.", rich_help_panel=_DATA),
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=1000, help="How often to measure each cell.")
]
StateOption = Annotated[
    Path | None, typer.Option("--state", help="Keep finished measurements in this file.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start anew, whatever was measured before.")
]
WriteOption = Annotated[
    str | None,
    typer.Option("--write", help="Save the winner as this preset.", rich_help_panel=_OUTPUT),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace that preset.", rich_help_panel=_OUTPUT)
]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown.", rich_help_panel=_OUTPUT)
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.", rich_help_panel=_OUTPUT)]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page to this file.", rich_help_panel=_OUTPUT),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the report to this file, whole."),
]
