"""The vectors of passages by an embedding model.

A vector is a piece of the store, by the passage's text and the model, and stored as soon as it is
made. All are compared with the question's: ngt reads some 300,000 passages at most, 0.5 GB of 384
numbers each.
"""

from collections.abc import Mapping

import numpy as np

from ngtcli.retrieve.encoders import BATCH, Embedder
from ngtcli.retrieve.index import Floats, Index
from ngtcli.retrieve.ranking import Search
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

VECTORS = Kind("vectors", bytes)  # float32 (width,) of length 1
_FORMAT = 3


def vectors_of(index: Index, embedder: Embedder, search: Search) -> tuple[Floats, int]:
    """The vectors of an index's passages, float32 (passages, width), and how many were made.

    Raises ModelError.
    """
    texts = [index.text(passage) for passage in range(len(index))]
    keys = [key_of(_FORMAT, embedder.fingerprint, text) for text in texts]
    of_key = dict(zip(keys, texts, strict=True))
    vectors = VECTORS.get_many(of_key) if search.keep else {}
    missing = {key: text for key, text in of_key.items() if key not in vectors}
    vectors |= _made(missing, embedder, search)
    rows = b"".join([vectors[key] for key in keys])
    return np.frombuffer(rows, np.float32).reshape(len(keys), -1), len(missing)


def _made(texts: Mapping[str, str], embedder: Embedder, search: Search) -> dict[str, bytes]:
    """The vectors of texts by their keys, stored as they come."""
    order = sorted(texts, key=lambda key: -len(texts[key]))  # equal lengths need no padding
    vectors, longer = dict[str, bytes](), 0
    for first in range(0, len(order), BATCH):
        search.status(f"Embedding passages: {first} of {len(order)} …")
        keys = order[first : first + BATCH]
        rows, cut = embedder.passages([texts[key] for key in keys])
        made = {key: row.tobytes() for key, row in zip(keys, rows, strict=True)}
        if search.keep:
            VECTORS.put_many(made)
        vectors |= made
        longer += cut
    if longer:
        search.warn(
            f"{longer} of {len(order)} passages are longer than the {embedder.tokens}"
            f" tokens that {embedder.name} reads: only their beginnings count for it"
        )
    return vectors
