"""The flat trie against a literal Algorithm 1 and brute force, the growing trie, datastores
against a search by eye, and the files, of which no content can mislead or crash."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import Document
from ngtcli.draft.methods import datastore
from ngtcli.draft.methods.trie import GrowingTrie
from ngtcli.system.files import DamagedFileError
from ngtcli.trie import store
from ngtcli.trie.files import DATASTORES, TRIES, DatastoreFile, list_files
from ngtcli.trie.ngram import Ints, NGramTrie, build_trie
from tests.support.tiny_models import NaiveNode, algorithm_1, padded

texts = st.lists(st.lists(st.integers(0, 3), max_size=24), max_size=4)
windows = st.integers(2, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, min(4, n - 1))))


def walk(trie: NGramTrie, node: int, sequence: tuple[int, ...]):
    """Every (sequence, node) below `node`, to depth n."""
    if len(sequence) < trie.n:
        for child in trie.children(node):
            longer = (*sequence, trie.token(child))
            yield longer, child
            yield from walk(trie, child, longer)


def naive_walk(node: NaiveNode, sequence: tuple[int, ...]):
    for token, child in node.children.items():
        if token >= 0:  # behind a sentinel there is another document
            yield (*sequence, token), child
            yield from naive_walk(child, (*sequence, token))


def counted(documents: Sequence[Sequence[int]], n: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(d[i : i + k])
        for d in documents
        for k in range(1, n + 1)
        for i in range(len(d) - k + 1)
    )


@settings(max_examples=300, deadline=None)
@given(texts, windows)
def test_same_nodes_and_frequencies_as_algorithm_1(documents, window) -> None:
    n, lp = window
    trie = build_trie(documents, n, lp)
    naive = dict(naive_walk(algorithm_1(padded(documents, n), n, lp), ()))
    ours = dict(walk(trie, 0, ()))
    assert set(ours) == set(naive)
    for sequence, node in ours.items():
        assert trie.count(node) * min(lp, n - len(sequence) + 1) == naive[sequence].frequency


@settings(max_examples=200, deadline=None)
@given(texts, windows)
def test_counts_are_those_of_brute_force(documents, window) -> None:
    n, lp = window
    trie = build_trie(documents, n, lp)
    expected = counted(documents, n)
    assert {s: trie.count(v) for s, v in walk(trie, 0, ())} == dict(expected)
    for sequence, count in expected.items():
        node = trie.match(sequence)
        assert node is not None and trie.count(node) == count
    assert trie.match([9]) is None
    assert trie.tokens == sum(map(len, documents))


@settings(max_examples=200, deadline=None)
@given(texts, windows)
def test_children_come_by_count_then_by_first_place(documents, window) -> None:
    n, lp = window
    trie = build_trie(documents, n, lp)
    stream = [t for d in documents for t in (*d, -1)]

    def first_place(sequence) -> int:
        k = len(sequence)
        return next(i for i in range(len(stream)) if tuple(stream[i : i + k]) == sequence)

    for sequence, node in [((), 0), *walk(trie, 0, ())]:
        if len(sequence) < n:
            keys = [
                (-trie.count(c), first_place((*sequence, trie.token(c))))
                for c in trie.children(node)
            ]
            assert keys == sorted(keys)


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(1, 7))
def test_growing_trie_counts_as_brute_force(documents, n) -> None:
    trie = GrowingTrie(n)
    for document in documents:
        for token in document:
            trie.extend([token])
        trie.end()
    for sequence, count in counted(documents, n).items():
        node = trie.match(sequence)
        assert node is not None and node.count == count
    total = sum(1 for _ in _all(trie.root))
    assert total == len(counted(documents, n))


def _all(node):
    for child in node.children.values():
        yield child
        yield from _all(child)


@pytest.mark.parametrize(("n", "lp"), [(3, 3), (3, 0), (1, 1)])
def test_a_prefix_as_long_as_the_window_is_refused(n: int, lp: int) -> None:
    with pytest.raises(ValueError, match="lp"):
        build_trie([[1, 2, 3]], n, lp)


def test_most_frequent() -> None:
    trie = build_trie([[1, 2, 1, 2, 1, 3]], 4, 2)
    assert trie.most_frequent(2, 2) == [([1, 2], 2), ([2, 1], 2)]


# --- datastores ---


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


def test_a_shuffled_order_drafts_what_stands_at_its_places() -> None:
    """Wrong drafts, but tokens of one document each, as a slice of the stream shows them."""
    built = datastore.build_datastore(TEXT)
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


# --- files ---

TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved_trie() -> Path:
    return TRIES.write(TRIES.path(KEY), *store.stored(build_trie(TEXT, 5, 3), KEY, DOCUMENTS))


def saved_datastore() -> Path:
    return datastore.save(datastore.build_datastore(TEXT), "books", "print", [])


def load_trie(key: str = KEY, lp: int = 3):
    return store.load(key, 5, lp, 100)


def load_datastore(name: str = "books", fingerprint: str = "print"):
    return datastore.load(name, fingerprint, 100)


def test_a_trie_comes_back_and_is_listed_by_its_documents() -> None:
    path, ours = saved_trie(), build_trie(TEXT, 5, 3)
    for name in TRIES.arrays:
        assert np.array_equal(ours.arrays[name], load_trie().arrays[name])
    assert [file.documents for file in list_files()] == [("a.txt", "b.txt")]
    path.unlink()
    assert load_trie() is None


def test_a_datastore_comes_back_and_is_listed_by_its_name() -> None:
    path, ours, back = saved_datastore(), datastore.build_datastore(TEXT), load_datastore()
    assert np.array_equal(back.stream, ours.stream) and np.array_equal(back.order, ours.order)
    (listed,) = list_files()
    assert isinstance(listed, DatastoreFile)
    assert (listed.name, listed.tokens, listed.path) == ("books", 13, path)
    path.unlink()
    assert load_datastore() is None


def test_the_key_depends_on_everything() -> None:
    keys = {
        store.trie_key("t", DOCUMENTS, 13, 3), store.trie_key("u", DOCUMENTS, 13, 3),
        store.trie_key("t", DOCUMENTS[::-1], 13, 3), store.trie_key("t", DOCUMENTS, 12, 3),
        store.trie_key("t", DOCUMENTS, 13, 4), store.trie_key("t", DOCUMENTS[:1], 13, 3),
    }  # fmt: skip
    assert len(keys) == 6


def plus(number: int, factor: int = 1) -> Callable[[Ints], Ints]:
    return lambda array: array * np.int32(factor) + np.int32(number)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("link", [plus(1000), plus(0, 0), plus(-5, -1)]),
        ("degree", [plus(1), plus(0, 1000), plus(0, -1)]),
        ("count", [plus(0, 0)]),
        ("token", [plus(100), plus(-2, -1)]),
        ("order", [plus(1000), plus(-1, -1), plus(10, 0), lambda a: a[:-1]]),
        ("stream", [plus(100), plus(-7), lambda a: a[:-1], lambda a: a[:0]]),
    ],
)
def test_hostile_numbers_with_a_right_checksum_are_refused(
    name: str, changes: list[Callable[[Ints], Ints]]
) -> None:
    for kind, path, load in (
        (TRIES, saved_trie(), load_trie),
        (DATASTORES, saved_datastore(), load_datastore),
    ):
        arrays, metadata = kind.map(path)
        for change in changes if name in arrays else ():
            kind.write(path, {**arrays, name: change(arrays[name])}, metadata)
            with pytest.raises(DamagedFileError):
                load()


def test_another_files_content_is_refused() -> None:
    os.replace(saved_trie(), TRIES.path("j" * 32))
    saved_datastore().rename(DATASTORES.path(datastore.datastore_key("novels", "print")))
    for load in (lambda: load_trie("j" * 32), lambda: load_datastore("novels")):
        with pytest.raises(DamagedFileError, match="another"):
            load()
    assert load_datastore("books") is None and load_datastore(fingerprint="other") is None
