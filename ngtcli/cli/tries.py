"""Commands about the cached tries of documents and the datastores kept beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.ignored import flag, refuse_beside
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import JsonOption, PresetOption, resolve, with_some_settings
from ngtcli.cli.output import print_line, print_table
from ngtcli.cli.pool import pool_app
from ngtcli.cli.reading import read_documents, skipped_json, standard_input
from ngtcli.documents.load import Document
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.render.results import counted
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible
from ngtcli.storage import DamagedFileError, home

trie_app = typer.Typer(help="The cached n-gram tries of documents.", no_args_is_help=True)

trie_app.add_typer(pool_app, name="pool")

# The settings that decide which trie a text has, and how texts are read.
_READ = ("model", "n", "lp", "max_mb", "max_files", "max_depth", "strict")
PathsArgument = Annotated[list[str], typer.Argument(help="Files, folders, globs; - is stdin.")]


def _trie_row(file: Any) -> dict[str, Any]:
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


def _datastore_row(file: Any) -> dict[str, Any]:
    return {
        "kind": "datastore",
        "key": file.key,
        "name": file.name,
        "tokens": file.tokens,
        "bytes": file.bytes,
        "documents": list(file.documents),
        "path": str(file.path),
    }


@trie_app.command("build")
@with_some_settings(*_READ)
def trie_build(
    paths: PathsArgument,
    rest: Annotated[
        bool, typer.Option("--rest", help="Build a datastore for the method rest instead.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the datastore.")] = "",
    preset: PresetOption = None,
    json: JsonOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Build and cache the trie of documents ahead of the first question."""
    if name and not rest:
        raise UsageError("a trie has no name", "--name goes with --rest.")
    if ":" in name:  # --method rest:datastore=NAME could not say it
        raise UsageError(f"the name is {name!r}", "Give one without a colon.")
    given = {flag(name): name in (flags or {}) for name in ("n", "lp")}
    refuse_beside("--rest", given if rest else {}, "A datastore has no window: leave it out.")
    settings = resolve(flags or {}, preset, "summarize")[0].settings
    notes = Notes()
    loaded = read_documents(paths, standard_input(paths), settings, notes)
    documents = loaded.documents
    notes.status("Building …")
    from ngtcli.pretrained import load_tokenizer
    from ngtcli.trie.documents import document_trie

    tokenizer = load_tokenizer(settings.model)
    if rest:
        body = _build_datastore(documents, name or "default", tokenizer)
        line = f"built: datastore {visible(body['name'])}, {body['tokens']} tokens\n{body['path']}"
    else:
        trie, report = document_trie(
            documents, tokenizer, len(tokenizer.backend), settings.n, settings.lp, notes.warn
        )
        body = {**report.as_json(), "tokens": trie.tokens, "path": str(report.path or "")}
        line = (
            f"{report.status}: {trie.tokens} tokens, {len(trie)} nodes"
            f" in {report.seconds * 1000:.0f} ms\n{body['path']}"
        )
    notes.clear()
    body["skipped"] = skipped_json(loaded.skipped)
    print_line(dump_json(body) if json else line)


def _build_datastore(documents: Sequence[Document], name: str, tokenizer: Any) -> dict[str, Any]:
    from ngtcli.draft.methods import datastore

    built = datastore.build_datastore([tokenizer.encode(d.text.strip()) for d in documents])
    try:
        path = datastore.save(built, name, tokenizer.fingerprint, documents)
    except OSError as error:
        raise NgtError(
            f"the datastore cannot be written: {error.strerror or error}", "See ngt trie path."
        ) from None
    return {"status": "built", "name": name, "tokens": len(built), "path": str(path)}


@trie_app.command("list")
def trie_list(json: JsonOption = False) -> None:
    """List cached tries and datastores, the newest first."""
    from ngtcli.trie.listing import list_datastores, list_tries

    found = [(f.created, _trie_row(f)) for f in list_tries()]
    found += [(f.created, _datastore_row(f)) for f in list_datastores()]
    rows = [row for _, row in sorted(found, key=lambda item: -item[0])]
    if json:
        print_line(dump_json(rows))
        return
    header = ["what", "key", "tokens", "nodes", "size", "n", "lp", "documents"]
    print_table(header, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[Any]:
    what = visible(" ".join([row["kind"], row.get("name", "")])).strip()
    figures = [row.get(name, "") for name in ("n", "lp")]
    size = f"{row['bytes'] / 1e6:.1f} MB"
    names = _names(row["documents"])
    return [what, row["key"][:12], row["tokens"], row.get("nodes", ""), size, *figures, names]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@trie_app.command("show")
@with_some_settings(*_READ)
def trie_show(
    path: Annotated[str, typer.Argument(help="A document, a folder, or a file of the cache.")],
    preset: PresetOption = None,
    json: JsonOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Show the cached trie of documents and its most frequent n-grams."""
    from ngtcli.trie import listing, store

    if path.endswith((listing.SUFFIX, listing.DATASTORE_SUFFIX)):
        trie_file, other = listing.describe_trie(Path(path)), listing.describe_datastore(Path(path))
        if trie_file is None and other is None:
            raise InputError(f"{path}: not a trie file", "See ngt trie list.")
        given = {flag(name): True for name in flags or {}} | {"--preset": preset}
        refuse_beside("a file of the cache", given, "Leave it out, or name the document.")
        _print_facts(_trie_row(trie_file) if trie_file else _datastore_row(other), json)
        return
    settings = resolve(flags or {}, preset, "summarize")[0].settings
    from ngtcli.pretrained import load_tokenizer

    tokenizer = load_tokenizer(settings.model)
    loaded = read_documents([path], standard_input([path]), settings, Notes())
    key = store.trie_key(tokenizer.fingerprint, loaded.documents, settings.n, settings.lp)
    try:
        trie = store.load(key, settings.n, settings.lp, len(tokenizer.backend))
    except DamagedFileError as error:
        raise InputError(f"{path}: the cached trie is bad ({error})", _build_hint(path)) from None
    file = listing.describe_trie(store.trie_path(key))
    if trie is None or file is None:
        raise InputError(f"{path}: no trie is cached for it", _build_hint(path))
    top = [
        {"text": tokenizer.decode(sequence), "count": count}
        for sequence, count in trie.most_frequent(settings.lp, 10)
    ]
    facts = {**_trie_row(file), "most_frequent": top}
    _print_facts({**facts, "skipped": skipped_json(loaded.skipped)} if json else facts, json)


def _build_hint(path: str) -> str:
    return f"Build it with ngt trie build {path}"


def _print_facts(facts: dict[str, Any], json: bool) -> None:
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


@trie_app.command("clear")
def trie_clear(json: JsonOption = False) -> None:
    """Delete all cached tries and datastores."""
    from ngtcli.trie.listing import clear_tries

    files, size = clear_tries()
    if json:
        print_line(dump_json({"files": files, "bytes": size}))
    else:
        print_line(f"{counted(files, 'file')}, {size / 1e6:.1f} MB removed")


@trie_app.command("path")
def trie_path(json: JsonOption = False) -> None:
    """Print the folder of cached tries."""
    folder = str(home("cache") / "tries")
    print_line(dump_json({"path": folder}) if json else folder)
