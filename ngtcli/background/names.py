"""The names of backgrounds: which ship, which the user has built. Loads no numpy."""

from collections.abc import Sequence
from pathlib import Path

from ngtcli.errors import UsageError, nearest
from ngtcli.system.storage import key_of
from ngtcli.trie.listing import BACKGROUND_SUFFIX, FAILED_SUFFIX, list_backgrounds, trie_folder

SHIPPED = {"english": Path(__file__).parent / "english.phrases.xz"}
# Of how phrases are counted, and of the shipped file: the beginning of its SHA-256.
EDITION = "1-8c13467e"
FORMAT = 1  # of the key


def background_path(name: str, fingerprint: str) -> Path:
    """The file for a name and a tokenizer. Raises UsageError as `home` does."""
    return trie_folder() / f"{_key(name, fingerprint)}{BACKGROUND_SUFFIX}"


def failure_path(name: str, fingerprint: str) -> Path:
    """The file that says why that file could not be made."""
    return trie_folder() / f"{_key(name, fingerprint)}{FAILED_SUFFIX}"


def _key(name: str, fingerprint: str) -> str:
    edition = EDITION if SHIPPED.keys() & name.split(",") else ""
    return key_of("background", FORMAT, edition, fingerprint, name)


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for a name of which there is no background, for no tokenizer."""
    for name in (n for n in names if n not in SHIPPED):
        built = (f.name for f in list_backgrounds() if "," not in f.name)
        known = list(dict.fromkeys([*SHIPPED, *built]))  # one name may have several tokenizers
        if name not in known:
            hint = f"{nearest(name, known)} Build one with ngt trie build --background PATH."
            raise UsageError(f"no background {name!r}", hint)


def check_new_name(name: str) -> None:
    """Raise UsageError for a name that no background of the user's can have."""
    if name in SHIPPED:
        raise UsageError(f"the background {name} ships with ngt", "Give another name.")
    if name == "none" or "," in name or name != name.strip():
        raise UsageError(f"the name is {name!r}", "Give a word without a comma.")
