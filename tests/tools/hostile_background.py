"""`auto` over background counts of any content; run without numba (NUMBA_DISABLE_JIT=1).

Then compiled functions are plain Python, and an array sees each of its indices. Prints how many
arrays of which kind were gone through; raises IndexError at the first index out of bounds.
"""

import sys
from typing import Any

import numpy as np

from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.drafter import Context, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.tries.background import COUNT, FIRST, FOLLOWED, TOKEN, BackgroundCounts
from tests.support.background_counts import build_counts

VOCABULARY = 12  # more than the children that are compared before a search


class Guarded(np.ndarray):
    """An array whose indices, except for slices, are neither negative nor beyond its end."""

    def __getitem__(self, key: Any) -> Any:
        for index, size in zip(key if isinstance(key, tuple) else (key,), self.shape, strict=False):
            if not isinstance(index, slice) and not 0 <= int(index) < size:
                raise IndexError(f"{index} of {size}")
        return super().__getitem__(key)


def drive(nodes: np.ndarray, by_token: np.ndarray, rng: np.random.Generator) -> int:
    """Draft and learn over these rows; the number of drafted tokens."""
    nodes[0, TOKEN] = VOCABULARY
    counts = BackgroundCounts(nodes.view(Guarded), by_token.view(Guarded))
    drafter, drafted = Auto(DraftSettings(background=counts)), 0
    log = TokenLog(rng.integers(0, VOCABULARY, 5).tolist())
    drafter.begin(Context(log.token_ids))
    for _ in range(2):
        tree = drafter.propose(log, Room(8)).tree
        assert all(0 <= token < VOCABULARY for token in tree.tokens), tree
        log.emit(rng.integers(0, VOCABULARY, 2).tolist())
        drafter.learn(log, Outcome())
        drafted += len(tree)
    escapes, probabilities = drafter.tallies.escape, drafter.search(log, Room(8))
    assert probabilities is not None
    assert np.isfinite(escapes).all() and (escapes > 0).all() and (escapes < 1).all()
    assert (probabilities > 0).all() and (probabilities < 1 + 1e-9).all()
    return drafted


def numbers(rng: np.random.Generator, shape: Any, rows: int) -> np.ndarray:
    """Half of them rows of an array, half bounds of what int32 holds and their like."""
    odd = np.array([-(2**31), -1, 0, 1, 2, rows - 1, rows, 2**31 - 1], np.int32)
    small = rng.integers(0, rows, shape).astype(np.int32)
    return np.array(np.where(rng.random(shape) < 0.5, rng.choice(odd, shape), small))


def main() -> None:
    """Arrays of random numbers, and true ones with some numbers changed."""
    rng = np.random.default_rng(int(sys.argv[1]))
    drafted = 0
    for _ in range(int(sys.argv[2])):
        size = int(rng.integers(2, 12))
        drafted += drive(numbers(rng, (size, 4), size), numbers(rng, (size, 2), size), rng)
        true = build_counts([rng.integers(0, VOCABULARY, 100).tolist()], least=())
        for array, column in ((true.nodes, rng.integers(4)), (true.by_token, 1)):
            rows = rng.integers(0, len(array), len(array) // 8)
            array[rows, column] = numbers(rng, len(rows), len(array))
        drafted += drive(true.nodes, true.by_token, rng)
        same = build_counts([rng.integers(0, VOCABULARY, 100).tolist()], least=())
        for node in rng.integers(0, len(same), 5):  # one token several times, each time always
            low, high = same.nodes[node : node + 2, FIRST]
            same.nodes[low:high, TOKEN] = same.nodes[low, TOKEN]
            same.nodes[low:high, COUNT] = same.nodes[node, FOLLOWED]
        drafted += drive(same.nodes, same.by_token, rng)
    print(drafted)


if __name__ == "__main__":
    main()
