"""Counts of a general text, their file, and what `auto` draws from them."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.draft.auto.drafter import Auto, AutoDrafters
from ngtcli.draft.auto.escapes import SHAPE, fitted_escapes
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.pool import Pool
from ngtcli.system.compiled import njit
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie.background import COUNT, FIRST, TOKEN, BackgroundCounts, build_counts, load_counts
from ngtcli.trie.background_search import BackgroundArrays, find_row
from ngtcli.trie.files import BACKGROUNDS

VOCABULARY = 6
IDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
TEXTS = st.lists(st.tuples(IDS, st.sampled_from([0.5, 1.0, 2.25])), max_size=5)


def counted(texts: Sequence[tuple[list[int], float]], depth: int) -> Counter[tuple[int, ...]]:
    """What every sequence of at most `depth` tokens weighs."""
    found: Counter[tuple[int, ...]] = Counter()
    for ids, weight in texts:
        for size in range(1, depth + 1):
            for at in range(len(ids) - size + 1):
                found[tuple(ids[at : at + size])] += weight  # type: ignore[assignment]
    return found


@given(TEXTS, st.integers(1, 4), st.lists(st.sampled_from([0.0, 1.0, 2.0]), max_size=3))
def test_counts_are_those_of_the_texts_but_for_what_is_seldom(
    texts: list[tuple[list[int], float]], depth: int, least: list[float]
) -> None:
    counts, wanted = build_counts(texts, depth, least), counted(texts, depth)
    bounds = [*least, *([least[-1]] if least else [0.0]) * depth][:depth]
    kept = {
        sequence: weight
        for sequence, weight in wanted.items()
        if all(wanted[sequence[:k]] >= bounds[k - 1] for k in range(1, len(sequence) + 1))
    }
    every = {(token,) for token in range(max((s[0] for s in kept), default=-1) + 1)}
    assert len(counts) == len(kept.keys() | every)
    for sequence in wanted:
        assert counts.count_of(sequence) == kept.get(sequence, 0.0)


@given(TEXTS)
def test_siblings_are_in_the_order_of_their_counts(texts: list[tuple[list[int], float]]) -> None:
    counts, weights = build_counts(texts, 3, ()), counted(texts, 3)
    paths: list[tuple[int, ...]] = [()]
    for node in range(len(counts) + 1):
        rows = slice(*counts.nodes[node : node + 2, FIRST].tolist())
        tokens, path = counts.nodes[rows, TOKEN].tolist(), paths[node]
        by_count = sorted(tokens, key=lambda t: (-weights[(*path, t)] if path else 0, t))
        assert tokens == by_count and counts.by_token[rows, TOKEN].tolist() == sorted(tokens)
        assert counts.nodes[counts.by_token[rows, 1], TOKEN].tolist() == sorted(tokens)
        paths += [(*path, token) for token in tokens]


@njit()
def row_of(arrays: Any, sequence: Any) -> int:
    """The row of a sequence, as compiled code finds it."""
    node = 0
    for token in sequence:
        if node != -1:
            node = find_row(BackgroundArrays(arrays[0], arrays[1]), node, token)
    return node


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 9, 40]))
@settings(deadline=None, max_examples=20)
def test_compiled_code_finds_every_sequence_that_was_counted(seed: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, tokens, 1000).tolist()
    counts, weights = build_counts([(text, 1.0)], 3, ()), counted([(text, 1.0)], 3)
    others = [tuple(other) for other in rng.integers(0, tokens + 3, (200, 3)).tolist()]
    for sequence in [*weights, *others]:
        row = row_of((counts.nodes, counts.by_token), np.array(sequence, np.int32))
        found = counts.nodes[row, COUNT] / 64 if row != -1 else 0.0
        assert found == weights[sequence]


def saved(folder: Path, texts: Sequence[tuple[list[int], float]]) -> Path:
    counts = build_counts(texts, 3)
    return BACKGROUNDS.write(folder / "a", counts.arrays, {"name": "a"})


def test_a_file_holds_what_was_counted(tmp_path: Path) -> None:
    path = saved(tmp_path, [([1, 2, 3, 1, 2], 1.0)])
    counts = load_counts(BACKGROUNDS, path, VOCABULARY, {"name": "a"})
    assert counts.count_of([1, 2]) == 2 and counts.nodes[0, TOKEN] == VOCABULARY


@given(st.data())
@settings(deadline=None)
def test_any_bytes_are_refused_or_opened(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = saved(tmp_path_factory.mktemp("b"), [([1, 2, 3, 1, 2], 1.0)])
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        counts = load_counts(BACKGROUNDS, path, VOCABULARY)
    except DamagedFileError:
        return
    assert isinstance(counts, BackgroundCounts) and counts.nodes.dtype == np.int32


def test_no_content_of_a_file_leads_out_of_its_bounds() -> None:
    """Whatever the numbers are: only tokens of the vocabulary, and escapes that stay escapes."""
    script = Path(__file__).parent / "hostile_background.py"
    ran = subprocess.run(
        [sys.executable, str(script), "1", "80"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        stdout=subprocess.PIPE, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert int(ran.stdout) > 3000


def drafter_with(text: list[int], pool: Pool | None = None) -> Auto:
    counts = build_counts([(text, 1.0)], least=())
    return Auto(DraftSettings(background=counts, pool=pool))


def test_what_only_the_background_knows_is_drafted_and_named_after_it() -> None:
    drafter = drafter_with([1, 2, 3, 4, 5])
    drafter.reset(Context((9, 1, 2), vocabulary=10))
    tree = drafter.propose((), 8)
    assert tree.tokens[:2] == (3, 4)
    assert {tree.origin(i) for i in range(2)} == {"background"}


def test_prompt_and_pool_are_asked_before_the_background() -> None:
    drafter = drafter_with([1, 2, 3], Pool(answers=[np.array([1, 2, 7], np.int32)]))
    drafter.reset(Context((1, 2, 8, 1, 2), vocabulary=10))
    tree = drafter.propose((), 16)
    after = [i for i in range(len(tree)) if tree.parents[i] == -1]
    named = {tree.tokens[i]: tree.origin(i) for i in after}
    assert (named[8], named[7], named[3]) == ("prompt", "pool", "background")


def test_every_sequence_of_a_batch_drafts_from_the_background() -> None:
    counts = build_counts([([1, 2, 3, 4], 1.0)], least=())
    batch = AutoDrafters(DraftSettings(background=counts))
    drafters = [batch.start(Context((9, first), vocabulary=10)) for first in (1, 2)]
    trees = batch.propose_within(drafters, [2, 2])
    assert [tree.tokens[:1] for tree in trees] == [(2,), (3,)]


def test_an_empty_background_is_none() -> None:
    with_empty = Auto(DraftSettings(background=build_counts(())))
    without = Auto()
    for drafter in (with_empty, without):
        drafter.reset(Context((1, 2, 3, 1, 2), vocabulary=10))
    assert with_empty.propose((), 8) == without.propose((), 8)


def test_tallies_of_another_shape_are_replaced() -> None:
    fewer = np.ones(SHAPE)[1:]
    drafter = Auto(DraftSettings(pool=Pool(predicted=fewer / 2, reached=fewer)))
    assert drafter.tallies.escape == pytest.approx(fitted_escapes())
