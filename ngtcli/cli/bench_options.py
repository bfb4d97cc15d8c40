"""The flags of `ngt bench`, by what they decide."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, file_option

LIVE_METHODS = "none,prompt-lookup,trie,auto"
REPLAYED_METHODS = "prompt-lookup,akunu,trtllm,trie,auto"
SHAPE_METHODS = "none,prompt-lookup,suffix:max_spec_factor=64,trie,auto"
ROUNDS, SHAPE_ROUNDS = 5, 1
_prompts = partial(typer.Option, rich_help_panel="Prompts")
_measuring = partial(typer.Option, rich_help_panel="Measuring")
_results = partial(typer.Option, rich_help_panel="Results")
_file = partial(file_option, rich_help_panel="Results")
_FILES = typer.Argument(help="Texts to summarize; default: the examples.")
_METHODS = f"With commas; default: {LIVE_METHODS}."
_FRESH = "Forget at each prompt what was learned."
_QUALITY = "Judge by reference answers."
_JUDGED = "--quality/--no-quality"
_ROUNDS = f"Timed rounds; default: {ROUNDS}, with --shape {SHAPE_ROUNDS}."
_SHAPE = "Replay with real passes of this shape (a name, config.json), weights random."
_TURNS = "Of recorded conversations: first or all."


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What stands on the command line, unread; None and "" stand for what is not there."""

    files: Annotated[list[str] | None, _FILES] = None
    docs: Annotated[
        list[str] | None, _prompts("--docs", "-d", help="Texts to ask questions of.")
    ] = None
    prompts: Annotated[Path | None, _prompts(help="Prompts as JSON lines.")] = None
    tasks: Annotated[str, _prompts(help="Only these, with commas.")] = ""
    limit: Annotated[int | None, _prompts(min=1, help="Most prompts of a task.")] = None
    noise: Annotated[int, _prompts(min=0, help="Unrelated passages mixed into each.")] = 0
    replay: Annotated[Path | None, _prompts(help="Replay this recording; runs no model.")] = None
    shape: Annotated[str, _prompts(help=_SHAPE)] = ""
    template: Annotated[str, _prompts(help="Prompt template of the recording.")] = ""
    turns: Annotated[str, _prompts(help=_TURNS)] = "first"
    ids: Annotated[str, _prompts(help="Of a recording all, odd or even ids.")] = "all"
    methods: Annotated[str, _measuring(help=_METHODS)] = ""
    against: Annotated[str, _measuring(help="hf: transformers' generate as well.")] = ""
    rounds: Annotated[int | None, _measuring(min=1, help=_ROUNDS)] = None
    num_draft: Annotated[str, _measuring(help="Most draft nodes; several with commas.")] = ""
    sweep_num_draft: Annotated[
        bool, _measuring("--sweep-num-draft", help="Try 4 to 128 nodes.")
    ] = False
    fresh: Annotated[bool, _measuring("--fresh", help=_FRESH)] = False
    quality: Annotated[bool, _measuring(_JUDGED, help=_QUALITY)] = True
    record: Annotated[Path | None, _results(help="Decode, and write a recording here.")] = None
    preset: PresetOption = None
    json: JsonOption = False
    markdown: Annotated[bool, _results("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _file(help="Write a page as well.")] = None
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    verbose: VerboseOption = False
