"""The store: whatever happens to its file, it returns what was put or nothing, and goes on."""

import multiprocessing
import os
import random
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.system import store
from ngtcli.system.store import DAMAGED, NAME, Kind
from tests.support.helpers import ngt


@dataclass(frozen=True, slots=True)
class Measurement:
    seconds: float
    names: tuple[str, ...] = ()


MEASUREMENTS = Kind("measurements", Measurement)
IDS = Kind("ids", bytes)
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGT_HOME", str(tmp_path))
    return tmp_path / "cache" / NAME


def value_of(number: int) -> bytes:
    return bytes([number % 251]) * (number % 700)


def test_pieces_are_kept_by_kind_and_key(path: Path) -> None:
    MEASUREMENTS.put("a", Measurement(0.5, ("x", "é")))
    MEASUREMENTS.put_many({"a": Measurement(float("inf")), "b": Measurement(1.0)})
    IDS.put("a", b"\0\1")
    assert MEASUREMENTS.get("a") == Measurement(float("inf"))
    assert MEASUREMENTS.get("c") is None
    assert MEASUREMENTS.get_many(["b", "c"]) == {"b": Measurement(1.0)}
    assert IDS.each() == {"a": b"\0\1"}

    MEASUREMENTS.delete(["a"])
    assert list(MEASUREMENTS.each()) == ["b"]
    IDS.delete(IDS.each())
    assert not IDS.each()

    assert path.stat().st_mode & 0o777 == 0o600
    assert not store.take_remark()


def test_values_of_another_type_are_missing(path: Path) -> None:
    MEASUREMENTS.put("a", Measurement(0.5))
    assert Kind("measurements", dict[str, int]).get("a") is None


def test_values_that_cannot_be_encoded_are_not_stored(path: Path) -> None:
    MEASUREMENTS.put("a", Measurement(1.0, ("\ud800",)))  # which is in no JSON and no file
    assert not MEASUREMENTS.each()
    assert not store.take_remark()


def make_file_of_another_version(path: Path) -> bytes:
    """Make a database whose table has other columns."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE piece (kind, key, content)")
        connection.execute("INSERT INTO piece VALUES ('ids', '1', 'x')")
    connection.close()
    return path.read_bytes()


@settings(max_examples=50)
@given(st.data())
def test_values_of_a_damaged_file_are_right_or_missing_and_new_ones_are_stored(
    data: st.DataObject,
) -> None:
    """Flip a bit, cut the file, or put another one in its place; byte 18 is SQLite's version."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        patch.setenv("NGT_HOME", str(folder))
        IDS.put_many({str(n): value_of(n) for n in range(60)})
        file = folder / "cache" / NAME
        content = bytearray(file.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 300) | st.just(18))
        match data.draw(st.sampled_from(["flip", "cut", "foreign", "version"])):
            case "flip":
                content[position] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[position:]
            case "foreign":
                content = bytearray(data.draw(st.binary(min_size=1, max_size=200)))
            case "version":
                content = bytearray(make_file_of_another_version(folder / "other"))
        damaged = folder / "damaged"
        damaged.write_bytes(content)
        damaged.replace(file)

        values = IDS.get_many(map(str, range(60)))
        assert all(value == value_of(int(key)) for key, value in values.items())
        assert all(value == value_of(int(key)) for key, value in IDS.each().items())
        IDS.put("new", b"1")
        assert IDS.get("new") == b"1"
        assert file.with_name(NAME + DAMAGED).exists() == ("renamed" in store.take_remark())


def test_a_query_makes_no_file(path: Path) -> None:
    assert IDS.get("a") is None
    assert IDS.each() == {}
    assert store.pieces() == []
    IDS.delete(["a"])
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("pragma", "reason"), [("query_only = ON", "readonly"), ("max_page_count = 1", "disk is full")]
)
def test_a_store_that_cannot_be_written_is_read_with_one_remark(
    pragma: str, reason: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    IDS.put("a", b"1")
    store._stores.clear()  # as in another process
    monkeypatch.setattr(store, "_OPENING", (*store._OPENING, f"PRAGMA {pragma}"))

    for _ in range(2):
        IDS.put_many({"a": b"2", "b": b"x" * 100_000})
    assert IDS.each() == {"a": b"1"}
    assert reason in store.take_remark()

    IDS.put("b", b"x" * 100_000)
    assert not store.take_remark()


@pytest.mark.parametrize(("text", "exit_code"), [(b"High tide is at noon.", 0), (b"\0\1", 3)])
def test_a_command_shows_the_remark_once_and_above_its_error(
    path: Path, text: bytes, exit_code: int
) -> None:
    path.mkdir(parents=True)  # A folder is where the file should be.
    document = path.parents[1] / "a.html"
    document.write_bytes(text)
    done = ngt("ask", "-d", str(document), "--dry-run", "When is high tide?")
    assert done.returncode == exit_code
    assert done.stderr.count(b"not a regular file") == 1
    if exit_code:
        remark, _error, _hint = done.stderr.splitlines()[-3:]
        assert b"not a regular file" in remark


def test_a_store_that_cannot_be_opened_stores_nothing_with_one_remark(path: Path) -> None:
    path.mkdir(parents=True)
    IDS.put("a", b"1")
    assert IDS.get("a") is None
    assert "cannot be opened, so that nothing is stored: not a regular file" in store.take_remark()
    IDS.put("b", b"1")
    assert not store.take_remark()


def test_a_file_that_was_removed_is_made_again(path: Path) -> None:
    IDS.put("a", b"1")
    path.unlink()
    assert IDS.get("a") is None
    IDS.put("a", b"2")
    assert path.exists()
    assert IDS.get("a") == b"2"


def test_a_store_that_another_process_locks_is_not_written_with_a_remark(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAIT_S", 0.01)
    IDS.put("a", b"1")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    IDS.put("a", b"2")
    assert "database is locked" in store.take_remark()
    connection.close()
    assert IDS.get("a") == b"1"


def put_values(process: int) -> None:
    for number in range(40):
        IDS.put(f"{process} {number}", value_of(number))
    os._exit(1 if store.take_remark() else 0)


def put_for_ever() -> None:
    while True:
        IDS.put_many({str(n): value_of(n) for n in random.sample(range(100), 20)})


def test_processes_at_once_lose_nothing_and_killed_ones_leave_complete_values(path: Path) -> None:
    IDS.put("1000", value_of(1000))  # which opens a connection that forks inherit
    writers = [FORK.Process(target=put_values, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()

    for _ in range(5):
        killed_writer = FORK.Process(target=put_for_ever)
        killed_writer.start()
        time.sleep(random.uniform(0.02, 0.1))
        killed_writer.kill()
        killed_writer.join()
        assert all(value == value_of(int(key.split()[-1])) for key, value in IDS.each().items())

    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 6
    assert sum(" " in key for key in IDS.each()) == 6 * 40
    assert IDS.get("1000") == value_of(1000)
    assert not store.take_remark()
