"""The help pages, word for word: usage, options with what is said of them, examples.

What they should say is in `tests/help.txt`, each option that several commands share once. After a
change that is meant, write it again and read the difference: `python -m tests.test_help`.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ngtcli.cli.help import about, topics

PAGES = Path(__file__).with_name("help.txt")
WIDE = 2000  # columns in which no text is wrapped
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
    found: list[Panel] = [("", [])]
    for line in filter(None, map(str.strip, lines)):
        if line[0] == "╭":
            found.append((line.strip("╭─╮ "), []))
        elif line[0] == "╰":
            found.append(("", []))
        else:
            *head, last = re.split(" {2,}", line.strip("│ "))
            found[-1][1].append("  ".join(filter(None, (" ".join(head), last))))
    return [panel for panel in found if panel[1]]


def pages() -> str:
    """All help pages as one text."""
    found = {" ".join(("ngt", *path)): panels(shown(path, WIDE)) for path in every()}
    rows_of = [(title, row) for page in found.values() for title, rows in page for row in rows]
    counts = Counter(row for title, row in rows_of if title)
    shared = {row: title for title, row in rows_of if counts[row] > 1}
    out = ["Options of several commands:"]
    for title in dict.fromkeys(shared.values()):
        out += [f"  {title}:", *(f"    {row}" for row in shared if shared[row] == title)]
    for name, page in found.items():
        out += ["", f"$ {name} --help"]
        for title, rows in page:
            own = [row for row in rows if row not in shared]
            names = ", ".join(row.split()[0] for row in rows if row in shared)
            if title:
                out.append(f"  {title}: {names}".rstrip())
            out += [f"    {row}" if title else f"  {row}" for row in own]
    return "\n".join(out) + "\n"


def test_every_help_page_is_as_it_was_agreed() -> None:
    agreed, found = PAGES.read_text(encoding="utf-8"), pages()
    changed = difflib.unified_diff(agreed.split("\n"), found.split("\n"), "agreed", "found", n=1)
    assert found == agreed, "\n".join(changed)


def test_the_list_of_pages_has_a_sentence_of_each() -> None:
    for name, page in topics().items():
        shown = about(page)
        assert shown.endswith((".", "!")) and not re.search(r"[#`*\n]|\]\(", shown), name


def test_every_command_has_a_page_of_80_columns_at_most() -> None:
    assert len(every()) > 20
    for path in every():
        lines = shown(path, 80)
        assert max(map(len, lines)) <= 80 and "\x1b" not in "".join(lines), path


if __name__ == "__main__":
    PAGES.write_text(pages(), encoding="utf-8")
