"""The vectors of passages by an embedding model, stored in the cache and mapped into memory.

One file for an index and a model. Vectors are stored by the text they are of, so that for other
documents of the same folder only new texts are embedded; what is made is stored from time to time,
and when it is interrupted.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ngtcli.retrieve.encoders import BATCH, Embedder, Floats
from ngtcli.retrieve.index import FOLDER, Index
from ngtcli.system import process
from ngtcli.system.arrays import ANY, Array, ArrayFile, Arrays
from ngtcli.system.cache import renew
from ngtcli.system.storage import key_of

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

Status = Callable[[str], None]


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


def vectors_of(index: Index, embedder: Embedder, status: Status, warn: Status) -> Vectors:
    """The vectors of an index's passages, one at least.

    On Ctrl-C, which raises KeyboardInterrupt from here on, and on an error what is made is stored.
    `warn` gets a line about that, about texts that are longer than the model reads, about a damaged
    file, and if the cache cannot be written. Raises ModelError.
    """
    name = key_of(index.key, embedder.fingerprint)
    key = key_of(index.fingerprint, embedder.fingerprint)
    path = FILES.path(f"{name}.{key}")
    stored = FILES.find(path, warn)
    if stored and stored[1].get("of") == key and len(stored[0]["vectors"]) == len(index):
        renew(path)
        return Vectors(stored[0]["vectors"], name, key)
    texts = [index.text(passage) for passage in range(len(index))]
    hashes = [hashlib.blake2b(text.encode(), digest_size=_HASH).digest() for text in texts]
    every = _known(stored[0] if stored else None, name, set(hashes))
    missing = {h: text for h, text in zip(hashes, texts, strict=True) if h not in every}

    def keep(hashes: Sequence[bytes], of: str) -> Floats:
        rows = np.stack([every[h] for h in hashes])
        names = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH)
        FILES.keep(path, {"texts": names, "vectors": rows}, {"of": of}, warn)
        return rows

    if missing:
        _embed(missing, every, lambda: keep(list(every), _PARTIAL), embedder, status, warn)
    status(f"Keeping {len(hashes)} vectors …")
    rows = keep(hashes, key)
    FILES.keep_last(name)
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
    keep: Callable[[], object],
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
            if time.monotonic() - saved > _SAVE_S:
                keep()
                saved = time.monotonic()
    except BaseException:
        if made:
            keep()
        warn(f"{made} of {len(order)} passages are embedded, and kept")
        raise
    if longer:
        warn(
            f"{longer} of {len(order)} passages are longer than the {embedder.tokens} tokens"
            f" that {embedder.name} reads: only their beginnings count for it"
        )
