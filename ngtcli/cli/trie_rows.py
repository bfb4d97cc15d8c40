"""Cached tries and datastores as `ngt trie` shows them: rows of --json and cells of tables."""

from collections.abc import Sequence
from typing import Any

from ngtcli.cli.output import print_line
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible
from ngtcli.trie.listing import DatastoreFile, TrieFile


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


def file_row(file: TrieFile | DatastoreFile) -> dict[str, Any]:
    """A file of the cache, as --json shows it."""
    return trie_row(file) if isinstance(file, TrieFile) else datastore_row(file)


def table_cells(file: TrieFile | DatastoreFile) -> list[object]:
    """What `ngt trie list` shows of a file."""
    size, names = f"{file.bytes / 1e6:.1f} MB", _names(file.documents)
    if isinstance(file, TrieFile):
        return ["trie", file.key[:12], file.tokens, file.nodes, size, file.n, file.lp, names]
    what = visible(f"datastore {file.name}").strip()
    return [what, file.key[:12], file.tokens, "", size, "", "", names]


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
            print_line(f"{name}: {visible(str(shown))}")
