"""`ngt trie`: the cached tries of documents, and datastores."""

from collections.abc import Iterator, Mapping, Sequence
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

# The settings that decide which trie a text has, and how texts are read.
_READ = ("model", "n", "lp", *settings_in("reading"))
PathsArgument = Annotated[list[str], typer.Argument(help="Files, folders, globs; - is stdin.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What `ngt trie build` prints: a trie has seconds and nodes, a datastore a name."""

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
    """An n-gram of a trie, and how often it stands in the documents."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class ShownTrie:
    """What `ngt trie show` prints of the trie of documents."""

    file: KeptFile = field(metadata=json_key(flat=True))
    most_frequent: Sequence[FrequentGram]
    skipped: Sequence[Skipped]


def _built_view(built: Built) -> str:
    line = f"{built.status}: {counted(built.tokens, 'token')}"
    if built.name is not None:
        line = f"built: {built.kind} {one_line(built.name)}, {counted(built.tokens, 'token')}"
    elif built.seconds is not None and built.nodes is not None:
        line += f", {counted(built.nodes, 'node')} in {built.seconds * 1000:.0f} ms"
    return f"{line}\n{one_line(built.path)}"


@trie_app.command("build", settings=_READ, view=_built_view)
def trie_build(
    flags: SettingFlags,
    paths: PathsArgument,
    rest: Annotated[
        bool, typer.Option("--rest", help="Build a datastore for the method rest instead.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the datastore.")] = None,
    preset: PresetOption = None,
) -> Built:
    """Build and cache the trie of documents ahead of the first question."""
    kind = "datastore" if rest else "trie"
    _check(kind, name, flags)
    settings = resolve(flags, preset)[0].settings
    notes = Notes()
    find(settings.model.model, ["tokenizer"])  # a wrong name is told before documents are read
    loaded = read_documents(paths, standard_input(paths), settings, notes)
    notes.status("Building …")
    built = _built(kind, name or "default", loaded, load_tokenizer(settings.model.model), settings)
    notes.clear()
    return built


def _check(kind: str, name: str | None, flags: Mapping[str, Any]) -> None:
    """Raise UsageError for what does not go with what is to be built."""
    if kind == "trie":
        if name is not None:
            raise UsageError("a trie has no name", hint="--name goes with --rest.")
        return
    if name is not None and (not name.strip() or ":" in name or not name.isprintable()):
        # --method rest:datastore=NAME has a colon
        raise UsageError(
            f"the name is {name!r}", hint="Give one that can be typed, without a colon."
        )
    given = {SETTINGS[name].flag: name in flags for name in ("n", "lp")}
    warn_of_no_effect([Situation.DATASTORE], given, Notes().warn)


def _built(kind: str, name: str, loaded: Loaded, tokenizer: Tokenizer, s: Settings) -> Built:
    """Build a trie, or a datastore of that name. Raises NgtError."""
    from ngtcli.drafting.tries import store  # here: it loads numpy

    documents, about = loaded.documents, dict[str, Any](name=name)
    with errors_named(f"the {kind} cannot be written", "See ngt cache path tries."):
        if kind == "trie":
            size = len(tokenizer.backend)
            made, report = store.document_trie(
                documents, tokenizer, size, s.drafting.n, s.drafting.lp, Notes().warn
            )
            about = {"status": report.status, "seconds": report.seconds, "nodes": report.nodes}
            path, tokens = report.path or "", len(made)
        else:
            ids = [tokenizer.encode(d.text.strip()) for d in documents]
            path, tokens = store.save_datastore(ids, name, tokenizer.fingerprint, documents)
    skipped = distinct(loaded.skipped)
    return Built(kind=kind, tokens=tokens, path=str(path), skipped=skipped, **about)


def _cells(file: KeptFile) -> list[object]:
    """What `ngt trie list` shows of a file."""
    size, names = f"{file.bytes / 1e6:.1f} MB", ", ".join(file.documents[:3])
    if len(file.documents) > 3:
        names += f" and {len(file.documents) - 3} more"
    names += f" (for {file.model})" if file.model else ""
    what, tokens = f"{file.kind} {file.name or ''}".strip(), file.tokens or ""  # of phrases none
    nodes, n, lp = ("" if number is None else number for number in (file.nodes, file.n, file.lp))
    return [what, file.key[:12], tokens, nodes, size, n, lp, names]


def _lines(shown: ShownTrie) -> Iterator[str]:
    """What is known of a file, a line each, then the most frequent n-grams."""
    for name, value in to_json(shown.file).items():
        text = ", ".join(value) if isinstance(value, list) else value
        yield f"{name}: {one_line(str(text))}"
    for gram in shown.most_frequent:
        yield f"{gram.count:>8}  {visible(gram.text).strip()!r}"


@trie_app.command("list", view=table("what,key,tokens,nodes,size,n,lp,documents", _cells))
def trie_list() -> list[KeptFile]:
    """List cached tries and datastores, and the counts of the background, the newest first."""
    return list(list_files())


@trie_app.command("show", settings=_READ, view=_lines)
def trie_show(
    flags: SettingFlags,
    path: Annotated[str, typer.Argument(help="A document or a folder.")],
    preset: PresetOption = None,
) -> ShownTrie:
    """Show the cached trie of documents and its most frequent n-grams."""
    from ngtcli.drafting.tries import store  # here: it loads numpy

    s = resolve(flags, preset)[0].settings
    tokenizer = load_tokenizer(s.model.model)
    loaded = read_documents([path], standard_input([path]), s, Notes())
    hint = f"Build it with ngt trie build {path}"
    key = store.trie_key(tokenizer.fingerprint, loaded.documents, s.drafting.n, s.drafting.lp)
    try:
        trie = store.load_trie(key, s.drafting.n, s.drafting.lp, len(tokenizer.backend))
    except DamagedFileError as error:
        raise InputError(f"{path}: the cached trie is bad ({error})", hint=hint) from None
    file = describe(TRIES.path(key))
    if trie is None or file is None:
        raise InputError(f"{path}: no trie is cached for it", hint=hint)
    frequent = trie.most_frequent(s.drafting.lp, 10)
    grams = [FrequentGram(tokenizer.decode(gram), count) for gram, count in frequent]
    return ShownTrie(file, grams, distinct(loaded.skipped))
