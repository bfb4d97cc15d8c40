"""Draft with `auto` from background counts of any content: `SEED COUNT` are its arguments.

Run it without numba (NUMBA_DISABLE_JIT=1): compiled functions are then plain Python, and an array
checks each index. It prints the number of drafted tokens, and raises IndexError at the first index
that is out of bounds.
"""

import sys
from typing import Any

import numpy as np

from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.drafter import Context, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.tries.background import COUNT, FIRST, FOLLOWED, TOKEN, BackgroundCounts
from tests.support.background_counts import build_counts

VOCABULARY = 12  # more than the children of a node that are compared without a search


class CheckedArray(np.ndarray):
    """An array that refuses indices that are negative or beyond its end; slices are not checked."""

    def __getitem__(self, key: Any) -> Any:
        indices = key if isinstance(key, tuple) else (key,)
        for index, size in zip(indices, self.shape, strict=False):
            if isinstance(index, slice):
                continue
            if not 0 <= int(index) < size:
                raise IndexError(f"{index} of {size}")
        return super().__getitem__(key)


def drive(nodes: np.ndarray, by_token: np.ndarray, rng: np.random.Generator) -> int:
    """Draft from these counts and learn; return the number of drafted tokens."""
    nodes[0, TOKEN] = VOCABULARY
    counts = BackgroundCounts(nodes.view(CheckedArray), by_token.view(CheckedArray))
    drafter = Auto(DraftSettings(background=counts))
    drafted = 0
    log = TokenLog(rng.integers(0, VOCABULARY, 5).tolist())
    drafter.begin(Context(log.token_ids))
    for _ in range(2):
        tree = drafter.propose(log, Room(8)).tree
        assert all(0 <= token < VOCABULARY for token in tree.tokens), tree
        log.emit(rng.integers(0, VOCABULARY, 2).tolist())
        drafter.learn(log, Outcome())
        drafted += len(tree)
    escapes = drafter.tallies.escape
    assert np.isfinite(escapes).all()
    assert (escapes > 0).all()
    assert (escapes < 1).all()
    probabilities = drafter.search(log, Room(8))
    assert probabilities is not None
    assert (probabilities > 0).all()
    assert (probabilities < 1 + 1e-9).all()
    return drafted


def odd_numbers(rng: np.random.Generator, shape: Any, rows: int) -> np.ndarray:
    """Numbers of which half are valid rows of an array, and half are near the bounds of int32."""
    bounds = np.array([-(2**31), -1, 0, 1, 2, rows - 1, rows, 2**31 - 1], np.int32)
    valid = rng.integers(0, rows, shape).astype(np.int32)
    return np.array(np.where(rng.random(shape) < 0.5, rng.choice(bounds, shape), valid))


def random_arrays(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Arrays of random numbers alone."""
    rows = int(rng.integers(2, 12))
    return odd_numbers(rng, (rows, 4), rows), odd_numbers(rng, (rows, 2), rows)


def valid_counts(rng: np.random.Generator) -> BackgroundCounts:
    return build_counts([rng.integers(0, VOCABULARY, 100).tolist()], least=())


def changed_arrays(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Valid counts in which some numbers are changed."""
    counts = valid_counts(rng)
    for array, column in ((counts.nodes, rng.integers(4)), (counts.by_token, 1)):
        rows = rng.integers(0, len(array), len(array) // 8)
        array[rows, column] = odd_numbers(rng, len(rows), len(array))
    return counts.nodes, counts.by_token


def arrays_with_equal_children(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Counts in which some nodes have the same child several times, each with the full count."""
    counts = valid_counts(rng)
    for node in rng.integers(0, len(counts), 5):
        first, end = counts.nodes[node : node + 2, FIRST]
        counts.nodes[first:end, TOKEN] = counts.nodes[first, TOKEN]
        counts.nodes[first:end, COUNT] = counts.nodes[node, FOLLOWED]
    return counts.nodes, counts.by_token


def main() -> None:
    """Draft from arrays of each kind, and print the number of drafted tokens."""
    seed, repeats = (int(argument) for argument in sys.argv[1:])
    rng = np.random.default_rng(seed)
    drafted = 0
    for _ in range(repeats):
        for make_arrays in (random_arrays, changed_arrays, arrays_with_equal_children):
            nodes, by_token = make_arrays(rng)
            drafted += drive(nodes, by_token, rng)
    print(drafted)


if __name__ == "__main__":
    main()
