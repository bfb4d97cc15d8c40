"""The JSON Schemas of what is on this machine: documents, tries, presets, models, folders."""

from ngtcli.render.schema_measured import SKIPPED
from ngtcli.render.schema_types import NUMBER, TEXT, WHOLE, Schema, of_dataclass, rows, shape

# What is printed of what was deleted, and of one place or several.
_REMOVED = {"removed": shape({"files": WHOLE, "bytes": WHOLE})}
_PATH = {"path": shape({"path": TEXT})}
_PATHS = {"paths": rows(TEXT)}
_VERSIONS = (
    "ngt", "python", "torch", "transformers", "tokenizers", "safetensors", "numpy", "numba",
    "typer", "rich",
)  # fmt: skip
_PLACES = ("config folder", "cache folder", "model folder", "executable")


def _tries() -> dict[str, dict[str, Schema]]:
    from ngtcli.trie.listing import BackgroundFile, DatastoreFile, TrieFile

    trie = {"kind": {"const": "trie"}, **of_dataclass(TrieFile, ("created",))}
    store = {"kind": {"const": "datastore"}, **of_dataclass(DatastoreFile, ("created",))}
    background = {"kind": {"const": "background"}, **of_dataclass(BackgroundFile, ("created",))}
    frequent = {
        "most_frequent": rows(shape({"text": TEXT, "count": WHOLE})), "skipped": SKIPPED,
    }  # fmt: skip
    row = {"anyOf": [shape(trie), shape(store), shape(background)]}
    pool = {"model": TEXT, "answers": WHOLE, "tokens": WHOLE, "bytes": WHOLE, "path": TEXT}
    return {
        "trie build": _built(),
        "trie list": {"tries": rows(row)},
        "trie show": {"trie": {"anyOf": [shape(trie | frequent), *row["anyOf"]]}},
        "trie clear": _REMOVED,
        "trie path": _PATH,
        "trie pool show": {"pools": rows(shape(pool))},
        "trie pool clear": _REMOVED,
    }


def _built() -> dict[str, Schema]:
    """The outputs of `ngt trie build` by what was built."""
    file: dict[str, Schema] = {"tokens": WHOLE, "path": TEXT, "skipped": SKIPPED}
    named = {**file, "status": {"const": "built"}, "name": TEXT}
    trie: Schema = {
        "status": {"enum": ["cached", "built", "rebuilt"]},
        "seconds": NUMBER,
        "nodes": WHOLE,
    }
    return {
        "built_trie": shape({**trie, **file}),
        "built_datastore": shape(named),
        "built_background": shape({**named, "nodes": WHOLE}),
    }
