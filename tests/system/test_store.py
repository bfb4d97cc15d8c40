"""The store: whatever happens to its file, what it gives is what was put, and it continues."""

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
class Reading:
    seconds: float
    names: tuple[str, ...] = ()


READINGS = Kind("readings", Reading)
IDS = Kind("ids", bytes)
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGT_HOME", str(tmp_path))
    return tmp_path / "cache" / NAME


def value_of(number: int) -> bytes:
    return bytes([number % 251]) * (number % 700)


def test_pieces_are_kept_by_kind_and_key(path: Path) -> None:
    READINGS.put("a", Reading(0.5, ("x", "é")))
    READINGS.put_many({"a": Reading(float("inf")), "b": Reading(1.0)})
    IDS.put("a", b"\0\1")
    assert READINGS.get("a") == Reading(float("inf"))
    assert READINGS.get("c") is None
    assert Kind("readings", dict[str, int]).get("a") is None  # of another form
    assert READINGS.get_many(["b", "c"]) == {"b": Reading(1.0)}
    assert IDS.each() == {"a": b"\0\1"}
    READINGS.delete(["a"])
    READINGS.put("c", Reading(1.0, ("\ud800",)))  # no JSON, and no file, has such text
    assert list(READINGS.each()) == ["b"]
    IDS.delete(IDS.each())
    assert not IDS.each()
    assert path.stat().st_mode & 0o777 == 0o600
    assert not store.take_remark()


def other_version(path: Path) -> bytes:
    """A file whose table has other columns."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE piece (kind, key, content)")
        connection.execute("INSERT INTO piece VALUES ('ids', '1', 'x')")
    connection.close()
    return path.read_bytes()


@settings(max_examples=50)
@given(st.data())
def test_of_a_damaged_file_no_value_is_another_one(data: st.DataObject) -> None:
    """Flipped (at 18: a form), cut, foreign: values are right or missing, and new ones taken."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        patch.setenv("NGT_HOME", str(folder))
        IDS.put_many({str(n): value_of(n) for n in range(60)})
        file = folder / "cache" / NAME
        content = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 300) | st.just(18))
        match data.draw(st.sampled_from(["flip", "cut", "foreign", "version"])):
            case "flip":
                content[place] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[place:]
            case "foreign":
                content = bytearray(data.draw(st.binary(min_size=1, max_size=200)))
            case "version":
                content = bytearray(other_version(folder / "other"))
        (new := folder / "new").write_bytes(content)
        new.replace(file)
        found = IDS.get_many(map(str, range(60)))
        assert all(found[key] == value_of(int(key)) for key in found)
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
    ("pragma", "why"), [("query_only = ON", "readonly"), ("max_page_count = 1", "disk is full")]
)
def test_where_nothing_can_be_written_what_is_there_is_read_with_one_remark(
    pragma: str, why: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    IDS.put("a", b"1")
    store._stores.clear()  # as in another process
    monkeypatch.setattr(store, "_OPENING", (*store._OPENING, f"PRAGMA {pragma}"))
    for _ in range(2):
        IDS.put_many({"a": b"2", "b": b"x" * 100_000})
    assert IDS.each() == {"a": b"1"}
    assert why in store.take_remark()
    IDS.put("b", b"x" * 100_000)
    assert not store.take_remark()


@pytest.mark.parametrize(("text", "code"), [(b"High tide is at noon.", 0), (b"\0\1", 3)])
def test_a_command_shows_the_remark_once_and_above_its_error(
    path: Path, text: bytes, code: int
) -> None:
    path.mkdir(parents=True)
    (path.parents[1] / "a.html").write_bytes(text)
    done = ngt("ask", "-d", str(path.parents[1] / "a.html"), "--dry-run", "When is high tide?")
    assert done.returncode == code
    assert done.stderr.count(b"not a regular file") == 1
    assert not code or b"not a regular file" in done.stderr.splitlines()[-3]


def test_where_no_file_can_be_opened_nothing_is_stored_with_one_remark(path: Path) -> None:
    path.mkdir(parents=True)
    IDS.put("a", b"1")
    assert IDS.get("a") is None
    assert "cannot be opened, so that nothing is stored: not a regular file" in store.take_remark()
    IDS.put("b", b"1")
    assert not store.take_remark()


def test_a_file_that_is_removed_meanwhile_is_begun_anew(path: Path) -> None:
    IDS.put("a", b"1")
    path.unlink()
    assert IDS.get("a") is None
    IDS.put("a", b"2")
    assert path.exists()
    assert IDS.get("a") == b"2"


def test_another_process_that_writes_for_long_costs_a_remark(
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


def fill(number: int) -> None:
    for place in range(40):
        IDS.put(f"{number} {place}", value_of(place))
    os._exit(bool(store.take_remark()))


def put_for_ever() -> None:
    while True:
        IDS.put_many({str(n): value_of(n) for n in random.sample(range(100), 20)})


def test_processes_at_once_lose_nothing_and_killed_ones_leave_whole_values(path: Path) -> None:
    IDS.put("1000", value_of(1000))  # with a connection that forks inherit
    filling = [FORK.Process(target=fill, args=(number,)) for number in range(6)]
    for process in filling:
        process.start()
    for _ in range(5):
        process = FORK.Process(target=put_for_ever)
        process.start()
        time.sleep(random.uniform(0.02, 0.1))
        process.kill()
        process.join()
        assert all(value == value_of(int(key.split()[-1])) for key, value in IDS.each().items())
    for process in filling:
        process.join()
    assert [process.exitcode for process in filling] == [0] * 6
    assert sum(" " in key for key in IDS.each()) == 6 * 40
    assert IDS.get("1000") == value_of(1000)
    assert not store.take_remark()
