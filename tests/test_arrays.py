"""Array files of every kind: what was written comes back, and no damage misleads or crashes."""

import errno
import multiprocessing
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ngtcli.background import folder
from ngtcli.decode.prefixes import PREFIXES
from ngtcli.retrieve import index, vectors
from ngtcli.system import arrays as module
from ngtcli.system import cache
from ngtcli.system.arrays import ArrayFile, checksum
from ngtcli.system.cache import STORES
from ngtcli.system.files import DamagedFileError, home
from ngtcli.trie.files import BACKGROUNDS, DATASTORES, POOLS, TRIES

KINDS = (
    TRIES, DATASTORES, BACKGROUNDS, POOLS, folder.IDS, folder.COUNTS, folder.JOINED, index.INDICES,
    vectors.FILES, vectors.CODED, PREFIXES,
)  # fmt: skip
ABOUT = {"of": "y"}
ALL = {"whole": ArrayFile.read, "mapped": ArrayFile.map, "unchecked": ArrayFile.map_unchecked}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)


def sample(kind: ArrayFile, rows: int = 5) -> dict[str, Any]:
    """Arrays as they are declared, full of numbers that differ."""
    numbers = np.random.default_rng(0)
    shapes = {n: (rows, abs(a.columns))[: 2 if a.columns else 1] for n, a in kind.arrays.items()}
    return {n: numbers.integers(0, 99, s).astype(kind.arrays[n].dtype) for n, s in shapes.items()}


def written(kind: ArrayFile, arrays: dict[str, Any] | None = None) -> Path:
    path = kind.write(kind.path("x"), arrays or sample(kind), ABOUT)
    os.utime(path, (1_000_000_000, 1_000_000_000))  # long ago
    return path


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[n].dtype == wanted[n].dtype and np.array_equal(found[n], wanted[n]) for n in wanted
    )


@each_kind
def test_what_comes_back_is_what_was_written(kind: ArrayFile) -> None:
    for rows in (5, 0):
        path = written(kind, sample(kind, rows))
        for way in ALL.values():
            arrays, metadata = way(kind, path, ABOUT)
            assert same(arrays, sample(kind, rows)) and metadata["of"] == "y"
    assert path.stat().st_mode & 0o777 == 0o600 and kind.paths() == [path]
    with pytest.raises(ValueError, match="read-only"):
        next(iter(kind.map(path)[0].values()))[:] = 1


@each_kind
def test_a_files_kind_is_one_that_ngt_cache_knows(kind: ArrayFile) -> None:
    path = written(kind)
    assert [s.folder for s in STORES if path in s.files(home("cache"))] == [kind.folder]


@pytest.mark.parametrize("way", ALL)
def test_no_file_is_one_error_and_what_is_not_a_file_another(way: str) -> None:
    with pytest.raises(FileNotFoundError):
        ALL[way](TRIES, TRIES.path("none"))
    os.makedirs(TRIES.path("folder"))
    os.mkfifo(TRIES.path("pipe"))
    for name in ("folder", "pipe"):
        with pytest.raises(DamagedFileError, match="not a regular file"):
            ALL[way](TRIES, TRIES.path(name))


@each_kind
@pytest.mark.parametrize("way", ["whole", "mapped"])
def test_damage_is_refused_or_without_effect(kind: ArrayFile, way: str) -> None:
    path, rng = written(kind), random.Random(0)
    whole = path.read_bytes()
    cases = [whole[:keep] for keep in (0, 1, 7, 8, 9, 50, -1, -4)]
    cases += [b"PK\x03\x04", b"\x80\x04pickle", os.urandom(400), b"{}" * 99, whole + b"\0"]
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        cases.append(bytes(broken))
    for case in cases:
        path.write_bytes(case)
        try:
            found, _ = ALL[way](kind, path)
        except DamagedFileError:
            continue
        assert same(found, sample(kind))  # a change in a part that means nothing


