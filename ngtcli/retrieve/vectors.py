"""The vectors of passages by an embedding model, kept in the cache and mapped into memory.

One file for an index and a model. Vectors are kept by the text they are of, so that for other
documents of the same folder only new texts are embedded; what is made is kept from time to time,
and when it is interrupted.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from ngtcli.retrieve.encoders import BATCH, Embedder, Floats
from ngtcli.retrieve.index import Index
from ngtcli.retrieve.store import FOLDER
from ngtcli.system import process
from ngtcli.system.arrays import ANY, Array, ArrayFile
from ngtcli.system.cache import renew
from ngtcli.system.storage import DamagedFileError, key_of

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
_PARTIAL = ""  # what a file is of that has not the vectors of all passages
_KEEP_S = 300.0  # seconds after which what is made is kept; guess
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


@dataclass(frozen=True, slots=True)
class _Stored:
    """Vectors by the hashes of their texts, and the passages whose vectors they are in order."""

    of: str
    hashes: list[bytes]
    rows: Floats


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
    stored = _load(path, warn)
    if stored is not None and stored.of == key and len(stored.rows) == len(index):
        renew(path)
        return Vectors(stored.rows, name, key)
    texts = [text(passage) for passage in range(len(index))]
    hashes = [_hash(one) for one in texts]
    known = _known(stored, name, set(hashes))
    missing = {h: one for h, one in zip(hashes, texts, strict=True) if h not in known}
    made = _Making(path, known, status, warn).make(missing, embedder) if missing else {}
    every = {**known, **made}
    rows = np.stack([every[h] for h in hashes])
    status(f"Keeping {len(rows)} vectors …")
    _save(path, _Stored(key, hashes, rows), warn)
    FILES.keep_last(name)
    return Vectors(rows, name, key, len(missing))


def _known(stored: _Stored | None, name: str, wanted: set[bytes]) -> dict[bytes, Floats]:
    """The vectors of wanted texts, by their hashes, from the files for a folder's documents."""
    known: dict[bytes, Floats] = {}
    files = (_load(path, lambda _: None) for path in FILES.others(name))
    for file in filter(None, chain([stored], files)):
        if len(known) == len(wanted):
            break
        known |= {h: row for h, row in zip(file.hashes, file.rows, strict=True) if h in wanted}
    return known


class _Making:
    """Makes vectors and keeps them on the way."""

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
                if time.monotonic() - self._saved > _KEEP_S:
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
            _save(self._path, _Stored(_PARTIAL, list(every), rows), self._warn)
        self._saved = time.monotonic()


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_HASH).digest()


def _save(path: Path, stored: _Stored, warn: Status) -> None:
    hashes = np.frombuffer(b"".join(stored.hashes), np.uint8).reshape(-1, _HASH)
    FILES.keep(path, {"texts": hashes, "vectors": stored.rows}, {"of": stored.of}, warn)


def _load(path: Path, warn: Status) -> _Stored | None:
    """What is in the file; None without one, and with a line if it is damaged."""
    try:
        arrays, metadata = FILES.map(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        warn(f"{FILES.what} made again: {error}")
        return None
    hashes = [row.tobytes() for row in arrays["texts"]]
    return _Stored(metadata.get("of", _PARTIAL), hashes, arrays["vectors"])
