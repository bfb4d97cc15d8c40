"""A table with the rows of many files: its forms, kills at every write, and what is refused."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.engine.batch.run import ItemId
from ngtcli.engine.batch.table import SUFFIXES, FolderOutput, TableOutput
from ngtcli.errors import UsageError
from ngtcli.system.files import write_atomically
from ngtcli.system.journal import LineFile

HEAD = {"question": "When?", "ask.max_tokens": 8}
COLUMNS = ["file", "value"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab,"\n'), inner, max_size=2)
    ),
    max_leaves=5,
)


@contextmanager
def opened(
    path: Path, keys: Mapping[str, str], head: Mapping[str, Any] = HEAD, **how: bool
) -> Iterator[TableOutput]:
    with closing(TableOutput(path, head, COLUMNS, **how)) as table:
        table.expect({ItemId(name, key): name for name, key in keys.items()})
        yield table


def rows_of(path: Path) -> list[Any]:
    """The rows of a table as independent readers have them: cells in CSV, values in JSON."""
    text = path.read_bytes().decode()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    if path.suffix == ".json":
        return list(json.loads(text))
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, dialect="excel" if path.suffix == ".csv" else "excel-tab"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(st.lists(st.lists(VALUES, max_size=3), max_size=4))
def test_a_table_has_what_was_put_in_the_order_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, files: list[list[Any]]
) -> None:
    path = tmp_path_factory.mktemp("table") / f"out{suffix}"
    rows = {str(i): [{"file": str(i), "value": v} for v in of] for i, of in enumerate(files)}
    with opened(path, dict.fromkeys(rows, "k")) as table:
        for name in reversed(rows):
            item = ItemId(name, "k")
            table.put(item, rows[name])
            assert table.has(item)
            assert table.rows(item) == rows[name]
    wanted = [row for of_file in rows.values() for row in of_file]
    assert path.exists() == bool(files)
    found = rows_of(path) if files else []
    if suffix in (".csv", ".tsv"):  # cells: a text as it is, all else as JSON
        for cells, row in zip(found, wanted, strict=True):
            value, cell = row["value"], cells["value"]
            if value is None or isinstance(value, str):
                assert cell.removeprefix("'") == (value or "").removeprefix("'")
            else:
                assert json.loads(cell) == value
    else:
        assert found == wanted


def test_a_cell_is_of_rfc_4180_and_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    with opened(path := tmp_path / "out.CSV", {'a "b"': "k"}) as table:
        every = "x,\r\n潮", float("inf"), "\ud800", 2**90, '=1+"1"'
        table.put(ItemId('a "b"', "k"), [{"file": 'a "b"', "value": value} for value in every])
    cells = '"x,\r\n潮"', "", "?", "1237940039285380274899124224", '"\'=1+""1"""'
    assert (
        path.read_bytes()
        == ("file,value\r\n" + "".join(f'"a ""b""",{cell}\r\n' for cell in cells)).encode()
    )


def test_a_key_or_a_head_decides_what_is_done_and_a_restart_begins_again(tmp_path: Path) -> None:
    path, other = tmp_path / "out.jsonl", HEAD | {"question": "Who?"}
    with opened(path, {"a": "1", "b": "1"}) as table:
        for name in "ab":
            table.put(ItemId(name, "1"), [{"file": name}])
        with pytest.raises(UsageError, match="another process is writing it"):
            TableOutput(path, HEAD, COLUMNS)
    with opened(path, {"c": "1", "b": "2", "a": "1"}) as table:
        assert table.to_do() == [ItemId("c", "1"), ItemId("b", "2")]
    assert rows_of(path) == [{"file": "a"}]  # what is no more so is not shown
    with opened(path, {"b": "1"}) as table:
        assert table.to_do() == []  # but kept
    with pytest.raises(UsageError, match=r"started with question 'When\?', now 'Who\?'"):
        TableOutput(path, other, COLUMNS)
    with opened(path, {"b": "1"}, other, restart=True) as table:
        assert table.to_do() == [ItemId("b", "1")]
    with opened(path, {"b": "1"}) as table:
        assert table.to_do() == []  # all is there until there is something else
    assert rows_of(path) == [{"file": "b"}]
    with opened(path, {"b": "1"}, other, restart=True) as table:
        table.put(ItemId("b", "1"), [{"file": "b", "value": "new"}])
    assert rows_of(path) == [{"file": "b", "value": "new"}]


