"""The page that `-h` of a command shows: one screen, with what people need first."""

import re
from typing import Any, TextIO

from ngtcli.cli.streams import terminal_width
from ngtcli.config import SETTINGS, Use

_MAX_WIDTH = 100  # columns; wider lines are hard to read: guess
_LONGEST_CHOICES = 15  # characters that the choices of a value may take: guess
_FIRST = ("--model", "--docs", "--output", "--cite", "--json")  # what people need, in this order


def short_page(context: Any, stream: TextIO) -> str:
    """Return the page of the command of a context of Typer's, for a stream."""
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
    """Return the lines of the paragraphs that keep their lines; Typer's mark begins each."""
    marked = [paragraph for paragraph in paragraphs if paragraph[0] == "\b"]
    return [line for paragraph in marked for line in paragraph.strip("\b\n").split("\n")]


def _rows(command: Any) -> list[tuple[str, str]]:
    """Return how each parameter that is listed is written, and its help; then the commands."""
    listed = sorted(filter(_is_listed, command.params), key=_rank)
    rows = [(_written(parameter), parameter.help.replace("\\[", "[")) for parameter in listed]
    for name, below in getattr(command, "commands", {}).items():
        rows.append((name, below.help.split("\n\n")[0]))
    return rows


def _columns(rows: list[tuple[str, str]], width: int) -> list[str]:
    """Return a line for each row, the help cut where the line would be wider than `width`."""
    left = min(max((len(name) for name, _ in rows), default=0), width // 2)
    return [f"  {name:<{left}}  {_fitted(text, width - left - 4)}" for name, text in rows]


def _is_listed(parameter: Any) -> bool:
    if parameter.hidden or not parameter.help:
        return False
    setting = SETTINGS.get(parameter.name)
    return setting is None or Use.COMMON in setting.uses


def _rank(parameter: Any) -> int:
    """Return where a parameter stands: arguments, then what people need, then as declared."""
    if parameter.param_type_name == "argument":
        return 0
    needed = [_FIRST.index(flag) for flag in parameter.opts if flag in _FIRST]
    return 1 + min(needed, default=len(_FIRST))


def _written(parameter: Any) -> str:
    """Return an option or an argument as it is written, like -o, --output <path>."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or _value_name(parameter)}"


def _value_name(option: Any) -> str:
    """Return what stands for the value of an option: its choices if they are short, else a word."""
    setting = SETTINGS.get(option.name)
    choices = "|".join(setting.choices) if setting else ""
    if 0 < len(choices) < _LONGEST_CHOICES:
        return choices
    kind = setting.kind if setting else option.type_descriptor.annotation
    return "N" if kind in (int, float) else "TEXT"


def _fitted(text: str, width: int) -> str:
    """Return a text that is so narrow, or of its first sentence as many words as fit.

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
