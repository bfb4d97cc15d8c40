"""Where answers go of which each file has its own: a folder, a table, or standard output."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ngtcli.batch.output import AnswerFolder, DoneLine, StreamOutput, journal_of
from ngtcli.batch.table import NAMES, SUFFIXES, TableOutput
from ngtcli.cli.answer_object import ErrorObject, FailedFileObject, FileObject, answer_object
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.answering import body_of, print_answer
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.output import check_name, check_not_read, check_output_file, print_line
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompt.preset import deciding
from ngtcli.render.terminal import one_line, paint, reveal, visible, wants_color
from ngtcli.session.events import Ended
from ngtcli.system import process
from ngtcli.system.files import key_of
from ngtcli.system.json_form import dump_json, to_json

# Bytes of a file's name, number and suffix left out; derived: file systems take 255 in all.
_LONGEST = 200
_VERSION = 1


class Written(Protocol):
    """What is written, and is no document."""

    files: tuple[Path, ...]  # that are no folders

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here, and is no document."""


class Answers(Written, Protocol):
    """Where the answers of documents go; documents are known by their names. `close` it."""

    goes_on: bool  # whether the same command goes on after an interruption

    def expect(self, documents: Sequence[Document]) -> None:
        """Say what documents there are, in their order. Raises UsageError."""

    def has(self, name: str) -> bool:
        """Whether a document has its answer, made from the same text in the same way."""

    def answer(self, name: str) -> str:
        """The text of an answer that is there. Raises OSError."""

    def put(self, name: str, answer: Ended | NgtError) -> str:
        """Take an answer, or why there is none; what to say of where it stands, or "".

        Raises NgtError: where that is no UsageError, the next one could not be written, either.
        """

    def close(self) -> None:
        """Write what is left to write."""


def answers_of(request: AnswerRequest, path: Path | None, is_folder: bool, again: bool) -> Answers:
    """Where answers go, by what -o names; with `again` over what is there. Raises UsageError."""
    if path is None:
        return OnStdout(request)
    check_name(path)
    if not is_folder and path.suffix.lower() in SUFFIXES:
        return InTable(request, path, again)
    if not is_folder and path.suffix and not path.is_dir():
        raise UsageError(f"{path}: neither a table nor a folder", f"{NAMES[:-1]}, or FOLDER/")
    return InFolder(request, path, again)


def _how(request: AnswerRequest) -> dict[str, Any]:
    """All that decides an answer but its document, JSON-ready."""
    how = {"engine": request.settings.engine, "question": request.question}
    own = deciding(request.settings, request.preset).items()
    return how | {f"{request.task}.{name}": value for name, value in sorted(own)}


class OnStdout:
    """Standard output: text with a heading a file, or JSON lines, in the order of the files."""

    goes_on = False
    files: tuple[Path, ...] = ()

    def __init__(self, request: AnswerRequest) -> None:
        self._request = request
        self._answers: dict[str, Ended | NgtError] = {}
        self._texts: dict[str, str] = {}
        self._stream = StreamOutput(None, self._print)

    def wrote(self, path: str) -> bool:
        return False

    def expect(self, documents: Sequence[Document]) -> None:
        self._documents = {document.name: document for document in documents}
        self._index = {name: i for i, name in enumerate(self._documents)}

    def has(self, name: str) -> bool:
        return name in self._texts

    def answer(self, name: str) -> str:
        return self._texts[name]

    def put(self, name: str, answer: Ended | NgtError) -> str:
        self._answers[name] = answer
        self._stream.put(DoneLine(self._index[name], name))
        return ""

    def _print(self, name: str) -> None:
        answer, request = self._answers.pop(name), self._request
        if request.json or request.json_tokens:
            one = replace(request, loaded=Loaded((self._documents[name],)))
            print_line(dump_json(line_of(one, name, answer), None))
        elif isinstance(answer, Ended):
            print_headed(request, name, answer, first=not self._texts)
        if isinstance(answer, Ended):
            self._texts[name] = answer.text

    def close(self) -> None:
        pass


def print_headed(request: AnswerRequest, words: str, answer: Ended, first: bool) -> None:
    """An answer below a line, bold on a terminal, and an empty one before that."""
    line = f"==> {reveal(one_line(words))} <=="
    bold = wants_color(sys.stdout, request.settings.color)
    sys.stdout.write(f"{'' if first else chr(10)}{paint(line, 'bold') if bold else line}\n")
    print_answer(request, answer)


