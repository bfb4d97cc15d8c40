"""Text for a terminal: control characters made visible, and styles."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from ngtcli.drafting.origins import (
    BACKGROUND,
    DOCUMENT,
    DRAFT,
    GRAMMAR,
    HEAD,
    OWN_TEXT,
    POOL,
    PREDICTED,
    PROMPT,
    SCORES,
)

# C0 controls become their pictures (U+2400…), DEL U+2421; C1 and bidirectional overrides U+FFFD.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(
    [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)

# Characters that a terminal does not show or that end its line: soft hyphen, directional marks,
# joiners, zero-width spaces, fillers, variation selectors, tags, interlinear annotation.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028\u2029\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_MONGOLIAN = "\u180b\u180c\u180d\u180f"
# Code points of scripts that use joiners: Arabic to Arabic Extended, Indic scripts, Sinhala,
# Tibetan, Myanmar, Khmer, Mongolian, Arabic presentation forms, Brahmic scripts.
_JOINED = (
    (0x0600, 0x08FF),
    (0x0900, 0x0DFF),
    (0x0F00, 0x109F),
    (0x1780, 0x18AF),
    (0xA840, 0xA8FF),
    (0xFB50, 0xFDFF),
    (0xFE70, 0xFEFC),
    (0x10A00, 0x10AFF),
    (0x11000, 0x11FFF),
    (0x1E900, 0x1E95F),
)

_WITHOUT_SPACES = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))  # Thai to Khmer
REVEALED_BEFORE = 16  # characters that decide whether the next one is needed (guess)
_RIGHT_TO_LEFT = "\u200f\u061c"  # marks of text from right to left
_DIRECTIONAL = f"\u200e{_RIGHT_TO_LEFT}"
# The beginning of the flag of a part of a country: a black flag, and its name in tags.
_FLAG = re.compile(
    "\U0001f3f4[\U000e0061-\U000e007a]{1,2}$"
    "|\U0001f3f4[\U000e0061-\U000e007a]{2}[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,3}"
    "\U000e007f?$"
)

# Styles by the origin of a draft; "drafted" is the legend of a method with one source.
COLORS = {
    DRAFT: "cyan",
    "drafted": "cyan",
    DOCUMENT: "cyan",
    HEAD: "bold cyan",
    GRAMMAR: "bold blue",
    PREDICTED: "bold magenta",
    OWN_TEXT: "magenta",
    PROMPT: "blue",
    POOL: "yellow",
    BACKGROUND: "red",
    SCORES: "green",
}
DIM = "dim"  # a style, as Rich writes it
_CODES = {"bold": 1, "dim": 2, "underline": 4} | {
    color: code for code, color in enumerate("black red green yellow blue magenta cyan".split(), 30)
}  # of the SGR sequence of ECMA-48
THOUGHT = "thought"  # takes the place of an origin for all text of reasoning


def visible(text: str) -> str:
    """Return `text` with visible characters for all control characters but line feed and tab.

    >>> visible("a" + chr(27) + "[31mb")
    'a␛[31mb'
    """
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """Return `text` as `visible` does, on one line, as for names and messages.

    >>> one_line("a" + chr(10) + "b.txt")
    'a b.txt'
    """
    return visible(text.replace("\n", " "))


def reveal(text: str, before: str = "") -> str:
    """Return `text` with U+FFFD for each character that a terminal does not show.

    Only the last REVEALED_BEFORE characters of `before`, the text that precedes it, matter.
    Characters that scripts need are kept: one joiner after a letter or mark of a script that uses
    joiners, or after an emoji; one variation selector after a symbol, or a Mongolian letter; one
    directional mark in text from right to left; the tags of a flag; one zero-width space after a
    letter of a script that has no others.

    >>> reveal("in" + chr(0xAD) + "visible")
    'in\ufffdvisible'
    """
    if not _INVISIBLE.search(text):
        return text
    shown = list(before[-REVEALED_BEFORE:])
    start = len(shown)
    for character in text:
        if _INVISIBLE.match(character) and not _is_needed(character, shown):
            character = "\ufffd"
        shown.append(character)
    return "".join(shown[start:])


def _is_needed(mark: str, shown: Sequence[str]) -> bool:
    """Return whether the script of the characters `shown` needs an invisible one after them."""
    before = shown[-1] if shown else ""
    if mark in _RIGHT_TO_LEFT and not before:
        return True
    if not before or before == "\ufffd":
        return False
    if mark in _RIGHT_TO_LEFT:
        return before not in _DIRECTIONAL and unicodedata.bidirectional(before) != "L"
    if mark == "\u200e":
        near = shown[-REVEALED_BEFORE:]
        is_near = any(unicodedata.bidirectional(character) in ("R", "AL") for character in near)
        return is_near and before not in _DIRECTIONAL
    code = ord(before)
    category = unicodedata.category(before)
    if mark == "\u200b":
        return category[0] in "LM" and any(low <= code <= high for low, high in _WITHOUT_SPACES)
    if "\U000e0000" <= mark <= "\U000e007f":
        return _FLAG.search("".join([*shown[-REVEALED_BEFORE:], mark])) is not None
    if mark in _SELECTORS:
        return category in ("So", "Sm") or before in "0123456789#*\u203c\u2049\u3030\u303d"
    if mark in _MONGOLIAN:
        return 0x1820 <= code <= 0x18AF
    if mark not in _JOINERS:
        return False
    if mark == "\u200d" and (category == "So" or before == "\ufe0f" or 0x1F3FB <= code <= 0x1F3FF):
        return True
    return category[0] in "LM" and any(low <= code <= high for low, high in _JOINED)


def cut(text: str, columns: int) -> str:
    """Return the start of `text` that takes at most `columns` columns of a terminal."""
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns).rstrip()


def is_plain() -> bool:
    """Return whether TERM says that the terminal has no control sequences."""
    return os.environ.get("TERM", "") in ("", "dumb")


def has_links() -> bool:
    """Return whether the terminal can be sent OSC 8 links, which most show or ignore.

    The console of Linux shows them as text before version 5.8.
    """
    return not is_plain() and os.environ.get("TERM") != "linux"


def wants_color(stream: TextIO, setting: str) -> bool:
    """Return whether to style output to `stream`: with "auto", if it is a terminal with styles."""
    if setting != "auto":
        return setting == "always"
    return stream.isatty() and not is_plain()


def drafted_style(origin: str) -> str:
    """Return the style of a drafted token: underlined, and colored unless NO_COLOR is set.

    That of THOUGHT is dim. Raises KeyError for an unknown origin.
    """
    if origin == THOUGHT:
        return DIM
    return "underline" if os.environ.get("NO_COLOR") else f"underline {COLORS[origin]}"


def paint(text: str, style: str) -> str:
    """Return `text` in `style`, line by line, so that no underline extends to the border."""
    codes = ";".join(str(_CODES[word]) for word in style.split())
    return "\n".join(f"\x1b[{codes}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


def linked(text: str, uri: str) -> str:
    """Return `text` as a link, by the sequence OSC 8."""
    return f"\x1b]8;;{uri}\x1b\\{text}\x1b]8;;\x1b\\"


def cell(text: str) -> str:
    """Return `text` on one line, without tabs, with control characters made visible."""
    return one_line(text.replace("\t", " "))


def to_tabs(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as lines, with cells separated by tabs."""
    return "\n".join("\t".join(map(cell, row)) for row in rows)
