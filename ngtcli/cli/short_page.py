"""The help page of `-h`: one screen, with the options that people need first."""

import re
from typing import Any, TextIO

from ngtcli.cli.streams import terminal_width
from ngtcli.config import SETTINGS, Use

_NEEDED = {"extract": ("schema",)}  # settings that a command needs and others rarely do
_MAX_WIDTH = 100  # columns; wider lines are hard to read (guess)
_MAX_CHOICES = 15  # characters of the choices of a value (guess)
# Options that are listed first.
_FIRST = ("--model", "--docs", "--schema", "--output", "--cite", "--json")


def short_page(context: Any, stream: TextIO) -> str:
    """Return the page of the command of a Typer context, as wide as a stream."""
    command = context.command
    width = min(terminal_width(stream), _MAX_WIDTH)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    summary, *paragraphs = (command.help or "").split("\n\n")
    lines = [usage, "", summary]
    examples = _examples(paragraphs)
    if examples:
        lines += ["", *(f"  {example}" for example in examples)]
    lines += ["", *_columns(_rows(command), width)]
    lines += ["", f"{context.command_path} --help lists all flags; ngt help, the manual."]
    return "\n".join(lines)


def _examples(paragraphs: list[str]) -> list[str]:
    """Return the lines of the paragraphs that Typer does not wrap, which begin with a mark."""
    marked = [paragraph for paragraph in paragraphs if paragraph[0] == "\b"]
    return [line for paragraph in marked for line in paragraph.strip("\b\n").split("\n")]


def _rows(command: Any) -> list[tuple[str, str]]:
    """Return the usage and help of each listed parameter, then of each subcommand."""
    needed = _NEEDED.get(command.name, ())
    listed = [p for p in command.params if _is_listed(p) or p.name in needed]
    listed.sort(key=_rank)
    rows = [(_usage(parameter), parameter.help.replace("\\[", "[")) for parameter in listed]
    for name, subcommand in getattr(command, "commands", {}).items():
        rows.append((name, subcommand.help.split("\n\n")[0]))
    return rows


def _columns(rows: list[tuple[str, str]], width: int) -> list[str]:
    """Return a line for each row, with the help cut to fit into `width`."""
    left = min(max((len(name) for name, _ in rows), default=0), width // 2)
    return [f"  {name:<{left}}  {_fitted(text, width - left - 4)}" for name, text in rows]


def _is_listed(parameter: Any) -> bool:
    if parameter.hidden or not parameter.help:
        return False
    setting = SETTINGS.get(parameter.name)
    return setting is None or Use.COMMON in setting.uses


def _rank(parameter: Any) -> int:
    """Return the rank of a parameter: arguments, the options of _FIRST, then the others."""
    if parameter.param_type_name == "argument":
        return 0
    ranks = [_FIRST.index(flag) for flag in parameter.opts if flag in _FIRST]
    return 1 + min(ranks, default=len(_FIRST))


def _usage(parameter: Any) -> str:
    """Return an option or an argument with its value, such as -o, --output <path>."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or _value_name(parameter)}"


def _value_name(option: Any) -> str:
    """Return the placeholder of an option's value: its choices if they are short, or a word."""
    setting = SETTINGS.get(option.name)
    choices = "|".join(setting.choices) if setting else ""
    if 0 < len(choices) < _MAX_CHOICES:
        return choices
    kind = setting.kind if setting else option.type_descriptor.annotation
    return "N" if kind in (int, float) else "TEXT"


def _fitted(text: str, width: int) -> str:
    """Return a text if it fits, or the first sentence, or as many of its words as fit.

    >>> _fitted("Use a model. It may be a folder.", 20), _fitted("Use a model.", 10)
    ('Use a model.', 'Use a …')
    """
    if len(text) <= width:
        return text
    sentence = re.split(r"(?<=\.) ", text)[0]
    if len(sentence) <= width:
        return sentence
    words, _, _ = sentence[: width - 1].rpartition(" ")
    return f"{words.rstrip(' ,;:')} …"
