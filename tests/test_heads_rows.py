"""The rows that a head keeps: what each row of a pass sees, against a list of all rows."""

import random

import pytest
import torch

from ngtcli.heads.rows import DraftRows, HeadPass, Sight


class Rows:
    """All rows ever given, by number, and their positions; what is seen is told by number."""

    def __init__(self, sight: Sight) -> None:
        self.sight, self.at = sight, list[int]()
        self.rows = DraftRows([sight], torch.device("cpu"), torch.float32)

    def give(self, given: HeadPass) -> list[set[int]]:
        """The rows that each of those of a pass sees."""
        rows = len(given.positions)
        new = torch.arange(len(self.at), len(self.at) + rows).view(1, 1, rows, 1).float()
        self.at += given.positions.tolist()
        keys, values = given.cache.update(new, -new, 0)
        assert torch.equal(keys, -values)
        mask = given.mask(0)
        assert mask.shape == (1, 1, rows, keys.shape[2])
        return [set(keys[0, 0, row == 0, 0].int().tolist()) for row in mask[0, 0]]

    def near(self, position: int, rows: list[int]) -> set[int]:
        window = self.sight.window or 1000
        return {row for row in rows if abs(position - self.at[row]) < window}


@pytest.mark.parametrize("window", [None, 1, 2, 5, 30])
def test_each_row_sees_what_is_near_and_leads_to_it(window: int | None) -> None:
    rng = random.Random(window or 0)
    sight = Sight(window, rng.random() < 0.5)
    rows, kept, start, end = Rows(sight), list[int](), 0, 0  # numbers of rows; positions
    for _ in range(120):
        if rng.random() < 0.05:
            end += rng.choice([3, -end])  # a gap, or another text
            start, kept = end, []
        count = rng.choice([1, 1, 2, 3, 11])
        found = rows.give(rows.rows.chain(rows.rows.go_to(end), count))
        first = len(rows.at) - count
        for place, seen in enumerate(found):
            before = [*kept, *range(first, first + place + 1)]
            assert seen == rows.near(end - start + place, before)
        rows.rows.keep(count)
        kept += range(first, len(rows.at))
        end += count
        if rng.random() < 0.5:
            sees = torch.ones((4, 4), dtype=torch.bool)
            found = rows.give(rows.rows.given(end - start, sees, torch.arange(4)))
            own = range(len(rows.at) - 4, len(rows.at))
            for place, seen in enumerate(found):
                others = own[: place + 1] if sight.causal else own
                assert seen == rows.near(end - start + place, [*kept, *others])
        if rng.random() < 0.7:
            check_tree(rows, kept, end - start, rng)


def check_tree(rows: Rows, kept: list[int], end: int, rng: random.Random) -> None:
    """Nodes of a plan, a depth at a time, each below one of the depth before."""
    beam, first = rng.randrange(1, 5), len(rows.at)
    paths, sees = beam * [list[int]()], torch.zeros((beam, 0), dtype=torch.bool)
    for depth in range(rng.randrange(5)):
        parents = torch.tensor(rng.choices(range(beam), k=beam))
        sees = torch.cat([sees[parents], torch.eye(beam, dtype=torch.bool)], 1)
        nodes = torch.arange(beam * (depth + 1))
        found = rows.give(rows.rows.given(end, sees, nodes // beam, beam * depth))
        numbers = range(first + beam * depth, len(rows.at))
        paths = [[*paths[p], number] for p, number in zip(parents, numbers, strict=True)]
        for path, seen in zip(paths, found, strict=True):
            assert rows.at[path[-1]] == end + depth
            assert seen == rows.near(end + depth, [*kept, *path])
