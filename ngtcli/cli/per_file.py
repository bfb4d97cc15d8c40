"""`ngt summarize --per-file`: a summary of each document, in a file of its own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import typer

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.answering import answer_with, open_session
from ngtcli.cli.ignored import refuse_beside
from ngtcli.cli.notes import Notes
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import INTERRUPTED, NgtError, UsageError

_LONGEST = 200  # characters of a file's name; derived: file systems take 255 bytes


def check_folder(request: AnswerRequest, folder: Path | None) -> None:
    """Raise UsageError unless summaries can be written to `folder`."""
    if folder is None:
        raise UsageError("--per-file writes a file for each summary", "Name a folder with -o.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: not a folder", "With --per-file, name a folder with -o.")
    others = {"--dry-run": request.dry_run, "--html": request.html, "--svg": request.svg}
    refuse_beside("--per-file", others, "Leave out --per-file.")


def run_per_file(request: AnswerRequest, folder: Path) -> None:
    """Summarize each document by itself. Raises NgtError; exits 130 when interrupted."""
    notes = Notes(request.verbose)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise NgtError(f"{folder}: {reason}", "Name another folder with -o.") from None
    try:
        session = open_session(request, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    count = len(request.documents)
    suffix = ".json" if request.json or request.json_tokens else ".txt"
    for i, (name, document) in enumerate(_names(request), 1):
        path = folder / f"{name}{suffix}"
        notes.say(f"{document.name} ({i} of {count}) → {path}")
        answer_with(session, replace(request, loaded=Loaded((document,)), output=path), notes)


def _names(request: AnswerRequest) -> Iterator[tuple[str, Document]]:
    """A file name for each document, no two alike even where case does not count."""
    taken: set[str] = set()
    for document in request.documents:
        stem = document.name.replace("/", "_").replace("\\", "_").lstrip(".") or "document"
        stem = stem.encode()[:_LONGEST].decode(errors="ignore")
        name, number = stem, 2
        while name.casefold() in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name.casefold())
        yield name, document
