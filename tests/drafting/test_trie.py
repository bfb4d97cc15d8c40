"""The corpus and the growing trie against brute force, and their files, also with wrong content."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import Document
from ngtcli.drafting.methods.trie import GrowingTrie
from ngtcli.drafting.tries import store
from ngtcli.drafting.tries.corpus import Corpus, Ints, build
from ngtcli.drafting.tries.files import DATASTORES, TRIES, TrieReport, list_files
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.system.files import DamagedFileError

texts = st.lists(st.lists(st.integers(0, 3), max_size=24), max_size=4)
Sequences = Iterator[tuple[tuple[int, ...], range]]


def walk(corpus: Corpus, places: range, sequence: tuple[int, ...] = ()) -> Sequences:
    """Yield every longer sequence that begins with one at `places`, each with its own places."""
    if len(sequence) == corpus.depth:
        return
    for token, _, below in corpus.below(places, len(sequence)):
        yield (*sequence, token), below
        yield from walk(corpus, below, (*sequence, token))


def counted(documents: Sequence[Sequence[int]], n: int) -> Counter[tuple[int, ...]]:
    """Count all sequences of up to `n` tokens."""
    return Counter(
        tuple(document[start : start + size])
        for document in documents
        for size in range(1, n + 1)
        for start in range(len(document) - size + 1)
    )


@pytest.mark.parametrize("few", [0, 32])
@settings(max_examples=100, deadline=None)
@given(documents=texts, n=st.integers(1, 7))
def test_sequences_are_counted_and_ordered_as_by_brute_force(few, documents, n) -> None:
    """The corpus looks at places by numpy, or one by one where they are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngtcli.drafting.tries.corpus._FEW", few)
        check_counts(documents, n)


def check_counts(documents: list[list[int]], n: int) -> None:
    corpus = build(documents, n)
    expected = counted(documents, n)
    stream = [token for document in documents for token in (*document, -1)]
    all_places = range(len(corpus))
    sequences = dict(walk(corpus, all_places))
    assert {sequence: len(places) for sequence, places in sequences.items()} == dict(expected)
    assert corpus.sequences == len(expected)
    assert len(corpus) == sum(map(len, documents))

    def first_place(sequence: Sequence[int]) -> int:
        size = len(sequence)
        return next(i for i in range(len(stream)) if tuple(stream[i : i + size]) == sequence)

    for sequence, places in {(): all_places, **sequences}.items():
        if len(sequence) == n:
            continue
        sort_keys = []
        for token, first, below in corpus.below(places, len(sequence)):
            assert first == first_place((*sequence, token))
            assert corpus.child(places, len(sequence), token) == below
            sort_keys.append((-len(below), first))
        assert sort_keys == sorted(sort_keys)
        assert not corpus.child(places, len(sequence), 9)


@settings(max_examples=80, deadline=None)
@given(texts, st.integers(1, 7), st.integers(0, 9))
def test_growing_trie_counts_as_brute_force(documents, n, known) -> None:
    """Sequences that end in the known tokens are not counted; those that continue them are."""
    tokens = [token for document in documents for token in document]
    before = tokens[:known]
    trie = GrowingTrie(n, before)

    for token in tokens[known:]:
        trie.extend([token])

    expected = counted([tokens], n) - counted([before], n)
    counts = {sequence: node.count for sequence, node in nodes_of(trie.root) if node.count}
    assert counts == dict(expected)
    assert all(trie.match(sequence) is not None for sequence in expected)


def nodes_of(node, sequence=()):
    """Yield every node below one, with the sequence that leads to it."""
    for token, child in node.children.items():
        yield (*sequence, token), child
        yield from nodes_of(child, (*sequence, token))


def test_the_most_frequent_sequences_of_a_length_are_counted() -> None:
    corpus = build([[1, 2, 1, 2, 1, 3]], 4)
    assert corpus.most_frequent(2, 2) == [([1, 2], 2), ([2, 1], 2)]


def test_a_corpus_in_a_wrong_order_still_drafts_tokens_of_its_stream() -> None:
    built = build(DOCUMENT_TOKENS, 32)
    stream = built.stream
    hostile = Corpus(stream, built.order[::-1].copy(), 32)

    misled = 0
    for sequence in itertools.product([1, 2, 3, 4, 5, 9], repeat=2):
        for _, first, below in hostile.below(hostile.find(sequence), 2):
            assert first in hostile.order[below.start : below.stop]
            misled += stream[first : first + 2].tolist() != list(sequence)
    assert misled  # the wrong order made a difference

    rng = np.random.default_rng(0)
    for depth in (3, 40):  # 40 is beyond the end of the stream
        rng.shuffle(hostile.order)
        followers = list(hostile.below(range(13), depth))
        assert sum(len(below) for _, _, below in followers) <= 13
        assert {token for token, _, below in followers if below} <= {*stream} - {-1}


