"""The vectors of passages by an embedding model, and those nearest to a question's.

Vectors are stored in the cache, one file for an index and a model, and mapped into memory. They are
stored by the text they are of, so that for other documents of the same folder only new texts are
embedded; what is made is stored from time to time, and when it is interrupted.

FAISS finds the nearest: all are compared where they are few, else by IVF-PQ, that of H. Jégou, M.
Douze and C. Schmid, Product Quantization for Nearest Neighbor Search, 2011: vectors lie in lists
around centroids and are coded in parts of 8 bits each; a question looks at a few lists. The best
found are scored again by the vectors themselves.
"""

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.retrieve.encoders import BATCH, Embedder, Floats
from ngtcli.retrieve.index import FOLDER, Index
from ngtcli.retrieve.ranking import Status
from ngtcli.system import process
from ngtcli.system.arrays import ANY, Array, ArrayFile, Arrays
from ngtcli.system.cache import renew
from ngtcli.system.files import key_of

_HASH = 16  # bytes of a text's hash
FILES = ArrayFile(
    "the vectors of passages are",
    FOLDER,
    ".vectors.safetensors",
    format="2",
    most=2**34,  # guess, 4 million vectors of 1024 numbers
    arrays={
        "texts": Array("uint8", _HASH, rows="texts"),
        "vectors": Array("float32", ANY, rows="texts"),
    },
)
_PARTIAL = ""  # the key of a file that lacks vectors of some passages
_SAVE_S = 300.0  # seconds after which what is made is stored; guess
_TELL_S = 1.0  # seconds between two status lines; guess

FLAT_MOST = 100_000  # vectors that are all compared with a question
LISTS, PARTS, PROBED = 4096, 64, 16  # of IVF-PQ: lists, parts of a vector, lists looked at
_EACH = 39  # vectors a centroid that FAISS trains on without a warning
_AGAIN = 4  # times as many as wanted are scored again; guess
CODED = ArrayFile(
    "the index of vectors is",
    FOLDER,
    ".ivf-pq.safetensors",
    format="2",
    most=2**33,  # guess
    arrays={"index": Array("uint8")},
)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vector of each passage of an index, of length 1: `rows` float32 (passages, width).

    `name` stands for folder, cutting and model, `key` for the passages and their texts as well.
    `embedded` vectors were made now.
    """

    rows: Floats
    name: str
    key: str
    embedded: int = 0


def vectors_of(
    index: Index, embedder: Embedder, status: Status, warn: Status, keep: bool = True
) -> Vectors:
    """The vectors of an index's passages, one at least.

    On Ctrl-C, which raises KeyboardInterrupt from here on, and on an error what is made is stored.
    `warn` gets a line about that, about texts that are longer than the model reads, about a damaged
    file, and if the cache cannot be written. Without `keep` no file is read or written. Raises
    ModelError.
    """
    name = key_of(index.key, embedder.fingerprint)
    key = key_of(index.fingerprint, embedder.fingerprint)
    path = FILES.path(f"{name}.{key}")
    stored = FILES.find(path, warn) if keep else None
    if stored and stored[1].get("of") == key and len(stored[0]["vectors"]) == len(index):
        renew(path)
        return Vectors(stored[0]["vectors"], name, key)
    texts = [index.text(passage) for passage in range(len(index))]
    hashes = [hashlib.blake2b(text.encode(), digest_size=_HASH).digest() for text in texts]
    every = _known(stored[0] if stored else None, name, set(hashes)) if keep else {}
    missing = {h: text for h, text in zip(hashes, texts, strict=True) if h not in every}

    def store(hashes: Sequence[bytes], of: str) -> Floats:
        rows = np.stack([every[h] for h in hashes])
        names = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH)
        if keep:
            status(f"Keeping {len(hashes)} vectors …")
            FILES.keep(path, {"texts": names, "vectors": rows}, {"of": of}, warn)
        return rows

    if missing:
        some = (lambda: store(list(every), _PARTIAL)) if keep else None
        _embed(missing, every, some, embedder, status, warn)
    rows = store(hashes, key)
    return Vectors(rows, name, key, len(missing))


def _known(stored: Arrays | None, name: str, wanted: set[bytes]) -> dict[bytes, Floats]:
    """The vectors of wanted texts, by their hashes, from the files for a folder's documents."""
    known: dict[bytes, Floats] = {}
    for path in [None, *FILES.others(name)]:
        if len(known) == len(wanted):
            break
        arrays = stored if path is None else (FILES.find(path) or [None])[0]
        for text, row in zip(arrays["texts"], arrays["vectors"], strict=True) if arrays else ():
            if (digest := text.tobytes()) in wanted:
                known[digest] = row
    return known


