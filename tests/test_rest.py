"""REST against a naive version that looks at every place of the corpus."""

from collections import Counter

import pytest
from helpers import check_tree, make_drafter, paths, supply
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.methods import datastore
from ngtcli.errors import InputError, UsageError


def naive_rest(documents, ids, budget: int, span: int, k: int, long: int, choices: int, cut: bool):
    """Paths of the draft with their counts, by looking at every place of every document."""
    for size in range(min(span, len(ids)), min(2, len(ids)) - 1, -1):
        behind = [
            document[at + size :]
            for document in documents
            for at in range(len(document) - size)
            if document[at : at + size] == ids[-size:]
        ]
        if behind:
            break
    else:
        return []
    counts = Counter(
        tuple(rest[:length])
        for rest in sorted(behind)[:k]
        for length in range(1, min(long, len(rest)) + 1)
    )
    ranked = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:choices]
    chosen = list(ranked)
    while cut and sum(len(set(path)) for path in chosen) > choices:
        most = max(len(set(path)) for path in chosen)
        del chosen[max(i for i, path in enumerate(chosen) if len(set(path)) == most)]
    kept = [p for p in ranked if any(other[: len(p)] == p for other in chosen)]
    return kept[:budget]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 64), st.integers(2, 16), st.sampled_from([1, 3, 5000]), st.integers(1, 10),
    st.sampled_from([1, 5, 20, 64]), st.booleans(),
)  # fmt: skip
def test_rest_drafts_the_most_frequent_continuations(
    documents, ids, budget, span, k, long, choices, cut
) -> None:
    datastore.save(datastore.build_datastore(documents), "hay", "print", [])
    drafter = method(
        f"rest:datastore=hay:max_token_span={span}:k={k}:long={long}:choices={choices}:cut={cut}"
    )
    drafter.reset(Context(ids, tokenizer="print"))
    tree = drafter.propose(ids, budget)
    check_tree(tree)
    expected = naive_rest(documents, ids, budget, span, k, long, choices, cut)
    assert paths(tree) == set(expected) and len(tree) == len(expected)


def test_rest_cuts_as_the_released_code_does() -> None:
    corpus = [[1, 2, *range(10, 20)], [1, 2, *range(20, 30)]]
    datastore.save(datastore.build_datastore(corpus), "default", "", [])
    for spec, first, second in (("rest", 18, 27), ("rest:cut=false", 20, 30)):
        drafter = method(spec)
        drafter.reset(Context([1, 2]))
        drafted = drafter.propose([1, 2], 64).tokens
        assert drafted == (*range(10, first), *range(20, second))


def test_rest_without_its_datastore_says_what_to_build() -> None:
    drafter = method("rest:datastore=books")
    with pytest.raises(InputError, match="no datastore 'books'") as caught:
        drafter.reset(Context([1], tokenizer="t"))
    assert "ngt trie build -m MODEL --rest PATH… --name books" in caught.value.hint


def test_rest_names_a_damaged_datastore() -> None:
    path = datastore.save(datastore.build_datastore([[1, 2]]), "default", "", [])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="is bad"):
        method("rest").reset(Context([1]))


def test_rest_opens_its_datastore_once(monkeypatch) -> None:
    supply("rest")
    drafter = method("rest")
    drafter.reset(Context([1]))
    monkeypatch.setattr("ngtcli.draft.methods.rest.load", None)
    drafter.reset(Context([2]))
    assert drafter.propose([1, 2], 8).tokens == (3, 1, 2, 4, 4)
