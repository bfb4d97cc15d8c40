"""The shipped background, and the files of its counts, one for each tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.drafting.tries.files import BACKGROUNDS, TOKENIZER
from ngtcli.system.files import key_of

if TYPE_CHECKING:  # light commands want no numpy
    from ngtcli.drafting.tries.background import BackgroundCounts

SHIPPED = {"english": Path(__file__).parent / "english.phrases.xz"}
# Of how phrases are counted, and of the shipped file: the beginning of its SHA-256.
EDITION = "1-8c13467e"
FORMAT = 2  # of the key


def background_path(name: str, fingerprint: str) -> Path:
    """Return the file for a background and a tokenizer. Raises UsageError as `home` does."""
    return BACKGROUNDS.path(key_of("background", FORMAT, EDITION, fingerprint, name))


def open_background(name: str, fingerprint: str, vocab_size: int) -> "BackgroundCounts":
    """Map the counts of a background. Raises FileNotFoundError and DamagedFileError."""
    from ngtcli.drafting.tries.background import load_counts  # imported here: it loads numpy

    about = {TOKENIZER: fingerprint, "name": name}
    return load_counts(BACKGROUNDS, background_path(name, fingerprint), vocab_size, about)


def save(name: str, fingerprint: str, counts: "BackgroundCounts", about: Mapping[str, str]) -> Path:
    """Store counts; return the path. `about` is further metadata. Raises OSError."""
    path = background_path(name, fingerprint)
    described = {"name": name, "nodes": str(counts.counted), TOKENIZER: fingerprint, **about}
    return BACKGROUNDS.write(path, counts.arrays, {**described, "key": path.name.partition(".")[0]})
