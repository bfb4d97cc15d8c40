"""The pool of a model's earlier answers for `auto`: their text, and the success of sources.

The pool keeps a limited number of token ids of answers and drops the oldest first. Unless `quotes`
is set, it leaves out the parts of an answer that are in the prompt: every run of QUOTE tokens, and
each shorter one that is not common English by the background. So it holds a model's own phrases;
of documents it holds common words, and common phrases of up to three tokens. There is one file per
model; an invalid file is replaced by an empty one. If there are several processes, each adds its
answers to the file; tallies and weights are those of the last process that learned some.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.drafting.tries.corpus import SEPARATOR, Ints
from ngtcli.drafting.tries.files import POOLS
from ngtcli.system.files import DamagedFileError, key_of, private_folder
from ngtcli.system.journal import LineFile

QUOTE = CONFIG.quote
TOKENS = CONFIG.pool_tokens
_SCALE = CONFIG.tally_scale
# The most observations that a tally has in a file (derived: its numbers are int32).
_MOST = (2**31 - 1) // (2 * _SCALE)
_LOCK_S = 10.0  # longest wait for another process that writes (guess)
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Pool:
    """The earlier answers of a model, and what `auto` has learned from them.

    Attributes:
        limit: The maximum number of token ids.
        quotes: Whether to keep the parts of answers that are in the prompt, too.
        answers: The token ids of each answer, or of each kept part of one, the newest last.
        tally_predicted: `EscapeTallies.predicted` without the rows of heads. This and the next
            three are None before anything was learned.
        tally_reached: `EscapeTallies.reached` without the rows of heads.
        factors: The weights of the log-linear stage, as factors.
        squares: Adagrad's sums of squares for these weights.
        new: The answers that are not stored yet; the oldest are dropped beyond `limit`.
    """

    limit: int = TOKENS
    quotes: bool = False
    answers: list[Ints] = field(default_factory=list)
    tally_predicted: Floats | None = None
    tally_reached: Floats | None = None
    factors: Floats | None = None
    squares: Floats | None = None
    new: list[Ints] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Return the number of ids."""
        return sum(map(len, self.answers))

    def add(
        self,
        answer: Sequence[int],
        prompt: Sequence[int],
        background: BackgroundCounts | None = None,
    ) -> list[Ints]:
        """Learn an answer to a prompt; return the pieces that the pool keeps, by `own_words`."""
        pieces = [answer] if self.quotes else list(own_words(answer, prompt, background))
        learned = [np.array(piece[: self.limit], np.int32) for piece in pieces if len(piece) > 1]
        self.new = newest(self.new + learned, self.limit)
        self.answers = newest(self.answers + learned, self.limit)
        return learned


def own_words(
    answer: Sequence[int], prompt: Sequence[int], background: BackgroundCounts | None = None
) -> Iterator[list[int]]:
    """Yield the runs of an answer that remain without its quotations of the prompt.

    A quotation is every run of QUOTE tokens that is in the prompt, and every shorter one that the
    `background` does not know, such as names of people. Without a background only single tokens of
    the prompt stay.

    >>> list(own_words([9, 1, 2, 3, 4, 5, 8, 7], [0, 1, 2, 3, 4, 5, 6]))
    [[9], [8, 7]]
    """
    quoted = [False] * len(answer)
    for size, is_known in enumerate(_runs_known(answer, prompt), 1):
        for start in np.flatnonzero(is_known).tolist():
            end = start + size
            if size == QUOTE or not _is_general(answer[start:end], background):
                quoted[start:end] = [True] * size
    for out, run in groupby(zip(quoted, answer, strict=True), itemgetter(0)):
        if not out:
            yield [token for _, token in run]


