"""Draft trees, and the paper's drafter against a naive one."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ngtcli.decoding.draft_bounds import DraftBounds
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.registry import method_names, parse_method
from ngtcli.drafting.tree import DraftTree, in_depth_first_order, verify
from ngtcli.drafting.tries.corpus import build
from ngtcli.errors import UsageError
from tests.support.driven_drafters import DrafterRun
from tests.support.tiny_models import (
    KnownHeads,
    NaiveNode,
    algorithm_1,
    check_tree,
    make_drafter,
    padded,
    paths,
    supply,
)


@st.composite
def trees(draw) -> DraftTree:
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, 14)))]
    ranks: dict[int, int] = {}
    tokens = []
    for parent in parents:
        ranks[parent] = ranks.get(parent, -1) + 1
        tokens.append(ranks[parent])
    return DraftTree(tuple(tokens), tuple(parents))


@given(trees())
def test_ancestors_are_those_found_by_climbing(tree: DraftTree) -> None:
    check_tree(tree)
    mask = tree.ancestors()
    for i in range(len(tree)):
        ancestors = {0}  # row 0 is the root, and row i + 1 is node i
        node = i
        while node >= 0:
            ancestors.add(node + 1)
            node = tree.parents[node]
        assert set(mask[i + 1].nonzero()[0].tolist()) == ancestors
        assert tree.depths()[i] == len(ancestors) - 1


@given(trees(), st.integers(0, 6), st.integers(0, 10))
def test_a_cut_tree_keeps_whole_paths(tree: DraftTree, depth: int, nodes: int) -> None:
    small = tree.cut(depth, nodes)
    check_tree(small)
    assert len(small) <= nodes
    assert max(small.depths(), default=0) <= depth
    assert paths(small) <= paths(tree)


@given(trees())
def test_depth_first_order_is_the_same_tree(tree: DraftTree) -> None:
    ordered = in_depth_first_order(tree.tokens, tree.parents, [0.0] * len(tree))
    check_tree(ordered)
    assert paths(ordered) == paths(tree)


def test_the_best_chain_comes_first() -> None:
    tree = in_depth_first_order([5, 6, 7, 8], [-1, -1, 0, 1], [1, 3, 1, 3])
    assert tree == DraftTree((6, 8, 5, 7), (-1, 0, -1, 2))


def continuations(node: NaiveNode, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
    """Return the paths below a node with their frequencies; sentinels end a path."""
    frequencies = {}
    for token, child in node.children.items():
        if token >= 0:
            frequencies[(*path, token)] = child.frequency
            frequencies |= continuations(child, (*path, token))
    return frequencies


def naive_draft(root: NaiveNode, ids: Sequence[int], lp: int) -> dict[tuple[int, ...], int]:
    """Return all continuations of the longest known end of a sequence, with their frequencies."""
    for length in range(min(lp, len(ids)), 0, -1):
        node: NaiveNode | None = root
        for token in ids[len(ids) - length :]:
            node = node.children.get(token) if node else None
        frequencies = continuations(node) if node else {}
        if frequencies:
            return frequencies
    return {}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=3),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(0, 3),
)
# 2 follows most often, and in neither part alone.
@example([*[[1, 2]] * 2, *[[1, 3]] * 3, *[[1, 4]] * 3, *[[1, 2]] * 2], [1], 1, 5)
def test_trie_drafts_what_the_paper_would(documents, ids, budget, outside) -> None:
    """The first `outside` documents are not in the stored trie, but their frequencies count."""
    n = 6
    lp = 3
    frequencies = naive_draft(algorithm_1(padded(documents, n), n, lp), ids, lp)
    best = sorted(frequencies.values(), reverse=True)[:budget]
    drafter = make_drafter("trie", DraftSettings(n, lp))
    trie = build(documents[outside:], n)
    tree = DrafterRun(drafter, Context(ids, trie, documents[:outside])).propose(budget)
    check_tree(tree)
    drafted = paths(tree)
    assert drafted <= set(frequencies)
    assert sorted((frequencies[path] for path in drafted), reverse=True) == best


def test_output_is_learned_only_when_asked() -> None:
    for learn, expected in ((False, ()), (True, (8, 9, 7))):
        drafter = make_drafter("trie", DraftSettings(n=5, lp=2, learn_output=learn))
        run = DrafterRun(drafter, Context([1, 2], None, ((1, 2),)))
        run.emit([7, 8])
        run.emit([9, 7])
        assert run.propose(4).tokens == expected


def test_the_trie_of_a_prompt_is_not_used_for_the_next_prompt() -> None:
    drafter = make_drafter("trie", DraftSettings(n=5, lp=2))
    assert DrafterRun(drafter, Context([1, 2, 3, 1], None, ((1, 2, 3, 1),))).propose(4).tokens

    next_run = DrafterRun(drafter, Context([4], None, ((4,),)))
    next_run.emit([1])

    assert not next_run.propose(4).tokens


class Echo:
    """A draft model that repeats the last token."""

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def draft(self, log: TokenLog, count: int) -> list[int]:
        return [log.token_ids[-1]] * count


@pytest.mark.parametrize("method", method_names())
def test_every_method_keeps_to_its_budget_and_proposes_well_formed_trees(method: str) -> None:
    supply(method)
    settings = DraftSettings(
        learn_output=True, assistant=Echo(), masks=(9, 9), heads=KnownHeads([], ())
    )
    drafter = make_drafter(method, settings)
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    run = DrafterRun(drafter, Context(ids, build([ids * 3], 13), (tuple(ids),)))
    for budget in (1, 2, 7, 64):
        tree = run.propose(budget)
        check_tree(tree)
        assert tree.drafts <= budget
        run.emit([1, 2])


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter("tri", DraftSettings())
    assert "trie" in caught.value.hint


def test_a_method_is_parsed_with_its_options() -> None:
    method = parse_method("trie:n=9:learn_output=true", DraftSettings(lp=4))
    assert method.name == "trie"
    assert method.settings.n == 9
    assert method.settings.lp == 4
    assert method.settings.learn_output is True


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("trie:m=9", "It has none."),
        ("trie:n", "Write NAME:KEY=VALUE."),
        ("trie:n=x", "It must be a whole number."),
        ("trie:learn_output=1", "It must be true or false."),
        ("trie:n=3:lp=3", "Give a value from 1 to 2."),
        ("none:n=100", "Give a value from 2 to 64."),
    ],
)
def test_wrong_options_say_what_to_give(spec: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter(spec, DraftSettings())
    assert caught.value.hint == hint


def test_a_wrong_method_or_option_is_found_without_compiling() -> None:
    code = (
        "import sys\nfrom ngtcli.drafting.drafter import DraftSettings\n"
        "from ngtcli.drafting.registry import method_names, parse_method\n"
        "from ngtcli.errors import UsageError\n"
        "for spec in ('aut', *(f'{name}:nothing=1' for name in method_names()), 'auto:trust=0'):\n"
        "    try:\n        parse_method(spec, DraftSettings())\n"
        "    except UsageError:\n        continue\n"
        "    raise AssertionError(spec)\n"
        "assert parse_method('auto:trust=7', DraftSettings()).options.trust == 7\n"
        "heavy = {'torch', 'transformers', 'numba', 'arctic_inference'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr


def test_probes_are_not_counted_or_accepted_as_drafts() -> None:
    tree = DraftTree((5, 6, 5, 7, 8), (-1, 0, -1, 2, 3), probes=3)
    check_tree(tree)
    assert tree.drafts == 2
    assert verify(tree, lambda node, tokens: [5, 6, 9][node + 1]).nodes == (0, 1)
    assert tree.cut(2, 1) == DraftTree((5, 5, 7), (-1, -1, 1), probes=2)
    with pytest.raises(ValueError, match="siblings"):
        check_tree(DraftTree((5, 5), (-1, -1), probes=0))


@given(trees(), st.integers(0, 3), st.integers(0, 9), st.integers(0, 12))
def test_a_cut_keeps_the_limits_and_leaves_a_tree_that_fits_as_it_is(
    tree: DraftTree, probes: int, nodes: int, rows: int
) -> None:
    tree = replace(tree, probes=min(probes, len(tree)))
    cut = tree.cut(99, nodes, 99, rows)
    check_tree(cut)
    assert len(cut) <= rows
    assert cut.drafts <= nodes
    assert cut.probes <= tree.probes
    if len(tree) <= rows:
        assert cut == tree.cut(99, nodes, 99)


@pytest.mark.parametrize("method", ["lookahead", "space", "trie"])
def test_a_draft_has_no_more_nodes_than_the_context_has_room_for(method: str) -> None:
    settings = DraftSettings(masks=(9,) * 6)
    drafter = make_drafter(method, settings)
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    drafter.begin(Context(ids, None, (tuple(ids),)))
    for left in (100, 7, 3, 1):
        bounds = DraftBounds(min(32, left), max_depth=9, max_rows=left, context_left=left)
        tree = bounds.tree(drafter.propose(TokenLog(ids), bounds.room).tree)
        check_tree(tree)
        assert len(tree) <= left


def test_more_sequences_than_nodes_are_drafted_for_in_turns() -> None:
    drafting = Drafting(lambda context: make_drafter("trie"), 4)
    ids = [1, 2, 3, 1, 2]
    logs = [TokenLog(ids) for _ in range(6)]
    drafters = [drafting.join(Context(ids, None, (tuple(ids),)), log) for log in logs]

    sizes_by_step = []
    for _ in range(3):
        rooms = [Room(nodes) for nodes in drafting.shares(6)]
        drafts = drafting.propose(drafters, logs, rooms)
        sizes_by_step.append([len(draft.tree) for draft in drafts])

    assert [sum(sizes) for sizes in sizes_by_step] == [4] * 3
    assert [sum(sizes) for sizes in zip(*sizes_by_step, strict=True)] == [2] * 6


def test_recycling_learns_what_follows_the_last_token_where_nothing_was_drafted() -> None:
    drafter = make_drafter("recycling:output_id_topk=1", DraftSettings())
    run = DrafterRun(drafter, Context([1, 2]))
    for token in (3, 4, 5, 2):
        run.propose(4)  # the whole draft is cut off before the pass
        run.emit([token], Outcome(DraftTree(), np.array([[token]])))
    assert run.propose(4).tokens == (3, 4, 5, 2)
