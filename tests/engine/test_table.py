"""The table of a run: formats, resuming after a kill at any write, and refused files."""

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
def open_table(
    path: Path, keys: Mapping[str, str], head: Mapping[str, Any] = HEAD, **options: bool
) -> Iterator[TableOutput]:
    """Open a table that expects rows of these files, with the key of each."""
    with closing(TableOutput(path, head, COLUMNS, **options)) as table:
        table.expect({ItemId(name, key): name for name, key in keys.items()})
        yield table


def read_rows(path: Path) -> list[Any]:
    """Read a table with an independent reader: cells from CSV, values from JSON."""
    text = path.read_bytes().decode()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    if path.suffix == ".json":
        return list(json.loads(text))
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, dialect="excel" if path.suffix == ".csv" else "excel-tab"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(st.lists(st.lists(VALUES, max_size=3), max_size=4))
def test_a_table_has_its_rows_in_the_order_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, files: list[list[Any]]
) -> None:
    path = tmp_path_factory.mktemp("table") / f"out{suffix}"
    rows = {
        str(number): [{"file": str(number), "value": value} for value in values]
        for number, values in enumerate(files)
    }

    with open_table(path, dict.fromkeys(rows, "k")) as table:
        for name in reversed(rows):
            item = ItemId(name, "k")
            table.put(item, rows[name])
            assert table.has(item)
            assert table.rows(item) == rows[name]

    assert path.exists() == bool(files)
    if not files:
        return
    expected = [row for rows_of_file in rows.values() for row in rows_of_file]
    if suffix not in (".csv", ".tsv"):
        assert read_rows(path) == expected
        return
    for cells, row in zip(read_rows(path), expected, strict=True):
        assert_cell_states(cells["value"], row["value"])


def assert_cell_states(cell: str, value: Any) -> None:
    """A cell has a string as it is, an empty text for None, and any other value as JSON."""
    if value is None:
        assert cell == ""
    elif isinstance(value, str):
        assert cell.removeprefix("'") == value.removeprefix("'")
    else:
        assert json.loads(cell) == value


def test_cells_are_quoted_by_rfc_4180_and_an_infinite_number_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "out.CSV"
    cells = {
        "x,\r\n潮": '"x,\r\n潮"',
        float("inf"): "",
        "\ud800": "?",
        2**90: "1237940039285380274899124224",
        '=1+"1"': '"\'=1+""1"""',
    }
    name = 'a "b"'

    with open_table(path, {name: "k"}) as table:
        table.put(ItemId(name, "k"), [{"file": name, "value": value} for value in cells])

    lines = ["file,value", *(f'"a ""b""",{cell}' for cell in cells.values())]
    assert path.read_bytes() == "".join(f"{line}\r\n" for line in lines).encode()


@pytest.fixture
def table_of_a_and_b(tmp_path: Path) -> Path:
    """A table with rows of the files a and b, whose keys are 1."""
    path = tmp_path / "out.jsonl"
    with open_table(path, {"a": "1", "b": "1"}) as table:
        for name in "ab":
            table.put(ItemId(name, "1"), [{"file": name}])
    return path


OTHER_HEAD = HEAD | {"question": "Who?"}


def test_a_table_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_table(path, {"a": "1"}):
        with pytest.raises(UsageError, match="another process is writing it"):
            TableOutput(path, HEAD, COLUMNS)


def test_new_files_and_files_with_another_key_are_to_do(table_of_a_and_b: Path) -> None:
    with open_table(table_of_a_and_b, {"c": "1", "b": "2", "a": "1"}) as table:
        assert table.to_do() == [ItemId("c", "1"), ItemId("b", "2")]
    assert read_rows(table_of_a_and_b) == [{"file": "a"}]

    # The row of b with its old key was kept.
    with open_table(table_of_a_and_b, {"b": "1"}) as table:
        assert table.to_do() == []


def test_a_table_with_another_head_is_refused_without_a_restart(table_of_a_and_b: Path) -> None:
    with pytest.raises(UsageError, match=r"started with question 'When\?', now 'Who\?'"):
        TableOutput(table_of_a_and_b, OTHER_HEAD, COLUMNS)


def test_a_restarted_table_keeps_its_rows_until_it_has_a_new_one(table_of_a_and_b: Path) -> None:
    path = table_of_a_and_b
    with open_table(path, {"b": "1"}, OTHER_HEAD, restart=True) as table:
        assert table.to_do() == [ItemId("b", "1")]
    with open_table(path, {"b": "1"}) as table:
        assert table.to_do() == []
    assert read_rows(path) == [{"file": "b"}]

    with open_table(path, {"b": "1"}, OTHER_HEAD, restart=True) as table:
        table.put(ItemId("b", "1"), [{"file": "b", "value": "new"}])
    assert read_rows(path) == [{"file": "b", "value": "new"}]


