"""The cache: what it holds, deleting it, and its bound: the longest unused goes first."""

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

DAY = 86_400
PATTERNS = {s.name: [p for p in s.parts.split() if "/" in p] for s in STORES}  # of files
KINDS = {p: s.name for s in STORES for p in s.parts.split() if "/" not in p}
BY_NAME = {"datastores", "pools", "tune"}


def put(place: str, size: int, days: float) -> Path:
    """A file of the cache that was written `days` ago."""
    path = home("cache") / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    at = time.time() - days * DAY
    os.utime(path, (at, at))
    return path


def put_piece(kind: str, key: str, size: int, days: float) -> None:
    """A piece of so many bytes that was used `days` ago."""
    Kind(kind, bytes).put(key, b"x" * (size - ROW - 2))  # and two that msgpack adds
    with sqlite3.connect(home("cache") / NAME) as connection:
        at = int(time.time() - days * DAY)
        connection.execute("UPDATE piece SET used = ? WHERE key = ?", (at, key))
    connection.close()


def names() -> set[str]:
    """Files and keys of pieces."""
    pieces = (Kind(kind, bytes).each() for kind in KINDS)
    files = (
        p.name for p in home("cache").rglob("*") if p.is_file() and not p.name.startswith(NAME)
    )
    return {*files, *(key for kind in pieces for key in kind)}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(200, 400), st.booleans()), max_size=9), st.integers(0, 1500))
def test_the_longest_unused_go_until_the_rest_is_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, bool]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGT_HOME", str(tmp_path_factory.mktemp("home")))
        places = ("vectors/ab", "stand-ins", "parts", "tries")
        for days, (size, is_piece) in enumerate(entries, 1):
            if is_piece:
                put_piece(("texts", "vectors", "parts")[days % 3], str(days), size, days)
            else:
                put(f"{places[days % 4]}/{days}", size, days)
        wanted = {str(days): size for days, (size, _) in enumerate(entries, 1)}
        sizes = dict(wanted)
        over = sum(wanted.values()) > most
        while over and sum(wanted.values()) > most - most // 10:  # brute force: one by one
            del wanted[max(wanted, key=lambda name: (wanted[name] > most, int(name)))]
        removed = cache._summarize(evict(most))
        assert names() == set(wanted)
        assert removed.pieces + removed.files == len(entries) - len(wanted)
        assert removed.bytes == sum(sizes.values()) - sum(wanted.values())


def test_eviction_spares_other_limits_and_unfinished_files() -> None:
    for place in (
        "tries/a.pool.safetensors",
        "tries/b.datastore.safetensors",
        "tune/h.jsonl",
        "tries/c.background.safetensors",
        "quantized/e.safetensors",
        "prefixes/f.safetensors",
    ):
        put(place, 10, 9)
    put("parts/young.partial", 10, 0.5 * ABANDONED_S / DAY)
    put_piece("trials", "trials", 200, 9)
    kept = names()
    put("tries/i.trie.safetensors", 10, 1)
    put("parts/old.partial", 10, 2 * ABANDONED_S / DAY)  # a killed run's
    assert len(evict(0)) == 2
    assert names() == kept


def test_of_what_has_its_own_bound_the_file_used_last_stays_whatever_its_size() -> None:
    put("quantized/a.safetensors", 3_000_000, 2)
    put("stand-ins/b", 500_000, 2)
    cache_limit.hold_to(1_000_000)
    put("quantized/c.safetensors", 2_000_000, 0)
    cache_limit.wrote(2_000_000)
    assert (removed := cache_limit.finish()).files == 1 and removed.bytes == 3_000_000
    assert names() == {"b", "c.safetensors"}
    put("quantized/a.safetensors", 400_000, 3)
    put("quantized/d.safetensors", 500_000, 0)
    assert len(evict(1_000_000)) == 1  # the largest, which is in the way of all others
    assert names() == {"b", "a.safetensors", "d.safetensors"}


