"""The help pages, word for word: at 80 columns, without colour.

What they should say is in `tests/help.txt`. After a change that is meant, write it again and read
the difference: `python -m tests.test_help`.
"""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).with_name("help.txt")
HEAD = "$ "  # before the command that a page is of


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and group, the whole program first."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def every() -> list[tuple[str, ...]]:
    from ngtcli.cli.lazy import COMMANDS, load

    return [(), *(path for name in COMMANDS for path in commands(load(name), (name,)))]


def pages() -> str:
    """All help pages as one text."""
    from helpers import ngt

    out = []
    for path in every():
        done = ngt(*path, "--help", COLUMNS="80", NO_COLOR="1", TERM="dumb")
        assert done.returncode == 0, done.stderr
        lines = [line.rstrip() for line in done.stdout.decode().strip("\n").split("\n")]
        out.append("\n".join([f"{HEAD}{' '.join(('ngt', *path))} --help", *lines, ""]))
    return "\n".join(out)


def test_every_help_page_is_as_it_was_agreed() -> None:
    agreed, found = PAGES.read_text(encoding="utf-8"), pages()
    changed = difflib.unified_diff(agreed.split("\n"), found.split("\n"), "agreed", "found", n=1)
    assert found == agreed, "\n".join(changed)


def test_every_command_has_a_page_of_80_columns_at_most() -> None:
    lines = PAGES.read_text(encoding="utf-8").split("\n")
    heads = [line.removeprefix(HEAD).split()[1:-1] for line in lines if line.startswith(HEAD)]
    assert heads == [list(path) for path in every()] and len(heads) > 20
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    PAGES.write_text(pages(), encoding="utf-8")
