"""Make backgrounds and store them; the shipped ones in a process of their own.

`python -m ngtcli.background.making NAME MODEL` makes the counts of a shipped background for a
model's tokenizer. It takes one or two seconds of one core once, so it is started when an answer is
complete, detached and at the lowest priority. A thread would hold up the process at its end, and
its Python code what else the process does.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ngtcli.background.counting import phrase_counts
from ngtcli.background.names import SHIPPED, background_key, background_path, failure_path
from ngtcli.background.phrases import read_phrases
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.system.storage import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts, build_counts
from ngtcli.trie.background_file import save_background
from ngtcli.trie.store import about

_FAILURES = (NgtError, DamagedFileError, OSError, ValueError, MemoryError)


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
    return _save(counts, name, tokenizer, model, tokens, about(documents)), counts, tokens


def _save(
    counts: BackgroundCounts,
    name: str,
    tokenizer: Tokenizer,
    model: str,
    tokens: int,
    origin: Mapping[str, str],
) -> Path:
    key = background_key(name, tokenizer.fingerprint)
    metadata = {
        "key": key,
        "name": name,
        "tokens": str(tokens),
        "nodes": str(len(counts)),
        "tokenizer": tokenizer.fingerprint,
        "model": model,
        **origin,
    }
    return save_background(background_path(key), counts, metadata)


def start_making(name: str, model: str) -> None:
    """Make a shipped background in a process that outlives this one; its file appears when done.

    Two such processes at once do no harm: each renames its own complete file. Raises OSError.
    """
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.Popen(
        [sys.executable, "-m", __name__, name, model],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=environ,
    )  # fmt: skip


def make_file(name: str, model: str) -> None:
    """Make and store a shipped background; where that fails, store why."""
    tokenizer = load_tokenizer(model)
    try:
        phrases = read_phrases(SHIPPED[name])
        told = json.dumps([f"{len(phrases)} words and phrases"])
        origin = {"created": str(int(time.time())), "documents": told}
        _save(phrase_counts(phrases, tokenizer), name, tokenizer, model, 0, origin)
    except _FAILURES as error:
        with suppress(OSError):
            failed = failure_path(background_key(name, tokenizer.fingerprint))
            failed.parent.mkdir(parents=True, exist_ok=True)
            failed.write_text(str(error), encoding="utf-8")


def main() -> None:
    """Make what the command line names, at the lowest priority."""
    if hasattr(os, "nice"):
        os.nice(19)
    make_file(*sys.argv[1:3])


if __name__ == "__main__":
    main()
