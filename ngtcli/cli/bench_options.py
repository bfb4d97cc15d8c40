"""The flags of `ngt bench`, by what they decide."""

from pathlib import Path
from typing import Annotated

import typer

LIVE_METHODS = "none,prompt-lookup,trie,auto"
REPLAYED_METHODS = "prompt-lookup,akunu,trtllm,trie,auto"
SHAPE_METHODS = "none,prompt-lookup,suffix:max_spec_factor=64,trie,auto"
ROUNDS, SHAPE_ROUNDS = 5, 1
_SOURCES, _RACE, _OUT = "Prompts", "Measuring", "Results"

FilesArgument = Annotated[
    list[str] | None, typer.Argument(help="Texts to summarize; default: the examples.")
]
DocsOption = Annotated[
    list[str] | None,
    typer.Option("--docs", "-d", help="Texts to ask questions of.", rich_help_panel=_SOURCES),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option("--prompts", help="Prompts as JSON lines.", rich_help_panel=_SOURCES),
]
TasksOption = Annotated[
    str, typer.Option("--tasks", help="Only these, with commas.", rich_help_panel=_SOURCES)
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Most prompts of a task.", rich_help_panel=_SOURCES),
]
NoiseOption = Annotated[
    int,
    typer.Option(
        "--noise", min=0, help="Unrelated passages mixed into each.", rich_help_panel=_SOURCES
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        "--replay", help="Replay this recording; runs no model.", rich_help_panel=_SOURCES
    ),
]
ShapeOption = Annotated[
    str,
    typer.Option(
        "--shape",
        help="Replay with real passes: random weights of this shape (a name or config.json).",
        rich_help_panel=_SOURCES,
    ),
]
TemplateOption = Annotated[
    str,
    typer.Option("--template", help="Prompt template of the recording.", rich_help_panel=_SOURCES),
]
TurnsOption = Annotated[
    str,
    typer.Option(
        "--turns", help="Of recorded conversations: first or all.", rich_help_panel=_SOURCES
    ),
]
IdsOption = Annotated[
    str,
    typer.Option("--ids", help="Of a recording all, odd or even ids.", rich_help_panel=_SOURCES),
]
MethodsOption = Annotated[
    str,
    typer.Option(
        "--methods",
        help=f"With commas; default: {LIVE_METHODS}.",
        rich_help_panel=_RACE,
    ),
]
AgainstOption = Annotated[
    str,
    typer.Option("--against", help="hf: transformers' generate as well.", rich_help_panel=_RACE),
]
RoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=1,
        help=f"Timed rounds; default: {ROUNDS}, with --shape {SHAPE_ROUNDS}.",
        rich_help_panel=_RACE,
    ),
]
NumDraftOption = Annotated[
    str,
    typer.Option(
        "--num-draft", help="Most draft nodes; several with commas.", rich_help_panel=_RACE
    ),
]
SweepOption = Annotated[
    bool,
    typer.Option("--sweep-num-draft", help="Try 4 to 128 nodes.", rich_help_panel=_RACE),
]
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Forget at each prompt what was learned.", rich_help_panel=_RACE),
]
QualityOption = Annotated[
    bool,
    typer.Option(
        "--quality/--no-quality", help="Judge by reference answers.", rich_help_panel=_RACE
    ),
]
RecordOption = Annotated[
    Path | None,
    typer.Option("--record", help="Decode, and write a recording here.", rich_help_panel=_OUT),
]
MarkdownOption = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown tables.", rich_help_panel=_OUT)
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page as well.", rich_help_panel=_OUT),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write to this file.", rich_help_panel=_OUT),
]
