"""The vectors of passages by an embedding model, and those nearest to a question's.

A vector is a piece of the store, by the passage's text and the model, and stored as soon as it is
made. All are compared with the question's where they are few. Else IVF-PQ finds some, that of H.
Jégou, M. Douze and C. Schmid, Product Quantization for Nearest Neighbor Search, 2011, by FAISS:
vectors lie in lists around centroids and are coded in parts of 8 bits each; a question looks at a
few lists, and the vectors of what is found are compared.
"""

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np

from ngtcli.retrieval.encoders import BATCH, Embedder
from ngtcli.retrieval.index import Floats, Index, Ints
from ngtcli.retrieval.search import Search
from ngtcli.system import reporting
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

VECTORS = Kind("vectors", bytes)  # float32 (width,) of length 1
CODED = Kind("ivf-pq", bytes)  # an index as FAISS writes it, of one set of passages
_FORMAT = 3  # of both

FLAT_MOST = 200_000  # passages that are all compared with a question: 0.3 GB of 384 numbers each
LISTS, PARTS, PROBED = 4096, 64, 16  # of IVF-PQ: lists, most parts of a vector, lists looked at
_AGAIN = 4  # times as many as wanted are compared by their vectors; guess


class Vectors:
    """The vectors of an index's passages by one embedding model.

    `kind` says how they are searched, "flat" or "ivf-pq"; `embedded` vectors were made here.
    Without `search.keep` all are compared: to learn lists and codes for one question takes longer.
    """

    def __init__(self, index: Index, embedder: Embedder, search: Search) -> None:
        self._index, self._embedder, self._search = index, embedder, search
        texts = map(index.text, range(len(index)))
        self._keys = [key_of(_FORMAT, embedder.fingerprint, text) for text in texts]
        many = len(index) > FLAT_MOST and search.keep and find_spec("faiss")
        self.kind = "ivf-pq" if many else "flat"
        self.embedded = 0
        self._rows: Floats | None = None  # the vectors of all passages
        self._index_of_codes: Any = None

    def candidates(self, asked: Floats, others: Sequence[int]) -> Ints:
        """Passages to compare with a question's vector, ascending: all, or some and the `others`.

        IVF-PQ may miss some of the nearest. Raises ModelError.
        """
        count = len(self._keys)
        if self.kind == "flat":
            return np.arange(count)
        if self._index_of_codes is None:
            self._index_of_codes = self._coded()
        _, found = self._index_of_codes.search(asked[None], _AGAIN * self._search.most)
        return np.union1d(found[(found >= 0) & (found < count)], others).astype(np.int64)

    def of(self, passages: Ints) -> Floats:
        """The vectors of passages, one at least: float32 (passages, width). Raises ModelError.

        Those that the store does not have are made.
        """
        whole = len(passages) == len(self._keys)
        if whole and self._rows is not None:
            return self._rows
        texts = {self._keys[passage]: passage for passage in passages.tolist()}
        vectors = VECTORS.get_many(texts) if self._search.keep else {}
        self._embed({k: self._index.text(p) for k, p in texts.items() if k not in vectors}, vectors)
        rows = b"".join([vectors[self._keys[passage]] for passage in passages.tolist()])
        found = np.frombuffer(rows, np.float32).reshape(len(passages), -1)
        self._rows = found if whole and self.kind == "flat" else None
        return found

    def _embed(self, missing: dict[str, str], vectors: dict[str, bytes]) -> None:
        """Make the vectors of missing texts, store them and add them to `vectors`."""
        order = sorted(missing, key=lambda key: -len(missing[key]))  # equal lengths need no padding
        longer = 0
        for first in range(0, len(order), BATCH):
            reporting.status(f"Embedding passages: {first} of {len(order)} …")
            keys = order[first : first + BATCH]
            rows, cut = self._embedder.passages([missing[key] for key in keys])
            made = {key: row.tobytes() for key, row in zip(keys, rows, strict=True)}
            if self._search.keep:
                VECTORS.put_many(made)
            vectors |= made
            longer += cut
        self.embedded += len(order)
        if longer:
            reporting.warn(
                f"{longer} of {len(order)} passages are longer than the {self._embedder.tokens}"
                f" tokens that {self._embedder.name} reads: only their beginnings count for it"
            )

    def _coded(self) -> Any:
        """The IVF-PQ index of all vectors, which is stored.

        Codes are not ordered (`np`): that serves comparisons of codes, which are not made, and
        takes most of the training.
        """
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its bindings, about themselves
            import faiss  # here: it is an extra
        faiss.omp_set_num_threads(torch.get_num_threads())
        key = key_of(_FORMAT, *self._keys)
        if (stored := CODED.get(key)) is not None:
            with suppress(RuntimeError):  # of another version of FAISS
                return faiss.deserialize_index(np.frombuffer(stored, np.uint8))
        rows = self.of(np.arange(len(self._keys)))
        reporting.status(f"Building the index of {len(rows)} vectors …")
        form = f"IVF{LISTS},PQ{math.gcd(rows.shape[1], PARTS)}np"
        coded: Any = faiss.index_factory(rows.shape[1], form, faiss.METRIC_INNER_PRODUCT)
        coded.train(rows)
        coded.add(rows)
        coded.nprobe = PROBED
        CODED.put(key, faiss.serialize_index(coded).tobytes())
        return coded
