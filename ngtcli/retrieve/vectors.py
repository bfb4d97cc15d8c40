"""The vectors of passages by an embedding model, stored in the cache and mapped into memory.

One file for an index and a model. Vectors are stored by the text they are of, so that for other
documents of the same folder only new texts are embedded; what is made is stored from time to time,
and when it is interrupted.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from ngtcli.retrieve.encoders import BATCH, Embedder, Floats
from ngtcli.retrieve.index import Index
from ngtcli.retrieve.store import FOLDER
from ngtcli.system import process
from ngtcli.system.arrays import ANY, Array, ArrayFile, Arrays, Metadata
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


def vectors_of(
    index: Index,
    text: Callable[[int], str],
    embedder: Embedder,
    status: Status = lambda _: None,
    warn: Status = lambda _: None,
) -> Vectors:
    """The vectors of an index's passages, one at least; `text` gives their texts.

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
    texts = [text(passage) for passage in range(len(index))]
    hashes = [_hash(one) for one in texts]
    known = _known(stored, name, set(hashes))
    missing = {h: one for h, one in zip(hashes, texts, strict=True) if h not in known}
    made = _Making(path, known, status, warn).make(missing, embedder) if missing else {}
    every = {**known, **made}
    rows = np.stack([every[h] for h in hashes])
    status(f"Keeping {len(rows)} vectors …")
    FILES.keep(path, _arrays(hashes, rows), {"of": key}, warn)
    FILES.keep_last(name)
    return Vectors(rows, name, key, len(missing))


def _known(
    stored: tuple[Arrays, Metadata] | None, name: str, wanted: set[bytes]
) -> dict[bytes, Floats]:
    """The vectors of wanted texts, by their hashes, from the files for a folder's documents."""
    known: dict[bytes, Floats] = {}
    others = (FILES.find(path) for path in FILES.others(name))
    for arrays, _ in filter(None, chain([stored], others)):
        if len(known) == len(wanted):
            break
        texts = arrays["texts"].tobytes()
        for i, row in enumerate(arrays["vectors"]):
            if (text := texts[i * _HASH : (i + 1) * _HASH]) in wanted:
                known[text] = row
    return known


class _Making:
    """Makes vectors and stores them on the way."""

    def __init__(
        self, path: Path, known: Mapping[bytes, Floats], status: Status, warn: Status
    ) -> None:
        self._path, self._known, self._status, self._warn = path, known, status, warn
        self._made: dict[bytes, Floats] = {}
        self._saved, self._told = time.monotonic(), float("-inf")

    def make(self, missing: Mapping[bytes, str], embedder: Embedder) -> dict[bytes, Floats]:
        """The vectors of these texts, by the texts' hashes."""
        process.unwind_on_interrupt()
        order = sorted(missing, key=lambda h: -len(missing[h]))  # equal lengths need no padding
        longer = 0
        try:
            for first in range(0, len(order), BATCH):
                self._tell(f"Embedding passages: {first} of {len(order)} …")
                own = order[first : first + BATCH]
                vectors, cut = embedder.passages([missing[h] for h in own])
                self._made |= zip(own, vectors, strict=True)
                longer += cut
                if time.monotonic() - self._saved > _SAVE_S:
                    self._save_made()
        except BaseException:
            self._save_made()
            self._warn(f"{len(self._made)} of {len(order)} passages are embedded, and kept")
            raise
        if longer:
            self._warn(
                f"{longer} of {len(order)} passages are longer than the {embedder.tokens} tokens"
                f" that {embedder.name} reads: only their beginnings count for it"
            )
        return self._made

    def _tell(self, words: str) -> None:
        if time.monotonic() - self._told > _TELL_S:
            self._status(words)
            self._told = time.monotonic()

    def _save_made(self) -> None:
        every = {**self._known, **self._made}
        if self._made:
            rows = np.stack(list(every.values()))
            FILES.keep(self._path, _arrays(list(every), rows), {"of": _PARTIAL}, self._warn)
        self._saved = time.monotonic()


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_HASH).digest()


def _arrays(hashes: Sequence[bytes], rows: Floats) -> Arrays:
    """The arrays of a file: vectors, and the hashes of their texts."""
    return {"texts": np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH), "vectors": rows}