def _runs_known(answer: Sequence[int], prompt: Sequence[int]) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield, for runs of 1 to QUOTE tokens, which runs of the answer are in the prompt.

    Each result is bool (runs of the answer,), by the start of the run.
    """
    first = len(prompt)
    numbered = np.unique(np.concatenate([prompt, answer]), return_inverse=True)[1]
    runs = numbered
    for size in range(1, QUOTE + 1):
        if size > len(numbered):
            return
        if size > 1:  # equal runs get equal numbers: of a shorter run and the token after it
            longer = runs[:-1] * len(numbered) + numbered[size - 1 :]
            runs = np.unique(longer, return_inverse=True)[1]
        yield np.isin(runs[first:], runs[: max(0, first - size + 1)])


def _is_general(run: Sequence[int], background: BackgroundCounts | None) -> bool:
    return len(run) == 1 if background is None else background.holds(run)


def newest(answers: Sequence[Ints], limit: int) -> list[Ints]:
    """Return the last answers that together have at most `limit` tokens."""
    last_first: list[Ints] = []
    for answer in reversed(answers):
        limit -= len(answer)
        if limit < 0:
            break
        last_first.append(answer)
    return last_first[::-1]


def pool_path(fingerprint: str, model: str) -> Path:
    """Return the file for answers of a model with the tokenizer of that fingerprint."""
    return POOLS.path(key_of(POOLS.format, fingerprint, model))


def load_pool(path: Path, vocabulary: int, limit: int, quotes: bool) -> Pool:
    """Load the pool in a file; return an empty one if there is no file.

    Raises DamagedFileError if the file is damaged, foreign or has impossible numbers.
    """
    pool = Pool(limit, quotes)
    try:
        arrays, _ = POOLS.map(path)
    except FileNotFoundError:
        return pool
    stream, predicted, reached, factors, squares = (arrays[name] for name in POOLS.arrays)
    if len(stream) and not -1 <= int(stream.min()) <= int(stream.max()) < vocabulary:
        raise DamagedFileError("ids out of range")
    if (predicted < 0).any() or (reached < predicted).any():
        raise DamagedFileError("impossible tallies")
    if not (np.isfinite(factors).all() and np.isfinite(squares).all()):
        raise DamagedFileError("impossible weights")
    borders = np.flatnonzero(stream == SEPARATOR)
    pool.answers = newest([a[a >= 0] for a in np.split(stream, borders) if (a >= 0).any()], limit)
    pool.tally_predicted = predicted / _SCALE
    pool.tally_reached = reached / _SCALE
    if len(factors):
        pool.factors = factors.copy()
        pool.squares = squares.copy()
    return pool


def save_pool(path: Path, pool: Pool, model: str, vocabulary: int) -> None:
    """Add the new answers to the file, which may have grown meanwhile. Raises OSError."""
    if pool.tally_predicted is None or pool.tally_reached is None:
        return
    private_folder(path.parent)
    lock = path.parent / "pools.lock"
    with LineFile(lock, wait_s=_LOCK_S):
        stored = Pool()
        with suppress(DamagedFileError):
            stored = load_pool(path, vocabulary, pool.limit, pool.quotes)
        answers = newest(stored.answers + pool.new, pool.limit)
        # Answers without the log-linear stage say nothing about its weights.
        learned = stored if pool.factors is None or pool.squares is None else pool
        weight = _SCALE * np.minimum(1.0, _MOST / np.maximum(pool.tally_reached.ravel(), 1e-9))
        stream = [part for a in answers for part in (a, np.array([SEPARATOR], np.int32))]
        arrays: dict[str, Any] = {
            "stream": np.concatenate([np.zeros(0, np.int32), *stream]),
            "predicted": np.floor(pool.tally_predicted.ravel() * weight).astype(np.int32),
            "reached": np.ceil(pool.tally_reached.ravel() * weight).astype(np.int32),
            "factors": np.zeros(0) if learned.factors is None else learned.factors,
            "squares": np.zeros(0) if learned.squares is None else learned.squares,
        }
        sizes = {"answers": str(len(answers)), "tokens": str(sum(map(len, answers)))}
        POOLS.write(path, arrays, {"model": model, **sizes})
        lock.unlink(missing_ok=True)  # A process that waits for it sees that, and makes another.
    pool.new = []
