"""The JSON Schemas of what is on this machine: documents, tries, presets, models, folders."""

from ngtcli.render.schema_measured import SKIPPED
from ngtcli.render.schema_types import NUMBER, TEXT, WHOLE, Schema, of_dataclass, rows, shape
from ngtcli.system.cache import Held
from ngtcli.system.json_form import schema_of

# What is printed of what was deleted, and of one place or several.
_REMOVED = {"removed": shape({"files": WHOLE, "bytes": WHOLE})}
_PATH = {"path": shape({"path": TEXT})}
_PATHS = {"paths": rows(TEXT)}
_VERSIONS = (
    "ngt", "python", "torch", "transformers", "tokenizers", "safetensors", "numpy", "numba",
    "typer", "rich",
)  # fmt: skip
_PLACES = ("config folder", "cache folder", "model folder", "executable")


def kept(settings: dict[str, Schema]) -> dict[str, dict[str, Schema]]:
    """For each command the names and schemas of its outputs; `settings` are those by name."""
    return {
        **_tries(), **_documents(), **_presets(settings),
        "cache list": {"stores": rows(schema_of(Held))},
        "cache show": {"store": schema_of(Held)},
        "cache clear": _REMOVED,
        "cache path": _PATH,
        "config path": _PATHS,
        "models list": {"models": rows(shape({"name": TEXT, "bytes": WHOLE, "path": TEXT}))},
        "models path": {"model_paths": shape({"builtin": TEXT, "hub": TEXT})},
        "env": {"env": _env()},
    }  # fmt: skip


def _env() -> Schema:
    texts = (*_VERSIONS, "platform", "device", "processor", "passes", "parsers", *_PLACES)
    return shape({**dict.fromkeys(texts, TEXT), "threads": WHOLE})


def _tries() -> dict[str, dict[str, Schema]]:
    from ngtcli.trie.files import CacheFile, PoolFile, TrieFile

    frequent = {
        "most_frequent": rows(shape({"text": TEXT, "count": WHOLE})), "skipped": SKIPPED,
    }  # fmt: skip
    row, trie = schema_of(CacheFile), schema_of(TrieFile)["properties"]
    return {
        "trie build": _built(),
        "trie list": {"tries": rows(row)},
        "trie show": {"trie": {"anyOf": [shape(trie | frequent), *row["anyOf"]]}},
        "trie clear": _REMOVED,
        "trie path": _PATH,
        "trie pool show": {"pools": rows(schema_of(PoolFile))},
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


def _documents() -> dict[str, dict[str, Schema]]:
    from ngtcli.documents.content import About, Section
    from ngtcli.documents.load import Row

    shown = {"name": TEXT, "path": TEXT, **of_dataclass(About, ("sections",))}
    shown |= {"characters": WHOLE, "tokens": WHOLE, "text": TEXT}
    shown["sections"] = rows(shape(of_dataclass(Section)))
    passage = dict.fromkeys(("start", "end", "tokens", "page"), WHOLE)
    shown["passages"] = rows(shape(passage | {"heading": TEXT}))
    listed, one = rows(shape(of_dataclass(Row))), rows(shape(shown, ["passages"]))
    return {
        "docs list": {"documents": shape({"documents": listed, "skipped": SKIPPED})},
        "docs show": {"documents_shown": shape({"documents": one, "skipped": SKIPPED})},
        "docs clear": _REMOVED,
        "docs path": _PATH,
    }


def _presets(settings: dict[str, Schema]) -> dict[str, dict[str, Schema]]:
    from ngtcli.prompt.preset import Preset

    good = shape({"name": TEXT, "description": TEXT, "path": TEXT})
    bad = shape({"name": TEXT, "error": TEXT, "path": TEXT})
    values = shape(settings, list(settings))
    own = of_dataclass(Preset, ("settings", "provenance"))
    shown = shape({**own, "settings": values, "provenance": {"type": "object"}})
    return {
        "presets list": {"presets": rows({"anyOf": [good, bad]})},
        "presets show": {"preset": shown},
        "presets path": _PATHS,
    }
