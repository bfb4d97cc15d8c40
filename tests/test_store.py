"""The trie cache: what comes back is what went in, and no file can mislead or crash."""

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ngtcli.documents.load import Document
from ngtcli.system.arrays import checksum
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie import listing, store
from ngtcli.trie.ngram import ARRAY_NAMES, build_trie

TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved() -> str:
    store.save(build_trie(TEXT, 5, 3), KEY, DOCUMENTS)
    return str(store.trie_path(KEY))


def load():
    return store.load(KEY, 5, 3, 100)


def test_round_trip() -> None:
    saved()
    ours, back = build_trie(TEXT, 5, 3), load()
    for name in ARRAY_NAMES:
        assert np.array_equal(getattr(ours.arrays, name), getattr(back.arrays, name))
    assert [f.documents for f in listing.list_tries()] == [("a.txt", "b.txt")]
    assert listing.clear_tries()[0] == 1
    assert load() is None


def test_the_key_depends_on_everything() -> None:
    keys = {
        store.trie_key("t", DOCUMENTS, 13, 3),
        store.trie_key("u", DOCUMENTS, 13, 3),
        store.trie_key("t", DOCUMENTS[::-1], 13, 3),
        store.trie_key("t", DOCUMENTS, 12, 3),
        store.trie_key("t", DOCUMENTS, 13, 4),
        store.trie_key("t", DOCUMENTS[:1], 13, 3),
    }
    assert len(keys) == 6


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 50, -1, -4])
def test_a_truncated_file_is_refused(keep: int) -> None:
    path = saved()
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:keep])
    with pytest.raises(DamagedFileError):
        load()


def test_every_flipped_bit_is_refused() -> None:
    path = saved()
    data = bytearray(Path(path).read_bytes())
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        Path(path).write_bytes(flipped)
        try:
            trie = load()
        except DamagedFileError:
            continue
        # A flip in a part that means nothing (a document's name, padding) leaves the trie intact.
        for name in ARRAY_NAMES:
            assert np.array_equal(
                getattr(trie.arrays, name), getattr(build_trie(TEXT, 5, 3).arrays, name)
            )


def test_a_foreign_file_is_refused() -> None:
    path = saved()
    for content in (b"", b"PK\x03\x04", b"\x80\x04pickle", os.urandom(400), b"{}" * 99):
        Path(path).write_bytes(content)
        with pytest.raises(DamagedFileError):
            load()
    save_file({"weights": np.zeros(4, np.float32)}, path)
    with pytest.raises(DamagedFileError, match="other arrays"):
        load()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("link", lambda a: a + 1000),
        ("link", lambda a: a * 0),
        ("link", lambda a: -a - 5),
        ("degree", lambda a: a + 1),
        ("degree", lambda a: a * 1000),
        ("degree", lambda a: -a),
        ("count", lambda a: a * 0),
        ("token", lambda a: a + 100),
        ("token", lambda a: -a - 2),
        ("stream", lambda a: a + 100),
        ("stream", lambda a: a - 7),
        ("stream", lambda a: a[:-1]),
        ("stream", lambda a: a[:0]),
        ("token", lambda a: a[:-1]),
        ("count", lambda a: a.astype(np.int64)),
        ("link", lambda a: a.reshape(1, -1)),
    ],
)
def test_a_hostile_file_with_a_right_checksum_is_refused(name, change) -> None:
    path = saved()
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    metadata["checksum"] = checksum({n: arrays[n] for n in ARRAY_NAMES})
    save_file(arrays, path, metadata)
    with pytest.raises(DamagedFileError):
        load()


def test_another_version_or_another_tries_file_is_refused() -> None:
    path = saved()
    with pytest.raises(DamagedFileError, match="another"):
        store.load(KEY, 5, 2, 100)
    os.replace(path, store.trie_path("j" * 32))
    with pytest.raises(DamagedFileError, match="another"):
        store.load("j" * 32, 5, 3, 100)


def _write_often(seconds: float) -> None:
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        saved()


def test_two_writers_and_a_reader() -> None:
    saved()
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(1.5,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(w.is_alive() for w in writers):
        assert load().tokens == 13
        reads += 1
    assert reads and all(w.exitcode == 0 for w in writers)
    assert not list(listing.trie_folder().glob("*.partial"))


def test_a_failed_write_leaves_nothing(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(OSError):
        saved()
    assert not list(listing.trie_folder().iterdir())
