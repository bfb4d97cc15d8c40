"""The backgrounds by name: which ship, which the user has built, and their files.

There is one file for a name and a tokenizer, and one for names that are joined.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.errors import UsageError, nearest
from ngtcli.system.files import key_of
from ngtcli.trie.files import BACKGROUNDS, TOKENIZER, list_files

if TYPE_CHECKING:  # light commands want no numpy
    from ngtcli.trie.background import BackgroundCounts

SHIPPED = {"english": Path(__file__).parent / "english.phrases.xz"}
# Of how phrases are counted, and of the shipped file: the beginning of its SHA-256.
EDITION = "1-8c13467e"
FORMAT = 1  # of the key


def background_path(name: str, fingerprint: str) -> Path:
    """The file for a name and a tokenizer. Raises UsageError as `home` does."""
    edition = EDITION if SHIPPED.keys() & name.split(",") else ""
    return BACKGROUNDS.path(key_of("background", FORMAT, edition, fingerprint, name))


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for a name of which no tokenizer has a background."""
    if SHIPPED.keys() >= set(names):
        return
    built = (file.name or "" for file in list_files(BACKGROUNDS))
    single = [name for name in built if "," not in name]
    known = list(dict.fromkeys([*SHIPPED, *single]))  # one name may have several tokenizers
    for name in names:
        if name not in known:
            hint = f"{nearest(name, known)} Build one with ngt trie build --background PATH."
            raise UsageError(f"no background {name!r}", hint)


def check_new_name(name: str) -> None:
    """Raise UsageError for a name that no background of the user's can have."""
    if name in SHIPPED:
        raise UsageError(f"the background {name} ships with ngt", "Give another name.")
    if name == "none" or "," in name or name != name.strip():
        raise UsageError(f"the name is {name!r}", "Give a word without a comma.")


def open_background(
    name: str, fingerprint: str, vocabulary: int, **wanted: str
) -> "BackgroundCounts":
    """The counts of a name, mapped. Raises FileNotFoundError and DamagedFileError.

    Those of joined names have them with commas, and `parts` in the metadata that are `wanted`:
    another value says that one of them was built again since.
    """
    from ngtcli.trie.background import load_counts  # here: it loads numpy

    about = {TOKENIZER: fingerprint, "name": name, **wanted}
    return load_counts(BACKGROUNDS, background_path(name, fingerprint), vocabulary, about)


def stamps_of(names: Iterable[str], fingerprint: str) -> str:
    """What tells the files of the user's own names from later ones of these names."""
    found = []
    for name in names:
        with suppress(OSError):
            about = background_path(name, fingerprint).stat()
            found.append("" if name in SHIPPED else f"{about.st_size}:{about.st_mtime_ns}")
    return " ".join(found)


def save(name: str, fingerprint: str, counts: "BackgroundCounts", about: Mapping[str, str]) -> Path:
    """Store counts; the path. `about` is other metadata. Raises OSError."""
    path = background_path(name, fingerprint)
    described = {"name": name, "nodes": str(counts.counted), TOKENIZER: fingerprint, **about}
    return BACKGROUNDS.write(path, counts.arrays, {**described, "key": path.name.partition(".")[0]})
