"""The cache: listing and clearing it, and its limit, for which the least recently used goes."""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.tries.files import TRIES, list_files
from ngtcli.system import cache
from ngtcli.system.cache import ABANDONED_S, CHECKED, STORES, cache_limit, evict
from ngtcli.system.files import home, key_of, stamp_of
from ngtcli.system.store import NAME, ROW, Kind
from tests.support.helpers import ngt

DAY = 86_400  # seconds
# A store's parts are patterns of files, which have a slash, and kinds of pieces in the database.
FILE_PATTERNS = {
    store.name: [part for part in store.parts.split() if "/" in part] for store in STORES
}
STORE_OF_KIND = {
    part: store.name for store in STORES for part in store.parts.split() if "/" not in part
}
CLEARED_BY_NAME = {"datastores", "pools", "tune"}  # which `ngt cache clear` leaves unless named


def put_file(name: str, size: int, days: float) -> Path:
    """Write a file of the cache that was last used `days` ago."""
    path = home("cache") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    used = time.time() - days * DAY
    os.utime(path, (used, used))
    return path


def put_piece(kind: str, key: str, size: int, days: float) -> None:
    """Store a piece of so many bytes that was last used `days` ago."""
    Kind(kind, bytes).put(key, b"x" * (size - ROW - 2))  # msgpack adds two bytes
    with sqlite3.connect(home("cache") / NAME) as connection:
        used = int(time.time() - days * DAY)
        connection.execute("UPDATE piece SET used = ? WHERE key = ?", (used, key))
    connection.close()


