"""Draws what a command shows on a terminal, as SVG without fonts from a server: README's picture.

python -m tests.tools.terminal_picture .github/assets/terminal.svg summarize notes.md --cite
"""

import io
import re
import shlex
import sys
from html import escape, unescape
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.support.helpers import in_terminal

_FORMAT = Path(__file__).with_suffix(".svg")  # that of Rich's export, except for its fonts
_LENGTH = re.compile(r'textLength="([\d.]+)"([^>]*>)([^<\n]+)<')
_STATUS = re.compile(r"[^\n]*\r\x1b\[K")  # a line that was wiped again


def picture(shown: str, title: str, width: int) -> str:
    """A terminal of `width` columns that shows text with sequences for styles.

    `title` describes it to those who do not see it.
    """
    console = Console(
        record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="standard"
    )
    console.print(Text.from_ansi(shown), overflow="fold", end="")
    drawn = console.export_svg(title="ngt", code_format=_FORMAT.read_text(encoding="utf-8"))
    return _LENGTH.sub(_in_cells, drawn).replace("TITLE", escape(title), 1)


def _in_cells(match: re.Match[str]) -> str:
    """A text with its length in cells; Rich gives one to each character, wide ones too."""
    length, between, shown = match.groups()
    text = unescape(shown)
    return f'textLength="{float(length) * cell_len(text) / len(text):g}"{between}{shown}<'


def main(path: str, *arguments: str, width: int = 88) -> None:
    """Run `ngt` with the arguments on a terminal, and draw its command line and what it shows."""
    shown, _ = in_terminal(*arguments, columns=width, NO_COLOR="")
    shown = _STATUS.sub("", shown.replace("\r\n", "\n"))
    line = f"$ ngt {shlex.join(arguments)}\n\n"
    Path(path).write_text(picture(line + shown, line.strip("$ \n"), width), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
