"""`ngt help`: the pages of the manual, in `ngtcli/manual/`."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

import ngtcli
from ngtcli.cli.command import command
from ngtcli.cli.completion import quietly
from ngtcli.cli.output import print_line, print_table
from ngtcli.cli.streams import terminal_width
from ngtcli.errors import UsageError
from ngtcli.models.recommended import recommendations
from ngtcli.words import nearest

_MAX_WIDTH = 100  # columns of a page; wider lines are hard to read (guess)


def topics() -> dict[str, Path]:
    """Return the pages by name, in alphabetical order."""
    folder = Path(ngtcli.__file__).parent / "manual"
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def about(page: Path) -> str:
    """Return the first sentence of a page, below its title, without marks of Markdown."""
    opening = page.read_text("utf-8").split("\n\n")[1]
    sentence = re.split(r"(?<=\.) ", " ".join(opening.split()))[0]
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", sentence).replace("`", "")


@command("help")
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
            print_line("\nModels to start with, by memory:")
            for line in recommendations():
                print_line(f"  {line}")
    elif topic in pages:
        _show(pages[topic].read_text("utf-8"))
    else:
        hint = f"{nearest(topic, pages)} ngt help lists the pages, ngt --help the commands."
        raise UsageError(f"help: no page {topic!r}", hint=hint)


def _show(text: str) -> None:
    """Print a page, on a terminal with what its Markdown marks."""
    if not sys.stdout.isatty():
        print_line(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    # A link of the page is relative to its folder, which a reader does not see.
    page = Markdown(text.replace("](../", "](ngtcli/"), code_theme="bw", hyperlinks=False)
    Console(width=min(terminal_width(sys.stdout), _MAX_WIDTH)).print(page)
