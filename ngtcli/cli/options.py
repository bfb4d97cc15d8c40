"""Options that several commands have, which settings commands have, and what follows of both."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli import config
from ngtcli.cli.completion import presets
from ngtcli.cli.notes import Notes
from ngtcli.cli.streams import choose_color
from ngtcli.engine.request import Tasks
from ngtcli.engine.settings import apply_to_process, settings_of
from ngtcli.errors import UsageError
from ngtcli.prompts.preset import Preset, load_preset

# What says how single answers end, and what is kept of them.
_OF_ANSWERS = ("max_repeats", "max_thinking", "keep_documents", "history")
# What commands read that compare whole answers of models that ngt runs.
OF_OWN_ENGINE = config.settings_in(*config.NGT_PARTS, without=_OF_ANSWERS)
# Of summaries, which have no form.
OF_SUMMARIES = config.settings_in(*config.PARTS, without=config.FORMS)
# Of commands that answer many texts.
OF_MANY = config.settings_in(*config.PARTS, without=["keep_warm"])
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "-p",
        metavar="NAME",
        help="Preset to use; see ngt presets list.",
        autocompletion=presets,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DocsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--docs",
        "-d",
        metavar="PATH",
        help="Document: a file, folder, glob or -; repeat -d for each.",
    ),
]
ThinkingOption = Annotated[
    bool,
    typer.Option("--show-thinking", help="Show the reasoning before the answer, too."),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Overwrite a file that ngt did not write, or that was edited."),
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Process only the first N; 0: all.")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Ignore earlier progress and start over.")
]
_SIZE = "Texts decoded together; 0: as memory allows."
SizeOption = Annotated[int, typer.Option("--batch-size", min=0, max=4096, help=_SIZE)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]


def named_file(text: str) -> Path:
    """The path of a file to write; a `Path` of ./- alone would be that of -."""
    path = Path(text)
    return path if text == "-" or str(path) != "-" else path.absolute()


file_option = partial(typer.Option, parser=named_file, metavar="<path>")


def names_in(flag: str, text: str | None) -> list[str]:
    """The names in a flag's list with commas; none where it is not given. Raises UsageError."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise UsageError(f"{flag} is empty", hint="Give it a value, or leave it out.")
    return names


def numbers_of(flag: str, text: str | None) -> list[int]:
    """The numbers of draft nodes in a list with commas, each once. Raises UsageError."""
    most, names = int(config.SETTINGS["num_draft"].within[1]), names_in(flag, text)
    numbers = [int(name) if name.isdecimal() and len(name) < 9 else 0 for name in names]
    if not all(1 <= number <= most for number in numbers):
        what = f"{flag} {text}: not numbers from 1 to {most}"
        raise UsageError(what, hint=f"Give them as in {flag} 16,32,64.")
    return list(dict.fromkeys(numbers))


def resolve(flags: dict[str, Any], preset: str | None) -> tuple[config.Resolved, Preset]:
    """Settings from all layers, with origins, and the preset, else summarize. Raises UsageError."""
    chosen = load_preset("summarize" if preset is None else preset)
    resolved = settings_of([*layers_of(flags), chosen.settings])
    apply_to_process(resolved.settings)
    return resolved, chosen


def tasks_of(
    flags: dict[str, Any], preset: str | None, tasks: Sequence[str], *, worded: bool = False
) -> Tasks:
    """The tasks by all layers; `worded` as for `Tasks.resolved`. Raises UsageError."""
    resolved = Tasks.resolved(layers_of(flags), preset, tasks, worded=worded)
    for settings, _ in resolved.of.values():
        apply_to_process(settings)
    return resolved


def layers_of(flags: Mapping[str, Any]) -> list[config.Layer]:
    """All layers but a preset; what is not read of variables and files is named on stderr."""
    for name, hint in config.unknown_variables(os.environ):
        Notes().warn(f"{name} is not read. {hint}")
    layers = [config.Layer("flag", flags), *config.environment_and_file_layers()]
    for layer in layers:
        if words := config.words_of_ignored(layer):
            Notes().warn(words)
    color = next((layer.values["color"] for layer in layers if "color" in layer.values), "auto")
    choose_color(color)
    return layers


def command_line() -> str:
    """The command line as it was given, but for a password: it goes into pages and reports."""
    words = ["ngt", *sys.argv[1:]]
    secret = re.compile("^(--password=|(--set=)? *password *=).*", re.DOTALL)
    hidden = [
        "..." if before == "--password" else secret.sub(r"\1...", word)
        for before, word in pairwise(["", *words])
    ]
    return shlex.join(hidden)
