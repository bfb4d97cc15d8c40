"""`ngt docs`: what is read of documents, and what the cache has of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.cache import print_folder, print_removed
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import JsonOption, VerboseOption, resolve_without_preset, with_settings
from ngtcli.cli.output import print_json, print_line, print_table
from ngtcli.cli.reading import distinct, read_documents, standard_input, tell_skipped, tell_warnings
from ngtcli.config import SETTINGS, Use, settings_where
from ngtcli.documents.content import About
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Row, survey
from ngtcli.documents.passages import Cutting, place
from ngtcli.documents.passages import passages as passages_of
from ngtcli.errors import UsageError, counted
from ngtcli.model_files.checkpoint import fetch, find
from ngtcli.render.terminal import visible
from ngtcli.system.files import read_bounded
from ngtcli.system.json_form import json_key, to_json
from ngtcli.tokens.tokenizer import Tokenizer

docs_app = typer.Typer(
    help="Documents as they are read: text, pages, tokens, warnings.", no_args_is_help=True
)
_LEFT_OUT = 100  # files left out that a list names, more with -v; guess
_BEGINNING = 40  # characters of a passage that are shown; guess
_READ = ("model", *settings_where(Use.READS))
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_TOKENIZER_BYTES = 256_000_000  # most of one of them; as model_files has it


class _Counter:
    """Counts tokens; the tokenizer is loaded when the first text comes."""

    def __init__(self, model: str, notes: Notes) -> None:
        self._model, self._notes = model, notes

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text.strip()))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from ngtcli.model_files.pretrained import load_tokenizer  # here: it takes a second

        self._notes.status(f"Loading the tokenizer of {self._model} …")
        tokenizer = load_tokenizer(self._model)
        self._notes.status("Reading the documents …")
        return tokenizer

    @property
    def key(self) -> str:
        """What stands for the tokenizer in the cache: a hash of its files."""
        place = Path(fetch(self._model, ["tokenizer"]))
        digest = hashlib.sha256()
        for name in _TOKENIZER_FILES:
            if (place / name).is_file():
                digest.update(f"{name}\0".encode())
                digest.update(read_bounded(place / name, _TOKENIZER_BYTES))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class DocumentList:
    """What `ngt docs list` prints."""

    documents: Sequence[Row]
    skipped: Sequence[Skipped]


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage that questions find a document by: its characters, and where it stands."""

    start: int
    end: int
    tokens: int
    page: int
    heading: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocument:
    """What was read of a document."""

    name: str
    path: str
    about: About = field(metadata=json_key(flat=True))
    characters: int
    tokens: int
    text: str
    passages: Sequence[ShownPassage] | None = field(metadata=json_key(omit=True))


@dataclass(frozen=True, slots=True)
class ShownDocuments:
    """What `ngt docs show` prints."""

    documents: Sequence[ShownDocument]
    skipped: Sequence[Skipped]


