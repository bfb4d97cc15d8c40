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

# Settings of single answers: how they end, and what is kept of them.
_OF_ANSWERS = ("max_repeats", "max_thinking", "keep_documents", "history")
# The settings of commands that compare whole answers of models that ngt itself runs.
OF_OWN_ENGINE = config.settings_in(*config.NGT_PARTS, without=_OF_ANSWERS)
# The settings of summaries, which have no structured output.
OF_SUMMARIES = config.settings_in(*config.PARTS, without=config.FORMS)
# The settings of commands that answer many texts.
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
        help="A file, folder, glob or -, as PATH; repeat -d for each.",
    ),
]
ThinkingOption = Annotated[
    bool,
    typer.Option("--show-thinking", help="Also show the reasoning, before the answer."),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Overwrite a file that ngt did not write, or that was edited."),
]
EachLimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="With --each: only the first N files; 0: all.")
]
PerFileLimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="With --per-file: only the first N files; 0: all.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Process only the first N files or lines; 0: all.")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Ignore earlier progress and start over.")
]
_SIZE = "Number of texts decoded at once; 0: as many as fit in memory."
SizeOption = Annotated[int, typer.Option("--batch-size", min=0, max=4096, help=_SIZE)]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Print more on stderr.")]


def named_file(text: str) -> Path:
    """Return the path of a file to write; a plain `Path` of ./- would be that of -."""
    path = Path(text)
    return path if text == "-" or str(path) != "-" else path.absolute()


file_option = partial(typer.Option, parser=named_file, metavar="<path>")


def names_in(flag: str, text: str | None) -> list[str]:
    """Return the names in a list with commas; none where the flag is not given.

    Raises UsageError for an empty list.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise UsageError(f"{flag} is empty", hint="Give it a value, or leave it out.")
    return names


def numbers_of(flag: str, text: str | None) -> list[int]:
    """Return the numbers of draft nodes in a list with commas, each once. Raises UsageError."""
    maximum = int(config.SETTINGS["num_draft"].within[1])
    numbers = []
    for name in names_in(flag, text):
        number = int(name) if name.isdecimal() and len(name) < 9 else 0
        if not 1 <= number <= maximum:
            raise UsageError(
                f"{flag} {text}: not numbers from 1 to {maximum}",
                hint=f"Write them as in {flag} 16,32,64.",
            )
        numbers.append(number)
    return list(dict.fromkeys(numbers))


def resolve(flags: dict[str, Any], preset: str | None) -> tuple[config.Resolved, Preset]:
    """Return the settings from all layers, with their origins, and the preset.

    Args:
        flags: The settings that were given.
        preset: The name of a preset; None for that of summaries.

    Raises:
        UsageError: A value is wrong, or there is no such preset.
    """
    loaded = load_preset("summarize" if preset is None else preset)
    resolved = settings_of([*layers_of(flags), loaded.settings])
    apply_to_process(resolved.settings)
    return resolved, loaded


def tasks_of(
    flags: dict[str, Any],
    preset: str | None,
    tasks: Sequence[str],
    *,
    fallback_for_ask: bool = False,
) -> Tasks:
    """Return the tasks by all layers; see `Tasks.resolved`. Raises UsageError."""
    resolved = Tasks.resolved(layers_of(flags), preset, tasks, fallback_for_ask=fallback_for_ask)
    for settings, _ in resolved.by_name.values():
        apply_to_process(settings)
    return resolved


def layers_of(flags: Mapping[str, Any]) -> list[config.Layer]:
    """Return all layers but a preset, and apply the color that they say.

    Variables and settings of files that are not read are named on stderr.
    """
    for name, hint in config.unknown_variables(os.environ):
        Notes().warn(f"{name} is not read. {hint}")
    layers = [config.Layer("flag", flags), *config.environment_and_file_layers()]
    for layer in layers:
        words = config.ignored_warning(layer)
        if words:
            Notes().warn(words)
    colors = [layer.values["color"] for layer in layers if "color" in layer.values]
    choose_color(colors[0] if colors else "auto")
    return layers


def command_line() -> str:
    """Return the command line for pages and reports, without the password in it."""
    words = ["ngt", *sys.argv[1:]]
    secret = re.compile("^(--password=|(--set=)? *password *=).*", re.DOTALL)
    shown = []
    for word_before, word in pairwise(["", *words]):
        if word_before == "--password":
            shown.append("...")
        else:
            shown.append(secret.sub(r"\1...", word))
    return shlex.join(shown)
