"""The backgrounds that a session drafts from: opened, or made in a process of their own.

`python -m ngtcli.background.loaded MODEL NAME…` makes those files of these names that are missing,
for a model's tokenizer. It takes some seconds of one core once, so it is started when an answer is
complete, detached and at the lowest priority. A thread would hold up the process at its end, and
its Python code what else the process does.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ngtcli.background import files
from ngtcli.background.counting import joined, phrase_counts
from ngtcli.background.files import SHIPPED, failure_key, open_background, stamps_of
from ngtcli.background.phrases import read_phrases
from ngtcli.documents.load import Document
from ngtcli.errors import reason_of
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.system.files import DamagedFileError, private_folder
from ngtcli.system.store import Kind
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts
from ngtcli.trie.files import list_backgrounds, trie_folder
from ngtcli.trie.store import about

_MOST_REASON = 200  # characters of a reason that are shown; guess
_AGAIN_S = 86_400.0  # seconds after which making is tried again; guess
_MOST_S = 600  # seconds that making may take; guess: it takes some
MOST_JOINED = 30_000_000  # nodes; guess: joining takes about 200 bytes of memory for each
_ERRORS = (OSError, DamagedFileError)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a background is not there, and since when, in seconds since 1970."""

    reason: str
    at: float


FAILURES = Kind("failures", Failure)


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
        self._missing: list[str] = []  # the keys of why each is
        self._used = ""
        self._remarks: list[str] = []

    def load(self) -> BackgroundCounts | None:
        """The counts of all of them together; what is unavailable is left out, with a remark."""
        if not self._done and self._names:
            found = {name: self._open(name) for name in self._names}
            self._loaded = self._joined({n: part for n, part in found.items() if part is not None})
            if self._loaded is not None:  # those that were made here know no bound yet
                self._loaded.nodes[0, TOKEN] = self._vocabulary
        self._done = True
        return self._loaded

    def _open(self, name: str) -> BackgroundCounts | None:
        is_shipped = name in SHIPPED
        try:
            return open_background(name, self._tokenizer.fingerprint, self._vocabulary)
        except FileNotFoundError:
            why = "is of another tokenizer; for this one"
        except DamagedFileError as error:
            why = f"is not used ({error}); build it again"
            if is_shipped:
                self._remarks.append(f"The background {name} is made again: {error}.")
        if not is_shipped:
            command = f"ngt trie build --background --name {name} -m {self._model} PATH"
            self._warn(f"the background {name} {why}: {command}")
        elif self._persist:
            self._to_be_made(name)
        else:
            with suppress(*_ERRORS):
                return make_shipped(name, self._tokenizer)
        return None

    def _to_be_made(self, names: str) -> None:
        """Remember to make what is missing, unless that was begun or has failed lately."""
        failure = FAILURES.get(key := failure_key(names, self._tokenizer.fingerprint))
        if failure is not None and 0 <= time.time() - failure.at < _AGAIN_S:
            reason = failure.reason[:_MOST_REASON]
            self._remarks.append(f"The background {names} is not there: {reason}.")
        else:
            self._missing.append(key)

    def _joined(self, parts: dict[str, BackgroundCounts]) -> BackgroundCounts | None:
        """All of them, or until they are joined the first of the user's own."""
        self._used = ", ".join(parts)
        if len(parts) < 2:
            return next(iter(parts.values()), None)
        names, fingerprint = ",".join(parts), self._tokenizer.fingerprint
        try:
            stamps = stamps_of(parts, fingerprint)
            return open_background(names, fingerprint, self._vocabulary, parts=stamps)
        except (FileNotFoundError, DamagedFileError):
            if self._persist:
                self._to_be_made(names)
            else:
                with suppress(DamagedFileError):
                    return joined(list(parts.values()))
        self._used = next((name for name in parts if name not in SHIPPED), next(iter(parts)))
        return parts[self._used]

    def after_answer(self) -> None:
        """Start to make what is missing, if anything is: the next run has it.

        Where nothing can be written nothing is started, or each run would start it again.
        """
        missing, self._missing = self._missing, []
        if not missing:
            return
        try:
            private_folder(folder := trie_folder())
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "permission denied")
            for key in missing:
                leave_reason(key)
            start_making(self._names, self._model)
            how = "made now for this tokenizer, used from the next run on"
        except OSError as error:
            how = f"cannot be made ({reason_of(error)})"
        self._remarks.append(f"{', '.join(self._names)}: {how}.")

    def words(self) -> str:
        """What is in use, in sentences; "" where no names were given or nothing was loaded."""
        if not self._names or not self._done:
            return ""
        return " ".join([f"Background: {self._used or 'none'}.", *self._remarks])


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
    counts = build_counts([(ids, 1.0) for ids in texts])
    tokens = sum(map(len, texts))
    origin = {**about(documents), "tokens": str(tokens), "model": model}
    return files.save(name, tokenizer.fingerprint, counts, origin), counts, tokens


