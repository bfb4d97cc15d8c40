"""Make backgrounds and store them; what ships and what is joined in a process of their own.

`python -m ngtcli.background.making MODEL NAME…` makes what lacks of the files of these names for a
model's tokenizer. It takes some seconds of one core once, so it is started when an answer is
complete, detached and at the lowest priority. A thread would hold up the process at its end, and
its Python code what else the process does.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ngtcli.background import stored
from ngtcli.background.counting import joined, phrase_counts
from ngtcli.background.names import SHIPPED, failure_path
from ngtcli.background.phrases import read_phrases
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.system.storage import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts, build_counts
from ngtcli.trie.store import about

_FAILURES = (NgtError, DamagedFileError, OSError, ValueError, MemoryError)
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
    """Make what lacks in a process that outlives this one; files appear when they are complete.

    Two such processes at once do no harm: each renames its own complete files. Raises OSError.
    """
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.Popen(
        [sys.executable, "-m", __name__, model, *names],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=environ,
    )  # fmt: skip


def make_files(names: Sequence[str], model: str) -> None:
    """Make and store what lacks: those that ship, then what is joined of all that are there."""
    tokenizer = load_tokenizer(model)
    fingerprint, found = tokenizer.fingerprint, dict[str, BackgroundCounts]()
    for name in names:
        with suppress(FileNotFoundError, DamagedFileError):
            found[name] = stored.open_background(name, fingerprint, len(tokenizer.backend))
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
    stored.save(name, tokenizer.fingerprint, counts, origin)


@contextmanager
def _telling(name: str, fingerprint: str) -> Iterator[None]:
    """Where making fails, leave the reason for the next run to tell."""
    try:
        yield
    except _FAILURES as error:
        with suppress(OSError):
            failed = failure_path(name, fingerprint)
            failed.parent.mkdir(parents=True, exist_ok=True)
            failed.write_text(str(error), encoding="utf-8")


def main() -> None:
    """Make what the command line names, at the lowest priority."""
    if hasattr(os, "nice"):
        os.nice(19)
    make_files(sys.argv[2:], sys.argv[1])


if __name__ == "__main__":
    main()
