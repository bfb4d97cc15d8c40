"""The file of phrases: words and phrases of a language with counts, and no running text.

The file is compressed text with one phrase per line, sorted by words. Each phrase extends an
earlier one by a word, so a line has only the number of its words, its last word, a tab and the
count. All parts of each phrase are in the file as well. Words include the space before them;
PARAGRAPH is the start of a paragraph.

    1 the	90210
    2 fact	17            " the fact" is there 17 times
    3 that	12            " the fact that", 12 times
"""

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.system.files import DamagedFileError, read_bounded

Ints = npt.NDArray[np.int32]

PARAGRAPH = "\n"
LONGEST = 6  # words of a phrase; derived: contexts of `auto` have 6 tokens
MOST_PACKED = 4_000_000  # bytes of a file; derived: what may ship
MOST = 64_000_000  # bytes of its text, and of what reading it may take (guess)
PARAGRAPH_MARK = "\\n"


@dataclass(frozen=True, slots=True)
class Phrases:
    """The words, and the phrases of each length with their counts, one entry per phrase.

    `rows[n - 1]` is (indices of words, int32 (phrases, n); counts, int32 (phrases,)).
    """

    words: tuple[str, ...]
    rows: tuple[tuple[Ints, Ints], ...]

    def __len__(self) -> int:
        """Return the number of phrases, words included."""
        return sum(len(counts) for _, counts in self.rows)


def read_phrases(path: Path) -> Phrases:
    """Read the phrases in a file. Raises OSError, and DamagedFileError for any other content.

    At most MOST_PACKED bytes are read, which may decompress to at most MOST bytes.
    """
    data = read_bounded(path, MOST_PACKED)
    try:
        unpacked = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST)
        text = unpacked.decompress(data, MOST).decode("utf-8")
        if not unpacked.eof:
            raise DamagedFileError("it is cut off or too long")
        lines = text.removesuffix("\n").split("\n") if text else []
        parted = [line[1:].split("\t") for line in lines]
        words = [word for word, _ in parted]
        counts = np.array([number for _, number in parted], np.int32)
        lengths = np.array([line[:1] for line in lines], np.int32)
    except (lzma.LZMAError, MemoryError, ValueError, OverflowError) as error:
        raise DamagedFileError(f"no phrases ({error})") from None
    return _phrases(words, lengths, counts)


def _phrases(last: Sequence[str], lengths: Ints, counts: Ints) -> Phrases:
    """Return the phrases of lines, from their last words, numbers of words, and counts."""
    steps = np.diff(lengths, prepend=0)
    if len(lengths) and (lengths.min() < 1 or lengths.max() > LONGEST or steps.max() > 1):
        raise DamagedFileError("a phrase without its beginning")
    if (counts < 1).any() or "" in last:
        raise DamagedFileError("an empty line")
    number = {word: i for i, word in enumerate(dict.fromkeys(last))}
    ids = np.array([number[word] for word in last], np.int32)
    at = np.arange(len(lengths))
    # The line of the phrase's first k words: the last one of k words, up to the phrase's own.
    begins = [np.maximum.accumulate(np.where(lengths == k, at, -1)) for k in range(1, LONGEST + 1)]
    rows = []
    for n in range(1, LONGEST + 1):
        own = np.flatnonzero(lengths == n)
        rows.append((np.stack([ids[begins[k][own]] for k in range(n)], 1), counts[own]))
    words = tuple(PARAGRAPH if word == PARAGRAPH_MARK else word for word in number)
    return Phrases(words, tuple(rows))
