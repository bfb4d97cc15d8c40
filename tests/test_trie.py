"""The flat trie against a literal Algorithm 1 and brute force, the growing trie, and the files."""

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from helpers import NaiveNode, algorithm_1, padded
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ngtcli.documents.load import Document
from ngtcli.draft.methods.trie import GrowingTrie
from ngtcli.system.arrays import checksum
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie import store
from ngtcli.trie.files import TRIES, list_files
from ngtcli.trie.ngram import NGramTrie, build_trie

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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), windows)
def test_without_padding_only_the_ends_differ(tokens, window) -> None:
    """The paper's own indexing: every node it has, we have; what it lacks touches an end."""
    n, lp = window
    trie = build_trie([tokens], n, lp)
    naive = dict(naive_walk(algorithm_1(tokens, n, lp), ()))
    ours = dict(walk(trie, 0, ()))
    assert set(naive) <= set(ours)
    inner = Counter(
        tuple(tokens[i : i + k])
        for k in range(1, n + 1)
        for i in range(lp - 1, len(tokens) - n + 1)
        if i + k <= len(tokens)
    )
    for sequence in inner:
        assert sequence in naive


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


@pytest.mark.parametrize("documents", [[], [[]], [[], []], [[7]], [[7], []], [[0, 0, 0, 0, 0]]])
def test_smallest_inputs(documents) -> None:
    trie = build_trie(documents, 5, 3)
    assert {s: trie.count(v) for s, v in walk(trie, 0, ())} == dict(counted(documents, 5))


@pytest.mark.parametrize(("n", "lp"), [(3, 3), (3, 0), (1, 1)])
def test_a_prefix_as_long_as_the_window_is_refused(n: int, lp: int) -> None:
    with pytest.raises(ValueError, match="lp"):
        build_trie([[1, 2, 3]], n, lp)


def test_most_frequent() -> None:
    trie = build_trie([[1, 2, 1, 2, 1, 3]], 4, 2)
    assert trie.most_frequent(2, 2) == [([1, 2], 2), ([2, 1], 2)]


# --- files ---

TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved() -> str:
    path = TRIES.path(KEY)
    return str(TRIES.write(path, *store.stored(build_trie(TEXT, 5, 3), KEY, DOCUMENTS)))


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
