"""The backgrounds that a session drafts from: opened, or made when they are first wanted.

To count the phrases that ship for a tokenizer takes some seconds once, to join several backgrounds
about as long; a status line says so.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ngtcli.background import files
from ngtcli.background.counting import joined, phrase_counts
from ngtcli.background.files import SHIPPED, open_background, stamps_of
from ngtcli.background.phrases import read_phrases
from ngtcli.documents.load import Document
from ngtcli.errors import reason_of
from ngtcli.system.files import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts
from ngtcli.trie.store import about

MOST_JOINED = 30_000_000  # nodes; guess: joining takes about 200 bytes of memory for each
Tell = Callable[[str], object]


class Backgrounds:
    """The backgrounds of the names given, for one tokenizer of `vocabulary` ids.

    With `persist` what was made is stored; `status` is told that something is made, `warn` what is
    not used, and why.
    """

    def __init__(
        self,
        names: Sequence[str],
        tokenizer: Tokenizer,
        vocabulary: int,
        *,
        model: str = "",
        persist: bool = False,
        status: Tell = lambda _: None,
        warn: Tell = lambda _: None,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._tokenizer, self._vocabulary, self._model = tokenizer, vocabulary, model
        self._persist, self._status, self._warn = persist, status, warn
        self._loaded: BackgroundCounts | None = None
        self._used: Sequence[str] | None = None  # None until they are loaded

    def load(self) -> BackgroundCounts | None:
        """The counts of all of them together, without what is not to be had."""
        if self._used is None:
            found = {name: self._one(name) for name in self._names}
            parts = {name: part for name, part in found.items() if part is not None}
            self._used, self._loaded = self._together(parts)
            if self._loaded is not None:  # those that were made here know no bound yet
                self._loaded.nodes[0, TOKEN] = self._vocabulary
        return self._loaded

    def words(self) -> str:
        """What is in use, in a sentence; "" where no names were given or nothing was loaded."""
        if not self._names or self._used is None:
            return ""
        return f"Background: {', '.join(self._used) or 'none'}."

    def _one(self, name: str) -> BackgroundCounts | None:
        """The counts of a name; those that ship are made where they have no file."""
        if name in SHIPPED:
            what = f"Counting the phrases of the background {name} once for this tokenizer …"
            return self._kept(name, what, lambda: make_shipped(name, self._tokenizer))
        try:
            return open_background(name, self._tokenizer.fingerprint, self._vocabulary)
        except FileNotFoundError:
            why = "is of another tokenizer; for this one"
        except DamagedFileError as error:
            why = f"is not used ({error}); build it again"
        command = f"ngt trie build --background --name {name} -m {self._model} PATH"
        self._warn(f"the background {name} {why}: {command}")
        return None

    def _together(
        self, parts: dict[str, BackgroundCounts]
    ) -> tuple[Sequence[str], BackgroundCounts | None]:
        """All of them, and their names; where they cannot be joined one, of the user's own if any.

        Files are compared by size and time: one that was built again since is joined again.
        """
        if len(parts) < 2:
            return list(parts), next(iter(parts.values()), None)

        def join() -> BackgroundCounts:
            if sum(map(len, parts.values())) > MOST_JOINED:
                raise ValueError("they are too large to be joined")
            return joined(list(parts.values()))

        stamps = stamps_of(parts, self._tokenizer.fingerprint)
        both = self._kept(",".join(parts), "Joining the backgrounds once …", join, parts=stamps)
        if both is not None:
            return list(parts), both
        first = next((name for name in parts if name not in SHIPPED), next(iter(parts)))
        return [first], parts[first]

    def _kept(
        self, name: str, status: str, make: Callable[[], BackgroundCounts], **wanted: str
    ) -> BackgroundCounts | None:
        """The counts in the file of a name with `wanted` metadata, or else made and stored there.

        None where making fails, for whatever reason: an answer does not depend on drafts.
        """
        fingerprint = self._tokenizer.fingerprint
        try:
            return open_background(name, fingerprint, self._vocabulary, **wanted)
        except (FileNotFoundError, DamagedFileError):
            self._status(status)
        try:
            counts = make()
        except Exception as error:
            reason = str(error) or type(error).__name__
            self._warn(f"the background {name} is not used: {reason}")
            return None
        made = {"created": str(int(time.time())), "tokens": "0", "documents": json.dumps([name])}
        try:
            if self._persist:
                files.save(name, fingerprint, counts, {**made, "model": self._model, **wanted})
        except OSError as error:
            self._warn(f"the background {name} is not stored: {reason_of(error)}")
        return counts


def make_shipped(name: str, tokenizer: Tokenizer) -> BackgroundCounts:
    """The counts of a shipped background. Raises OSError and DamagedFileError."""
    return phrase_counts(read_phrases(SHIPPED[name]), tokenizer)


def build_background(
    documents: Sequence[Document], name: str, tokenizer: Tokenizer, model: str
) -> tuple[Path, BackgroundCounts, int]:
    """Count documents and store the counts under a name: the path, the counts, the tokens.

    One of the same name is replaced. Raises OSError, EFBIG where they are too many.
    """
    texts = [tokenizer.encode(d.text.strip()) for d in documents]
    counts = build_counts(texts)
    tokens = sum(map(len, texts))
    origin = {**about(documents), "tokens": str(tokens), "model": model}
    return files.save(name, tokenizer.fingerprint, counts, origin), counts, tokens
