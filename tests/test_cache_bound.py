"""The bound on the cache: the longest unused goes first, and nothing that is being written."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system import cache as cache_bound
from ngtcli.system.cache import bound
from ngtcli.system.files import home, in_bounds, read_json, write_json
from ngtcli.trie.files import list_files
from tests.support.helpers import ngt

needs_model = pytest.mark.skipif(not BUILTIN_PATH.exists(), reason="no built-in model")
DAY = 86_400.0


def put(path: Path, size: int, days: float) -> Path:
    """A file that was used `days` ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    used = time.time() - days * DAY
    os.utime(path, (used, used))
    return path


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 200), st.randoms())
def test_the_longest_unused_go_until_the_rest_is_within_the_bound(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, rng: object
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    days = list(range(1, len(sizes) + 1))
    rng.shuffle(days)  # type: ignore[attr-defined]
    places = ("documents/texts/ab", "passages", "parts", "tries")
    files = {
        put(folder / places[i % 4] / f"{i}", size, day): (day, size)
        for i, (size, day) in enumerate(zip(sizes, days, strict=True))
    }
    wanted = dict(files)  # brute force: one by one
    while sum(size for _, size in wanted.values()) > most:
        del wanted[max(wanted, key=lambda path: (wanted[path][1] > most, wanted[path][0]))]
    removed = bound(folder, most)
    assert {path for path in files if path.exists()} == set(wanted)
    gone = [size for path, (_, size) in files.items() if path not in wanted]
    assert (removed.files, removed.largest) == (len(gone), max(gone, default=0))
    assert removed.left == sum(size for _, size in wanted.values()) <= most


def test_of_what_stands_apart_the_file_used_last_stays_whatever_its_size(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    files = [put(folder / f"{days}.int8", size, days) for days, size in ((1, 90), (2, 40), (3, 30))]
    stamps = [put(path.with_suffix(".checked.json"), 1, 0) for path in files]
    assert bound(tmp_path, 50).files == 0  # it is not among the rest
    removed = bound(folder, 50, apart=True)
    assert (removed.files, removed.bytes) == (2, 70)
    assert [path.exists() for path in (*files, *stamps)] == [True, False, False] * 2
    assert bound(folder, 200, apart=True).files == 0


def test_writing_what_stands_apart_holds_it_to_the_bound() -> None:
    old = put(home("cache") / "quantized" / "a.int8", 3_000_000, 2)
    other = put(home("cache") / "passages" / "b", 500_000, 2)
    in_bounds.hold_to(1_000_000)
    new = put(home("cache") / "quantized" / "c.int8", 2_000_000, 0)
    in_bounds.wrote(new)
    removed = in_bounds.finish()
    assert (removed.files, removed.bytes) == (1, 3_000_000)
    assert new.exists() and other.exists() and not old.exists()


def test_what_is_being_written_measured_learned_or_made_by_the_user_stays(tmp_path: Path) -> None:
    kept = [
        put(tmp_path / name, 10, 9)
        for name in (
            "parts/abc.partial", "tries/a.pool.safetensors", "tries/b.datastore.safetensors",
            "tries/b.background.safetensors", "tries/c.background.failed",
            "costs/c.json", "compiled/v/d", "ways/e.json", "packed/f", "exact/g", "tune/h.jsonl",
        )
    ]  # fmt: skip
    trie = put(tmp_path / "tries" / "i.trie.safetensors", 10, 1)
    (tmp_path / "parts" / "link").symlink_to(kept[0])
    assert bound(tmp_path, 0).files == 1
    assert not trie.exists() and all(path.exists() for path in kept)
    assert bound(tmp_path / "nowhere", 0).files == 0


def test_reading_a_file_of_the_cache_counts_as_its_use_and_leaves_others_alone(
    tmp_path: Path,
) -> None:
    own, other = home("cache") / "parts" / "a.json", tmp_path / "b.json"
    for path in (own, other):
        put(path, 0, 5)
        path.write_text('{"a": 1}')
        os.utime(path, (time.time() - 5 * DAY,) * 2)
        read_json(path, 100)
    assert time.time() - own.stat().st_atime < 60 and time.time() - own.stat().st_mtime > DAY
    assert bound(home("cache"), 8).files == 0
    assert time.time() - other.stat().st_mtime > DAY
    own_old = put(home("cache") / "parts" / "old", 5, 3)
    assert bound(home("cache"), 8).files == 1 and own.exists() and not own_old.exists()


def test_nothing_is_looked_at_where_nothing_was_written() -> None:
    old = put(home("cache") / "parts" / "old.json", 500, 9)
    in_bounds.hold_to(1)
    in_bounds.finish()  # what other tests wrote
    put(old, 500, 9)
    in_bounds.hold_to(1)
    assert in_bounds.finish().files == 0 and old.exists()
    write_json(home("cache") / "parts" / "new.json", {})
    assert in_bounds.finish().files == 0 and old.exists()  # before the bound is known
    in_bounds.hold_to(100)
    assert in_bounds.finish().files == 1 and not old.exists()


def test_the_cache_is_bounded_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(cache_bound, "bound", lambda *a: looks.append(1) or bound(*a))
    in_bounds.hold_to(200_000)
    for i in range(1000):
        write_json(home("cache") / "parts" / f"{i}.json", {"text": "x" * 990})
        held = sum(file.stat().st_size for file in (home("cache") / "parts").iterdir())
        assert held <= 200_000 + 200_000 / 20 + 1100
    assert 10 < len(looks) < 120  # not at each file
    removed = in_bounds.finish()
    assert removed.files > 700 and removed.left <= 200_000 and removed.most == 200_000


def test_of_several_bounds_in_a_command_the_largest_holds() -> None:
    for most in (3000, 9000, 1000):
        in_bounds.hold_to(most)
    for i in range(10):
        write_json(home("cache") / "parts" / f"{i}.json", {"text": "x" * 900})
    assert in_bounds.finish().most == 9000
    in_bounds.hold_to(1000)
    write_json(home("cache") / "parts" / "last.json", {})
    assert in_bounds.finish().most == 1000  # the next command's own


WRITER = """
import sys
from ngtcli.system.files import home, in_bounds, read_json, write_json

own = int(sys.argv[1])
for i in range(150):
    write_json(home("cache") / "parts" / f"{(own + i) % 40}.json", {"text": "x" * 997, "by": own})
    try:
        found = read_json(home("cache") / "parts" / f"{(i * 7) % 40}.json", 10_000)
        assert len(found["text"]) == 997, found
    except FileNotFoundError:
        pass
    if i % 3 == 0:
        in_bounds.hold_to(20_000)
        in_bounds.finish()
in_bounds.hold_to(20_000)
in_bounds.finish()
"""


def test_processes_that_write_and_bound_at_once_lose_nothing_but_the_oldest() -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(i)], stderr=subprocess.PIPE)
        for i in range(3)
    ]
    for process in running:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told.decode()
    files = list((home("cache") / "parts").iterdir())
    assert 10_000 < sum(file.stat().st_size for file in files) <= 20_000 + 3 * 1200
    for file in files:
        assert len(json.loads(file.read_text())["text"]) == 997


