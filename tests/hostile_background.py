"""`auto` over background counts of any content; run without numba (NUMBA_DISABLE_JIT=1).

Then compiled functions are plain Python, and an array sees each of its indices. Prints how many
arrays of which kind were gone through; raises IndexError at the first index out of bounds.
"""

import sys
from typing import Any

import numpy as np

from ngtcli.draft.auto.config import Options
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import fitted_escapes
from ngtcli.draft.drafter import Context
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts

VOCABULARY = 6


class Guarded(np.ndarray):
    """An array whose indices, but for slices, are neither negative nor beyond its end."""

    def __getitem__(self, key: Any) -> Any:
        for index, size in zip(key if isinstance(key, tuple) else (key,), self.shape, strict=False):
            if not isinstance(index, slice) and not 0 <= int(index) < size:
                raise IndexError(f"{index} of {size}")
        return super().__getitem__(key)


def drive(nodes: np.ndarray, by_token: np.ndarray, rng: np.random.Generator) -> int:
    """Draft and learn over these rows; the number of drafted tokens."""
    nodes[0, TOKEN] = VOCABULARY
    counts = BackgroundCounts(nodes.view(Guarded), by_token.view(Guarded))
    drafter, drafted = Auto(Options(), fitted_escapes(), background=counts), 0
    drafter.reset(Context(rng.integers(0, VOCABULARY, 5).tolist()))
    for _ in range(2):
        tree = drafter.propose((), 8)
        assert all(0 <= token < VOCABULARY for token in tree.tokens), tree
        drafter.observe(rng.integers(0, VOCABULARY, 2).tolist())
        drafted += len(tree)
    escapes = drafter.tallies.arrays.escape
    assert np.isfinite(escapes).all() and (escapes > 0).all() and (escapes < 1).all()
    return drafted


def main() -> None:
    """Arrays of random numbers, and true ones with some numbers changed."""
    rng = np.random.default_rng(int(sys.argv[1]))
    drafted = 0
    odd = np.array([-(2**31), -1, 0, 1, 2, 7, 2**31 - 1], np.int32)
    for _ in range(int(sys.argv[2])):
        size = rng.integers(2, 12)
        numbers = np.concatenate([odd, np.arange(size, dtype=np.int32)])
        drafted += drive(rng.choice(numbers, (size, 4)), rng.choice(numbers, (size, 2)), rng)
        true = build_counts([(rng.integers(0, VOCABULARY, 30), 1.0)], least=())
        numbers = np.concatenate([odd, np.arange(len(true.nodes), dtype=np.int32)])
        for array, changed in ((true.nodes, 8), (true.by_token, 4)):
            array.reshape(-1)[rng.integers(0, array.size, changed)] = rng.choice(numbers, changed)
        drafted += drive(true.nodes, true.by_token, rng)
    print(drafted)


if __name__ == "__main__":
    main()
