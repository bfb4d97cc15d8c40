"""The adapter asks the real library what vLLM would ask it."""

import sys

import pytest
from helpers import check_tree, make_drafter, paths, supply
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import UsageError


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(texts, outputs), min_size=1, max_size=3), budgets,
    st.booleans(), st.sampled_from([0, 1, 10_000]), st.sampled_from([0, 3]),
)  # fmt: skip
def test_suffix_asks_the_library_as_vllm_does(requests, budget, tree, cached, most) -> None:
    supply("suffix")
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    theirs = SuffixDecodingCache(24, cached)
    drafter = method(f"suffix:tree={tree}:max_cached_requests={cached}:max_spec_tokens={most}")
    for number, (prompt, steps) in enumerate(requests):
        drafter.reset(Context(prompt))
        theirs.start_request(number, prompt)
        ids = list(prompt)
        for step in [*steps, [1]]:
            draft = theirs.speculate(
                number, ids[-24:], max_spec_tokens=min(most or budget, budget),
                max_spec_factor=1.0, min_token_prob=0.1, use_tree_spec=tree,
            )  # fmt: skip
            mine = drafter.propose(ids, budget)
            check_tree(mine)
            assert len(mine) <= budget
            raw = DraftTree(tuple(draft.token_ids), tuple(draft.parents))
            assert paths(mine) == paths(raw)
            theirs.add_active_response(number, step)
            drafter.observe(step)
            ids = ids + step
        theirs.stop_request(number)


@pytest.mark.parametrize(("cached", "known"), [(10_000, True), (-1, True), (0, False)])
def test_suffixs_global_tree_holds_earlier_outputs(cached: int, known: bool) -> None:
    supply("suffix")
    drafter = method(f"suffix:max_cached_requests={cached}")
    drafter.reset(Context([9, 1, 2]))
    drafter.observe([3, 4, 5, 6])
    drafter.reset(Context([8, 3, 4]))
    assert drafter.propose([8, 3, 4], 8).tokens == ((5, 6) if known else ())


def test_without_its_library_suffix_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    with pytest.raises(UsageError) as caught:
        method("suffix")
    assert "pip install -e '.[peers]'" in caught.value.hint