@needs_model
def test_a_command_keeps_the_cache_within_its_bound_and_says_so_with_v(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        f"<html><body><p>{'The tide came in at noon that day. ' * 40}</p></body></html>"
    )
    shown = ngt("docs", "show", str(page), "--text")
    old = put(home("cache") / "passages" / "old.safetensors", 1_500_000, 9)
    page.write_text(page.read_text().replace("noon", "dawn"))
    done = ngt("docs", "list", str(page), "-v", NGT_CACHE_MB="1")
    assert done.returncode == 0 and not old.exists()
    assert b"Removed 1 file from the cache, 1.5 MB" in done.stderr and b"--cache-mb" in done.stderr
    assert b"a file of 1.5 MB is larger than the cache may be" in done.stderr.replace(b"\n", b" ")
    for name, days in ((old, 9), (old.with_name("other.safetensors"), 8)):
        put(name, 900_000, days)
    again = ngt("docs", "show", str(page), "--text", NGT_CACHE_MB="1")
    assert again.stdout == shown.stdout.replace(b"noon", b"dawn") and again.stderr == b""
    wrong = ngt("summarize", str(page), "--cache-mb", "0")
    assert wrong.returncode == 2 and b"cache_mb" in wrong.stderr


@needs_model
def test_the_trie_of_passages_is_not_kept_and_that_of_whole_documents_is(tmp_path: Path) -> None:
    pages = " ".join(f"Barge {i} came in with the tide of day {i}." for i in range(600))
    (tmp_path / "long.txt").write_text(pages)
    (tmp_path / "short.txt").write_text("The tide came in at noon.")
    flags = ("--method", "trie", "--max-tokens", "2", "--json")
    asked = ngt("ask", "-d", str(tmp_path / "long.txt"), "Which tide was of day 7?", *flags)
    body = json.loads(asked.stdout)
    assert body["retrieval"] and body["trie"]["status"] == "built"
    assert not list_files()
    ngt("ask", "-d", str(tmp_path / "short.txt"), "When?", *flags)
    assert [trie.documents for trie in list_files()] == [("short.txt",)]
