"""The methods of the field, each against a naive version that rescans the text at every step.

REST's looks at every place of the corpus; SuffixDecoding's adapter asks the real library what vLLM
would ask it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.drafter import Context, Drafter, DraftSettings
from ngtcli.drafting.registry import method_names, parse_method
from ngtcli.drafting.tree import DraftTree, chain
from ngtcli.drafting.tries.store import save_datastore
from ngtcli.errors import InputError, UsageError
from tests.support.driven_drafters import DrafterRun
from tests.support.tiny_models import check_tree, make_drafter, paths, supply

texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)
outputs = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8)
budgets = st.integers(1, 12)
Naive = Callable[[list[int], int], Sequence[int]]  # ids and length of the prompt -> draft


def method(spec: str) -> Drafter:
    return make_drafter(spec, DraftSettings())


def assert_drafts(drafter: Drafter, context: Context, steps, naive: Naive, budget: int) -> None:
    """Emit the tokens of each step; before each the draft is the naive one, cut to the budget."""
    run = DrafterRun(drafter, context)
    for tokens in [*steps, []]:
        tree = run.propose(budget)
        check_tree(tree)
        assert tree == chain(naive(run.token_ids, len(context.ids))[:budget])
        run.emit(tokens)


@settings(max_examples=120, deadline=None)
@given(texts, outputs, budgets, st.integers(1, 4), st.integers(1, 12))
def test_prompt_lookup_drafts_what_transformers_would(
    prompt, steps, budget, longest, count
) -> None:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    theirs = PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=longest, max_length=10_000
    )

    def naive(ids: list[int], _: int) -> list[int]:
        candidates, _ = theirs.get_candidates(torch.tensor([ids]))
        return candidates[0, len(ids) :].tolist()

    spec = f"prompt-lookup:max_matching_ngram_size={longest}:num_output_tokens={count}"
    assert_drafts(method(spec), Context(prompt), steps, naive, budget)


def naive_llma(references, n: int, k: int, max_n: int) -> Naive:
    def draft(ids: list[int], prompt: int) -> list[int]:
        for size in range(max(n, max_n), n - 1, -1):
            if len(ids) - prompt < size:
                continue
            for document in references:
                for start in range(len(document) - size + 1):
                    if list(document[start : start + size]) == ids[-size:]:
                        return list(document[start + size : start + size + k - 1])
        return []

    return draft


@settings(max_examples=120, deadline=None)
@given(
    texts,
    outputs,
    budgets,
    st.lists(texts, max_size=3),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_llma_copies_what_follows_in_the_references(
    prompt, steps, budget, references, n, k, max_n
) -> None:
    drafter = method(f"llma:trigger_n={n}:block_k={k}:max_n={max_n}")
    naive = naive_llma(references or [prompt], n, k, max_n)
    assert_drafts(drafter, Context(prompt, references=references), steps, naive, budget)


def naive_akunu(max_order: int, draft_count: int, max_history: int) -> Naive:
    def best(text: list[int], context: list[int]) -> int | None:
        """The follower of `context` in `text` that was the first to reach the highest count."""
        counts: Counter[int] = Counter()
        leader = None
        for end in range(len(context), len(text)):
            if text[end - len(context) : end] == context:
                counts[text[end]] += 1
                if leader is None or counts[text[end]] > counts[leader]:
                    leader = text[end]
        return leader

    def draft(ids: list[int], prompt: int) -> list[int]:
        context = ids[-max_history:]
        drafted: list[int] = []
        while len(drafted) < draft_count:
            window = (context + drafted)[-max_history:]
            sizes = range(min(max_order - 1, len(window)), 0, -1)
            candidates = [best(ids, window[-size:]) for size in sizes]
            token = next((token for token in candidates if token is not None), None)
            if token is None:
                break
            drafted.append(token)
        return drafted

    return draft


@settings(max_examples=60, deadline=None)
@given(texts, outputs, budgets, st.integers(2, 5), st.integers(1, 6), st.integers(1, 6))
def test_akunu_chains_the_most_frequent_follower_of_the_longest_context(
    prompt, steps, budget, order, count, history
) -> None:
    drafter = method(f"akunu:max_order={order}:draft_count={count}:max_history={history}")
    naive = naive_akunu(order, count, history)
    assert_drafts(drafter, Context(prompt), steps, naive, budget)


class NaivePool:
    """Lists of values per key; short values are dropped while the list is walked along."""

    def __init__(self, v: int, k: int, keep_all: bool, oldest: bool, public: bool) -> None:
        self.v = v
        self.k = k
        self.keep_all = keep_all
        self.oldest = oldest
        self.public = public
        self.pool: dict[tuple, list] = {}
        self.begin = 0

    def request(self) -> None:
        self.begin = 0
        if not self.public:
            self.pool = {}

    def __call__(self, ids: list[int], prompt: int) -> Sequence[int]:
        tail = ids[self.begin :]
        sizes = range(min(self.k, len(ids) - 1), 0, -1)
        for size in sizes:
            for at in range(len(tail) - size):
                key = tuple(tail[at : at + size])
                self.add(key, tuple(tail[at + size : at + size + self.v]))
        self.begin = max(0, len(ids) - (self.v + self.k - 1))
        for size in sizes:
            values = self.pool.get(tuple(ids[len(ids) - size :]))
            if values:
                return values[0 if self.oldest else -1]
        return ()

    def add(self, key: tuple, new: tuple) -> None:
        values = self.pool.get(key)
        if not values or (not self.keep_all and len(values[0]) < len(new)):
            self.pool[key] = [new]
        elif new not in values:
            for old in values:  # the walk skips an entry after each removal, on purpose
                if len(old) < len(new):
                    values.remove(old)
            values.append(new)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(texts, outputs), min_size=1, max_size=3),
    budgets,
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_trtllm_drafts_from_the_pool_as_it_was_updated(
    requests, budget, v, k, keep_all, oldest, public
) -> None:
    drafter = method(
        f"trtllm:max_draft_len={v}:max_matching_ngram_size={k}:is_keep_all={keep_all}"
        f":is_use_oldest={oldest}:is_public_pool={public}"
    )
    naive = NaivePool(v, k, keep_all, oldest, public)
    for prompt, steps in requests:
        naive.request()
        assert_drafts(drafter, Context(prompt), steps, naive, budget)
        pool = drafter._pool._values
        assert {key: list(values) for key, values in pool.items()} == naive.pool


RANGES = [
    f"{name}:{option.name}={value}"
    for name in method_names()
    for option in fields(parse_method(name, DraftSettings()).options)
    if "within" in option.metadata
    for low, high in [option.metadata["within"]]
    for value in (low - 1, high + 1)
]


@pytest.mark.parametrize("spec", [*RANGES, "rest:long=17", "rest:long=0"])
def test_options_out_of_range_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="is "):
        parse_method(spec, DraftSettings())


def naive_rest(documents, ids, budget: int, span: int, k: int, long: int, choices: int, cut: bool):
    """Return the paths of the draft, by looking at every place of every document."""
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
        largest = max(len(set(path)) for path in chosen)
        del chosen[max(i for i, path in enumerate(chosen) if len(set(path)) == largest)]
    prefixes = {path[:length] for path in chosen for length in range(1, len(path) + 1)}
    return [path for path in ranked if path in prefixes][:budget]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 64),
    st.integers(2, 16),
    st.sampled_from([1, 3, 5000]),
    st.integers(1, 10),
    st.sampled_from([1, 5, 20, 64]),
    st.booleans(),
)
def test_rest_drafts_the_most_frequent_continuations(
    documents, ids, budget, span, k, long, choices, cut
) -> None:
    save_datastore(documents, "hay", "print", [])
    drafter = method(
        f"rest:datastore=hay:max_token_span={span}:k={k}:long={long}:choices={choices}:cut={cut}"
    )
    tree = DrafterRun(drafter, Context(ids, tokenizer="print")).propose(budget)
    check_tree(tree)
    expected = naive_rest(documents, ids, budget, span, k, long, choices, cut)
    assert paths(tree) == set(expected)
    assert len(tree) == len(expected)


def test_rest_without_its_datastore_says_what_to_build() -> None:
    drafter = method("rest:datastore=books")
    with pytest.raises(InputError, match="no datastore 'books'") as caught:
        drafter.begin(Context([1], tokenizer="t"))
    assert "ngt trie build -m MODEL --rest PATH… --name books" in caught.value.hint


def test_rest_names_a_damaged_datastore() -> None:
    path, _ = save_datastore([[1, 2]], "default", "", [])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="is damaged"):
        method("rest").begin(Context([1]))


def test_rest_opens_its_datastore_once(monkeypatch) -> None:
    supply("rest")
    drafter = method("rest")
    drafter.begin(Context([1]))
    monkeypatch.setattr("ngtcli.drafting.methods.rest.load_datastore", None)
    assert DrafterRun(drafter, Context([1, 2])).propose(8).tokens == (3, 1, 2, 4, 4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(texts, outputs), min_size=1, max_size=3),
    budgets,
    st.booleans(),
    st.sampled_from([0, 1, 10_000]),
    st.sampled_from([0, 3]),
)
def test_suffix_asks_the_library_as_vllm_does(requests, budget, tree, cached, most) -> None:
    supply("suffix")
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    theirs = SuffixDecodingCache(24, cached)
    drafter = method(f"suffix:tree={tree}:max_cached_requests={cached}:max_spec_tokens={most}")
    for number, (prompt, steps) in enumerate(requests):
        run = DrafterRun(drafter, Context(prompt))
        theirs.start_request(number, prompt)
        for tokens in [*steps, [1]]:
            ids = run.token_ids
            draft = theirs.speculate(
                number,
                ids[-24:],
                max_spec_tokens=min(most or budget, budget),
                max_spec_factor=1.0,
                min_token_prob=0.1,
                use_tree_spec=tree,
            )
            tree_of_ours = run.propose(budget)
            check_tree(tree_of_ours)
            assert len(tree_of_ours) <= budget
            expected = DraftTree(tuple(draft.token_ids), tuple(draft.parents))
            assert paths(tree_of_ours) == paths(expected)
            theirs.add_active_response(number, tokens)
            run.emit(tokens)
        theirs.stop_request(number)


def test_without_its_library_suffix_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    with pytest.raises(UsageError) as caught:
        method("suffix")
    assert "pip install -e '.[peers]'" in caught.value.hint
