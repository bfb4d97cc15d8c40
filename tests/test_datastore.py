"""Datastores: found is what a search by eye finds, and no content can mislead or crash."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ngtcli.draft.methods import datastore
from ngtcli.system.arrays import checksum
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie.files import DATASTORES, DatastoreFile, list_files

CORPUS = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]


def saved() -> Path:
    return datastore.save(datastore.build_datastore(CORPUS), "books", "print", [])


def load(name: str = "books", fingerprint: str = "print", vocabulary: int = 100):
    return datastore.load(name, fingerprint, vocabulary)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=50), max_size=3),
    st.lists(st.integers(0, 1), min_size=1, max_size=16), st.integers(1, 10),
)  # fmt: skip
def test_found_are_all_places_in_order_with_what_follows(documents, sequence, length) -> None:
    built = datastore.build_datastore(documents)
    size = len(sequence)
    behind = sorted(
        document[at + size :][:length]
        for document in documents
        for at in range(len(document) - size)
        if document[at : at + size] == sequence
    )
    rows = built.continuations(built.find(sequence), size, length)
    assert rows.tolist() == [row + [-1] * (length - len(row)) for row in behind]


@given(st.lists(st.lists(st.integers(0, 2), max_size=60), max_size=3))
def test_the_order_is_that_of_the_suffixes(documents) -> None:
    built = datastore.build_datastore(documents)
    stream = built.stream.tolist()
    texts = [stream[p : stream.index(-1, p)][: datastore.DEPTH] for p in built.order.tolist()]
    assert texts == sorted(texts)
    assert len(built) == sum(map(len, documents))


def test_round_trip() -> None:
    path = saved()
    back = load()
    assert np.array_equal(back.stream, datastore.build_datastore(CORPUS).stream)
    assert np.array_equal(back.order, datastore.build_datastore(CORPUS).order)
    (listed,) = list_files()
    assert isinstance(listed, DatastoreFile)
    assert (listed.name, listed.tokens, listed.path) == ("books", 13, path)
    path.unlink()
    assert load() is None


def test_a_datastore_belongs_to_a_name_and_a_tokenizer() -> None:
    path = saved()
    assert load("novels") is None and load(fingerprint="other") is None
    os.replace(path, DATASTORES.path(datastore.datastore_key("novels", "print")))
    with pytest.raises(DamagedFileError, match="another"):
        load("novels")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("stream", lambda a: a + 100),
        ("stream", lambda a: a - 7),
        ("stream", lambda a: a[:-1]),
        ("stream", lambda a: a[:0]),
        ("order", lambda a: a + 1000),
        ("order", lambda a: -a - 1),
        ("order", lambda a: a * 0 + 10),
        ("order", lambda a: a[:-1]),
    ],
)
def test_a_hostile_file_with_a_right_checksum_is_refused(name, change) -> None:
    path = saved()
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    metadata["checksum"] = checksum({n: arrays[n] for n in ("stream", "order")})
    save_file(arrays, path, metadata)
    with pytest.raises(DamagedFileError):
        load()


def test_a_shuffled_order_drafts_what_stands_at_its_places() -> None:
    """Wrong drafts, but tokens of one document each, as a slice of the stream shows them."""
    built = datastore.build_datastore(CORPUS)
    hostile = datastore.Datastore(built.stream, built.order[::-1].copy())
    stream, wrong = built.stream.tolist(), 0
    for sequence in itertools.product([1, 2, 3, 4, 5, 9], repeat=2):
        found = hostile.find(sequence)
        rows = hostile.continuations(found, 2, 10).tolist()
        places = hostile.order[found.start : found.stop].tolist()
        for row, place in zip(rows, places, strict=True):
            behind = [*stream[place + 2 : place + 12], -1]
            kept = behind[: behind.index(-1)]
            assert row == kept + [-1] * (10 - len(kept))
            wrong += stream[place : place + 2] != list(sequence)
    assert wrong  # the order did mislead
