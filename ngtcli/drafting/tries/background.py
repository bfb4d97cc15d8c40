"""Counts of sequences in a general text, built once, in flat arrays.

They contain the sequences of at most `depth` tokens of the texts, as a CountTrie does, but no rare
ones, and they do not grow. So nodes are in breadth-first order, the children of a node adjacent,
the most frequent first. Data that is read together is adjacent: the likeliest continuations of a
match, and the numbers of the chosen one. A node takes 24 bytes.

The arrays are mapped as they are in a file. Readers check every index and every count
(background_search.py): whatever the content, the worst result is a useless draft.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.tries.classes import CLASSES
from ngtcli.drafting.tries.corpus import Ints
from ngtcli.system.arrays import ArrayFile
from ngtcli.system.files import DamagedFileError

Wide = npt.NDArray[np.int64]

# Columns of `nodes`. Children of a node are the rows from its FIRST to the next row's. COUNT is of
# the node, FOLLOWED of all its continuations, the omitted included.
TOKEN, COUNT, FIRST, FOLLOWED = range(4)
ROW = 1  # column of `by_token`, after TOKEN
# Tokens, a context and what follows. Swept over 0.94 million tokens of English, mean acceptance
# length on odd ids at 32 nodes, with the pool: 2.655 with 7 and with 5, 2.651 with 4; each token
# costs a drafting step about 3 us.
DEPTH = 4
UNIT = 64  # how a count of 1 is stored (guess: weights such as log2(5) keep two digits)
LARGEST = 2**31 - 1  # a stored number; derived: int32


@dataclass(frozen=True, slots=True)
class BackgroundCounts:
    """`nodes`, int32 (nodes + 1, 4): the root first; the last row only ends the children.

    Siblings are sorted by descending count, those of equal counts by ascending token. But the
    root's children are sorted by token, and there is one for every id up to the largest, with count
    0 if the id was not counted. `by_token`, int32 (nodes + 1, 2), has at the rows of each node's
    children their tokens, ascending, and their rows. The root's TOKEN is the vocabulary size: ids
    from it on are not drafted. `classes`, int8 (token ids,), are the classes of the tokens' texts
    (classes.py); missing ones are of the class OTHER.
    """

    nodes: Ints
    by_token: Ints
    classes: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))

    def __len__(self) -> int:
        """Return the number of nodes, without the root."""
        return len(self.nodes) - 2

    @property
    def counted(self) -> int:
        """Return the number of sequences with a count, which reads all nodes."""
        return int((self.nodes[1:-1, COUNT] > 0).sum())

    def holds(self, sequence: Sequence[int]) -> bool:
        """Return whether a sequence was counted; sequences longer than DEPTH never are."""
        node = 0
        for token in sequence:
            first, end = self.nodes[node : node + 2, FIRST].tolist()
            if not 0 <= first <= end <= len(self.by_token):
                return False
            index = first + int(np.searchsorted(self.by_token[first:end, TOKEN], token))
            if index >= end or self.by_token[index, TOKEN] != token:
                return False
            node = int(self.by_token[index, ROW])
            if not 0 < node < len(self.nodes) - 1:
                return False
        return bool(self.nodes[node, COUNT] > 0)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a file (`files.BACKGROUNDS`)."""
        return {
            "nodes": self.nodes.reshape(-1),
            "by_token": self.by_token.reshape(-1),
            "classes": self.classes,
        }


def load_counts(
    file: ArrayFile, path: Path, vocabulary: int, expected: Mapping[str, str] | None = None
) -> BackgroundCounts:
    """Map the counts in a file, which all processes that open it share.

    Args:
        file: The kind of file.
        path: The file.
        vocabulary: Token ids from this number on are not drafted.
        expected: Metadata that the file must have.

    Raises:
        FileNotFoundError: There is no file.
        DamagedFileError: It is damaged, foreign, or has other metadata.
    """
    arrays, _ = file.map(path, expected)
    nodes = arrays["nodes"]
    by_token = arrays["by_token"]
    rows = len(nodes) // 4
    if rows < 2 or len(nodes) != 4 * rows or len(by_token) != 2 * rows:
        raise DamagedFileError("no rows of nodes")
    classes = arrays["classes"]
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < CLASSES:
        raise DamagedFileError("no class of tokens")
    counts = BackgroundCounts(nodes.reshape(rows, 4), by_token.reshape(rows, 2), classes)
    counts.nodes[0, TOKEN] = vocabulary
    return counts


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, sorted by parent and token: int64 arrays with an entry for each.

    `parents` are indices into the depth before; `counts` are in units of 1 / UNIT. `followed` has
    an entry for each node of the depth before: the count of all its continuations.
    """

    parents: Wide
    tokens: Wide
    counts: Wide
    followed: Wide


def lay_out(levels: Iterable[Level]) -> BackgroundCounts:
    """Lay out nodes in the order of `BackgroundCounts`.

    Args:
        levels: The nodes of each depth, from 1 on.
    """
    nodes = [np.array([[LARGEST, 0, 1, 0]], np.int32)]
    pairs = [np.zeros((1, 2), np.int32)]
    place = np.zeros(1, np.int64)  # of each node of the depth before, in its own order
    end = 1
    for level in levels:
        of_root = len(nodes) == 1
        # The root gets a child for every id up to the largest, counted or not.
        ids = np.arange(level.tokens.max(initial=-1)) if of_root else np.zeros(0, np.int64)
        added = np.setdiff1d(ids, level.tokens)
        tokens = np.concatenate([level.tokens, added])
        counts = np.concatenate([np.minimum(level.counts, LARGEST), np.zeros_like(added)])
        above = np.concatenate([place[level.parents], np.zeros_like(added)])
        order = np.argsort(tokens) if of_root else np.lexsort((tokens, -counts, above))
        nodes[-1][place, FOLLOWED] = np.minimum(level.followed, LARGEST)
        nodes[-1][:, FIRST] = end + np.searchsorted(above[order], np.arange(len(nodes[-1])))
        placed = np.empty(len(order), np.int64)
        placed[order] = np.arange(len(order))
        by_token = np.lexsort((tokens, above))
        pairs.append(np.column_stack([tokens, end + placed])[by_token].astype(np.int32))
        rows = np.zeros((len(order), 4), np.int32)
        rows[:, TOKEN] = tokens[order]
        rows[:, COUNT] = counts[order]
        end += len(order)
        rows[:, FIRST] = end  # until the next depth has children
        nodes.append(rows)
        place = placed[: len(level.tokens)]
    last = np.zeros((1, 4), np.int32)
    last[0, FIRST] = end
    pairs.append(np.zeros((1, 2), np.int32))
    return BackgroundCounts(np.concatenate([*nodes, last]), np.concatenate(pairs))