def test_a_document_is_known_by_its_path_whatever_it_is_called_in_a_run(tmp_path: Path) -> None:
    table = tmp_path / "out.jsonl"
    ids = [ItemId(str(tmp_path / folder / "notes.txt"), "key") for folder in "ab"]
    with closing(TableOutput(table, HEAD, COLUMNS)) as rows:
        rows.expect({ids[0]: "notes.txt"})
        rows.put(ids[0], [{"file": "notes.txt", "value": "of a"}])
    with closing(TableOutput(table, HEAD, COLUMNS)) as rows:
        rows.expect({ids[0]: "a/notes.txt", ids[1]: "b/notes.txt"})
        assert rows.to_do() == [ids[1]]
        assert rows.rows(ids[0]) == [{"file": "a/notes.txt", "value": "of a"}]
    with closing(TableOutput(table, HEAD, COLUMNS)) as rows:
        rows.expect({ids[1]: "notes.txt"})  # this one alone has the name that the other had
        assert rows.to_do() == [ids[1]]


def test_a_table_that_ngt_did_not_write_or_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match="did not write it"), opened(path, {"a": "1"}):
        pass
    assert path.read_text() == "mine"
    assert [*tmp_path.iterdir()] == [path]
    path.write_text("")  # as mktemp leaves it
    with opened(path, {"a": "1", "b": "1"}) as table:
        table.put(ItemId("a", "1"), [{"file": "a"}])
    saved = path.read_bytes().replace(b"\r\n", b"\n")  # by a spreadsheet program
    path.write_bytes(saved)
    ways: list[dict[str, bool]] = [{}, {"restart": True}, {"restart": True, "force": True}]
    for how in ways:
        with suppress(UsageError), opened(path, {"a": "1", "b": "1"}, **how) as table:
            table.put(ItemId("a", "1"), [{"file": "a"}])
        assert (path.read_bytes() == saved) != ("force" in how)
    with opened(path, {"a": "1", "b": "1"}) as table:
        path.write_bytes(saved + b"mine,")
        with pytest.raises(UsageError, match="changed after"):
            table.put(ItemId("b", "1"), [{"file": "b"}])
        path.unlink()
    assert [row["file"] for row in rows_of(path)] == ["a", "b"]  # nothing was lost


def test_a_table_is_the_same_by_the_name_of_a_link(tmp_path: Path) -> None:
    (folder := tmp_path / "in").mkdir()
    (link := tmp_path / "link.csv").symlink_to("in/out.csv")
    for name, path in ("a", link), ("b", folder / "out.csv"), ("c", link):
        with opened(path, dict.fromkeys("abc", "k")) as table:
            assert not table.has(ItemId(name, "k"))
            table.put(ItemId(name, "k"), [{"file": name}])
        assert [row["file"] for row in rows_of(link)][-1] == name
    (tmp_path / "full.csv").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="not a regular file"):
        TableOutput(tmp_path / "full.csv", HEAD, COLUMNS, restart=True)
    assert link.is_symlink()
    assert [*tmp_path.iterdir()].count(folder) == 1
    assert {path.name for path in folder.iterdir()} == {"out.csv", "out.csv.journal"}


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_output_is_whole_and_goes_on_wherever_a_kill_came(
    tmp_path: Path, is_folder: bool
) -> None:
    """Of each prefix of what runs write, in its order, the next run continues, and ends alike."""
    names, made = [str(i) for i in range(6)], 0

    def until(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: object) -> Any:
            nonlocal made
            if made >= number:
                raise KeyboardInterrupt
            made += 1
            return function(*given)

        return write

    def run(place: str) -> dict[str, bytes]:
        path = tmp_path / place / "out.csv"
        path.parent.mkdir(exist_ok=True)
        folder = FolderOutput(path.parent, ".txt") if is_folder else None
        with closing(folder or TableOutput(path, HEAD, COLUMNS)) as output:
            output.expect({ItemId(name, "k"): name for name in names})
            for item in output.to_do():
                name = item.source
                output.put(item, [{"file": name, "value": "潮", "body": f"{name}, of all"}])
        return shown(place)

    def shown(place: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / place).glob("*.??[tv]")}

    every = run("every")
    assert len(every) == (6 if is_folder else 1)
    for number in range(3 * len(names)):
        made = 0
        with (
            patch.object(LineFile, "append", until(number, LineFile.append)),
            patch("ngtcli.engine.batch.table.write_atomically", until(number, write_atomically)),
            suppress(KeyboardInterrupt),
        ):
            run(str(number))
        there = shown(str(number))
        assert all(every[name].startswith(text) for name, text in there.items())
        assert len(there) == (number // 3 if is_folder else number >= 3)
        assert run(str(number)) == every