def test_use_is_noted_of_pieces_and_files() -> None:
    used, unused = (written(name) for name in ("used", "unused"))
    with sqlite3.connect(home("cache") / NAME) as connection:
        connection.execute("UPDATE piece SET used = used - ?", (5 * DAY,))
    connection.close()
    TRIES.map(used)
    put_piece("parts", "c", 200, 5)
    assert Kind("parts", bytes).get("c")
    assert len(evict(used.stat().st_size + 1000)) >= 1
    assert used.exists()
    assert not unused.exists()
    assert "c" in names()


def written(name: str) -> Path:
    """An array file that was written 5 days ago."""
    arrays = {n: np.zeros(5, a.dtype) for n, a in TRIES.arrays.items()}
    path = TRIES.write(TRIES.path(name), arrays, {})
    os.utime(path, (time.time() - 5 * DAY,) * 2)
    CHECKED.put(key_of(path), stamp_of(path))
    return path


def write_piece(number: int) -> None:
    Kind("parts", bytes).put(str(number), b"x" * 2000)


def write_file(number: int) -> None:
    put(f"prefixes/{number}", 2000, -number / 86_400)
    cache_limit.wrote(2000)


@pytest.mark.parametrize("write", [write_piece, write_file])
def test_the_cache_is_bounded_while_a_command_runs_and_not_at_each_write(
    write: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(cache, "evict", lambda *a: looks.append(1) or evict(*a))
    cache_limit.finish()  # what other tests wrote
    cache_limit.hold_to(200_000)
    for i in range(500):
        at = time.time() - 9999 + i
        monkeypatch.setattr("ngtcli.system.store.time.time", lambda at=at: at)
        write(i)
        if i % 20 == 0:
            entries = cache._list_pieces() + cache._list_files([])
            assert sum(entry.size for entry in entries) <= 200_000 * 1.05 + 2200
    assert 10 < len(looks) < 120
    removed = cache_limit.finish()
    assert removed.pieces + removed.files > 350
    assert removed.limit == 200_000


def test_the_bound_is_the_commands_largest_and_without_writing_nothing_is_looked_at() -> None:
    cache_limit.finish()  # what other tests wrote
    put("parts/old", 500, 9)
    cache_limit.hold_to(1)
    assert cache_limit.finish().files == 0
    assert names() == {"old"}
    Kind("parts", bytes).put("new", b"x")  # before the bound is known
    assert cache_limit.finish().files == 0
    assert names() == {"old", "new"}
    for most in (300, 400, 100):
        cache_limit.hold_to(most)
    assert cache_limit.finish().limit == 400
    assert names() == {"new"}


def printed(*words: str) -> Any:
    return json.loads(ngt(*words, "--json").stdout)


@pytest.fixture
def one_of_each(own_home: Path) -> Mapping[str, int]:
    """Of every store a file of 3 bytes, and a piece of 203 of each of its kinds: bytes by name."""
    sizes: dict[str, int] = {}
    for named in STORES:
        sizes[named.name] = 3 * len(PATTERNS[named.name])
        for pattern in PATTERNS[named.name]:
            put(pattern.replace("*", named.name), 3, 0)
    for kind, name in KINDS.items():
        put_piece(kind, f"{name} {kind}", 203, 0)
        sizes[name] += 203
    return sizes


def test_list_and_show_have_every_store(one_of_each: Mapping[str, int]) -> None:
    rows = {row["name"]: row for row in printed("cache", "list")}
    assert {name: row["bytes"] for name, row in rows.items()} == one_of_each
    assert rows["backgrounds"]["files"] == 1
    assert all(printed("cache", "show", name) == row for name, row in rows.items())
    lines = ngt("cache", "list").stdout.decode().splitlines()
    assert {line.split("\t")[0] for line in lines if line.split("\t")[4] == "by name"} == BY_NAME
    assert lines[0].split("\t")[:2] == ["name", "pieces"]
    assert len(lines) == 1 + len(STORES)
    for name, below in (("", ""), ("pools", "tries"), ("trials", NAME)):
        path = str(home("cache") / below)
        assert printed("cache", "path", *name.split()) == {"path": path}
        assert ngt("cache", "path", *name.split()).stdout.decode() == f"{path}\n"
    wrong = ngt("cache", "show", "trial")
    assert wrong.returncode == 2
    assert b"trials" in wrong.stderr


@pytest.mark.parametrize(
    ("command", "cleared"),
    [
        ("cache clear", {store.name for store in STORES} - BY_NAME),
        ("cache clear pools trials", {"pools", "trials"}),
    ],
)
def test_clear_deletes_only_the_named_entries(
    one_of_each: Mapping[str, int], command: str, cleared: set[str]
) -> None:
    writing, before = put("tries/x.partial", 4, 0), names()
    removed = printed(*command.split())
    assert removed["bytes"] == sum(one_of_each[name] for name in cleared)
    gone = {name.split()[0].split(".")[0] for name in before - names()}
    assert gone == cleared and writing.exists()  # which another command is writing
    assert printed(*command.split())["bytes"] == 0


def test_all_that_commands_store_is_known_and_goes(tmp_path: Path) -> None:
    (tmp_path / "tides.json").write_text('{"tide": "It came in at noon."}')
    (tmp_path / "long.txt").write_text("The tide came in at noon that day. " * 400)
    flags = ("--method", "auto", "--max-tokens", "4", "--set", "pool_documents=yes")
    assert ngt("ask", "-d", str(tmp_path), "When?", *flags).returncode == 0
    assert ngt("trie", "build", str(tmp_path / "tides.json")).returncode == 0
    every = {p for p in home("cache").rglob("*.safetensors") if p.is_file()}
    entries = cache._list_files([]) + cache._list_pieces()
    assert {entry.content for entry in entries} >= every
    assert all(entry.store for entry in entries)
    stored = {entry.store.name for entry in entries if entry.store}
    assert stored >= {"documents", "passages", "tries", "pools", "trials"}
    printed("cache", "clear")
    left = {row["name"] for row in printed("cache", "list") if row["bytes"]}
    assert left
    assert left <= {"pools"}


def test_undeletable_files_are_named_and_others_deleted(
    one_of_each: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, kept = Path.unlink, home("cache") / "prefixes" / "prefixes"

    def fail(path: Path) -> None:
        if path == kept:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", fail)
    done = ngt("cache", "clear")
    assert done.returncode == 1
    assert f"{kept}: permission denied" in done.stderr.decode()
    left = {name.split()[0].split(".")[0] for name in names()}
    assert left == BY_NAME | {"prefixes"}


def test_a_command_keeps_the_cache_within_its_bound_and_says_so_with_v(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        f"<html><body><p>{'The tide came in at noon that day. ' * 40}</p></body></html>"
    )
    shown = ngt("docs", "show", str(page), "--text")
    old = put("stand-ins/old.safetensors", 1_500_000, 9)
    page.write_text(page.read_text().replace("noon", "dawn"))
    done = ngt("docs", "list", str(page), "-v", NGT_CACHE_MB="1")
    told = done.stderr.decode().replace("\n", " ")
    assert done.returncode == 0
    assert not old.exists()
    assert "--set cache_mb" in told
    assert "Removed the least recently used 0 pieces and 1 file, 1.5 MB" in told
    put("stand-ins/old.safetensors", 900_000, 9)
    put("stand-ins/other.safetensors", 900_000, 8)
    again = ngt("docs", "show", str(page), "--text", NGT_CACHE_MB="1")
    assert again.stdout == shown.stdout.replace(b"noon", b"dawn")
    assert again.stderr == b""
    wrong = ngt("summarize", str(page), "--set", "cache_mb=0")
    assert wrong.returncode == 2
    assert b"cache_mb" in wrong.stderr


def test_the_trie_of_passages_is_not_kept_and_that_of_whole_documents_is(tmp_path: Path) -> None:
    pages = " ".join(f"Barge {i} came in with the tide of day {i}." for i in range(600))
    (tmp_path / "long.txt").write_text(pages)
    (tmp_path / "short.txt").write_text("The tide came in at noon.")
    flags = ("--method", "trie", "--max-tokens", "2", "--json")
    asked = ngt("ask", "-d", str(tmp_path / "long.txt"), "Which tide was of day 7?", *flags)
    body = json.loads(asked.stdout)
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
    assert names() == {"a"}
