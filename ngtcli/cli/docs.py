"""`ngt docs`: list documents and show them as ngt reads them."""

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
from ngtcli.cli.reading import (
    distinct,
    read_documents,
    report_skipped,
    report_warnings,
    standard_input,
)
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import Shown
from ngtcli.config import SETTINGS, settings_in
from ngtcli.documents.content import About
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Row, Survey, survey
from ngtcli.documents.passages import Cutting, Passage, place
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
_MAX_SKIPPED = 100  # skipped files that a list names without -v (guess)
_BEGINNING = 40  # characters of a passage that are shown (guess)
_COLUMNS = ["document", "format", "pages", "characters", "tokens"]
_FACTS = ("name", "path", "format", "pages", "dropped", "characters", "tokens")
_READ = ("model", *settings_in("reading"))


def _token_counter(model: str, notes: Notes) -> Callable[[str], int]:
    """Return a function that counts tokens. It loads the tokenizer at its first call."""

    @cache
    def tokenizer() -> Tokenizer:
        from ngtcli.models.pretrained import load_tokenizer  # its import takes a second

        notes.status(f"Loading the tokenizer of {model} …")
        loaded = load_tokenizer(model)
        notes.status("Reading the documents …")
        return loaded

    return lambda text: len(tokenizer().encode(text.strip()))


