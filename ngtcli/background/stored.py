"""The files of backgrounds: one for a name and a tokenizer, and one for names that are joined."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ngtcli.background.names import background_path
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.background_file import TOKENIZER, load_background, save_background


def open_background(name: str, fingerprint: str, vocabulary: int) -> BackgroundCounts:
    """The counts of a name, mapped. Raises FileNotFoundError and DamagedFileError."""
    wanted = {TOKENIZER: fingerprint, "name": name}
    return load_background(background_path(name, fingerprint), vocabulary, wanted)


def open_joined(names: Sequence[str], fingerprint: str, vocabulary: int) -> BackgroundCounts:
    """The joined counts of names that have files. Raises as `open_background` does.

    DamagedFileError is raised, too, where one of them was built anew since.
    """
    name = ",".join(names)
    wanted = {TOKENIZER: fingerprint, "name": name, "parts": parts_of(names, fingerprint)}
    return load_background(background_path(name, fingerprint), vocabulary, wanted)


def parts_of(names: Sequence[str], fingerprint: str) -> str:
    """What tells the files of names from later ones of the same names. Raises OSError."""
    found = [background_path(name, fingerprint).stat() for name in names]
    return " ".join(f"{about.st_size}:{about.st_mtime_ns}" for about in found)


def save(name: str, fingerprint: str, counts: BackgroundCounts, about: Mapping[str, str]) -> Path:
    """Store counts; the path. `about` is other metadata. Raises OSError."""
    path = background_path(name, fingerprint)
    told = {"name": name, "nodes": str(counts.counted), TOKENIZER: fingerprint, **about}
    return save_background(path, counts, {**told, "key": path.name.partition(".")[0]})