# --- files ---

DOCUMENT_TOKENS = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved_trie() -> Path:
    content = store.trie_file(build(DOCUMENT_TOKENS, 5), KEY, 3, DOCUMENTS)
    return TRIES.write(TRIES.path(KEY), *content)


def saved_datastore() -> Path:
    path, _ = store.save_datastore(DOCUMENT_TOKENS, "books", "print", [])
    return path


def load_trie(key: str = KEY, lp: int = 3) -> Corpus | None:
    return store.load_trie(key, 5, lp, 100)


def load_datastore(name: str = "books", fingerprint: str = "print") -> Corpus | None:
    return store.load_datastore(name, fingerprint, 100)


@pytest.mark.parametrize(
    ("save", "load", "depth", "about"),
    [
        (saved_trie, load_trie, 5, {"documents": ("a.txt", "b.txt"), "n": 5, "lp": 3}),
        (saved_datastore, load_datastore, 32, {"kind": "datastore", "name": "books", "n": None}),
    ],
)
def test_a_stored_corpus_is_loaded_and_listed(
    save: Callable[[], Path], load: Callable[[], Corpus | None], depth: int, about: dict[str, Any]
) -> None:
    expected = build(DOCUMENT_TOKENS, depth)

    path = save()
    loaded = load()

    assert loaded is not None
    assert loaded.depth == depth
    assert np.array_equal(loaded.stream, expected.stream)
    assert np.array_equal(loaded.order, expected.order)
    (listed,) = list_files()
    assert {name: getattr(listed, name) for name in about} == about
    assert listed.tokens == 13
    assert listed.path == path
    path.unlink()
    assert load() is None


def test_a_cached_trie_has_the_number_of_nodes_of_its_file() -> None:
    """Counting them again would take ten times as long as opening the file."""
    documents = [Document("a.txt", "one two three")]
    tokenizer = load_tokenizer("builtin")

    def report() -> TrieReport:
        return store.document_trie(documents, tokenizer, 10**6, 5, 3)[1]

    built = report()
    assert report().nodes == built.nodes > 0
    assert built.path is not None
    arrays, metadata = TRIES.map(built.path)

    TRIES.write(built.path, arrays, {**metadata, "nodes": "12345"})
    cached = report()
    assert cached.status == "cached"
    assert cached.nodes == 12345

    TRIES.write(built.path, arrays, {**metadata, "nodes": "many"})
    rebuilt = report()
    assert rebuilt.status == "rebuilt"
    assert rebuilt.nodes == built.nodes


def test_a_key_depends_on_tokenizer_documents_and_lengths() -> None:
    keys = {
        store.trie_key("t", DOCUMENTS, 13, 3),
        store.trie_key("u", DOCUMENTS, 13, 3),
        store.trie_key("t", DOCUMENTS[::-1], 13, 3),
        store.trie_key("t", DOCUMENTS, 12, 3),
        store.trie_key("t", DOCUMENTS, 13, 4),
        store.trie_key("t", DOCUMENTS[:1], 13, 3),
    }
    assert len(keys) == 6


WRONG_ORDERS: list[Callable[[Ints], Ints]] = [
    lambda order: order + np.int32(1000),
    lambda order: -order - np.int32(1),
    lambda order: np.full_like(order, 10),
    lambda order: order[:-1],
]
WRONG_STREAMS: list[Callable[[Ints], Ints]] = [
    lambda stream: stream + np.int32(100),
    lambda stream: stream - np.int32(7),
    lambda stream: stream[:-1],
    lambda stream: stream[:0],
]


@pytest.mark.parametrize(("name", "changes"), [("order", WRONG_ORDERS), ("stream", WRONG_STREAMS)])
def test_wrong_numbers_with_a_right_checksum_are_refused(
    name: str, changes: list[Callable[[Ints], Ints]]
) -> None:
    for kind, path, load in (
        (TRIES, saved_trie(), load_trie),
        (DATASTORES, saved_datastore(), load_datastore),
    ):
        arrays, metadata = kind.map(path)
        if name not in arrays:
            continue
        for change in changes:
            kind.write(path, {**arrays, name: change(arrays[name])}, metadata)
            with pytest.raises(DamagedFileError):
                load()


def test_the_content_of_another_file_is_refused() -> None:
    other_key = "j" * 32
    os.replace(saved_trie(), TRIES.path(other_key))
    saved_datastore().rename(DATASTORES.path(store.datastore_key("novels", "print")))

    with pytest.raises(DamagedFileError, match="another"):
        load_trie(other_key)
    with pytest.raises(DamagedFileError, match="another"):
        load_datastore("novels")
    assert load_datastore("books") is None
    assert load_datastore(fingerprint="other") is None
