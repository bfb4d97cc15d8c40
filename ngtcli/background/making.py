"""Make backgrounds and store them; what ships and what is joined in a process of their own.

`python -m ngtcli.background.making MODEL NAME…` makes those files of these names that are missing,
for a model's tokenizer. It takes some seconds of one core once, so it is started when an answer is
complete, detached and at the lowest priority. A thread would hold up the process at its end, and
its Python code what else the process does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ngtcli.background import stored
from ngtcli.background.counting import joined, phrase_counts
from ngtcli.background.names import SHIPPED, failure_path
from ngtcli.background.phrases import read_phrases
from ngtcli.documents.load import Document
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.system.storage import DamagedFileError, others_cache, write_json
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts, build_counts
from ngtcli.trie.listing import list_backgrounds
from ngtcli.trie.store import about

_MOST_S = 600  # guess: it takes seconds
MOST_JOINED = 30_000_000  # nodes; guess: joining takes about 200 bytes of memory for each


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
    return stored.save(name, tokenizer.fingerprint, counts, origin), counts, tokens


def start_making(names: Sequence[str], model: str) -> None:
    """Make what is missing in a process that outlives this one; files appear when complete.

    Two such processes at once do no harm: each renames its own complete files. None is started
    where nothing can be kept. Raises OSError.
    """
    if others_cache():
        return
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # `-m` alone looks for modules in the current folder first, which may be one of documents.
    environ["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, model, *names],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=environ,
    )  # fmt: skip
    # Where it ends before this process does, it is waited for, or it would stay a zombie.
    threading.Thread(target=process.wait, daemon=True).start()


def make_files(names: Sequence[str], model: str) -> None:
    """Make and store what is missing: those that ship, then what is joined of all there are."""
    tokenizer = load_tokenizer(model)
    fingerprint, found = tokenizer.fingerprint, dict[str, BackgroundCounts]()
    vocabulary = 1 + max(tokenizer.backend.get_vocab().values(), default=0)  # ids may have gaps
    for name in names:
        with suppress(FileNotFoundError, DamagedFileError):
            found[name] = stored.open_background(name, fingerprint, vocabulary)
        if name in SHIPPED and name not in found:
            with _telling(name, fingerprint):
                phrases = read_phrases(SHIPPED[name])
                found[name] = phrase_counts(phrases, tokenizer)
                _save(name, found[name], f"{len(phrases)} words and phrases", tokenizer, model)
    if len(found) > 1:
        with _telling(",".join(found), fingerprint):
            if sum(map(len, found.values())) > MOST_JOINED:
                raise ValueError("they are too large to be joined")
            parts = stored.parts_of(list(found), fingerprint)
            whole = joined(list(found.values()))
            _save(",".join(found), whole, "joined", tokenizer, model, parts)


def _save(
    name: str,
    counts: BackgroundCounts,
    told: str,
    tokenizer: Tokenizer,
    model: str,
    parts: str = "",
) -> None:
    origin = {"created": str(int(time.time())), "documents": json.dumps([told]), "parts": parts}
    origin |= {"tokens": "0", "model": model}
    path = stored.save(name, tokenizer.fingerprint, counts, origin)
    for file in list_backgrounds():  # those of another edition are read no more
        if (file.name, file.tokenizer) == (name, tokenizer.fingerprint) and file.path != path:
            file.path.unlink(missing_ok=True)


@contextmanager
def _telling(name: str, fingerprint: str) -> Iterator[None]:
    """Where making fails, leave the reason for the next run to tell. Raises OSError."""
    reason_file = failure_path(name, fingerprint)
    leave_reason(reason_file)
    try:
        yield
    except Exception as error:  # whatever it is: with a reason no later run starts it again at once
        leave_reason(reason_file, str(error) or type(error).__name__)
    else:
        reason_file.unlink(missing_ok=True)


def leave_reason(path: Path, reason: str = "it is being made, or making it was ended") -> None:
    """Write why a background is not there (`names.failure_path`). Raises OSError."""
    write_json(path, {"reason": reason})


def main() -> None:
    """Make what the command line names, at the lowest priority; after _MOST_S it is ended."""
    if hasattr(os, "nice"):
        os.nice(19)
        signal.alarm(_MOST_S)
    make_files(sys.argv[2:], sys.argv[1])


if __name__ == "__main__":
    main()
