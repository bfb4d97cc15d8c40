"""`ngt docs`: what is read of documents, and what the cache has of them."""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

import typer

from ngtcli.cli.checks import Situation, warn_of_no_effect
from ngtcli.cli.command import Group
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import JsonOption, VerboseOption, layers_of
from ngtcli.cli.reading import distinct, read_documents, standard_input, tell_skipped, tell_warnings
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import Shown
from ngtcli.config import SETTINGS, settings_in
from ngtcli.documents.content import About
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Row, Survey, survey
from ngtcli.documents.passages import Cutting, place
from ngtcli.documents.passages import passages as passages_of
from ngtcli.engine.settings import apply_to_process, settings_of
from ngtcli.errors import UsageError
from ngtcli.models.checkpoint import find, tokenizer_key
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import json_key, to_json
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

docs_app = Group("docs")
_LEFT_OUT = 100  # files left out that a list names, more with -v; guess
_BEGINNING = 40  # characters of a passage that are shown; guess
_COLUMNS = ["document", "format", "pages", "characters", "tokens"]
_FACTS = ("name", "path", "format", "pages", "dropped", "characters", "tokens")
_READ = ("model", *settings_in("reading"))


def _counter(model: str, notes: Notes) -> Callable[[str], int]:
    """Counts tokens; the tokenizer is loaded when the first text comes."""

    @cache
    def tokenizer() -> Tokenizer:
        from ngtcli.models.pretrained import load_tokenizer  # here: it takes a second

        notes.status(f"Loading the tokenizer of {model} …")
        loaded = load_tokenizer(model)
        notes.status("Reading the documents …")
        return loaded

    return lambda text: len(tokenizer().encode(text.strip()))


@dataclass(frozen=True, slots=True)
class DocumentList:
    """What `ngt docs list` prints."""

    documents: Sequence[Row]
    skipped: Sequence[Skipped]


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage that questions find a document by: its characters, and where it stands.

    `page` and `heading` are None where the document has none.
    """

    start: int
    end: int
    tokens: int
    page: int | None
    heading: str | None


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


def _row(row: Row) -> list[object]:
    by_ocr = len(row.recognized)
    pages = f"{row.pages} ({'' if by_ocr == row.pages else f'{by_ocr} by '}OCR)"
    # What goes into a pipe may be handed to another program, which needs the path.
    named = row.name if sys.stdout.isatty() else row.path or row.name
    return [named, row.format, pages if by_ocr else row.pages or "", row.characters, row.tokens]


@docs_app.command("list", settings=_READ, view=lambda found: (_COLUMNS, map(_row, found.documents)))
def docs_list(
    flags: SettingFlags,
    paths: Annotated[list[str], typer.Argument(help="Files, folders, globs.")],
    verbose: VerboseOption = False,
) -> Generator[DocumentList, bool]:
    """List documents with format, pages, characters, tokens, and what was left out."""
    settings = settings_of(layers_of(flags)).settings
    apply_to_process(settings)
    if "-" in paths:
        raise UsageError("standard input is not a file to list", hint="Name files or folders.")
    notes = Notes(verbose)
    notes.status("Looking for documents …")
    key, count = tokenizer_key(settings.model.model), _counter(settings.model.model, notes)
    with reporting_to(notes):
        found = survey(paths, settings, key, count)
    notes.clear()
    if (yield DocumentList(found.rows, distinct(found.skipped))):
        _tell(found, notes)


def _tell(found: Survey, notes: Notes) -> None:
    """What people are told below a list: remarks, what was left out, sums."""
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


def _show_view(shown: ShownDocuments | str) -> Iterator[Shown]:
    """The text alone; or of each document its facts, and its passages or else its sections."""
    if isinstance(shown, str):
        yield shown
        return
    for one in shown.documents:
        values = to_json(one)
        facts = [(name, values[name]) for name in _FACTS if values[name]]
        warned = ((f"warning {i}", words) for i, words in enumerate(one.about.warnings, 1))
        yield ["what", "value"], [*facts, *warned]
        if one.passages is not None:
            ends = ((p, min(p.end, p.start + _BEGINNING)) for p in one.passages)
            begun = ((p, one.text[p.start : end]) for p, end in ends)
            rows = [
                [p.start, p.end, p.tokens, p.page or "", p.heading or "", text] for p, text in begun
            ]
            yield ["from character", "to", "tokens", "page", "heading", "begins"], rows
        elif one.about.sections:
            places = [[s.start, s.page or "", s.heading] for s in one.about.sections]
            yield ["from character", "page", "heading"], places


@docs_app.command("show", settings=(*_READ, *_CUT), view=_show_view, report=ShownDocuments)
def docs_show(
    flags: SettingFlags,
    path: Annotated[str, typer.Argument(help="A file, folder or glob; - is stdin.")],
    text: Annotated[bool, typer.Option("--text", help="Print the text itself, alone.")] = False,
    passages: Annotated[bool, _PASSAGES] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> ShownDocuments | str:
    """Show what was read of a document: its pages and headings, its passages, or its text."""
    settings = settings_of(layers_of(flags)).settings
    apply_to_process(settings)
    if text and json:
        raise UsageError("--text with --json", hint="Give one of them; --json has the text.")
    if text and passages:
        raise UsageError("--text with --passages", hint="Give one of them.")
    notes = Notes(verbose)
    if not passages:
        cutting = {SETTINGS[name].flag: name in flags for name in _CUT}
        warn_of_no_effect([Situation.NO_PASSAGES], cutting, notes.warn)
    if not text:
        find(settings.model.model, ["tokenizer"])  # a wrong name is told before documents are read
    loaded = read_documents([path], standard_input([path]), settings, notes)
    if text:
        whole = "\n\n".join(document.text for document in loaded.documents)
        return visible(whole) if sys.stdout.isatty() else whole
    count = _counter(settings.model.model, notes)
    cut = (
        Cutting(settings.retrieval.passage_tokens, settings.retrieval.passage_overlap)
        if passages
        else None
    )
    shown = [_shown(d, count, cut) for d in loaded.documents]
    notes.clear()
    return ShownDocuments(shown, distinct(loaded.skipped))


def _shown(document: Document, count: Callable[[str], int], cut: Cutting | None) -> ShownDocument:
    """A document as it is shown; with its passages, where it is to be cut."""
    text, found = document.text, None
    if cut is not None:
        found = []
        for p in passages_of(document, cut):
            section, tokens = place(document, p.start), count(text[p.start : p.end])
            page, heading = section.page or None, section.heading or None
            found.append(ShownPassage(p.start, p.end, tokens, page, heading))
    return ShownDocument(
        name=document.name,
        path=document.path,
        about=document.about,
        characters=len(text),
        tokens=count(text),
        text=text,
        passages=found,
    )
