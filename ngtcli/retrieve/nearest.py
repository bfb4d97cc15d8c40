"""The vectors nearest to a question's, by FAISS: all compared where they are few, else IVF-PQ.

IVF-PQ is that of H. Jégou, M. Douze and C. Schmid, Product Quantization for Nearest Neighbor
Search, 2011: vectors lie in lists around centroids and are coded in parts of 8 bits each; a
question looks at a few lists. The best found are scored again by the vectors themselves.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.retrieve.encoders import Floats
from ngtcli.retrieve.index import FOLDER
from ngtcli.retrieve.vectors import Vectors
from ngtcli.system.arrays import Array, ArrayFile
from ngtcli.system.cache import renew

FLAT_MOST = 100_000  # vectors that are all compared with a question
LISTS, PARTS, PROBED = 4096, 64, 16  # of IVF-PQ: lists, parts of a vector, lists looked at
_EACH = 39  # vectors a centroid that FAISS trains on without a warning
_AGAIN = 4  # times as many as wanted are scored again; guess
FILES = ArrayFile(
    "the index of vectors is",
    FOLDER,
    ".ivf-pq.safetensors",
    format="2",
    most=2**33,  # guess
    arrays={"index": Array("uint8")},
)

Status = Callable[[str], None]


class Nearest:
    """Finds the vectors nearest to one. `kind` is "flat" or "ivf-pq"."""

    def __init__(self, rows: Floats, coded: Any = None) -> None:
        self._rows, self._coded = rows, coded
        self.kind = "flat" if coded is None else "ivf-pq"

    def search(self, vector: Floats, most: int) -> list[tuple[int, float]]:
        """The `most` passages whose vectors have the largest cosine with `vector`, the best first.

        IVF-PQ may miss some, and finds fewer where the lists looked at have fewer.
        """
        count = len(self._rows)
        most = min(most, count)
        if not most:
            return []
        if self._coded is None:
            faiss = _faiss()
            _, found = faiss.knn(vector[None], self._rows, most, metric=faiss.METRIC_INNER_PRODUCT)
        else:
            _, found = self._coded.search(vector[None], min(_AGAIN * most, count))
        own = found[0][(found[0] >= 0) & (found[0] < count)]  # a damaged file may have others
        passages = np.sort(own)
        cosines = self.cosines(vector, passages)
        best = np.argsort(-cosines, kind="stable")[:most]
        return list(zip(passages[best].tolist(), cosines[best].tolist(), strict=True))

    def cosines(self, vector: Floats, passages: npt.NDArray[np.int64]) -> Floats:
        """The cosines of these passages' vectors with `vector`, float32 (passages,)."""
        found: Floats = self._rows[passages] @ vector
        return found


def nearest_of(
    vectors: Vectors, status: Status = lambda _: None, warn: Status = lambda _: None
) -> Nearest:
    """What finds the nearest of these vectors: for many IVF-PQ, from the cache where it is there.

    Lists and codes are taken from another set of vectors of the same folder, but learned again
    where the vectors are more than twice or less than half as many as those they were learned from.
    """
    count, width = vectors.rows.shape
    if count <= FLAT_MOST:
        return Nearest(vectors.rows)
    path = FILES.path(f"{vectors.name}.{vectors.key}")
    stored = _load(path, width, warn)
    if stored is not None and stored[0].ntotal == count:
        renew(path)
        return Nearest(vectors.rows, stored[0])
    status(f"Building the index of {count} vectors …")
    others = filter(None, (_load(p, width) for p in FILES.others(vectors.name)))
    fitting = ((c, n) for c, n in others if n <= 2 * count <= 4 * n)
    if (stored := next(fitting, None)) is not None:
        coded, trained = stored
        coded.reset()
        coded.add(vectors.rows)
    else:
        coded, trained = ivf_pq(vectors.rows), count
    arrays = {"index": _faiss().serialize_index(coded)}
    if FILES.keep(path, arrays, {"trained": str(trained)}, warn):
        FILES.keep_last(vectors.name)
    return Nearest(vectors.rows, coded)


def _load(path: Path, width: int, warn: Status = lambda _: None) -> tuple[Any, int] | None:
    """The index in a file, and the number of vectors that it was learned from.

    None without a file for this width; `warn` gets a line about a damaged one.
    """
    if (found := FILES.find(path, warn)) is None:
        return None
    arrays, metadata = found
    try:
        coded, trained = _faiss().deserialize_index(arrays["index"]), int(metadata["trained"])
    except (RuntimeError, ValueError, KeyError) as error:
        warn(f"{FILES.what} made again: {error}")
        return None
    coded.nprobe = PROBED
    return (coded, trained) if coded.d == width else None


def ivf_pq(rows: Floats) -> Any:
    """An IVF-PQ index of these vectors; with fewer lists than LISTS if there are too few vectors.

    The parts are the most up to PARTS that divide a vector. Their codes are not ordered (`np`):
    that serves comparisons of codes, which are not made, and takes most of the training.
    """
    faiss = _faiss()
    count, width = rows.shape
    lists = max(1, min(LISTS, count // _EACH))
    parts = next(parts for parts in range(min(PARTS, width), 0, -1) if width % parts == 0)
    built = faiss.index_factory(width, f"IVF{lists},PQ{parts}np", faiss.METRIC_INNER_PRODUCT)
    built.train(rows)
    built.add(rows)
    built.nprobe = PROBED
    return built


def _faiss() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its bindings, about themselves
        import faiss  # here: it is an extra
    import torch

    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