@docs_app.command("list")
@with_settings(_READ)
def docs_list(
    flags: dict[str, Any],
    paths: Annotated[list[str], typer.Argument(help="Files, folders, globs.")],
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """List documents with format, pages, characters, tokens, and what was left out."""
    settings = resolve_without_preset(flags).settings
    if "-" in paths:
        raise UsageError("standard input is not a file to list", "Name files or folders.")
    notes = Notes(verbose)
    notes.status("Looking for documents …")
    counter = _Counter(settings.model, notes)
    found = survey(paths, settings, counter.key, counter, notes.status)
    notes.clear()
    if json:
        print_json(DocumentList(found.rows, distinct(found.skipped)))
        return
    columns = ["document", "format", "pages", "characters", "tokens"]
    rows = [[r.name, r.format, r.pages or "", r.characters, r.tokens] for r in found.rows]
    print_table(columns, rows)
    tell_warnings([(row.name, row.warnings, row.dropped) for row in found.rows], notes)
    tell_skipped(found.skipped, notes, _LEFT_OUT)
    if any(not one.kind for one in found.skipped):
        notes.remark("ngt docs show FILE says what can be done about a file that was left out.")
    for remark in found.remarks:
        notes.warn(remark)
    tokens = sum(row.tokens for row in found.rows)
    words = f"{counted(len(found.rows), 'document')}, {tokens} tokens; {found.read} read now"
    notes.say(words, dim=True)


_CUT = ("passage_tokens", "passage_overlap")
_PASSAGES = typer.Option("--passages", help="Show the passages that questions find it by.")


@docs_app.command("show")
@with_settings((*_READ, *_CUT))
def docs_show(
    flags: dict[str, Any],
    path: Annotated[str, typer.Argument(help="A file, folder or glob; - is stdin.")],
    text: Annotated[bool, typer.Option("--text", help="Print the text itself, alone.")] = False,
    passages: Annotated[bool, _PASSAGES] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show what was read of a document: its pages and headings, its passages, or its text."""
    settings = resolve_without_preset(flags).settings
    if text and json:
        raise UsageError("--text with --json", "Give one of them; --json has the text.")
    if text:
        refuse_with("--text", {"--passages": passages}, "Give one of them.")
    if not passages:
        cutting = {SETTINGS[name].flag: name in flags for name in _CUT}
        refuse_with("docs show", cutting, "Give --passages, which shows them.")
    notes = Notes(verbose)
    if not text:
        find(settings.model, ["tokenizer"])  # a wrong name is told before documents are read
    loaded = read_documents([path], standard_input([path]), settings, notes)
    if text:
        print_line("\n\n".join(visible(d.text) for d in loaded.documents))
        return
    counter = _Counter(settings.model, notes)
    cut = Cutting(settings.passage_tokens, settings.passage_overlap) if passages else None
    shown = [_shown(d, counter, cut) for d in loaded.documents]
    notes.clear()
    if json:
        print_json(ShownDocuments(shown, distinct(loaded.skipped)))
        return
    for document in shown:
        _print_document(document)


def _shown(document: Document, counter: _Counter, cut: Cutting | None) -> ShownDocument:
    """A document as it is shown; with its passages, where it is to be cut."""
    text, found = document.text, None
    if cut is not None:
        found = []
        for p in passages_of(document, cut):
            section, tokens = place(document, p.start), counter(text[p.start : p.end])
            found.append(ShownPassage(p.start, p.end, tokens, section.page, section.heading))
    return ShownDocument(
        name=document.name,
        path=document.path,
        about=document.about,
        characters=len(text),
        tokens=counter(text),
        text=text,
        passages=found,
    )


def _print_document(shown: ShownDocument) -> None:
    names = ("name", "path", "format", "pages", "dropped", "characters", "tokens")
    values, about = to_json(shown), shown.about
    facts = [[name, values[name]] for name in names if values[name]]
    warnings = [[f"warning {i}", words] for i, words in enumerate(about.warnings, 1)]
    print_table(["what", "value"], [*facts, *warnings])
    if shown.passages is not None:
        rows = []
        for p in shown.passages:
            begins = shown.text[p.start : min(p.end, p.start + _BEGINNING)]
            rows.append([p.start, p.end, p.tokens, p.page or "", p.heading, begins])
        print_table(["from character", "to", "tokens", "page", "heading", "begins"], rows)
    elif about.sections:
        places = [[s.start, s.page or "", s.heading] for s in about.sections]
        print_table(["from character", "page", "heading"], places)


@docs_app.command("clear")
def docs_clear(json: JsonOption = False) -> None:
    """Delete what the cache has of documents; their files stay."""
    print_removed(["documents", "passages", "parts", "prefixes"], json)


@docs_app.command("path")
def docs_path(json: JsonOption = False) -> None:
    """Print the folder of what the cache has of documents."""
    print_folder("documents", json)
