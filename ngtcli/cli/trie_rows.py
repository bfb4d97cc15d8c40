"""Files of the trie cache as `ngt trie` shows them: rows of --json and cells of tables."""

from collections.abc import Sequence
from typing import Any

from ngtcli.cli.output import print_line
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import one_line, visible
from ngtcli.trie.listing import BackgroundFile, CacheFile, DatastoreFile, TrieFile


def trie_row(file: TrieFile) -> dict[str, Any]:
    """A cached trie, as --json shows it."""
    return {
        "kind": "trie",
        "key": file.key,
        "n": file.n,
        "lp": file.lp,
        "tokens": file.tokens,
        "nodes": file.nodes,
        "bytes": file.bytes,
        "documents": list(file.documents),
        "path": str(file.path),
    }


def datastore_row(file: DatastoreFile) -> dict[str, Any]:
    """A datastore, as --json shows it."""
    return {
        "kind": "datastore",
        "key": file.key,
        "name": file.name,
        "tokens": file.tokens,
        "bytes": file.bytes,
        "documents": list(file.documents),
        "path": str(file.path),
    }


def background_row(file: BackgroundFile) -> dict[str, Any]:
    """A background, as --json shows it."""
    return {
        "kind": "background",
        "key": file.key,
        "name": file.name,
        "tokens": file.tokens,
        "nodes": file.nodes,
        "bytes": file.bytes,
        "documents": list(file.documents),
        "tokenizer": file.tokenizer,
        "model": file.model,
        "path": str(file.path),
    }


def file_row(file: CacheFile) -> dict[str, Any]:
    """A file of the cache, as --json shows it."""
    if isinstance(file, TrieFile):
        return trie_row(file)
    return datastore_row(file) if isinstance(file, DatastoreFile) else background_row(file)


def table_cells(file: CacheFile) -> list[object]:
    """What `ngt trie list` shows of a file."""
    size, names = f"{file.bytes / 1e6:.1f} MB", _names(file.documents)
    if isinstance(file, TrieFile):
        return ["trie", file.key[:12], file.tokens, file.nodes, size, file.n, file.lp, names]
    if isinstance(file, DatastoreFile):
        what, nodes = f"datastore {file.name}", ""
    else:
        what, nodes = f"background {file.name}", str(file.nodes)
        names += f" (for {file.model})"
    tokens = file.tokens or ""  # phrases are no running text
    return [what, file.key[:12], tokens, nodes, size, "", "", names]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def print_facts(facts: dict[str, Any], json: bool) -> None:
    """A row and what else is known of its file, a line each; or as JSON."""
    if json:
        print_line(dump_json(facts))
        return
    for name, value in facts.items():
        if name == "most_frequent":
            for item in value:
                print_line(f"{item['count']:>8}  {visible(item['text']).strip()!r}")
        else:
            shown = ", ".join(value) if isinstance(value, list) else value
            print_line(f"{name}: {one_line(str(shown))}")
