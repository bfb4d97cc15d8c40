"""The help pages: each command has one, and it fits into 80 columns."""

import re
from collections.abc import Iterator
from typing import Any

from ngtcli.cli.help import about, topics

Panel = tuple[str, list[str]]  # a title and rows; "" for the text outside of panels


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group, the whole program first."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def every() -> list[tuple[str, ...]]:
    from ngtcli.cli.app import COMMANDS, load

    return [(), *(path for name in COMMANDS for path in commands(load(name), (name,)))]


def shown(path: tuple[str, ...], columns: int) -> list[str]:
    """The lines of a help page, without colour."""
    from tests.support.helpers import ngt

    done = ngt(*path, "--help", COLUMNS=str(columns), NO_COLOR="1", TERM="dumb")
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\n")


def panels(lines: list[str]) -> list[Panel]:
    """What a page says, without what it is drawn with.

    >>> panels([" Usage: ngt x", "╭─ Options ──╮", "│ --n   <int>  Window.   │", "╰───╯"])
    [('', ['Usage: ngt x']), ('Options', ['--n <int>  Window.'])]
    """
    panels_of_page: list[Panel] = [("", [])]
    for line in filter(None, map(str.strip, lines)):
        if line[0] == "╭":
            panels_of_page.append((line.strip("╭─╮ "), []))
        elif line[0] == "╰":
            panels_of_page.append(("", []))
        else:
            *head, last = re.split(" {2,}", line.strip("│ "))
            panels_of_page[-1][1].append("  ".join(filter(None, (" ".join(head), last))))
    return [panel for panel in panels_of_page if panel[1]]


def test_the_list_of_pages_has_a_sentence_of_each() -> None:
    for name, page in topics().items():
        shown = about(page)
        assert shown.endswith((".", "!")), name
        assert not re.search(r"[#`*\n]|\]\(", shown)


def test_every_command_has_a_page_of_80_columns_at_most() -> None:
    assert len(every()) > 20
    for path in every():
        lines = shown(path, 80)
        assert max(map(len, lines)) <= 80, path
        assert "\x1b" not in "".join(lines)
