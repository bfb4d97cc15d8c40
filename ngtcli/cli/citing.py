"""An answer with its sources: marks in the text, and a list of the places below it."""

import sys
from collections.abc import Sequence

from ngtcli.cli.streams import terminal_width
from ngtcli.grounding.sources import Sources
from ngtcli.render.answer_view import listed, terminal_list, with_marks
from ngtcli.render.sinks import ShownToken, Sink
from ngtcli.render.terminal import visible, wants_color


def cited(tokens: Sequence[ShownToken], sources: Sources) -> str:
    """The answer with marks, and the list of its sources, without a last newline."""
    text = visible("".join(words.text for words in with_marks(tokens, sources)))
    return "\n".join([text, *([""] * bool(sources.found)), *_lines(sources)])


def print_cited(tokens: Sequence[ShownToken], sources: Sources, sink: Sink, color: str) -> None:
    """The answer with marks into `sink`, which writes to stdout, and its sources below it.

    On a terminal the places link to the files; `color` is that setting.
    """
    sink.step(with_marks(tokens, sources))
    sink.close()
    if sys.stdout.isatty():
        styled = wants_color(sys.stdout, color)
        places = terminal_list(sources, terminal_width(sys.stdout), styled)
    else:
        places = "".join(line + "\n" for line in _lines(sources))
    sys.stdout.write(f"\n{places}" if places else "")
    sys.stdout.flush()


def _lines(sources: Sources) -> list[str]:
    return [listed(source) for source in sources.places()]
