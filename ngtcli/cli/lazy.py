"""The commands of `ngt`, each imported when it is called; a listing needs none of them."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ngtcli.system.importing import without_collection


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command, or a group of them, stands, and its line in the listing."""

    module: str
    name: str
    help: str


_ABOVE = (
    "The card of a model, a preset, settings files and NGT_* variables stand above these defaults:"
    " ngt config show [-p PRESET] prints what holds."
).replace("[", r"\[")
# In the order of the listing; the tests hold each line against what the command itself says.
COMMANDS: dict[str, Entry] = {
    "summarize": Entry("summarize", "summarize", "Summarize documents: ngt summarize article.txt"),
    "ask": Entry(
        "ask",
        "ask",
        'Answer a question from documents: ngt ask --docs ./notes "When is high tide?"',
    ),
    "batch": Entry(
        "batch",
        "batch",
        "Answer many texts, a JSON line each: ngt batch in.jsonl -o out.jsonl",
    ),
    "check": Entry(
        "check",
        "check",
        "Decode with and without drafts and compare every token; exit 6 at a difference.",
    ),
    "bench": Entry(
        "bench",
        "bench",
        "Measure methods side by side: speed, acceptance, quality, and where the time goes.",
    ),
    "tune": Entry("tune", "tune", "Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"),
    "env": Entry("env", "env", "Show versions, the device and the folders used."),
    "schema": Entry(
        "schema",
        "schema",
        "Print the JSON Schema of what --json prints, of one command or of all that have one.",
    ),
    "docs": Entry("docs", "docs_app", "Documents as they are read: text, pages, tokens, warnings."),
    "trie": Entry("trie", "trie_app", "The cached n-gram tries of documents."),
    "cache": Entry("cache", "cache_app", "All that is stored to be used again."),
    "presets": Entry("presets", "presets_app", "Presets: how a task is worded and set."),
    "config": Entry("config", "config_app", "Settings and where they come from."),
    "models": Entry("models", "models_app", "Models on this machine."),
    "help": Entry(
        "help", "help_page", "Show a page of the manual, or list the pages: ngt help documents"
    ),
}


class LazyGroup(TyperGroup):
    """Lists stand-ins of the commands; the one that is called is imported then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The command or group of that name, as the library makes it."""
    entry = COMMANDS[name]
    with without_collection():
        found = getattr(import_module(f"ngtcli.cli.{entry.module}"), entry.name)
    app = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    command: Any = typer.main.get_command(app)
    command = command.commands[name] if isinstance(found, typer.Typer) else command
    _finish(command)
    return command


def _finish(command: Any) -> None:
    """Join the lines of a help text's paragraphs, and say below settings what stands above them."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    if any(parameter.name == "max_tokens" for parameter in command.params):
        command.epilog = _ABOVE
    for below in getattr(command, "commands", {}).values():
        _finish(below)
