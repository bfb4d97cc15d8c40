"""Cached tries and datastores as `ngt trie` shows them: rows of --json and cells of tables."""

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


def table_cells(row: dict[str, Any]) -> list[Any]:
    """What `ngt trie list` shows of a row."""
    what = visible(" ".join([row["kind"], row.get("name", "")])).strip()
    figures = [row.get(name, "") for name in ("n", "lp")]
    size = f"{row['bytes'] / 1e6:.1f} MB"
    names = _names(row["documents"])
    return [what, row["key"][:12], row["tokens"], row.get("nodes", ""), size, *figures, names]


def _names(names: list[str]) -> str:
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
