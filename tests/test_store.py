"""The tries in the cache: what comes back is what went in, and no content can mislead or crash."""

import os

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ngtcli.documents.load import Document
from ngtcli.system.arrays import checksum
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie import store
from ngtcli.trie.files import TRIES, list_files
from ngtcli.trie.ngram import build_trie

TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved() -> str:
    store.save(build_trie(TEXT, 5, 3), KEY, DOCUMENTS)
    return str(TRIES.path(KEY))


def load():
    return store.load(KEY, 5, 3, 100)


def test_round_trip() -> None:
    saved()
    ours, back = build_trie(TEXT, 5, 3), load()
    for name in TRIES.arrays:
        assert np.array_equal(getattr(ours.arrays, name), getattr(back.arrays, name))
    assert [file.documents for file in list_files()] == [("a.txt", "b.txt")]
    TRIES.path(KEY).unlink()
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
    ],
)
def test_a_hostile_file_with_a_right_checksum_is_refused(name, change) -> None:
    path = saved()
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    metadata["checksum"] = checksum({n: arrays[n] for n in TRIES.arrays})
    save_file(arrays, path, metadata)
    with pytest.raises(DamagedFileError):
        load()


def test_another_version_or_another_tries_file_is_refused() -> None:
    path = saved()
    with pytest.raises(DamagedFileError, match="another"):
        store.load(KEY, 5, 2, 100)
    os.replace(path, TRIES.path("j" * 32))
    with pytest.raises(DamagedFileError, match="another"):
        store.load("j" * 32, 5, 3, 100)
