"""The backgrounds that a session drafts from: opened, made, or the reason why not."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ngtcli.background import making
from ngtcli.background.counting import joined
from ngtcli.background.names import SHIPPED, failure_path
from ngtcli.background.stored import open_background, open_joined
from ngtcli.system.storage import DamagedFileError, read_json
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts

_MOST_REASON = 200  # characters of a reason that are shown; guess
_MOST_FAILURE = 10_000  # bytes of the file of a reason; guess
_AGAIN_S = 86_400.0  # seconds after which making is tried again; guess
_FAILURES = (OSError, DamagedFileError)


class Backgrounds:
    """The backgrounds of the names given, for one tokenizer of `vocabulary` ids.

    With `persist` what has no file is made behind the first answer (`after_answer`); without, it is
    made in memory when it is loaded, and nothing is written.
    """

    def __init__(
        self,
        names: Sequence[str],
        tokenizer: Tokenizer,
        vocabulary: int,
        *,
        model: str = "",
        persist: bool = False,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._tokenizer, self._vocabulary, self._model = tokenizer, vocabulary, model
        self._persist, self._warn = persist, warn
        self._loaded: BackgroundCounts | None = None
        self._done = False
        self._missing: list[Path] = []  # where it is kept why each is
        self._used = ""
        self._remarks: list[str] = []

    def load(self) -> BackgroundCounts | None:
        """The counts of all of them together; what cannot be had is left out, with a remark."""
        if not self._done and self._names:
            fingerprint = self._tokenizer.fingerprint
            found = {name: self._open(name, fingerprint) for name in self._names}
            self._loaded = self._joined(
                {name: part for name, part in found.items() if part is not None}, fingerprint
            )
            if self._loaded is not None:  # those that were made here know no bound yet
                self._loaded.nodes[0, TOKEN] = self._vocabulary
        self._done = True
        return self._loaded

    def _open(self, name: str, fingerprint: str) -> BackgroundCounts | None:
        try:
            return open_background(name, fingerprint, self._vocabulary)
        except FileNotFoundError:
            if name not in SHIPPED:
                self._ask_for(name, "is of another tokenizer", "for this one")
                return None
        except DamagedFileError as error:
            if name not in SHIPPED:
                self._ask_for(name, f"is not used ({error})", "build it again")
                return None
            self._remarks.append(f"The background {name} is made again: {error}.")
        if self._persist:
            self._to_be_made(name, fingerprint)
            return None
        with suppress(*_FAILURES):
            return making.make_shipped(name, self._tokenizer)
        return None

    def _ask_for(self, name: str, why: str, what: str) -> None:
        command = f"ngt trie build --background --name {name} -m {self._model} PATH"
        self._warn(f"the background {name} {why}; {what}: {command}")

    def _to_be_made(self, names: str, fingerprint: str) -> None:
        """Remember to make what is missing, unless that was begun or has failed lately."""
        path = failure_path(names, fingerprint)
        with suppress(*_FAILURES):
            if time.time() - path.stat().st_mtime < _AGAIN_S:
                reason = str(read_json(path, _MOST_FAILURE).get("reason", ""))[:_MOST_REASON]
                self._remarks.append(f"The background {names} is not there: {reason}.")
                return
        self._missing.append(path)

    def _joined(
        self, parts: dict[str, BackgroundCounts], fingerprint: str
    ) -> BackgroundCounts | None:
        """All of them, or until they are joined the first of the user's own."""
        self._used = ", ".join(parts)
        if len(parts) < 2:
            return next(iter(parts.values()), None)
        try:
            return open_joined(list(parts), fingerprint, self._vocabulary)
        except (FileNotFoundError, DamagedFileError):
            if not self._persist:
                with suppress(DamagedFileError):
                    return joined(list(parts.values()))
        if self._persist:
            self._to_be_made(",".join(parts), fingerprint)
        self._used = next((name for name in parts if name not in SHIPPED), next(iter(parts)))
        return parts[self._used]

    def after_answer(self) -> None:
        """Start to make what is missing, if anything is: the next run has it.

        Where nothing can be written nothing is started, or each run would start it again.
        """
        if not self._missing:
            return
        missing, self._missing = self._missing, []
        told = ", ".join(self._names)
        try:
            for path in missing:
                making.leave_reason(path)
            making.start_making(self._names, self._model)
            self._remarks.append(f"{told}: made now for this tokenizer, used from the next run on.")
        except OSError as error:
            self._remarks.append(f"{told}: cannot be made ({error.strerror or error}).")

    def words(self) -> str:
        """What is in use, in sentences; "" where none is wanted or nothing was loaded."""
        if not self._names or not self._done:
            return ""
        return " ".join([f"Background: {self._used or 'none'}.", *self._remarks])
