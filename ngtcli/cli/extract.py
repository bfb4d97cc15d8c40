"""`ngt extract`: fields of documents as a table, with the place and the probability of each value.

A row a file, made by the engine's batch; what is done stands in the table's journal.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.batch.extract import TASK, Asking, Extraction, form_for
from ngtcli.batch.input import InputLine, Lines
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.batch import GOES_ON, Run
from ngtcli.cli.checks import refuse_ignored, refuse_with
from ngtcli.cli.extract_output import Rows
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import PresetOption, VerboseOption, file_option, tasks_of, with_settings
from ngtcli.cli.output import check_output_files, check_written, print_line
from ngtcli.cli.per_file import read_each
from ngtcli.config import SETTINGS
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompt.preset import load_preset
from ngtcli.session.checks import check_session
from ngtcli.session.events import Ended, Wants
from ngtcli.session.question import Question, Tasks
from ngtcli.system.json_form import dump_json

if TYPE_CHECKING:  # they load numpy
    from ngtcli.prompt.splitting import Part
    from ngtcli.session.engine import Outcome

_OUT = file_option(
    "--output", "-o", help="Write the table: csv, tsv, jsonl or json; the same command goes on."
)
_SOURCES = typer.Option(
    "--sources",
    metavar="columns",
    help="columns: a table gets page, quotation and p of each value.",
)
_DOUBT = typer.Option(
    "--doubt", min=0.0, max=1.0, help="Name in each row the fields whose probability is below."
)
_HTML = file_option("--html", help="Also write a page: the table next to its documents, linked.")
_DRY = typer.Option("--dry-run", help="Print JSON Schema, prompt and its tokens; run no model.")
_LIMIT = typer.Option("--limit", min=0, help="Only the first N files; 0: all.")
_RESTART = typer.Option("--restart", help="Begin again, over what is in the table.")
_SIZE = typer.Option(
    "--batch-size", min=0, max=4096, help="Texts decoded together; 0: as memory allows."
)
# What does nothing here: forms of other answers, single answers, processes that stay.
_OTHER = ("regex", "choices", "quote", "serve", "keep_warm", "color", "stop", "max_repeats")
_READS = tuple(name for name in SETTINGS if name not in _OTHER)
_WANTS = Wants(sources=False, probabilities=True)
_HINT = "Name files or folders, or pipe a text in."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractFlags:
    """The flags of `ngt extract`, but for the files and the settings."""

    preset: PresetOption = None
    output: Annotated[Path | None, _OUT] = None
    sources: Annotated[str | None, _SOURCES] = None
    doubt: Annotated[float, _DOUBT] = 0.0
    html: Annotated[Path | None, _HTML] = None
    dry_run: Annotated[bool, _DRY] = False
    limit: Annotated[int, _LIMIT] = 0
    restart: Annotated[bool, _RESTART] = False
    batch_size: Annotated[int, _SIZE] = 0
    verbose: VerboseOption = False


@with_settings(_READS)
def extract(
    flags: dict[str, Any],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    *,
    given: ExtractFlags,
) -> None:
    """Fields of documents as a table: ngt extract letters/ --schema 'sender, due date' -o t.csv

    ngt extract letters/ --schema 'sender, total float: what is to be paid' -o table.jsonl
    cat letter.txt | ngt extract --schema 'sender, due date' | jq .due
    """
    tasks, form = form_for(tasks_of(flags, given.preset, (TASK,)))
    settings, preset = tasks.of[TASK]
    if settings.ask_fields:
        own = load_preset("ask") if given.preset is None else preset
        tasks = Tasks({TASK: (settings, own)})
    extraction = Extraction(tasks, form)
    _check(flags, given, extraction)
    check_session(settings, Notes().warn, dry=given.dry_run)
    request = _request(extraction.whole(()), given)
    with closing(Rows(extraction, given)) as rows:
        notes = Notes(given.verbose)
        documents, bad = read_each(request, files or [], _HINT, notes, rows)
        documents = documents[: given.limit or None]
        if given.dry_run:
            _dry_run(given, extraction, documents[0], notes)
            return
        check_written([given.html])
        rows.expect(documents)
        _Extract(extraction, documents, rows, given, notes).run(bad)


def _check(flags: Mapping[str, Any], given: ExtractFlags, extraction: Extraction) -> None:
    """Raise UsageError for what was asked for by a flag and would not happen."""
    settings, form = extraction.tasks.of[TASK][0], extraction.form
    refuse_ignored(flags, settings)
    check_output_files({"-o": given.output, "--html": given.html})
    is_flat = given.output is not None and given.output.suffix.lower() in (".csv", ".tsv")
    if given.sources not in (None, "columns"):
        raise UsageError(f"--sources is {given.sources}", "It may be columns.")
    if not is_flat:
        refuse_with("what is no CSV or TSV", {"--sources": given.sources}, "JSON has them anyway.")
    if given.output is None:
        refuse_with("standard output", {"--restart": given.restart}, "Name a file with -o.")
    if given.dry_run:
        others = {"-o": given.output, "--html": given.html, "--restart": given.restart}
        refuse_with("--dry-run", others, "There are no rows.")
    if extraction.by_field:
        split = {"--overflow split": settings.overflow == "split", "--schema-multi": form.multi}
        hint = "Name another model (-m), or give --set ask_fields=no."
        refuse_with("ask_fields, one question a field", split, hint)
    if settings.overflow != "retrieve":
        unread = {f.flag: n in flags for n, f in SETTINGS.items() if f.overflow}
        refuse_with(f"--overflow {settings.overflow}", unread, "Nothing is left out.")


def _request(question: Question, given: ExtractFlags) -> AnswerRequest:
    """A question with those flags that reading documents and dry runs look at."""
    asked = {f.name: getattr(question, f.name) for f in fields(question)}
    out = None if given.output is None else str(given.output)
    return AnswerRequest(
        **asked, out=out, html=given.html, dry_run=given.dry_run, verbose=given.verbose
    )


def _dry_run(given: ExtractFlags, extraction: Extraction, document: Document, notes: Notes) -> None:
    """Print the schema, and the prompt of the first question about a document."""
    from ngtcli.cli.dry_run import dry_run  # here: it loads what makes prompts

    print_line(dump_json(extraction.form.schema))
    asking = extraction.begin(document)
    if asking.open:
        dry_run(_request(asking.open[0][1], given), notes)
    if extraction.by_field:
        names = ", ".join(field.name for field, *_ in (about for about, _ in asking.open))
        notes.say(f"One question a field; this is the first one's, of: {names or 'none'}")


class _Extract:
    """One run of the command."""

    def __init__(
        self,
        extraction: Extraction,
        documents: Sequence[Document],
        rows: Rows,
        given: ExtractFlags,
        notes: Notes,
    ) -> None:
        settings = extraction.tasks.of[TASK][0]
        self._extraction, self._documents, self._rows = extraction, documents, rows
        self._given, self._notes = given, notes
        self._run = Run(settings, given.batch_size, notes, "file", wants=_WANTS)
        self._split = _Splitting(extraction, notes) if settings.overflow == "split" else None

    def run(self, bad: int) -> None:
        """Make the rows that are not there. Raises FailedLinesError where files failed."""
        left = [d for d in self._documents if not self._rows.has(d.name)]
        self._run.set_total(len(self._documents), len(left), "made before and not again")
        asked = _Asked(left, self._begin)
        goes_on = GOES_ON if self._given.output else "what is done is put out"

        def deliver(outcome: "Outcome") -> bool | None:
            asking, about, _ = asked.taken[outcome.key.index]
            if asking.failed:
                return None
            answer = outcome.answer
            try:
                if not isinstance(answer, Ended):
                    raise answer
                self._rows.count(answer)
                if not asking.answered(about, answer):
                    return None
            except NgtError as error:
                asking.fail()
                self._rows.fail(asking.document.name, error)
                return True
            self._rows.put(asking.document.name, asking.rows())
            return False

        self._run.answer(asked, lambda line: asked.taken[line.index][2], deliver, goes_on)
        self._rows.conclude(self._documents)
        total = len(self._documents) + bad
        again = "The same command tries them again, and no others." * bool(self._given.output)
        self._run.check_failed(self._run.failed + bad, total, again)

    def _begin(self, document: Document) -> Asking | None:
        """What is asked of a document; None where nothing is: its row is taken, or it failed."""
        try:
            parts = self._split.parts(document) if self._split else ()
        except NgtError as error:
            self._rows.fail(document.name, error)
            self._run.finished(failed=True)
            return None
        asking = self._extraction.begin(document, parts)
        if not asking.open:
            self._rows.put(document.name, asking.rows())
            self._run.finished(failed=False)
        return asking


class _Splitting:
    """Splits documents that do not fit, as the model's tokenizer counts."""

    def __init__(self, extraction: Extraction, notes: Notes) -> None:
        self._extraction, self._notes, self._task = extraction, notes, None

    def parts(self, document: Document) -> "Sequence[Part]":
        """The parts of a document, none where it fits. Raises ContextOverflowError."""
        from ngtcli.cli.dry_run import task_of  # here: few runs split
        from ngtcli.prompt.splitting import fits, split

        task: Any = self._task or task_of(self._extraction.whole(()), self._notes)
        self._task = task
        task = replace(task, documents=[document])
        if fits(task) is not None:
            return ()
        parts = split(task)
        self._notes.warn(f"{document.name}: not everything fits: read in {len(parts)} parts")
        return parts


class _Asked(Lines):
    """The questions of documents in their order; those that follow from an answer come first.

    `begin` makes what is asked of a document, perhaps nothing.
    """

    def __init__(
        self, documents: Sequence[Document], begin: Callable[[Document], Asking | None]
    ) -> None:
        super().__init__(())
        self._left, self._begin = deque(documents), begin
        self._begun: list[Asking] = []  # with questions that are not taken
        self.taken: list[tuple[Asking, Any, Question]] = []  # and what each is about

    def wait(self) -> bool:
        """Whether there is another question."""
        return self._next() is not None

    def take(self) -> InputLine | None:
        """The next question; None where none is there now."""
        if (asking := self._next()) is None:
            return None
        self.taken.append((asking, *asking.take()))
        return InputLine(len(self.taken) - 1, len(self.taken), asking.document.name)

    def _next(self) -> Asking | None:
        """What has a question to be taken, begun if need be."""
        while True:
            for asking in self._begun:
                if asking.open:
                    return asking
            self._begun = [asking for asking in self._begun if asking.waiting]
            if not self._left:
                return None
            begun = self._begin(self._left.popleft())
            if begun is not None:
                self._begun.append(begun)
