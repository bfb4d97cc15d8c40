"""`ngt trie`: the cached tries of documents, and datastores."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ngtcli.cli.checks import Situation, warn_of_no_effect
from ngtcli.cli.command import Group
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import PresetOption, resolve
from ngtcli.cli.reading import distinct, read_documents, standard_input
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import table
from ngtcli.config import SETTINGS, Settings, settings_in
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Loaded
from ngtcli.drafting.tries.files import TRIES, KeptFile, describe, list_files
from ngtcli.errors import InputError, UsageError
from ngtcli.models.checkpoint import find
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.render.terminal import one_line, visible
from ngtcli.system.files import DamagedFileError
from ngtcli.system.journal import errors_named
from ngtcli.system.json_form import HIDDEN, json_key, to_json
from ngtcli.words import counted

trie_app = Group("trie")
_NAMES_SHOWN = 3  # documents that a row of the list names

# The settings that decide which trie a text has, and how texts are read.
_READ = ("model", "n", "lp", *settings_in("reading"))
PathsArgument = Annotated[
    list[str], typer.Argument(help="Files, folders, globs; - is standard input.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The output of `ngt trie build`: a trie has seconds and nodes, a datastore has a name."""

    kind: str = field(metadata=HIDDEN)
    status: str = field(default="built", metadata=json_key(choices=("cached", "built", "rebuilt")))
    name: str | None = field(default=None, metadata=json_key(omit=True))
    seconds: float | None = field(default=None, metadata=json_key(digits=6, omit=True))
    nodes: int | None = field(default=None, metadata=json_key(omit=True))
    tokens: int
    path: str
    skipped: Sequence[Skipped]


