"""The backgrounds that a session drafts from: opened, made, or the reason why not."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from ngtcli.background.making import make_shipped, start_making
from ngtcli.background.names import SHIPPED, background_key, background_path, failure_path
from ngtcli.system.storage import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.background_file import load_background

_MOST_REASON = 200  # characters of a reason that are shown; guess


class Backgrounds:
    """The backgrounds of the names given, for one tokenizer of `vocabulary` ids.

    With `persist` a shipped one that has no file is made behind the first answer (`after_answer`);
    without, it is made in memory when they are loaded, and nothing is written.
    """

    def __init__(
        self,
        names: Sequence[str],
        tokenizer: Tokenizer,
        vocabulary: int,
        model: str,
        persist: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._tokenizer, self._vocabulary, self._model = tokenizer, vocabulary, model
        self._persist, self._warn = persist, warn
        self._loaded: dict[str, BackgroundCounts] | None = None
        self._missing: list[str] = []  # shipped ones, to be made
        self._remarks: list[str] = []

    def load(self) -> tuple[BackgroundCounts, ...]:
        """The counts, in the order of the names; what cannot be had is left out."""
        if self._loaded is None:
            self._loaded = {}
            fingerprint = self._tokenizer.fingerprint if self._names else ""
            for name in self._names:
                counts = self._open(name, background_key(name, fingerprint))
                if counts is not None:
                    self._loaded[name] = counts
        return tuple(self._loaded.values())

    def _open(self, name: str, key: str) -> BackgroundCounts | None:
        try:
            return load_background(background_path(key), self._vocabulary, {"key": key})
        except FileNotFoundError:
            if name not in SHIPPED:
                self._warn(
                    f"the background {name} is of another tokenizer: build it with"
                    f" ngt trie build --background … --name {name} -m {self._model}"
                )
                return None
        except DamagedFileError as error:
            if name not in SHIPPED:
                self._warn(f"the background {name} is not used: {error}; build it again")
                return None
            self._remarks.append(f"The background {name} is made again: {error}.")
        return self._shipped(name, key)

    def _shipped(self, name: str, key: str) -> BackgroundCounts | None:
        """One that has no file: made now, or put on the list of those to be made."""
        if not self._persist:
            with suppress(OSError, DamagedFileError):
                return make_shipped(name, self._tokenizer)
            return None
        with suppress(OSError, ValueError):
            reason = failure_path(key).read_text(encoding="utf-8")[:_MOST_REASON]
            self._remarks.append(f"The background {name} could not be made: {reason}.")
            return None
        self._missing.append(name)
        return None

    def after_answer(self) -> None:
        """Start to make what lacks: the next session has it."""
        missing, self._missing = self._missing, []
        for name in missing:
            try:
                start_making(name, self._model)
                self._remarks.append(
                    f"The background {name} is being made for this tokenizer; the next run has it."
                )
            except OSError as error:
                reason = error.strerror or error
                self._remarks.append(f"The background {name} could not be made: {reason}.")

    def words(self) -> str:
        """What background is in use, in sentences."""
        used = ", ".join(self._loaded or ())
        return " ".join([*([f"Background: {used}."] if used else []), *self._remarks])
