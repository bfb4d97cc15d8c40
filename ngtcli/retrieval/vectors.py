"""The vectors of passages by an embedding model, and those nearest to a question's.

A vector is cached under the text of its passage and the model, and stored as soon as it is
computed. If there are few, all are compared with the question's. Otherwise FAISS finds
candidates by IVF-PQ (H. Jégou, M. Douze and C. Schmid, Product Quantization for Nearest Neighbor
Search, 2011): vectors are divided into lists around centroids and coded in parts of 8 bits each.
A question is compared with the codes of a few lists, and then with the vectors of the nearest.
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

MAX_FLAT = 200_000  # passages that are all compared with a question: 0.3 GB of 384 numbers each
LISTS = 4096  # of IVF-PQ
MAX_PARTS = 64  # of a vector, of 8 bits each
PROBED_LISTS = 16  # compared with a question
_CANDIDATES_PER_PASSAGE = 4  # that are compared by their vectors, for each that is wanted (guess)


class Vectors:
    """The vectors of an index's passages by one embedding model.

    Attributes:
        kind: How they are searched: "flat" or "ivf-pq". Without the cache it is always "flat", as
            learning lists and codes for one question takes longer than comparing all vectors.
        embedded: The number of vectors that were computed here.
    """

    def __init__(self, index: Index, embedder: Embedder, search: Search) -> None:
        self._index = index
        self._embedder = embedder
        self._search = search
        texts = [index.text(passage) for passage in range(len(index))]
        self._keys = [key_of(_FORMAT, embedder.fingerprint, text) for text in texts]
        uses_codes = len(index) > MAX_FLAT and search.use_cache and find_spec("faiss")
        self.kind = "ivf-pq" if uses_codes else "flat"
        self.embedded = 0
        self._all_vectors: Floats | None = None  # of all passages, (passages, width)
        self._codes: Any = None  # an index of FAISS

    def candidates(self, question_vector: Floats, others: Sequence[int]) -> Ints:
        """Return the passages to compare with a question by their vectors, in ascending order.

        Args:
            question_vector: (width,)
            others: Passages to compare in any case, as IVF-PQ may miss some of the nearest.

        Returns:
            int64 (candidates,): all passages where they are compared one by one.

        Raises:
            ModelError: The embedding model does not run.
        """
        count = len(self._keys)
        if self.kind == "flat":
            return np.arange(count)
        if self._codes is None:
            self._codes = self._load_codes()
        wanted = _CANDIDATES_PER_PASSAGE * self._search.max_passages
        _, nearest = self._codes.search(question_vector[None], wanted)
        nearest = nearest[(nearest >= 0) & (nearest < count)]  # FAISS pads with -1
        return np.union1d(nearest, others).astype(np.int64)

    def of(self, passages: Ints) -> Floats:
        """Return the vectors of at least one passage; those that are not cached are computed.

        Returns:
            float32 (passages, width)

        Raises:
            ModelError: The embedding model does not run.
        """
        are_all = len(passages) == len(self._keys)
        if are_all and self._all_vectors is not None:
            return self._all_vectors
        passage_of = {self._keys[passage]: passage for passage in passages.tolist()}
        vectors = VECTORS.get_many(passage_of) if self._search.use_cache else {}
        missing = {
            key: self._index.text(passage)
            for key, passage in passage_of.items()
            if key not in vectors
        }
        vectors |= self._embed(missing)
        rows = b"".join([vectors[self._keys[passage]] for passage in passages.tolist()])
        matrix = np.frombuffer(rows, np.float32).reshape(len(passages), -1)
        if are_all and self.kind == "flat":
            self._all_vectors = matrix
        return matrix

    def _embed(self, texts: dict[str, str]) -> dict[str, bytes]:
        """Compute the vectors of texts, and store them. Texts and vectors are by their keys."""
        vectors: dict[str, bytes] = {}
        order = sorted(texts, key=lambda key: -len(texts[key]))  # equal lengths need no padding
        truncated = 0
        for first in range(0, len(order), BATCH):
            reporting.status(f"Embedding passages: {first} of {len(order)} …")
            keys = order[first : first + BATCH]
            rows, batch_truncated = self._embedder.passages([texts[key] for key in keys])
            batch = {key: row.tobytes() for key, row in zip(keys, rows, strict=True)}
            if self._search.use_cache:
                VECTORS.put_many(batch)
            vectors |= batch
            truncated += batch_truncated
        self.embedded += len(order)
        if truncated:
            reporting.warn(
                f"{truncated} of {len(order)} passages are longer than the {self._embedder.tokens}"
                f" tokens that {self._embedder.name} reads: it sees only their beginnings"
            )
        return vectors

    def _load_codes(self) -> Any:
        """Return the IVF-PQ index of all vectors from the cache, or make and store it.

        Its codes are not sorted ("np"): sorting takes most of the training, and serves comparisons
        between codes, which are not made.
        """
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its bindings, about themselves
            import faiss  # here, as it is an extra
        faiss.omp_set_num_threads(torch.get_num_threads())
        key = key_of(_FORMAT, *self._keys)
        stored = CODED.get(key)
        if stored is not None:
            with suppress(RuntimeError):  # another version of FAISS wrote it
                return faiss.deserialize_index(np.frombuffer(stored, np.uint8))

        vectors = self.of(np.arange(len(self._keys)))
        reporting.status(f"Building the index of {len(vectors)} vectors …")
        width = vectors.shape[1]
        parts = math.gcd(width, MAX_PARTS)
        codes: Any = faiss.index_factory(
            width, f"IVF{LISTS},PQ{parts}np", faiss.METRIC_INNER_PRODUCT
        )
        codes.train(vectors)
        codes.add(vectors)
        codes.nprobe = PROBED_LISTS
        CODED.put(key, faiss.serialize_index(codes).tobytes())
        return codes
