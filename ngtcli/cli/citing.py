"""An answer with its sources: marks in the text, and a list of the places below it."""

import sys
from dataclasses import dataclass
from functools import partial

from rich.style import Style

from ngtcli.cli.streams import terminal_width
from ngtcli.render.sinks import TerminalSink
from ngtcli.render.sources import Source, Sources, listed, marked
from ngtcli.render.terminal import DIM, cut, paint, reveal, visible, wants_color


@dataclass(frozen=True, slots=True)
class _Words:
    """Text for a sink."""

    text: str
    id: int = 0
    drafted: bool = False
    origin: str = ""


def cited(answer: str, sources: Sources) -> str:
    """The answer with marks, and the list of its sources, without a last newline."""
    lines = [visible(line) for _, line in listed(sources)]
    return "\n".join([visible(marked(answer, sources).rstrip("\n")), *([""] * bool(lines)), *lines])


def print_cited(answer: str, sources: Sources, color: str) -> None:
    """Print the answer with marks and sources; `color` is that setting.

    On a terminal lines are broken between words, and the places link to the files.
    """
    if not sys.stdout.isatty():
        sys.stdout.write(cited(answer, sources) + "\n")
        sys.stdout.flush()
        return
    sink = TerminalSink(sys.stdout, partial(terminal_width, sys.stdout), False)
    sink.step([_Words(marked(answer, sources).rstrip("\n"))])
    sink.close()
    styled = wants_color(sys.stdout, color)
    lines = [_line(source, line, styled) for source, line in listed(sources)]
    sys.stdout.write("".join(["\n" * bool(lines), *(line + "\n" for line in lines)]))
    sys.stdout.flush()


def _line(source: Source, line: str, styled: bool) -> str:
    """A line of the list, cut to the terminal's width."""
    shown = cut(reveal(visible(line)), terminal_width(sys.stdout) - 1)
    if not styled:
        return shown
    return paint(shown, DIM + Style(link=source.uri) if source.uri else DIM)