@each_kind
def test_arrays_that_are_not_as_declared_are_refused(kind: ArrayFile) -> None:
    path = written(kind)
    with safe_open(path, framework="np") as file:
        about = file.metadata()
    good = load_file(path)
    wide = {n for n, a in kind.arrays.items() if a.columns}
    cases: list[dict[str, Any]] = [{**good, "more": good[next(iter(good))]}]
    for name, array in good.items():
        cases.append({n: a for n, a in good.items() if n != name})
        cases.append({**good, name: array.astype(np.int64)})
        cases.append({**good, name: array.reshape(1, 1, -1) if name in wide else array[None]})
        if kind.arrays[name].columns > 0:
            cases.append({**good, name: array[:, :-1].copy()})
        rows = [a.rows for a in kind.arrays.values() if a.rows]
        if rows.count(kind.arrays[name].rows) > 1:
            cases.append({**good, name: array[:-1]})
    for arrays in cases:
        right = {n: arrays[n] for n in kind.arrays if n in arrays}
        save_file(arrays, path, {**about, "checksum": checksum(right)})
        for way in ALL.values():
            with pytest.raises(DamagedFileError, match=r"arrays|unreadable"):
                way(kind, path)


@each_kind
def test_another_format_another_content_and_too_large_a_file_are_refused(kind: ArrayFile) -> None:
    path = written(kind)
    for attempt, wanted, why in (
        (replace(kind, format="other"), {}, "another"),
        (kind, {"of": "z"}, "another"),
        (replace(kind, most=2), {}, "more than"),
    ):
        for way in ALL.values():
            with pytest.raises(DamagedFileError, match=why):
                way(attempt, path, wanted)
    with pytest.raises(OSError) as caught:
        replace(kind, most=2).write(kind.path("y"), sample(kind), ABOUT)
    assert caught.value.errno == errno.EFBIG and not kind.path("y").exists()


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    compared: list[int] = []
    whole = module.checksum
    monkeypatch.setattr(module, "checksum", lambda a: compared.append(1) or whole(a))
    return compared


def test_a_mapped_file_is_compared_once_and_again_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written(DATASTORES)
    monkeypatch.setattr(cache, "_MARK_S", -1.0)  # each use is noted
    compared = count_comparisons(monkeypatch)
    for _ in range(3):
        DATASTORES.map(path)
    assert len(compared) == 1
    data = path.read_bytes()
    path.write_bytes(data)
    DATASTORES.map(path)
    assert len(compared) == 2
    path.write_bytes(data[:-1] + b"\7")
    with pytest.raises(DamagedFileError, match="checksum"):
        DATASTORES.map(path)


@pytest.mark.parametrize("written_to", ["x", "y"], ids=["in place", "replaced"])
def test_a_change_that_keeps_size_and_time_is_found(written_to: str) -> None:
    path = written(DATASTORES)
    DATASTORES.map(path)
    time.sleep(0.05)  # the file system's clock has steps
    new = DATASTORES.path(written_to)
    new.write_bytes(path.read_bytes()[:-1] + b"\7")
    os.utime(new.replace(path), (1_000_000_000, 1_000_000_000))
    with pytest.raises(DamagedFileError, match="checksum"):
        DATASTORES.map(path)


def test_a_file_too_young_to_show_a_change_is_compared_each_time() -> None:
    path = DATASTORES.write(DATASTORES.path("x"), sample(DATASTORES), {})
    DATASTORES.map(path)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("stored", [b"", b"[]", b'{"stamp": "x"}', b"\xff"])
def test_a_damaged_note_of_the_comparison_only_costs_another(stored: bytes) -> None:
    path = written(DATASTORES)
    DATASTORES.map(path)
    path.with_suffix(".checked.json").write_bytes(stored)
    assert same(DATASTORES.map(path)[0], sample(DATASTORES))


def test_a_private_mapping_changes_neither_the_file_nor_what_others_see() -> None:
    path = written(BACKGROUNDS)
    mine, other = (BACKGROUNDS.map_unchecked(path)[0]["nodes"] for _ in range(2))
    mine[0] = -7
    assert other[0] != -7 and same(BACKGROUNDS.read(path)[0], sample(BACKGROUNDS))


def test_a_failed_write_leaves_nothing_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    told: list[str] = []
    assert not TRIES.keep(TRIES.path("x"), sample(TRIES), {}, told.append)
    assert told == ["the trie is not cached: no space left on device"]
    assert not list(TRIES.path("x").parent.iterdir())


def _write_often(seconds: float) -> None:
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        written(DATASTORES)


def test_two_writers_and_a_reader() -> None:
    path = written(DATASTORES)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(1.5,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(w.is_alive() for w in writers):
        assert same(DATASTORES.read(path)[0], sample(DATASTORES))
        assert same(DATASTORES.map(path)[0], sample(DATASTORES))
        reads += 1
    assert reads and all(w.exitcode == 0 for w in writers)
    assert not list(path.parent.glob("*.partial"))
