"""The background that a session drafts from: opened, or made when it is first needed.

Counting the shipped phrases for a tokenizer takes some seconds once; a status line says so.
"""

import json
import time
from dataclasses import replace

from ngtcli.drafting.background.counting import phrase_counts
from ngtcli.drafting.background.files import SHIPPED, open_background, save
from ngtcli.drafting.background.phrases import read_phrases
from ngtcli.drafting.tries.background import TOKEN, BackgroundCounts
from ngtcli.drafting.tries.classes import classes_of
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system import reporting
from ngtcli.system.files import DamagedFileError
from ngtcli.words import reason_of


class Background:
    """A background by its name ("none" for none), for one tokenizer of `vocab_size` ids.

    With `persist` a background that was made is stored. The reporter of this object's creator gets
    a line when a background is made, and the reason if one is not used or not stored.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        model: str = "",
        persist: bool = False,
    ) -> None:
        self._name = name
        self._tokenizer, self._vocab_size, self._model = tokenizer, vocab_size, model
        self._persist = persist
        self._reporter = reporting.current()
        self._counts: BackgroundCounts | None = None
        self._is_loaded = False

    def load(self) -> BackgroundCounts | None:
        """Return the counts; None if none are wanted or available."""
        if not self._is_loaded:
            self._is_loaded = True
            self._counts = None if self._name == "none" else self._opened() or self._made()
            if self._counts is not None:  # those that were made here know no bound yet
                self._counts.nodes[0, TOKEN] = self._vocab_size
        return self._counts

    def words(self) -> str:
        """Return a sentence with the background in use; "" if none is wanted or was loaded."""
        if self._name == "none" or not self._is_loaded:
            return ""
        return f"Background: {self._name if self._counts is not None else 'none'}."

    def _opened(self) -> BackgroundCounts | None:
        try:
            return open_background(self._name, self._tokenizer.fingerprint, self._vocab_size)
        except (FileNotFoundError, DamagedFileError):
            return None

    def _made(self) -> BackgroundCounts | None:
        """Make and store the counts.

        Return None if that fails, for whatever reason: an answer does not depend on drafts.
        """
        name = self._name
        self._reporter.status(
            f"Counting the phrases of the background {name} once for this tokenizer …"
        )
        try:
            counts = make_shipped(name, self._tokenizer)
        except Exception as error:
            reason = str(error) or type(error).__name__
            self._reporter.warn(f"the background {name} is not used: {reason}")
            return None
        if self._persist:
            self._store(counts)
        return counts

    def _store(self, counts: BackgroundCounts) -> None:
        about = {
            "created": str(int(time.time())),
            "tokens": "0",
            "documents": json.dumps([self._name]),
            "model": self._model,
        }
        try:
            save(self._name, self._tokenizer.fingerprint, counts, about)
        except OSError as error:
            self._reporter.warn(f"the background {self._name} was not stored: {reason_of(error)}")


def make_shipped(name: str, tokenizer: Tokenizer) -> BackgroundCounts:
    """Return the counts of a shipped background. Raises OSError and DamagedFileError."""
    counts = phrase_counts(read_phrases(SHIPPED[name]), tokenizer)
    return replace(counts, classes=classes_of(tokenizer.backend))