@dataclass(frozen=True, slots=True)
class FrequentGram:
    """An n-gram of a trie, and how often it occurs in the documents."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class ShownTrie:
    """The output of `ngt trie show`."""

    file: KeptFile = field(metadata=json_key(flat=True))
    most_frequent: Sequence[FrequentGram]
    skipped: Sequence[Skipped]


def _built_view(built: Built) -> str:
    if built.name is not None:
        line = f"built: {built.kind} {one_line(built.name)}, {counted(built.tokens, 'token')}"
    else:
        line = f"{built.status}: {counted(built.tokens, 'token')}"
        if built.seconds is not None and built.nodes is not None:
            line += f", {counted(built.nodes, 'node')} in {built.seconds * 1000:.0f} ms"
    return f"{line}\n{one_line(built.path)}"


@trie_app.command("build", settings=_READ, view=_built_view)
def trie_build(
    flags: SettingFlags,
    paths: PathsArgument,
    rest: Annotated[
        bool, typer.Option("--rest", help="Build a datastore for --method rest instead.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the datastore.")] = None,
    preset: PresetOption = None,
) -> Built:
    """Build and cache the trie of documents ahead of the first question."""
    if rest:
        _check_datastore(name, flags)
    elif name is not None:
        raise UsageError("--name requires --rest", hint="Add --rest, or leave out --name.")
    settings = resolve(flags, preset)[0].settings
    notes = Notes()
    find(settings.model.model, ["tokenizer"])  # a wrong name is reported before reading documents
    loaded = read_documents(paths, standard_input(paths), settings, notes)
    notes.status("Building …")
    tokenizer = load_tokenizer(settings.model.model)
    if rest:
        built = _build_datastore(name or "default", loaded, tokenizer)
    else:
        built = _build_trie(loaded, tokenizer, settings)
    notes.clear()
    return built


def _check_datastore(name: str | None, flags: Mapping[str, Any]) -> None:
    """Check the name of a datastore, and warn of flags that it does not use.

    Raises:
        UsageError: The name is invalid.
    """
    if name is not None and (not name.strip() or ":" in name or not name.isprintable()):
        # A colon separates options in --method rest:datastore=NAME.
        raise UsageError(f"invalid name {name!r}", hint="Use printable characters, and no colon.")
    is_flag_given = {SETTINGS[setting].flag: setting in flags for setting in ("n", "lp")}
    warn_of_no_effect([Situation.DATASTORE], is_flag_given)


def _build_trie(loaded: Loaded, tokenizer: Tokenizer, settings: Settings) -> Built:
    """Build and cache the trie of documents. Raises NgtError where it cannot be written."""
    from ngtcli.drafting.tries import store  # it loads numpy

    with _write_errors("trie"):
        token_ids, report = store.document_trie(
            loaded.documents,
            tokenizer,
            len(tokenizer.backend),
            settings.drafting.n,
            settings.drafting.lp,
        )
    return Built(
        kind="trie",
        status=report.status,
        seconds=report.seconds,
        nodes=report.nodes,
        tokens=len(token_ids),
        path=str(report.path or ""),
        skipped=distinct(loaded.skipped),
    )


def _build_datastore(name: str, loaded: Loaded, tokenizer: Tokenizer) -> Built:
    """Build a datastore for --method rest. Raises NgtError where it cannot be written."""
    from ngtcli.drafting.tries import store  # it loads numpy

    with _write_errors("datastore"):
        token_ids = [tokenizer.encode(d.text.strip()) for d in loaded.documents]
        path, tokens = store.save_datastore(
            token_ids, name, tokenizer.fingerprint, loaded.documents
        )
    return Built(
        kind="datastore",
        name=name,
        tokens=tokens,
        path=str(path),
        skipped=distinct(loaded.skipped),
    )


def _write_errors(kind: str) -> AbstractContextManager[None]:
    """Name the trie or datastore in errors about writing it."""
    return errors_named(f"the {kind} cannot be written", "See ngt cache path tries.")


def _cells(file: KeptFile) -> list[object]:
    """Return the row of a file in `ngt trie list`."""
    names = ", ".join(file.documents[:_NAMES_SHOWN])
    more = len(file.documents) - _NAMES_SHOWN
    if more > 0:
        names += f" and {more} more"
    if file.model:
        names += f" (for {file.model})"
    return [
        f"{file.kind} {file.name or ''}".strip(),
        file.key[:12],
        file.tokens or "",  # background counts have no tokens
        _or_empty(file.nodes),
        f"{file.bytes / 1e6:.1f} MB",
        _or_empty(file.n),
        _or_empty(file.lp),
        names,
    ]


def _or_empty(number: int | None) -> int | str:
    return "" if number is None else number


def _lines(shown: ShownTrie) -> Iterator[str]:
    """Yield a line for each property of a trie, then its most frequent n-grams."""
    for name, value in to_json(shown.file).items():
        text = ", ".join(value) if isinstance(value, list) else value
        yield f"{name}: {one_line(str(text))}"
    for gram in shown.most_frequent:
        yield f"{gram.count:>8}  {visible(gram.text).strip()!r}"


@trie_app.command("list", view=table("what,key,tokens,nodes,size,n,lp,documents", _cells))
def trie_list() -> list[KeptFile]:
    """List cached tries, datastores and background counts, the newest first."""
    return list(list_files())


@trie_app.command("show", settings=_READ, view=_lines)
def trie_show(
    flags: SettingFlags,
    path: Annotated[str, typer.Argument(help="A document or a folder.")],
    preset: PresetOption = None,
) -> ShownTrie:
    """Show the cached trie of documents and its most frequent n-grams."""
    from ngtcli.drafting.tries import store  # it loads numpy

    settings = resolve(flags, preset)[0].settings
    n = settings.drafting.n
    lp = settings.drafting.lp
    tokenizer = load_tokenizer(settings.model.model)
    loaded = read_documents([path], standard_input([path]), settings, Notes())
    hint = f"Build it with ngt trie build {path}"
    key = store.trie_key(tokenizer.fingerprint, loaded.documents, n, lp)
    try:
        trie = store.load_trie(key, n, lp, len(tokenizer.backend))
    except DamagedFileError as error:
        raise InputError(f"{path}: the cached trie is damaged ({error})", hint=hint) from None
    file = describe(TRIES.path(key))
    if trie is None or file is None:
        raise InputError(f"{path}: no cached trie", hint=hint)
    most_frequent = [
        FrequentGram(tokenizer.decode(gram), count) for gram, count in trie.most_frequent(lp, 10)
    ]
    return ShownTrie(file, most_frequent, distinct(loaded.skipped))
