"""The corpus against brute force, the growing trie, and files with hostile content."""

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
Found = tuple[tuple[int, ...], range]


def walk(corpus: Corpus, found: range, sequence: tuple[int, ...] = ()) -> Iterator[Found]:
    """Every sequence below that at `found`, to the corpus's depth, with its places."""
    if len(sequence) < corpus.depth:
        for token, _, below in corpus.below(found, len(sequence)):
            yield (*sequence, token), below
            yield from walk(corpus, below, (*sequence, token))


def every(corpus: Corpus) -> list[Found]:
    return [*walk(corpus, range(len(corpus)))]


def counted(documents: Sequence[Sequence[int]], n: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(d[i : i + k])
        for d in documents
        for k in range(1, n + 1)
        for i in range(len(d) - k + 1)
    )


@pytest.mark.parametrize("few", [0, 32])
@settings(max_examples=100, deadline=None)
@given(documents=texts, n=st.integers(1, 7))
def test_what_is_found_is_counted_and_ordered_as_by_brute_force(few, documents, n) -> None:
    """Places are looked at by numpy, or one by one where they are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ngtcli.drafting.tries.corpus._FEW", few)
        check_counts(documents, n)


def check_counts(documents: list[list[int]], n: int) -> None:
    corpus, expected = build(documents, n), counted(documents, n)
    stream = [t for d in documents for t in (*d, -1)]
    ours = dict(every(corpus))
    assert {sequence: len(found) for sequence, found in ours.items()} == dict(expected)
    assert corpus.sequences == len(expected)
    assert len(corpus) == sum(map(len, documents))

    def first_place(sequence: Sequence[int]) -> int:
        size = len(sequence)
        return next(i for i in range(len(stream)) if tuple(stream[i : i + size]) == sequence)

    for sequence, found in {(): range(len(corpus)), **ours}.items():
        if len(sequence) < n:
            keys = []
            for token, first, below in corpus.below(found, len(sequence)):
                assert first == first_place((*sequence, token))
                assert corpus.child(found, len(sequence), token) == below
                keys.append((-len(below), first))
            assert keys == sorted(keys)
            assert not corpus.child(found, len(sequence), 9)


@settings(max_examples=80, deadline=None)
@given(texts, st.integers(1, 7), st.integers(0, 9))
def test_growing_trie_counts_as_brute_force(documents, n, known) -> None:
    """What ends in the tokens before it is not counted, what continues from them is."""
    text = [token for document in documents for token in document]
    before = text[:known]
    trie = GrowingTrie(n, before)
    for token in text[known:]:
        trie.extend([token])
    wanted = counted([text], n) - counted([before], n)
    found = {s: node.count for s, node in _all(trie.root, ()) if node.count}
    assert found == dict(wanted)
    assert all(trie.match(s) is not None for s in wanted)


def _all(node, sequence):
    for token, child in node.children.items():
        yield (*sequence, token), child
        yield from _all(child, (*sequence, token))


def test_most_frequent() -> None:
    corpus = build([[1, 2, 1, 2, 1, 3]], 4)
    assert corpus.most_frequent(2, 2) == [([1, 2], 2), ([2, 1], 2)]


def test_a_shuffled_order_drafts_tokens_of_the_stream() -> None:
    built = build(TEXT, 32)
    hostile, stream, wrong = Corpus(built.stream, built.order[::-1].copy(), 32), built.stream, 0
    for sequence in itertools.product([1, 2, 3, 4, 5, 9], repeat=2):
        for _, first, found in hostile.below(hostile.find(sequence), 2):
            assert first in hostile.order[found.start : found.stop]
            wrong += stream[first : first + 2].tolist() != list(sequence)
    assert wrong  # the order did mislead
    rng = np.random.default_rng(0)
    for depth in (3, 40):  # also beyond the end of the stream
        rng.shuffle(hostile.order)
        found = [t for t, _, at in hostile.below(range(13), depth) for _ in at]
        assert len(found) <= 13
        assert {*found} <= {*stream} - {-1}


# --- files ---

TEXT = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 9], [], [1, 2, 5]]
DOCUMENTS = [Document("a.txt", "one"), Document("b.txt", "two")]
KEY = "k" * 32


def saved_trie() -> Path:
    return TRIES.write(TRIES.path(KEY), *store.trie_file(build(TEXT, 5), KEY, 3, DOCUMENTS))


def saved_datastore() -> Path:
    return store.save_datastore(TEXT, "books", "print", [])[0]


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
def test_what_was_stored_comes_back_and_is_listed(
    save: Callable[[], Path], load: Callable[[], Corpus | None], depth: int, about: dict[str, Any]
) -> None:
    path, ours, back = save(), build(TEXT, depth), load()
    assert back is not None
    assert back.depth == depth
    assert np.array_equal(back.stream, ours.stream)
    assert np.array_equal(back.order, ours.order)
    (listed,) = list_files()
    assert {name: getattr(listed, name) for name in about} == about
    assert (listed.tokens, listed.path) == (13, path)
    path.unlink()
    assert load() is None


def test_a_cached_trie_has_the_number_of_nodes_of_its_file() -> None:
    """To count them again takes ten times as long as to open the file."""
    documents, tokenizer = [Document("a.txt", "one two three")], load_tokenizer("builtin")

    def report() -> TrieReport:
        return store.document_trie(documents, tokenizer, 10**6, 5, 3)[1]

    built = report()
    assert report().nodes == built.nodes > 0
    assert built.path is not None
    arrays, metadata = TRIES.map(built.path)
    for nodes, status in (("12345", "cached"), ("many", "rebuilt")):
        TRIES.write(built.path, arrays, {**metadata, "nodes": nodes})
        again = report()
        assert (again.status, again.nodes) == (status, 12345 if status == "cached" else built.nodes)


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


def plus(number: int, factor: int = 1) -> Callable[[Ints], Ints]:
    return lambda array: array * np.int32(factor) + np.int32(number)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
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
    saved_datastore().rename(DATASTORES.path(store.datastore_key("novels", "print")))
    for load in (lambda: load_trie("j" * 32), lambda: load_datastore("novels")):
        with pytest.raises(DamagedFileError, match="another"):
            load()
    assert load_datastore("books") is None
    assert load_datastore(fingerprint="other") is None
