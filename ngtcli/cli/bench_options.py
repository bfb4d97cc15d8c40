"""The flags of `ngt bench`, by what they decide."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption

LIVE_METHODS = "none,prompt-lookup,trie,auto"
REPLAYED_METHODS = "prompt-lookup,akunu,trtllm,trie,auto"
SHAPE_METHODS = "none,prompt-lookup,suffix:max_spec_factor=64,trie,auto"
ROUNDS, SHAPE_ROUNDS = 5, 1
_SOURCES, _RACE, _OUT = "Prompts", "Measuring", "Results"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What stands on the command line, unread; None and "" stand for what is not there."""

    files: Annotated[
        list[str] | None, typer.Argument(help="Texts to summarize; default: the examples.")
    ] = None
    docs: Annotated[
        list[str] | None,
        typer.Option("--docs", "-d", help="Texts to ask questions of.", rich_help_panel=_SOURCES),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Prompts as JSON lines.", rich_help_panel=_SOURCES),
    ] = None
    tasks: Annotated[
        str, typer.Option("--tasks", help="Only these, with commas.", rich_help_panel=_SOURCES)
    ] = ""
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Most prompts of a task.", rich_help_panel=_SOURCES),
    ] = None
    noise: Annotated[
        int,
        typer.Option(
            "--noise", min=0, help="Unrelated passages mixed into each.", rich_help_panel=_SOURCES
        ),
    ] = 0
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay", help="Replay this recording; runs no model.", rich_help_panel=_SOURCES
        ),
    ] = None
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            help="Replay with real passes of this shape (a name, config.json), weights random.",
            rich_help_panel=_SOURCES,
        ),
    ] = ""
    template: Annotated[
        str,
        typer.Option(
            "--template", help="Prompt template of the recording.", rich_help_panel=_SOURCES
        ),
    ] = ""
    turns: Annotated[
        str,
        typer.Option(
            "--turns", help="Of recorded conversations: first or all.", rich_help_panel=_SOURCES
        ),
    ] = "first"
    ids: Annotated[
        str,
        typer.Option(
            "--ids", help="Of a recording all, odd or even ids.", rich_help_panel=_SOURCES
        ),
    ] = "all"
    methods: Annotated[
        str,
        typer.Option(
            "--methods", help=f"With commas; default: {LIVE_METHODS}.", rich_help_panel=_RACE
        ),
    ] = ""
    against: Annotated[
        str,
        typer.Option(
            "--against", help="hf: transformers' generate as well.", rich_help_panel=_RACE
        ),
    ] = ""
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help=f"Timed rounds; default: {ROUNDS}, with --shape {SHAPE_ROUNDS}.",
            rich_help_panel=_RACE,
        ),
    ] = None
    num_draft: Annotated[
        str,
        typer.Option(
            "--num-draft", help="Most draft nodes; several with commas.", rich_help_panel=_RACE
        ),
    ] = ""
    sweep_num_draft: Annotated[
        bool,
        typer.Option("--sweep-num-draft", help="Try 4 to 128 nodes.", rich_help_panel=_RACE),
    ] = False
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Forget at each prompt what was learned.", rich_help_panel=_RACE
        ),
    ] = False
    quality: Annotated[
        bool,
        typer.Option(
            "--quality/--no-quality", help="Judge by reference answers.", rich_help_panel=_RACE
        ),
    ] = True
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Decode, and write a recording here.", rich_help_panel=_OUT),
    ] = None
    preset: PresetOption = None
    json: JsonOption = False
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown tables.", rich_help_panel=_OUT)
    ] = False
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page as well.", rich_help_panel=_OUT)
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file.", rich_help_panel=_OUT),
    ] = None
    verbose: VerboseOption = False