def start_making(names: Sequence[str], model: str) -> None:
    """Make what is missing in a process that outlives this one; files appear when complete.

    Two such processes at once do no harm: each renames its own complete files. None is started
    where nothing can be stored. Raises OSError.
    """
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # `-m` alone looks for modules in the current folder first, which may be one of documents.
    environ["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, sys.path))
    command = [sys.executable, "-P", "-m", __name__, model, *names]
    no = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=no, stdout=no, stderr=no, start_new_session=True, env=environ
    )
    # Where it ends before this process does, it is waited for, or it would stay a zombie.
    threading.Thread(target=process.wait, daemon=True).start()


def make_files(names: Sequence[str], model: str) -> None:
    """Make and store what is missing: those that ship, then what is joined of all there are."""
    tokenizer = load_tokenizer(model)
    fingerprint, found = tokenizer.fingerprint, dict[str, BackgroundCounts]()
    vocabulary = 1 + max(tokenizer.backend.get_vocab().values(), default=0)  # ids may have gaps
    for name in names:
        with suppress(FileNotFoundError, DamagedFileError):
            found[name] = open_background(name, fingerprint, vocabulary)
        if name in SHIPPED and name not in found:
            with _telling(name, fingerprint):
                phrases = read_phrases(SHIPPED[name])
                found[name] = phrase_counts(phrases, tokenizer)
                what = f"{len(phrases)} words and phrases"
                _save(name, fingerprint, found[name], what, model=model)
    if len(found) > 1:
        with _telling(",".join(found), fingerprint):
            if sum(map(len, found.values())) > MOST_JOINED:
                raise ValueError("they are too large to be joined")
            stamps = stamps_of(found, fingerprint)
            counts = joined(list(found.values()))
            _save(",".join(found), fingerprint, counts, "joined", model=model, parts=stamps)


def _save(name: str, fingerprint: str, counts: BackgroundCounts, what: str, **origin: str) -> None:
    """Store the counts, and remove those of another edition, which are not read any more."""
    made = {"created": str(int(time.time())), "tokens": "0", "documents": json.dumps([what])}
    path = files.save(name, fingerprint, counts, {**made, **origin})
    for file in list_backgrounds():
        if (file.name, file.tokenizer) == (name, fingerprint) and file.path != path:
            file.path.unlink(missing_ok=True)


@contextmanager
def _telling(name: str, fingerprint: str) -> Iterator[None]:
    """Where making fails, leave the reason for the next run to tell."""
    key = failure_key(name, fingerprint)
    leave_reason(key)
    try:
        yield
    except Exception as error:  # whatever it is: with a reason no later run starts it again at once
        leave_reason(key, str(error) or type(error).__name__)
    else:
        FAILURES.delete([key])


def leave_reason(key: str, reason: str = "it is being made, or making it was ended") -> None:
    """Store why a background is not there."""
    FAILURES.put(key, Failure(reason, time.time()))


def main() -> None:
    """Make what the command line names, at the lowest priority; after _MOST_S it is ended."""
    if hasattr(os, "nice"):
        os.nice(19)
        signal.alarm(_MOST_S)
    make_files(sys.argv[2:], sys.argv[1])


if __name__ == "__main__":
    main()
