"""Forward passes of a few fixed shapes: sizes, padding, masks, and a cache with fixed buffers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import KVCache
from ngtcli.decoding.layout import Masks, Span, pack, unpack
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.sizes import capacity_for, row_size, row_sizes
from ngtcli.drafting.tree import chain
from tests.support.helpers import CONTEXT, VOCABULARY
from tests.support.tiny_models import a_tree, make_target, plain, prompts

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@given(st.integers(1, 2000))
def test_a_pass_is_padded_to_the_next_size(device: str, rows: int) -> None:
    sizes = row_sizes(device, rows)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] >= rows
    assert row_size(device, rows) == sizes[-1]
    assert all(size < rows for size in sizes[:-1])
    assert sizes == row_sizes(device, 4000)[: len(sizes)]


@given(st.integers(1, 3_000_000))
def test_at_most_a_quarter_of_a_capacity_is_unused(positions: int) -> None:
    capacity = capacity_for(positions)
    assert capacity >= positions
    assert capacity_for(capacity) == capacity
    if capacity > 256:
        assert capacity - positions <= capacity / 4
    assert capacity % 64 == 0


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 40), st.integers(0, 9), st.integers(1, 16))
def test_masks_are_those_of_the_definition(
    nodes: int, length: int, padding: int, window: int
) -> None:
    tree = a_tree(nodes)
    rows = nodes + 1 + padding
    span = Span(slice(0, nodes + 1), 0, length + nodes + 1)
    inputs = unpack(pack([(5, tree)], [span], rows), rows)
    capacity = length + rows + 3
    masks = Masks(torch.float32, CPU, window, True).of_tree(inputs, capacity)
    assert (
        Masks(torch.float32, CPU, None, False)
        .of_tree(inputs, capacity)
        .equal(masks["full_attention"])
    )
    depths = [0, *tree.depths()]
    assert inputs.ids.tolist() == [5, *tree.tokens] + [5] * padding
    assert inputs.positions.tolist() == [length + d for d in depths] + [length] * padding
    assert inputs.slots.tolist() == list(range(length, length + rows))
    assert inputs.reach.tolist() == [length] * (nodes + 1) + [0] * padding
    for row in range(rows):
        for slot in range(capacity):
            node = slot - length
            if row > nodes:
                sees = row == node
                sees_nearby = sees
            elif node < 0:
                sees = True
                sees_nearby = length + depths[row] - slot < window
            else:
                sees = node <= nodes and bool(tree.ancestors()[row, node])
                sees_nearby = sees and depths[row] - depths[node] < window
            assert (masks["full_attention"][0, 0, row, slot] == 0) == sees
            assert (masks["sliding_attention"][0, 0, row, slot] == 0) == sees_nearby


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 20), st.integers(1, 16))
def test_masks_of_a_chunk_are_those_of_the_definition(start: int, rows: int, window: int) -> None:
    first = max(0, start - window + 1)
    masks = Masks(torch.float32, CPU, window, True).of_chunk(start, rows, first)
    full = masks["full_attention"][0, 0] == 0
    sliding = masks["sliding_attention"][0, 0] == 0
    assert full.tolist() == [[p <= start + r for p in range(start + rows)] for r in range(rows)]
    assert sliding.tolist() == [
        [start + r - window < p <= start + r for p in range(first, start + rows)]
        for r in range(rows)
    ]


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"])
def test_padding_changes_no_logits_and_no_row_of_the_cache(family: str) -> None:
    prompt = prompts(1, seed=3)[0][:40]
    results = []
    for rows in (None, 9, 30):
        model = make_target(family)
        model.start(len(prompt) + 20, Numerics(rows and PassRows.fixed(rows)))
        model.prefill(prompt[:-1], chunk=16)
        logits = [model.forward(prompt[-1], a_tree(8))]
        model.keep((0, 3))
        logits.append(model.forward(7, a_tree(8, seed=1)))
        results.append((torch.cat(logits), model.length))
    for padded_logits, length in results:
        torch.testing.assert_close(padded_logits, results[0][0], rtol=1e-4, atol=1e-4)
        assert length == len(prompt) + 2


@pytest.mark.usefixtures("buffers_move")
def test_passes_of_one_answer_have_few_shapes() -> None:
    model = make_target(max_position_embeddings=2000)
    model.context = 2000
    model.start(1200)
    model.prefill([1] * 700)
    shapes = set()
    for step in range(480):
        layout = model.lay_out([(1, chain([2] * (step % 13)))])
        shapes.add((layout.rows, layout.capacity))
        model.score(layout)
        model.keep(())
    assert {rows for rows, _ in shapes} == {1, 2, 4, 8, 12, 16}
    assert {capacity for _, capacity in shapes} == {768, 1024, 1280}


@pytest.mark.usefixtures("buffers_move")
def test_at_the_end_of_the_context_passes_have_the_rows_that_fit() -> None:
    model = make_target()
    prompt = [i % 50 for i in range(CONTEXT - 6)]
    model.start(CONTEXT + 8)
    model.prefill(prompt)
    layout = model.lay_out([(3, chain([1] * 5))])
    assert layout.rows == 6
    assert layout.capacity == CONTEXT
    assert torch.isfinite(model.score(layout)[0]).all()


def states(count: int, value: float) -> torch.Tensor:
    return torch.full((1, 2, count, 4), value) + torch.arange(count)[:, None] / 100


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2**40)), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_the_cache_holds_what_a_list_would(passes: list[tuple[int, int]]) -> None:
    """Random forward passes and kept rows, over several capacities, compared with plain lists."""
    cache = KVCache([False], 0)
    rows = []
    for value, (count, bits) in enumerate(passes):
        start = cache.length
        cache.reserve(start + count)
        seen = range(start + count)
        plan = PassPlan(torch.arange(start, start + count), seen, seen, start)
        new = states(count, value)
        keys, values = cache.layers[0].write(plan, new, -new)
        assert keys.shape == (1, 2, start + count, 4)
        kept_rows = [0, *(i for i in range(1, count) if bits >> i & 1)]
        cache.keep([kept_rows])
        rows += [new[0, 0, i, 0] for i in kept_rows]
        assert cache.length == len(rows)
        assert cache.layers[0].keys[0, 1, : len(rows), 2].tolist() == [float(r) for r in rows]
        assert cache.layers[0].values[0, 0, : len(rows), 3].tolist() == [-float(r) for r in rows]


def test_a_growing_cache_preserves_rows_that_are_not_kept_yet() -> None:
    """A draft's deeper nodes may be in a later forward pass than its first ones."""
    cache = KVCache([False], 0)
    draft_rows = states(9, 1.0)
    cache.reserve(9)
    cache.layers[0].write(PassPlan(torch.arange(9), range(9), range(9), 0), draft_rows, -draft_rows)
    cache.keep([[0, 1]])
    assert cache.reserve(1000)
    assert cache.length == 2
    assert cache.layers[0].keys[:, :, :9].equal(draft_rows)
    assert cache.layers[0].values[:, :, :9].equal(-draft_rows)


@pytest.mark.usefixtures("buffers_move")
def test_a_cache_without_memory_to_grow_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target(max_position_embeddings=900)
    model.context = 900
    model.start(100)
    model.prefill([i % VOCABULARY for i in range(200)])
    tree = a_tree(8)
    logits = model.forward(3, tree).clone()
    capacity = model.cache.capacity

    def new_zeros(self: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(torch.Tensor, "new_zeros", new_zeros)
        model.prefill([5] * 400)
    assert model.cache.capacity == capacity
    assert model.length == 200
    assert model.forward(3, tree).equal(logits)
    model.prefill([5] * 400)  # there is memory again
    assert model.length == 600
    assert torch.isfinite(model.forward(3, tree)).all()


def test_a_new_sequence_finds_the_buffers_empty_and_in_place() -> None:
    model = make_target()
    model.start(120)
    model.prefill([1, 2, 3])
    keys = model.cache.layers[0].keys
    with torch.inference_mode():
        keys[:, :, :3] = float("nan")
    model.start(100)
    assert model.cache.layers[0].keys is keys
    assert not keys.any()
    prompt = prompts(1)[0]
    assert plain(model, prompt) == plain(make_target(), prompt)
