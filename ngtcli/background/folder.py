"""Counts of all documents that were given, which `auto` drafts from in addition to the prompt's.

They lie in the cache, for a set of documents and a tokenizer: the token ids of each document,
so that for other documents of the same folder only what is new is encoded; their counts; and these
joined with the background.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ngtcli.background.counting import joined
from ngtcli.documents.load import Document, common_folder
from ngtcli.system.arrays import Array, ArrayFile
from ngtcli.system.cache import renew
from ngtcli.system.files import DamagedFileError, key_of, mark_used
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts, load_counts
from ngtcli.trie.files import BACKGROUNDS, TOKENIZER
from ngtcli.trie.ngram import Ints

FOLDER = "folders"
TOKENS = 4_000_000  # counted at most; guess: they take 1 GB of memory and some 25 s
LEAST = (1, 2)  # how often a token, and a longer sequence, occurs at least to be counted; guess
IDS = ArrayFile(
    "the documents' ids are",
    FOLDER,
    ".ids.safetensors",
    format="2",
    most=2**26,  # derived: TOKENS of 4 bytes, and digests
    arrays={
        "digests": Array("uint8", 32, rows="documents"),
        "lengths": Array("int32", rows="documents"),
        "ids": Array("int32"),
    },
)
COUNTS = replace(
    BACKGROUNDS, what="the documents' counts are", folder=FOLDER, suffix=".counts.safetensors"
)
JOINED = replace(COUNTS, suffix=".joined.safetensors")
_FORMAT = 1  # of what is counted
_EVERY = 200  # documents encoded between two status lines; guess
Status = Callable[[str], None]


class FolderCounts:
    """Keeps the counts that it gave last."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, status: Status, warn: Status) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._status, self._warn = status, warn
        self._last: tuple[str, BackgroundCounts] | None = None
        self._hashed: tuple[BackgroundCounts | None, str] = None, ""

    def of(
        self, documents: Sequence[Document], background: BackgroundCounts | None
    ) -> BackgroundCounts:
        """The counts of the documents, at most TOKENS of them, joined with the background.

        `warn` gets a line for what was left out, and where the cache cannot be written.
        """
        texts = key_of(*(document.sha256 for document in documents))
        whole = texts + self._hash(background)
        last = self._last  # other threads may replace it
        if last is None or last[0] != whole:
            place = key_of(_FORMAT, self._tokenizer.fingerprint, common_folder(documents))

            def both() -> BackgroundCounts:
                own = self._had(COUNTS, place, texts, lambda: self._counted(documents, place))
                try:
                    return joined([own] if background is None else [background, own])
                except DamagedFileError as error:
                    self._warn(f"the documents' counts are not joined with others: {error}")
                    return own

            last = self._last = whole, self._had(JOINED, place, whole, both)
        return last[1]

    def _hash(self, background: BackgroundCounts | None) -> str:
        """A hash of the counts, made once: they may be 2 GB."""
        if background is None:
            return ""
        hashed = self._hashed
        if background is not hashed[0]:
            content = hashlib.sha256(background.nodes[1:].data)
            content.update(background.by_token.data)
            hashed = self._hashed = background, content.hexdigest()
        return hashed[1]

    def _had(
        self, file: ArrayFile, place: str, content: str, make: Callable[[], BackgroundCounts]
    ) -> BackgroundCounts:
        """The counts in a file with that content, or else made and stored there."""
        path = file.path(f"{place}.{key_of(content)}")
        about = {TOKENIZER: self._tokenizer.fingerprint, "content": content}
        with suppress(FileNotFoundError, DamagedFileError):
            found = load_counts(file, path, self._vocabulary, about)
            mark_used(path)
            renew(path)
            return found
        counts = make()
        file.keep(path, counts.arrays, about, self._warn)
        counts.nodes[0, TOKEN] = self._vocabulary
        return counts

    def _counted(self, documents: Sequence[Document], place: str) -> BackgroundCounts:
        """The counts of the documents alone."""
        ids = self._ids(documents, place)
        self._status(f"Counting {sum(map(len, ids))} tokens of the documents …")
        return build_counts([(one, 1.0) for one in ids], least=LEAST)

    def _ids(self, documents: Sequence[Document], place: str) -> list[Ints]:
        """The token ids of each document; what was encoded before is read from files."""
        digests = [bytes.fromhex(document.sha256) for document in documents]
        known: dict[bytes, Ints] = {}
        for file in IDS.others(place):
            if all(digest in known for digest in digests):
                break
            known |= _known(file, self._tokenizer.fingerprint, self._vocabulary)
        found: list[Ints] = []
        left = TOKENS
        for i, (document, digest) in enumerate(zip(documents, digests, strict=True)):
            if i % _EVERY == 0:
                self._status(f"Encoding the documents to draft from: {i} of {len(documents)} …")
            ids = known.get(digest)
            if ids is None:
                ids = np.array(self._tokenizer.encode(document.text.strip()), np.int32)
            if len(ids) > left:
                self._warn(f"drafts come from the first {i} of {len(documents)} documents")
                break
            left -= len(ids)
            found.append(ids)
        if any(digest not in known for digest in digests[: len(found)]):
            path = IDS.path(f"{place}.{key_of(*(d.hex() for d in digests))}")
            every = np.frombuffer(b"".join(digests[: len(found)]), np.uint8).reshape(-1, 32)
            lengths = np.array([len(one) for one in found], np.int32)
            stream = np.concatenate([np.zeros(0, np.int32), *found])
            arrays: dict[str, np.ndarray] = {"digests": every, "lengths": lengths, "ids": stream}
            IDS.keep(path, arrays, {TOKENIZER: self._tokenizer.fingerprint}, self._warn)
        return found


def _known(path: Path, fingerprint: str, vocabulary: int) -> dict[bytes, Ints]:
    """The ids of each document in a file, by its digest; none where the file is damaged."""
    try:
        digests, lengths, ids = IDS.read(path, {TOKENIZER: fingerprint})[0].values()
    except (FileNotFoundError, DamagedFileError):
        return {}
    if int(lengths.sum(dtype=np.int64)) != len(ids) or int(lengths.min(initial=0)) < 0:
        return {}
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        return {}
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return {digest.tobytes(): part for digest, part in zip(digests, parts, strict=False)}