@dataclass(frozen=True, slots=True)
class DocumentList:
    """The output of `ngt docs list`."""

    documents: Sequence[Row]
    skipped: Sequence[Skipped]


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage of a document, as retrieval finds it.

    Attributes:
        start: Its first character in the text of the document.
        end: The character after its last one.
        tokens: Its length in tokens.
        page: The page it begins on; None if the document has no pages.
        heading: The heading it is under; None if there is none.
    """

    start: int
    end: int
    tokens: int
    page: int | None
    heading: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocument:
    """A document as ngt reads it."""

    name: str
    path: str
    about: About = field(metadata=json_key(flat=True))
    characters: int
    tokens: int
    text: str
    passages: Sequence[ShownPassage] | None = field(metadata=json_key(omit=True))


@dataclass(frozen=True, slots=True)
class ShownDocuments:
    """The output of `ngt docs show`."""

    documents: Sequence[ShownDocument]
    skipped: Sequence[Skipped]


def _list_row(row: Row) -> list[object]:
    pages: object = row.pages or ""
    by_ocr = len(row.recognized)
    if by_ocr:
        pages = f"{row.pages} (OCR)" if by_ocr == row.pages else f"{row.pages} ({by_ocr} by OCR)"
    # The output of a pipe may be handed to another program, which needs the path.
    name = row.name if sys.stdout.isatty() else row.path or row.name
    return [name, row.format, pages, row.characters, row.tokens]


def _list_view(listed: DocumentList) -> Shown:
    return _COLUMNS, map(_list_row, listed.documents)


@docs_app.command("list", settings=_READ, view=_list_view)
def docs_list(
    flags: SettingFlags,
    paths: Annotated[list[str], typer.Argument(help="Files, folders, globs.")],
    verbose: VerboseOption = False,
) -> Generator[DocumentList, bool]:
    """List documents with format, pages, characters and tokens, and skipped files."""
    settings = settings_of(layers_of(flags)).settings
    apply_to_process(settings)
    if "-" in paths:
        raise UsageError("standard input cannot be listed", hint="Name files or folders.")
    notes = Notes(verbose)
    notes.status("Looking for documents …")
    model = settings.model.model
    with reporting_to(notes):
        surveyed = survey(paths, settings, tokenizer_key(model), _token_counter(model, notes))
    notes.clear()
    is_for_people = yield DocumentList(surveyed.rows, distinct(surveyed.skipped))
    if is_for_people:
        _report(surveyed, notes)


def _report(surveyed: Survey, notes: Notes) -> None:
    """Report warnings, skipped files and totals below a list."""
    report_warnings([(row.name, row.warnings, row.dropped) for row in surveyed.rows], notes)
    report_skipped(surveyed.skipped, notes, _MAX_SKIPPED)
    if any(not file.kind for file in surveyed.skipped):
        notes.remark("ngt docs show FILE says what can be done about a skipped file.")
    for remark in surveyed.remarks:
        notes.warn(remark)
    count = counted(len(surveyed.rows), "document")
    tokens = sum(row.tokens for row in surveyed.rows)
    cached = len(surveyed.rows) - surveyed.read
    notes.say(
        f"{count}, {tokens} tokens ({surveyed.read} read now, {cached} from the cache)",
        dim=True,
    )


_CUT = ("passage_tokens", "passage_overlap")
_PASSAGES = typer.Option("--passages", help="Show the passages that the document is cut into.")


def _show_view(shown: ShownDocuments | str) -> Iterator[Shown]:
    """Yield the text; or for each document its facts, and its passages or sections."""
    if isinstance(shown, str):
        yield shown
        return
    for document in shown.documents:
        values = to_json(document)
        facts = [(name, values[name]) for name in _FACTS if values[name]]
        warnings = [(f"warning {i}", text) for i, text in enumerate(document.about.warnings, 1)]
        yield ["what", "value"], [*facts, *warnings]
        if document.passages is not None:
            headings = ["from character", "to", "tokens", "page", "heading", "first words"]
            yield headings, [_passage_row(document, passage) for passage in document.passages]
        elif document.about.sections:
            sections = [[s.start, s.page or "", s.heading] for s in document.about.sections]
            yield ["from character", "page", "heading"], sections


def _passage_row(document: ShownDocument, passage: ShownPassage) -> list[object]:
    end = min(passage.end, passage.start + _BEGINNING)
    return [
        passage.start,
        passage.end,
        passage.tokens,
        passage.page or "",
        passage.heading or "",
        document.text[passage.start : end],
    ]


@docs_app.command("show", settings=(*_READ, *_CUT), view=_show_view, report=ShownDocuments)
def docs_show(
    flags: SettingFlags,
    path: Annotated[str, typer.Argument(help="A file, folder or glob; - is standard input.")],
    text: Annotated[bool, typer.Option("--text", help="Print only the text.")] = False,
    passages: Annotated[bool, _PASSAGES] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> ShownDocuments | str:
    """Show a document as ngt reads it: pages and headings, passages, or text."""
    settings = settings_of(layers_of(flags)).settings
    apply_to_process(settings)
    if text and json:
        raise UsageError(
            "--text and --json are mutually exclusive",
            hint="Give one of them; --json includes the text.",
        )
    if text and passages:
        raise UsageError("--text and --passages are mutually exclusive", hint="Give one of them.")
    notes = Notes(verbose)
    if not passages:
        is_flag_given = {SETTINGS[name].flag: name in flags for name in _CUT}
        warn_of_no_effect([Situation.NO_PASSAGES], is_flag_given)
    model = settings.model.model
    if not text:
        find(model, ["tokenizer"])  # a wrong name is reported before documents are read
    loaded = read_documents([path], standard_input([path]), settings, notes)
    if text:
        full_text = "\n\n".join(document.text for document in loaded.documents)
        return visible(full_text) if sys.stdout.isatty() else full_text

    count_tokens = _token_counter(model, notes)
    cutting = None
    if passages:
        retrieval = settings.retrieval
        cutting = Cutting(retrieval.passage_tokens, retrieval.passage_overlap)
    shown = [_shown(document, count_tokens, cutting) for document in loaded.documents]
    notes.clear()
    return ShownDocuments(shown, distinct(loaded.skipped))


def _shown(
    document: Document, count_tokens: Callable[[str], int], cutting: Cutting | None
) -> ShownDocument:
    """Describe a document, with its passages if `cutting` says how they are cut."""
    passages = None
    if cutting is not None:
        passages = [
            _shown_passage(document, passage, count_tokens)
            for passage in passages_of(document, cutting)
        ]
    return ShownDocument(
        name=document.name,
        path=document.path,
        about=document.about,
        characters=len(document.text),
        tokens=count_tokens(document.text),
        text=document.text,
        passages=passages,
    )


def _shown_passage(
    document: Document, passage: Passage, count_tokens: Callable[[str], int]
) -> ShownPassage:
    section = place(document, passage.start)
    return ShownPassage(
        start=passage.start,
        end=passage.end,
        tokens=count_tokens(document.text[passage.start : passage.end]),
        page=section.page or None,
        heading=section.heading or None,
    )