def _embed(
    missing: Mapping[bytes, str],
    every: dict[bytes, Floats],
    keep: Callable[[], object] | None,
    embedder: Embedder,
    status: Status,
    warn: Status,
) -> None:
    """Add the vectors of missing texts, by the texts' hashes, to `every`, which `keep` stores."""
    process.unwind_on_interrupt()
    order = sorted(missing, key=lambda h: -len(missing[h]))  # equal lengths need no padding
    made = longer = 0
    saved, told = time.monotonic(), float("-inf")
    try:
        while made < len(order):
            if time.monotonic() - told > _TELL_S:
                status(f"Embedding passages: {made} of {len(order)} …")
                told = time.monotonic()
            own = order[made : made + BATCH]
            vectors, cut = embedder.passages([missing[h] for h in own])
            every |= zip(own, vectors, strict=True)
            made, longer = made + len(own), longer + cut
            if keep and time.monotonic() - saved > _SAVE_S:
                keep()
                saved = time.monotonic()
    except BaseException:
        if keep and made:
            keep()
            warn(f"{made} of {len(order)} passages are embedded, and kept")
        raise
    if longer:
        warn(
            f"{longer} of {len(order)} passages are longer than the {embedder.tokens} tokens"
            f" that {embedder.name} reads: only their beginnings count for it"
        )


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
    vectors: Vectors,
    status: Status = lambda _: None,
    warn: Status = lambda _: None,
    keep: bool = True,
) -> Nearest:
    """What finds the nearest of these vectors: for many IVF-PQ, from the cache where it is there.

    Lists and codes are taken from another set of vectors of the same folder, but learned again
    where the vectors are more than twice or less than half as many as those they were learned from.
    Without `keep` all are compared: to learn them for one question takes longer.
    """
    count, width = vectors.rows.shape
    if count <= FLAT_MOST or not keep:
        return Nearest(vectors.rows)
    path = CODED.path(f"{vectors.name}.{vectors.key}")
    stored = _load(path, width, warn)
    if stored is not None and stored[0].ntotal == count:
        renew(path)
        return Nearest(vectors.rows, stored[0])
    status(f"Building the index of {count} vectors …")
    others = filter(None, (_load(p, width) for p in CODED.others(vectors.name)))
    fitting = ((c, n) for c, n in others if n <= 2 * count <= 4 * n)
    if (stored := next(fitting, None)) is not None:
        coded, trained = stored
        coded.reset()
        coded.add(vectors.rows)
    else:
        coded, trained = ivf_pq(vectors.rows), count
    arrays = {"index": _faiss().serialize_index(coded)}
    CODED.keep(path, arrays, {"trained": str(trained)}, warn)
    return Nearest(vectors.rows, coded)


def _load(path: Path, width: int, warn: Status = lambda _: None) -> tuple[Any, int] | None:
    """The index in a file, and the number of vectors that it was learned from.

    None without a file for this width; `warn` gets a line about a damaged one.
    """
    if (found := CODED.find(path, warn)) is None:
        return None
    arrays, metadata = found
    try:
        coded, trained = _faiss().deserialize_index(arrays["index"]), int(metadata["trained"])
    except (RuntimeError, ValueError, KeyError) as error:
        warn(f"{CODED.what} made again: {error}")
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
