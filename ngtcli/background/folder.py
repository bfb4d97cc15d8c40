"""Counts of all documents that were given, for `auto` to draft from beside those in the prompt.

They are kept in the cache, for a set of documents and a tokenizer: the token ids of each document,
so that for other documents of the same folder only what is new is encoded; their counts; and these
joined with the background.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ngtcli.background.counting import joined
from ngtcli.documents.load import Document, common_folder
from ngtcli.system.arrays import read_arrays, write_arrays
from ngtcli.system.cache import keep_last, largest, renew
from ngtcli.system.storage import DamagedFileError, home, key_of, mark_used
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts
from ngtcli.trie.background_file import TOKENIZER, load_background, save_background
from ngtcli.trie.ngram import Ints

TOKENS = 4_000_000  # counted at most; guess: they take 1 GB of memory and some 25 s
LEAST = (1, 2)  # how often a token, and a longer sequence, occurs at least to be counted; guess
_FORMAT = 1
_MOST = 2**26  # bytes of a file of ids; derived: TOKENS of 4 bytes, and digests
_ARRAYS = ("digests", "lengths", "ids")
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
        whole = self._hash(background)
        if self._last is None or self._last[0] != texts + whole:
            place = key_of(_FORMAT, self._tokenizer.fingerprint, common_folder(documents))

            def alone() -> BackgroundCounts:
                return self._had(place, "counts", texts, lambda: self._counted(documents, place))

            def both() -> BackgroundCounts:
                own = alone()
                try:
                    return joined([part for part in (background, own) if part is not None])
                except DamagedFileError as error:
                    self._warn(f"the documents' counts are not joined with others: {error}")
                    return own

            self._last = texts + whole, self._had(place, "joined", texts + whole, both)
        return self._last[1]

    def _hash(self, background: BackgroundCounts | None) -> str:
        """A hash of the counts, made once: they may be 2 GB."""
        if background is not None and background is not self._hashed[0]:
            content = hashlib.sha256(background.nodes[1:].data)
            content.update(background.by_token.data)
            self._hashed = background, content.hexdigest()
        return self._hashed[1] if background is not None else ""

    def _had(
        self, place: str, kind: str, content: str, make: Callable[[], BackgroundCounts]
    ) -> BackgroundCounts:
        """The counts in a file with that content, or else made and stored there."""
        path = counts_folder() / f"{place}.{key_of(content)}.{kind}.safetensors"
        about = {TOKENIZER: self._tokenizer.fingerprint, "content": content}
        with suppress(FileNotFoundError, DamagedFileError):
            found = load_background(path, self._vocabulary, about)
            mark_used(path)
            renew(path)
            return found
        counts = make()
        try:
            save_background(path, counts, about)
            keep_last(path.parent, f"{place}.*.{kind}.safetensors")
        except OSError as error:
            self._warn(f"the documents' counts are not cached: {error.strerror or error}")
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
        pattern = f"{place}.*.ids.safetensors"
        known: dict[bytes, Ints] = {}
        for file in largest(counts_folder(), pattern):
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
            path = counts_folder() / pattern.replace("*", key_of(*(d.hex() for d in digests)))
            self._keep(path, digests[: len(found)], found)
            keep_last(path.parent, pattern)
        return found

    def _keep(self, path: Path, digests: list[bytes], ids: list[Ints]) -> None:
        none = np.zeros(0, np.int32)
        arrays = {
            "digests": np.frombuffer(b"".join(digests), np.int32),
            "lengths": np.array([len(one) for one in ids], np.int32),
            "ids": np.concatenate([none, *ids]),
        }
        try:
            write_arrays(path, arrays, {TOKENIZER: self._tokenizer.fingerprint}, _MOST)
        except OSError as error:
            self._warn(f"the documents' ids are not cached: {error.strerror or error}")


def counts_folder() -> Path:
    """Where the files lie. Raises UsageError as `home`."""
    return home("cache") / "folders"


def _known(path: Path, fingerprint: str, vocabulary: int) -> Iterator[tuple[bytes, Ints]]:
    """The digest and the ids of each document in a file; none where that is damaged."""
    if not path.is_file():
        return
    try:
        arrays = read_arrays(path, _ARRAYS, {TOKENIZER: fingerprint}, _MOST)
    except DamagedFileError:
        return
    digests, lengths, ids = (arrays[name] for name in _ARRAYS)
    raw = digests.tobytes()
    fits = len(raw) == 32 * len(lengths) and int(lengths.sum(dtype=np.int64)) == len(ids)
    if not fits or int(lengths.min(initial=0)) < 0:
        return
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        return
    ends = np.cumsum(lengths)
    for i, end in enumerate(ends.tolist()):
        yield raw[32 * i : 32 * i + 32], ids[end - int(lengths[i]) : end]