def cached_names() -> set[str]:
    """The names of all files, and the keys of all pieces."""
    names = {
        path.name
        for path in home("cache").rglob("*")
        if path.is_file() and not path.name.startswith(NAME)
    }
    for kind in STORE_OF_KIND:
        names.update(Kind(kind, bytes).each())
    return names


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(200, 400), st.booleans()), max_size=9), st.integers(0, 1500))
def test_the_least_recently_used_are_removed_until_the_rest_is_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, bool]], limit: int
) -> None:
    """Each entry has a size, and is a piece or a file; entry number i was used i days ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGT_HOME", str(tmp_path_factory.mktemp("home")))
        kinds = ("texts", "vectors", "parts")
        folders = ("vectors/ab", "stand-ins", "parts", "tries")
        for days, (size, is_piece) in enumerate(entries, 1):
            if is_piece:
                put_piece(kinds[days % 3], str(days), size, days)
            else:
                put_file(f"{folders[days % 4]}/{days}", size, days)

        sizes = {str(days): size for days, (size, _) in enumerate(entries, 1)}
        left = dict(sizes)
        if sum(left.values()) > limit:  # by brute force: one after the other
            while sum(left.values()) > limit - limit // 10:
                del left[max(left, key=lambda name: (left[name] > limit, int(name)))]

        removed = cache._summarize(evict(limit))

        assert cached_names() == set(left)
        assert removed.pieces + removed.files == len(entries) - len(left)
        assert removed.bytes == sum(sizes.values()) - sum(left.values())


def test_eviction_spares_files_with_other_limits_and_unfinished_ones() -> None:
    for name in (
        "tries/a.pool.safetensors",
        "tries/b.datastore.safetensors",
        "tune/h.jsonl",
        "tries/c.background.safetensors",
        "quantized/e.safetensors",
        "prefixes/f.safetensors",
    ):
        put_file(name, 10, 9)
    put_file("parts/young.partial", 10, 0.5 * ABANDONED_S / DAY)
    put_piece("trials", "trials", 200, 9)
    spared = cached_names()
    put_file("tries/i.trie.safetensors", 10, 1)
    put_file("parts/old.partial", 10, 2 * ABANDONED_S / DAY)  # of a run that was killed
    assert len(evict(0)) == 2
    assert cached_names() == spared


def test_the_last_used_file_of_a_store_with_its_own_limit_stays_whatever_its_size() -> None:
    put_file("quantized/a.safetensors", 3_000_000, 2)
    put_file("stand-ins/b", 500_000, 2)
    cache_limit.hold_to(1_000_000)
    put_file("quantized/c.safetensors", 2_000_000, 0)
    cache_limit.wrote(2_000_000)
    removed = cache_limit.finish()
    assert removed.files == 1
    assert removed.bytes == 3_000_000
    assert cached_names() == {"b", "c.safetensors"}

    put_file("quantized/a.safetensors", 400_000, 3)
    put_file("quantized/d.safetensors", 500_000, 0)
    assert len(evict(1_000_000)) == 1  # the largest, so that all others can stay
    assert cached_names() == {"b", "a.safetensors", "d.safetensors"}


def test_pieces_and_files_that_are_read_count_as_used() -> None:
    used = write_old_trie("used")
    unused = write_old_trie("unused")
    with sqlite3.connect(home("cache") / NAME) as connection:
        connection.execute("UPDATE piece SET used = used - ?", (5 * DAY,))
    connection.close()
    put_piece("parts", "c", 200, 5)

    TRIES.map(used)
    assert Kind("parts", bytes).get("c")

    assert len(evict(used.stat().st_size + 1000)) >= 1
    assert used.exists()
    assert not unused.exists()
    assert "c" in cached_names()


def write_old_trie(name: str) -> Path:
    """Write an array file as if 5 days ago."""
    arrays = {key: np.zeros(5, array.dtype) for key, array in TRIES.arrays.items()}
    path = TRIES.write(TRIES.path(name), arrays, {})
    written = time.time() - 5 * DAY
    os.utime(path, (written, written))
    CHECKED.put(key_of(path), stamp_of(path))
    return path


def write_piece(number: int) -> None:
    Kind("parts", bytes).put(str(number), b"x" * 2000)


def write_file(number: int) -> None:
    put_file(f"prefixes/{number}", 2000, days=-number / DAY)
    cache_limit.wrote(2000)


@pytest.mark.parametrize("write", [write_piece, write_file])
def test_the_limit_holds_while_a_command_runs_but_is_not_checked_at_each_write(
    write: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    evictions: list[int] = []

    def counting_evict(*arguments: Any) -> Any:
        evictions.append(1)
        return evict(*arguments)

    monkeypatch.setattr(cache, "evict", counting_evict)
    cache_limit.finish()  # forgets the writes of other tests
    cache_limit.hold_to(200_000)
    for i in range(500):
        now = time.time() - 9999 + i
        monkeypatch.setattr("ngtcli.system.store.time.time", lambda now=now: now)
        write(i)
        if i % 20 == 0:
            entries = cache._list_pieces() + cache._list_files([])
            assert sum(entry.size for entry in entries) <= 200_000 * 1.05 + 2200

    assert 10 < len(evictions) < 120
    removed = cache_limit.finish()
    assert removed.pieces + removed.files > 350
    assert removed.limit == 200_000


def test_nothing_is_removed_without_writing_or_before_the_limit_is_known() -> None:
    cache_limit.finish()  # forgets the writes of other tests
    put_file("parts/old", 500, 9)
    cache_limit.hold_to(1)
    assert cache_limit.finish().files == 0
    assert cached_names() == {"old"}

    Kind("parts", bytes).put("new", b"x")
    assert cache_limit.finish().files == 0
    assert cached_names() == {"old", "new"}


def test_the_largest_limit_of_a_command_counts() -> None:
    cache_limit.finish()  # forgets the writes of other tests
    put_file("parts/old", 500, 9)
    Kind("parts", bytes).put("new", b"x")
    for limit in (300, 400, 100):
        cache_limit.hold_to(limit)
    assert cache_limit.finish().limit == 400
    assert cached_names() == {"new"}


def json_of(*words: str) -> Any:
    return json.loads(ngt(*words, "--json").stdout)


@pytest.fixture
def bytes_by_store(own_home: Path) -> Mapping[str, int]:
    """Fill every store: a file of 3 bytes per pattern, and a piece of 203 per kind."""
    sizes: dict[str, int] = {}
    for store, patterns in FILE_PATTERNS.items():
        sizes[store] = 3 * len(patterns)
        for pattern in patterns:
            put_file(pattern.replace("*", store), 3, 0)
    for kind, store in STORE_OF_KIND.items():
        put_piece(kind, f"{store} {kind}", 203, 0)
        sizes[store] += 203
    return sizes


def stores_of(names: set[str]) -> set[str]:
    """The stores of entries that `bytes_by_store` made, whose names begin with the store."""
    return {name.split()[0].split(".")[0] for name in names}


def test_list_and_show_have_every_store(bytes_by_store: Mapping[str, int]) -> None:
    rows = {row["name"]: row for row in json_of("cache", "list")}
    assert {name: row["bytes"] for name, row in rows.items()} == bytes_by_store
    assert rows["backgrounds"]["files"] == 1
    for name, row in rows.items():
        assert json_of("cache", "show", name) == row


def test_list_prints_a_table(bytes_by_store: Mapping[str, int]) -> None:
    header, *rows = [line.split("\t") for line in ngt("cache", "list").stdout.decode().splitlines()]
    assert header[:2] == ["name", "entries"]
    assert len(rows) == len(STORES)
    assert {row[0] for row in rows if row[4] == "only if named"} == CLEARED_BY_NAME


def test_show_suggests_a_similar_store() -> None:
    done = ngt("cache", "show", "trial")
    assert done.returncode == 2
    assert b"trials" in done.stderr


@pytest.mark.parametrize(("stores", "path"), [([], ""), (["pools"], "tries"), (["trials"], NAME)])
def test_path_prints_where_a_store_is(own_home: Path, stores: list[str], path: str) -> None:
    expected = str(home("cache") / path)
    assert json_of("cache", "path", *stores) == {"path": expected}
    assert ngt("cache", "path", *stores).stdout.decode() == f"{expected}\n"


@pytest.mark.parametrize(
    ("stores", "cleared"),
    [
        ([], {store.name for store in STORES} - CLEARED_BY_NAME),
        (["pools", "trials"], {"pools", "trials"}),
    ],
)
def test_clear_deletes_only_the_named_entries(
    bytes_by_store: Mapping[str, int], stores: list[str], cleared: set[str]
) -> None:
    unfinished = put_file("tries/x.partial", 4, 0)  # Another command is writing it.
    before = cached_names()
    removed = json_of("cache", "clear", *stores)
    assert removed["bytes"] == sum(bytes_by_store[name] for name in cleared)
    assert stores_of(before - cached_names()) == cleared
    assert unfinished.exists()
    assert json_of("cache", "clear", *stores)["bytes"] == 0


def test_every_file_that_commands_store_belongs_to_a_store_and_can_be_cleared(
    tmp_path: Path,
) -> None:
    (tmp_path / "tides.json").write_text('{"tide": "It came in at noon."}')
    (tmp_path / "long.txt").write_text("The tide came in at noon that day. " * 400)
    flags = ("--method", "auto", "--max-tokens", "4", "--set", "pool_documents=yes")
    assert ngt("ask", "-d", str(tmp_path), "When?", *flags).returncode == 0
    assert ngt("trie", "build", str(tmp_path / "tides.json")).returncode == 0

    array_files = {path for path in home("cache").rglob("*.safetensors") if path.is_file()}
    entries = cache._list_files([]) + cache._list_pieces()
    assert {entry.content for entry in entries} >= array_files
    assert all(entry.store for entry in entries)
    stores = {entry.store.name for entry in entries if entry.store}
    assert stores >= {"documents", "passages", "tries", "pools", "trials"}

    json_of("cache", "clear")
    not_empty = {row["name"] for row in json_of("cache", "list") if row["bytes"]}
    assert not_empty == {"pools"}


def test_undeletable_files_are_named_and_others_deleted(
    bytes_by_store: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    undeletable = home("cache") / "prefixes" / "prefixes"
    unlink = Path.unlink

    def unlink_or_fail(path: Path) -> None:
        if path == undeletable:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink_or_fail)
    done = ngt("cache", "clear")
    assert done.returncode == 1
    assert f"{undeletable}: permission denied" in done.stderr.decode()
    assert stores_of(cached_names()) == CLEARED_BY_NAME | {"prefixes"}


def write_page(path: Path, hour: str) -> Path:
    text = f"The tide came in at {hour} that day. " * 40
    path.write_text(f"<html><body><p>{text}</p></body></html>")
    return path


def test_a_command_keeps_the_cache_within_its_limit_and_reports_it_if_verbose(
    tmp_path: Path,
) -> None:
    page = write_page(tmp_path / "page.html", "dawn")
    old = put_file("stand-ins/old.safetensors", 1_500_000, 9)
    done = ngt("docs", "list", str(page), "-v", NGT_CACHE_MB="1")
    log = done.stderr.decode().replace("\n", " ")
    assert done.returncode == 0
    assert not old.exists()
    assert "--set cache_mb" in log
    assert "Removed the least recently used 0 pieces and 1 file, 1.5 MB" in log


def test_the_limit_of_the_cache_changes_no_output(tmp_path: Path) -> None:
    page = write_page(tmp_path / "page.html", "noon")
    unlimited = ngt("docs", "show", str(page), "--text")

    write_page(page, "dawn")
    put_file("stand-ins/old.safetensors", 900_000, 9)
    put_file("stand-ins/other.safetensors", 900_000, 8)
    limited = ngt("docs", "show", str(page), "--text", NGT_CACHE_MB="1")

    assert limited.stdout == unlimited.stdout.replace(b"noon", b"dawn")
    assert limited.stderr == b""


def test_a_limit_of_zero_is_refused() -> None:
    done = ngt("summarize", "page.html", "--set", "cache_mb=0")
    assert done.returncode == 2
    assert b"cache_mb" in done.stderr


def test_the_trie_of_passages_is_not_stored_and_that_of_complete_documents_is(
    tmp_path: Path,
) -> None:
    text = " ".join(f"Barge {i} came in with the tide of day {i}." for i in range(600))
    (tmp_path / "long.txt").write_text(text)
    (tmp_path / "short.txt").write_text("The tide came in at noon.")
    flags = ("--method", "trie", "--max-tokens", "2", "--json")

    done = ngt("ask", "-d", str(tmp_path / "long.txt"), "Which tide was of day 7?", *flags)
    body = json.loads(done.stdout)
    assert body["retrieval"]
    assert body["trie"]["status"] == "built"
    assert not list_files()

    ngt("ask", "-d", str(tmp_path / "short.txt"), "When?", *flags)
    assert [trie.documents for trie in list_files()] == [("short.txt",)]


def test_undeletable_entries_of_the_store_are_not_reported_as_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ngtcli.system.store._WAIT_S", 0.01)
    put_piece("parts", "a", 300, 1)
    with sqlite3.connect(home("cache") / NAME, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        done = ngt("cache", "clear", "parts")
        other.execute("ROLLBACK")
    other.close()
    assert done.returncode == 1
    assert not done.stdout
    assert NAME.encode() in done.stderr
    assert cached_names() == {"a"}
