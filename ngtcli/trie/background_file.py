"""The file of background counts: in the folder of tries, by its rules, but mapped, not read.

A file's content is not compared with its checksum when it is opened, which would take longer than
opening may; every index and count is checked where it is used.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ngtcli.system.arrays import write_arrays
from ngtcli.system.mapped import map_unchecked
from ngtcli.system.storage import DamagedFileError
from ngtcli.trie.background import TOKEN, BackgroundCounts

FORMAT = 3
TOKENIZER = "tokenizer"  # metadata: the fingerprint of the tokenizer whose ids were counted
_ARRAYS = "nodes", "by_token"
_COLUMNS = 4, 2  # of each
MOST = 2**31  # bytes of a file; derived: 90 million nodes


def save_background(path: Path, counts: BackgroundCounts, metadata: Mapping[str, str]) -> Path:
    """Write the counts and what is said of them; only the owner can read the file.

    Returns `path`. Raises OSError, EFBIG beyond MOST bytes.
    """
    described = {**metadata, "format": str(FORMAT)}
    arrays = (counts.nodes.reshape(-1), counts.by_token.reshape(-1))
    return write_arrays(path, dict(zip(_ARRAYS, arrays, strict=True)), described, MOST)


def load_background(
    path: Path, vocabulary: int, wanted: Mapping[str, str] | None = None
) -> BackgroundCounts:
    """The counts in a file, mapped and shared by all processes that open it.

    `vocabulary` bounds the ids that are drafted. Raises FileNotFoundError; DamagedFileError where
    the file is damaged, foreign, or has other metadata than `wanted`.
    """
    wanted = {"format": str(FORMAT), **(wanted or {})}
    arrays, _ = map_unchecked(path, _ARRAYS, wanted, MOST)
    flat = [arrays[name] for name in _ARRAYS]
    rows = len(flat[0]) // _COLUMNS[0]
    if rows < 2 or any(len(f) != rows * c for f, c in zip(flat, _COLUMNS, strict=True)):
        raise DamagedFileError("no rows of nodes")
    nodes, by_token = (f.reshape(rows, c) for f, c in zip(flat, _COLUMNS, strict=True))
    nodes[0, TOKEN] = np.int32(vocabulary)
    return BackgroundCounts(nodes, by_token)
