"""What a terminal may be sent: visible text only, and styles made by us."""

import os
from typing import TextIO

from rich.color import ColorSystem
from rich.style import Style

# C0 controls become their pictures (U+2400…), DEL U+2421; C1 and bidirectional overrides U+FFFD.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(
    [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)

# Where drafts come from; other words are shown as "draft".
COLORS = {
    "draft": "cyan", "document": "cyan", "prompt": "blue", "own text": "magenta",
    "pool": "yellow", "scores": "green",
}  # fmt: skip
DIM = Style(dim=True)


def visible(text: str) -> str:
    """`text` with every control character but line feed and tab made harmless and visible.

    >>> visible("a" + chr(27) + "[31mb")
    'a␛[31mb'
    """
    return text.translate(_VISIBLE)


def wants_color(stream: TextIO, setting: str) -> bool:
    """Whether to style what goes to `stream`: "always", "never", or "auto" by the terminal."""
    if setting != "auto":
        return setting == "always"
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def drafted_style(origin: str) -> Style:
    """Underlined, and coloured by origin unless NO_COLOR asks for none."""
    if os.environ.get("NO_COLOR"):
        return Style(underline=True)
    return Style(color=COLORS.get(origin, COLORS["draft"]), underline=True)


def paint(text: str, style: Style) -> str:
    """`text` in `style`, line by line, so that no underline runs to a line's end."""
    return "\n".join(
        style.render(line, color_system=ColorSystem.STANDARD) if line else ""
        for line in text.split("\n")
    )
