"""`ngt summarize -o FOLDER/`: a summary of each document, in a file of its own.

What stands in the folder already, made from the same text with the same settings, is not made
again; what another program wrote or changed there is not written over. A file that fails does not
end the run.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.batch.input import InputLine, Lines
from ngtcli.batch.output import AnswerFolder
from ngtcli.cli.answer_request import AnswerRequest, documents_of
from ngtcli.cli.answering import body_of
from ngtcli.cli.batch import GOES_ON, Run
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_name, check_not_read
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Documents
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.prompt.preset import deciding
from ngtcli.system import process
from ngtcli.system.files import key_of

if TYPE_CHECKING:  # it loads numpy
    from ngtcli.session.engine import Outcome

# Bytes of a file's name, number and suffix left out; derived: file systems take 255 in all.
_LONGEST = 200
_VERSION = 1


def check_folder(request: AnswerRequest, folder: Path | None) -> Path:
    """The folder. Raises UsageError unless summaries can be written to it."""
    if folder is None:
        raise UsageError("--per-file writes a file for each summary", "Name a folder with -o.")
    if not os.path.isdir(folder):
        check_name(folder)
        if os.path.exists(folder):
            raise UsageError(f"{folder}: not a folder", "With --per-file, name a folder with -o.")
    others = {"--dry-run": request.dry_run, "--html": request.html}
    refuse_with("a file for each summary", others, "Name a file with -o, or none.")
    return folder


@dataclass(frozen=True, slots=True)
class _Target:
    """What is asked of a document, the file for its summary, and a key of all that decides it."""

    question: AnswerRequest
    name: str
    key: str

    @property
    def document(self) -> Document:
        return self.question.documents[0]


def run_per_file(
    request: AnswerRequest, folder: Path, paths: list[str], hint: str, restart: bool = False
) -> None:
    """Summarize each document by itself; with `restart` all again, over what is there.

    Raises FailedLinesError where some failed, other NgtErrors where nothing could be done; exits
    130 when interrupted.
    """
    notes = Notes(request.verbose)
    run = Run(request.settings, 0, notes, "file")
    documents, bad = _documents(request, paths, hint, notes)
    with closing(AnswerFolder(folder, restart)) as written:
        targets = list(_targets(request, _not_written(documents, written, folder, notes)))
        read = [target.document.path for target in targets if target.document.path]
        check_not_read(
            [folder / target.name for target in targets], read, "Name another folder with -o."
        )
        lines = [
            InputLine(i, i + 1, target.name)
            for i, target in enumerate(targets)
            if not written.has(target.name, target.key)
        ]
        written.check(str(line.id) for line in lines)
        run.set_total(len(targets), len(lines), "made before and not again")

        def deliver(outcome: "Outcome") -> bool:
            """Write the file of an answer, or say why there is none; whether it failed.

            Raises NgtError where the file cannot be written: the next one could not be, either.
            """
            target, answer = targets[outcome.key.index], outcome.answer
            try:
                if isinstance(answer, NgtError):
                    raise answer
                with process.unbroken():
                    body = body_of(target.question, answer)
                    written.write(target.name, target.key, f"{body}\n")
            except NgtError as error:  # also where a file of that name came meanwhile
                if error is not answer and not isinstance(error, UsageError):
                    raise
                return _warn_of(notes, target.document.name, error)
            where = f"({outcome.key.number} of {len(targets)}) → {folder / target.name}"
            notes.say(f"{target.document.name} {where}")
            return False

        run.answer(Lines(lines), lambda line: targets[line.index].question, deliver, GOES_ON)
    again = "The same command tries them again, and no others."
    run.check_failed(run.failed + bad, len(targets) + bad, again)


def _documents(
    request: AnswerRequest, paths: list[str], hint: str, notes: Notes
) -> tuple[Sequence[Document], int]:
    """The documents, and how many paths could not be read. Raises InputError if all."""
    try:
        return documents_of(paths, request, hint).documents, 0
    except InputError:
        if len(paths) < 2 or STDIN in paths:
            raise
    wrong = dict[str, InputError]()
    with closing(Documents(request.settings)) as files:
        for path in paths:
            try:
                load([path], settings=request.settings, files=files)
            except InputError as error:
                wrong[path] = error
    if len(wrong) == len(paths):
        raise wrong[paths[0]]
    for found in wrong.values():
        _warn_of(notes, "", found)
    good = [path for path in paths if path not in wrong]
    return documents_of(good, request, hint).documents, len(wrong)


def _not_written(
    documents: Sequence[Document], written: AnswerFolder, folder: Path, notes: Notes
) -> Sequence[Document]:
    """The documents without earlier summaries. Raises InputError where there are no others."""
    left = [d for d in documents if not (d.path and written.wrote(d.path))]
    if not left:
        raise InputError(f"{folder}: the documents are summaries of this folder", "Name others.")
    if count := len(documents) - len(left):
        notes.warn(f"left out {count} of the files: summaries that this command wrote")
    return left


def _warn_of(notes: Notes, name: str, error: NgtError) -> bool:
    """One line for a file that failed; True."""
    where = "" if not name or name in str(error) else f"{name}: "
    notes.warn(f"{where}{error}. {error.hint}".rstrip())
    return True


def _targets(request: AnswerRequest, documents: Sequence[Document]) -> Iterator[_Target]:
    suffix = ".json" if request.json or request.json_tokens else ".txt"
    form = "json-tokens" if request.json_tokens else "cite" if request.cite else suffix
    form += " with thought" if request.show_thinking else ""
    how = json.dumps(deciding(request.settings, request.preset), sort_keys=True)
    for name, document in _names(documents):
        key = key_of(_VERSION, form, how, document.name, document.sha256)
        own = replace(request, loaded=Loaded((document,)))
        yield _Target(own, f"{name}{suffix}", key)


def _names(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """A file name for each document, no two alike even where case does not count."""
    taken: set[str] = set()
    for document in documents:
        stem = document.name.replace("/", "_").replace("\\", "_").lstrip(".") or "document"
        stem = stem.encode()[:_LONGEST].decode(errors="ignore")
        name, number = stem, 2
        while name.casefold() in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name.casefold())
        yield name, document
