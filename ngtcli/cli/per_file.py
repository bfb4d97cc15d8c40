"""`ngt ask --each` and `ngt summarize --per-file`: an answer of each document, by itself.

What is there already, made from the same text in the same way, is not made again; what another
program wrote or changed is not written over. A file that fails does not end the run.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ngtcli.batch.input import InputLine, Lines
from ngtcli.cli.answer_request import AnswerRequest, documents_of
from ngtcli.cli.batch import GOES_ON, Run
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import print_line
from ngtcli.cli.per_file_output import Answers, Written, line_of, print_headed
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Documents
from ngtcli.errors import InputError, NgtError, UsageError, counted, unexpected
from ngtcli.session.events import Ended
from ngtcli.system.json_form import dump_json

if TYPE_CHECKING:  # it loads numpy
    from ngtcli.session.engine import Outcome


def run_per_file(
    request: AnswerRequest, answers: Answers, paths: list[str], hint: str, reduce: str = ""
) -> None:
    """Answer of each document by itself, then, over all answers, `reduce` unless that is "".

    Raises FailedLinesError where some failed, other NgtErrors where nothing could be done; exits
    130 when interrupted.
    """
    notes = Notes(request.verbose)
    run = Run(request.settings, 0, notes, "file")
    with closing(answers):
        documents, bad = read_each(request, paths, hint, notes, answers)
        answers.expect(documents)
        lines = [
            InputLine(i, i + 1, document.name)
            for i, document in enumerate(documents)
            if not answers.has(document.name)
        ]
        run.set_total(len(documents), len(lines), "made before and not again")

        def deliver(outcome: "Outcome") -> bool:
            """Hand an answer on, or say why there is none; whether it failed."""
            name, answer = str(outcome.key.id), outcome.answer
            notes.clear()  # both may be on one terminal
            try:
                where = answers.put(name, answer)
            except UsageError as error:  # as where a file of that name came meanwhile
                return warn_of(notes, name, error)
            if isinstance(answer, NgtError):
                return warn_of(notes, name, answer)
            if where:
                notes.say(f"{name} ({outcome.key.number} of {len(documents)}) → {where}")
            return False

        def asked(line: InputLine) -> AnswerRequest:
            return replace(request, loaded=Loaded((documents[line.index],)))

        end = GOES_ON if answers.goes_on else "what is done is put out"
        run.answer(Lines(lines), asked, deliver, end)
        if reduce:
            _reduce(request, reduce, documents, answers, run)
    again = "The same command tries them again, and no others." if answers.goes_on else ""
    run.check_failed(run.failed + bad, len(documents) + bad, again)


def _reduce(
    request: AnswerRequest, question: str, documents: Sequence[Document], answers: Answers, run: Run
) -> None:
    """Print the answer to a question over all answers, with its sources. Raises NgtError."""
    done = [document for document in documents if answers.has(document.name)]
    texts = tuple(Document(d.name, answers.answer(d.name), path=d.path) for d in done)
    if not texts:
        return
    asked = replace(request, question=question, loaded=Loaded(texts), cite=True)

    def deliver(outcome: "Outcome") -> bool:
        answer = outcome.answer
        if not isinstance(answer, Ended):
            raise answer if isinstance(answer, NgtError) else unexpected(answer)
        notes.clear()
        if request.json or request.json_tokens:
            print_line(dump_json(line_of(asked, None, answer), None))
        else:
            words = f"{question} ({counted(len(texts), 'file')})"
            print_headed(asked, words, answer, first=answers.goes_on)
        return False

    notes = Notes(request.verbose)
    over = Run(request.settings, 1, notes, "question", run.engine)
    over.answer(Lines([InputLine(0, 1, "over all")]), lambda _: asked, deliver, GOES_ON)


def read_each(
    request: AnswerRequest, paths: list[str], hint: str, notes: Notes, answers: Written
) -> tuple[Sequence[Document], int]:
    """The documents, and how many paths could not be read, each of which is named.

    What this command wrote is left out. Raises InputError where there is no other document.
    """
    loaded, bad = _read(request, paths, hint, notes, answers)
    left = [d for d in loaded if not (d.path and answers.wrote(d.path))]
    if not left:
        raise InputError("the documents are answers that this command wrote", "Name others.")
    if count := len(loaded) - len(left):
        notes.warn(f"left out {counted(count, 'file')}: answers that this command wrote")
    return left, bad


def _read(
    request: AnswerRequest, paths: list[str], hint: str, notes: Notes, answers: Written
) -> tuple[Sequence[Document], int]:
    try:
        return documents_of(paths, request, hint, answers.files).documents, 0
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
        warn_of(notes, "", found)
    good = [path for path in paths if path not in wrong]
    return documents_of(good, request, hint, answers.files).documents, len(wrong)


def warn_of(notes: Notes, name: str, error: NgtError) -> bool:
    """One line for a file that failed; True."""
    where = "" if not name or name in str(error) else f"{name}: "
    notes.warn(f"{where}{error}. {error.hint}".rstrip())
    return True