def test_a_document_is_identified_by_its_path_and_not_by_its_name_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    in_a = ItemId(str(tmp_path / "a" / "notes.txt"), "key")
    in_b = ItemId(str(tmp_path / "b" / "notes.txt"), "key")
    with closing(TableOutput(path, HEAD, COLUMNS)) as table:
        table.expect({in_a: "notes.txt"})
        table.put(in_a, [{"file": "notes.txt", "value": "of a"}])

    with closing(TableOutput(path, HEAD, COLUMNS)) as table:
        table.expect({in_a: "a/notes.txt", in_b: "b/notes.txt"})
        assert table.to_do() == [in_b]
        assert table.rows(in_a) == [{"file": "a/notes.txt", "value": "of a"}]
    with closing(TableOutput(path, HEAD, COLUMNS)) as table:
        table.expect({in_b: "notes.txt"})
        assert table.to_do() == [in_b]


def test_a_file_that_ngt_did_not_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match="did not write it"), open_table(path, {"a": "1"}):
        pass
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def edited_table(tmp_path: Path) -> Path:
    """A table with a row of the file a, which a spreadsheet program saved."""
    path = tmp_path / "out.csv"
    path.write_text("")  # An empty file, such as mktemp leaves, is no obstacle.
    with open_table(path, {"a": "1", "b": "1"}) as table:
        table.put(ItemId("a", "1"), [{"file": "a"}])
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    return path


@pytest.mark.parametrize("options", [{}, {"restart": True}])
def test_an_edited_table_is_refused_without_force(
    edited_table: Path, options: dict[str, bool]
) -> None:
    edited = edited_table.read_bytes()
    with pytest.raises(UsageError), open_table(edited_table, {"a": "1"}, **options) as table:
        table.put(ItemId("a", "1"), [{"file": "a"}])
    assert edited_table.read_bytes() == edited


def test_an_edited_table_is_overwritten_with_force(edited_table: Path) -> None:
    edited = edited_table.read_bytes()
    with open_table(edited_table, {"a": "1"}, restart=True, force=True) as table:
        table.put(ItemId("a", "1"), [{"file": "a"}])
    assert edited_table.read_bytes() != edited


def test_no_row_is_lost_if_a_table_is_edited_during_a_run(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with open_table(path, {"a": "1", "b": "1"}) as table:
        table.put(ItemId("a", "1"), [{"file": "a"}])
        path.write_bytes(path.read_bytes() + b"mine,")
        with pytest.raises(UsageError, match="changed after"):
            table.put(ItemId("b", "1"), [{"file": "b"}])
        path.unlink()
    assert [row["file"] for row in read_rows(path)] == ["a", "b"]


def test_a_table_is_the_same_by_the_name_of_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to("in/out.csv")

    for name, path in (("a", link), ("b", folder / "out.csv"), ("c", link)):
        with open_table(path, dict.fromkeys("abc", "k")) as table:
            assert not table.has(ItemId(name, "k"))
            table.put(ItemId(name, "k"), [{"file": name}])
        assert read_rows(link)[-1]["file"] == name

    assert link.is_symlink()
    assert set(tmp_path.iterdir()) == {folder, link}
    assert {path.name for path in folder.iterdir()} == {"out.csv", "out.csv.journal"}


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "full.csv"
    link.symlink_to("/dev/full")
    with pytest.raises(UsageError, match="not a regular file"):
        TableOutput(link, HEAD, COLUMNS, restart=True)


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_output_is_valid_and_resumed_after_a_kill_at_any_write(
    tmp_path: Path, is_folder: bool
) -> None:
    """A run is killed after each number of writes; the next run completes its output."""
    names = [str(number) for number in range(6)]
    writes = 0

    def kill_after(max_writes: int, function: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: object) -> Any:
            nonlocal writes
            if writes >= max_writes:
                raise KeyboardInterrupt
            writes += 1
            return function(*arguments)

        return write

    def run(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        output: FolderOutput | TableOutput
        if is_folder:
            output = FolderOutput(folder, ".txt")
        else:
            output = TableOutput(folder / "out.csv", HEAD, COLUMNS)
        with closing(output):
            output.expect({ItemId(name, "k"): name for name in names})
            for item in output.to_do():
                name = item.source
                output.put(item, [{"file": name, "value": "潮", "body": f"{name}, of all"}])

    def read_files(folder: Path) -> dict[str, bytes]:
        """The files of the output, without the journal."""
        return {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.suffix in (".txt", ".csv")
        }

    run(tmp_path / "uninterrupted")
    expected = read_files(tmp_path / "uninterrupted")
    assert len(expected) == (6 if is_folder else 1)

    for max_writes in range(3 * len(names)):
        folder = tmp_path / str(max_writes)
        writes = 0
        write = kill_after(max_writes, write_atomically)
        with (
            patch.object(LineFile, "append", kill_after(max_writes, LineFile.append)),
            patch("ngtcli.engine.batch.table.write_atomically", write),
            suppress(KeyboardInterrupt),
        ):
            run(folder)
        files = read_files(folder)
        assert all(expected[name].startswith(content) for name, content in files.items())
        if is_folder:
            assert len(files) == max_writes // 3
        else:
            assert len(files) == (1 if max_writes >= 3 else 0)

        run(folder)
        assert read_files(folder) == expected
