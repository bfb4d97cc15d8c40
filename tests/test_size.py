"""No room of the house outgrows the budget that the table in ngtcli/README.md gives it."""

import re
from pathlib import Path

from tests.support.helpers import ROOT_FOLDER

PACKAGE = ROOT_FOLDER / "ngtcli"
_ROW = re.compile(r"^\| (?P<rooms>`[^|]+) \|[^|]+\| (?P<most>[\d,]+) \|$", re.MULTILINE)


def table() -> dict[tuple[str, ...], int]:
    """The budget of each row in lines of Python, by the files and folders that it names."""
    page = (PACKAGE / "README.md").read_text(encoding="utf-8")
    return {
        tuple(re.findall("`([^`]+)`", row["rooms"])): int(row["most"].replace(",", ""))
        for row in _ROW.finditer(page)
    }


def files(room: str) -> set[Path]:
    """The Python files of a room; `tests/` is without its tools, which have a row of their own."""
    place = (ROOT_FOLDER if room.startswith("tests/") else PACKAGE) / room
    found = {place} if place.is_file() else set(place.rglob("*.py"))
    return found - files("tests/tools/") if room == "tests/" else found


def test_no_room_has_more_lines_than_its_budget() -> None:
    over = {}
    for rooms, most in table().items():
        own = set().union(*map(files, rooms))
        lines = sum(len(file.read_bytes().splitlines()) for file in own)
        if lines > most:
            over[rooms] = f"{lines} lines, {most} at most"
    assert not over


def test_each_file_is_in_one_room() -> None:
    rooms = [file for names in table() for name in names for file in files(name)]
    every = {*PACKAGE.rglob("*.py"), *(ROOT_FOLDER / "tests").rglob("*.py")}
    assert len(rooms) == len(set(rooms)) and set(rooms) == every