def line_of(request: AnswerRequest, name: str | None, answer: Ended | NgtError) -> Any:
    """The object of --json for a file."""
    if isinstance(answer, NgtError):
        about = ErrorObject(str(answer), answer.hint, answer.exit_code)
        return to_json(FailedFileObject(name, about))
    return to_json(FileObject(name, answer_object(request, answer, request.json_tokens)))


class InTable:
    """A table with a row a file."""

    goes_on = True

    def __init__(self, request: AnswerRequest, path: Path, restart: bool) -> None:
        forms = {"--json": request.json, "--json-tokens": request.json_tokens}
        refuse_with("a table", forms, "Its suffix says its form.")
        folder = "Name a folder: -o FOLDER/"
        refuse_with("a table", {"--show-thinking": request.show_thinking}, folder)
        check_output_file(path)
        self.files: tuple[Path, ...] = (path, journal_of(path))
        self._column = "summary" if request.task == "summarize" else "answer"
        columns = ["file", self._column, *(["sources"] if request.cite else [])]
        self._table = TableOutput(path, _how(request), columns, restart=restart)
        self.has, self.close = self._table.has, self._table.close

    def wrote(self, path: str) -> bool:
        return False

    def expect(self, documents: Sequence[Document]) -> None:
        self._table.expect({d.name: key_of(_VERSION, d.name, d.sha256) for d in documents})

    def answer(self, name: str) -> str:
        text = self._table.rows(name)[0][self._column]
        return text if isinstance(text, str) else dump_json(text, None)

    def put(self, name: str, answer: Ended | NgtError) -> str:
        if isinstance(answer, Ended):
            text = visible(answer.text.strip())
            self._table.put(name, [{"file": name, self._column: text, "sources": _places(answer)}])
        return ""


def _places(answer: Ended) -> list[dict[str, Any]]:
    """Where an answer stands in its document, in characters, as a table has it."""
    return [
        {"page": s.page, "heading": s.heading, "start": s.span.source_start,
         "end": s.span.source_end, "quote": s.quote}
        for s in answer.sources.places()
    ]  # fmt: skip


class InFolder:
    """A folder with a file for each answer."""

    goes_on = True
    files: tuple[Path, ...] = ()

    def __init__(self, request: AnswerRequest, folder: Path, restart: bool) -> None:
        if folder.exists() and not folder.is_dir():
            hint = "Name a folder with -o, or a table, as answers.csv."
            raise UsageError(f"{folder}: not a folder", hint)
        self._request, self._folder = request, folder
        head = {"question": request.question} if request.question else {}
        self._written = AnswerFolder(folder, restart, head)
        self.close = self._written.close
        self._suffix = ".json" if request.json or request.json_tokens else ".txt"
        self.wrote = self._written.wrote

    def expect(self, documents: Sequence[Document]) -> None:
        self._documents = {document.name: document for document in documents}
        self._names = {d.name: f"{name}{self._suffix}" for name, d in _names(documents)}
        outputs = [self._folder / name for name in self._names.values()]
        read = [document.path for document in documents if document.path]
        check_not_read(outputs, read, "Name another folder with -o.")
        self._written.check(self._names[d.name] for d in documents if not self.has(d.name))

    def _key(self, name: str) -> str:
        request, document = self._request, self._documents[name]
        form = "json-tokens" if request.json_tokens else "cite" if request.cite else self._suffix
        form += " with thought" if request.show_thinking else ""
        how = dump_json(_how(request), None)
        return key_of(_VERSION, form, how, document.name, document.sha256)

    def has(self, name: str) -> bool:
        return self._written.has(self._names[name], self._key(name))

    def answer(self, name: str) -> str:
        text = (self._folder / self._names[name]).read_text()
        return str(json.loads(text)["text"]) if self._suffix == ".json" else text

    def put(self, name: str, answer: Ended | NgtError) -> str:
        if isinstance(answer, NgtError):
            return ""
        request = replace(self._request, loaded=Loaded((self._documents[name],)))
        with process.unbroken():
            text = f"{body_of(request, answer)}\n"
            self._written.write(self._names[name], self._key(name), text)
        return str(self._folder / self._names[name])


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
