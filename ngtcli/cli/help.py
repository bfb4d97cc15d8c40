"""`ngt help`: the pages of the manual, in `ngtcli/manual/`; and `-h` of a command: one screen."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import ngtcli
from ngtcli.cli.completion import quietly
from ngtcli.cli.output import print_line, print_table
from ngtcli.cli.streams import terminal_width
from ngtcli.config import SETTINGS, Use
from ngtcli.errors import UsageError
from ngtcli.models.recommended import recommendations
from ngtcli.words import nearest

_WIDEST = 100  # columns of a page; wider lines are hard to read: guess
_LONGEST = 15  # characters of the choices of a value: guess
_FIRST = ("--model", "--docs", "--output", "--cite", "--json")  # what people need, in this order


def topics() -> dict[str, Path]:
    """The pages by name, in alphabetical order."""
    return {p.stem: p for p in sorted((Path(ngtcli.__file__).parent / "manual").glob("*.md"))}


def about(page: Path) -> str:
    """The first sentence of a page, which stands below its title, without marks of Markdown."""
    opening = " ".join(page.read_text("utf-8").split("\n\n")[1].split())
    sentence = re.split(r"(?<=\.) ", opening)[0]
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", sentence).replace("`", "")


def help_page(
    topic: Annotated[
        str,
        typer.Argument(help="A page, or a command.", autocompletion=quietly(lambda _: topics())),
    ] = "",
) -> None:
    """Show a page of the manual, or list the pages: ngt help documents"""
    pages = topics()
    if not topic:
        print_table(["topic", "about"], [[name, about(page)] for name, page in pages.items()])
        if sys.stdout.isatty():
            print_line("\nInstruct models to begin with, by the memory of the machine:")
            for line in recommendations():
                print_line(f"  {line}")
    elif topic in pages:
        _show(pages[topic].read_text("utf-8"))
    else:
        hint = f"{nearest(topic, pages)} ngt help lists the pages, ngt --help the commands."
        raise UsageError(f"help: no page {topic!r}", hint=hint)


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        print_line(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    # A link of the page is relative to its folder, which a reader does not see.
    page = Markdown(text.replace("](../", "](ngtcli/"), code_theme="bw", hyperlinks=False)
    Console(width=min(terminal_width(sys.stdout), _WIDEST)).print(page)


def brief(context: Any, stream: Any) -> str:
    """The page of the command of a context of the library's, for a stream."""
    command, width = context.command, min(terminal_width(stream), _WIDEST)
    says, *more = (command.help or "").split("\n\n")
    examples = [line for text in more if text[0] == "\b" for line in text.strip("\b\n").split("\n")]
    listed = sorted(filter(_listed, command.params), key=_rank)
    rows = [(_name(p), p.help.replace("\\[", "[")) for p in listed]
    rows += [(n, c.help.split("\n\n")[0]) for n, c in getattr(command, "commands", {}).items()]
    left = min(max((len(name) for name, _ in rows), default=0), width // 2)
    lines = [" ".join([context.command_path, *command.collect_usage_pieces(context)]), "", says]
    lines += [*([""] if examples else []), *(f"  {line}" for line in examples), ""]
    lines += [f"  {name:<{left}}  {_fitted(text, width - left - 4)}" for name, text in rows]
    lines += ["", f"{context.command_path} --help lists all flags; ngt help, the manual."]
    return "\n".join(lines)


def _listed(parameter: Any) -> bool:
    about = SETTINGS.get(parameter.name)
    return (
        not parameter.hidden
        and (about is None or Use.COMMON in about.uses)
        and bool(parameter.help)
    )


def _rank(parameter: Any) -> int:
    """Where a parameter stands: arguments, then what people need, then the rest as declared."""
    if parameter.param_type_name == "argument":
        return 0
    return 1 + min((_FIRST.index(f) for f in parameter.opts if f in _FIRST), default=len(_FIRST))


def _name(parameter: Any) -> str:
    """An option or an argument as it is written, like -o, --output <path>."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names, about = ", ".join(sorted(parameter.opts, key=len)), SETTINGS.get(parameter.name)
    words = "|".join(about.choices) if about else ""
    kind = parameter.type_descriptor.annotation if about is None else about.kind
    text = "N" if kind in (int, float) else "TEXT"
    value = parameter.metavar or (words if 0 < len(words) < _LONGEST else text)
    return names if parameter.is_flag else f"{names} {value}"


def _fitted(text: str, width: int) -> str:
    """A text if it is that narrow, else its first sentence, and of that as many words as fit.

    >>> _fitted("Use a model. It may be a folder.", 20), _fitted("Use a model.", 10)
    ('Use a model.', 'Use a …')
    """
    if len(text) <= width or len(text := re.split(r"(?<=\.) ", text)[0]) <= width:
        return text
    return f"{text[: width - 1].rpartition(' ')[0].rstrip(' ,;:')} …"
