"""The rows that a head keeps: what each row of a pass sees, against a list of all rows."""

import random

import pytest
import torch
from torch import Tensor

from ngtcli.heads.cache import ROOT, HeadCache, additive


class Rows:
    """All rows ever given, by number, and their positions; what is seen is told by number."""

    def __init__(self, cache: HeadCache) -> None:
        self.cache, self.at = cache, list[int]()

    def give(self, mask: Tensor | None, rows: int) -> list[set[int]]:
        """The rows that each of further ones sees; nothing without a mask."""
        new = torch.arange(len(self.at), len(self.at) + rows).view(1, 1, rows, 1)
        self.at += self.cache.positions(rows).tolist()
        keys, values = self.cache.update(new, -new, 0)
        assert torch.equal(keys, -values)
        if mask is None:
            return []
        numbers = keys[0, 0, :, 0]
        assert mask.shape == (rows, len(numbers))
        return [set(numbers[row].tolist()) for row in mask]

    def near(self, position: int, rows: list[int]) -> set[int]:
        window = self.cache.window or 1000
        return {row for row in rows if abs(position - self.at[row]) < window}


@pytest.mark.parametrize("window", [None, 1, 2, 5, 30])
def test_each_row_sees_what_is_near_and_leads_to_it(window: int | None) -> None:
    rng = random.Random(window or 0)
    rows = Rows(HeadCache(window))
    kept: list[int] = []  # numbers of rows
    end = 0
    for _ in range(120):
        if rng.random() < 0.05:
            end, kept = end + rng.choice([3, -end]), []  # a gap, or another text
        count = rng.choice([1, 1, 2, 3, 11])
        if rng.random() < 0.3:
            rows.cache.put(count, end)
            rows.give(None, count)
        else:
            found = rows.give(rows.cache.chain(count, end), count)
            first = len(rows.at) - count
            for place, seen in enumerate(found):
                before = [*kept, *range(first, first + place + 1)]
                assert seen == rows.near(end + place, before)
        rows.cache.keep()
        kept += range(len(rows.at) - count, len(rows.at))
        end += count
        if rng.random() < 0.5:
            check_block(rows, kept, end, rng.random() < 0.5)
        if rng.random() < 0.7:
            rows.cache.drop()
            check_tree(rows, kept, end, rng)


def check_block(rows: Rows, kept: list[int], end: int, causal: bool) -> None:
    found = rows.give(rows.cache.block(4, causal), 4)
    own = range(len(rows.at) - 4, len(rows.at))
    for place, seen in enumerate(found):
        others = own[: place + 1] if causal else own
        assert seen == rows.near(end + place, [*kept, *others])


def check_tree(rows: Rows, kept: list[int], end: int, rng: random.Random) -> None:
    """Nodes in some calls, each below the root or a node of an earlier call."""
    paths: list[list[int]] = []  # numbers of the rows that lead to each node, its own last
    for _ in range(rng.randrange(5)):
        parents = [rng.randrange(ROOT, len(paths)) for _ in range(rng.randrange(1, 5))]
        found = rows.give(rows.cache.tree(parents), len(parents))
        first = len(rows.at) - len(parents)
        new = [
            [*(paths[parent] if parent != ROOT else []), number]
            for number, parent in enumerate(parents, first)
        ]
        for path, seen in zip(new, found, strict=True):
            assert rows.at[path[-1]] == end + len(path) - 1
            assert seen == rows.near(end + len(path) - 1, [*kept, *path])
        paths += new


def test_a_mask_is_added_to_scores() -> None:
    mask = additive(torch.tensor([[True, False]]), torch.zeros(1, dtype=torch.float16))
    assert mask.dtype == torch.float16
    assert mask.shape == (1, 1, 1, 2)
    assert mask[0, 0, 0].tolist() == [0.0, torch.finfo(torch.float16).min]
