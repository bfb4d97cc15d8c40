"""`ngt extract`: fields of documents as a table, with the place and the probability of each value.

A row a file, answered as a batch is; what is done is in the table's journal.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.cli import checks, options
from ngtcli.cli.answer_flags import Output
from ngtcli.cli.answer_many import (
    RunAnswers,
    RunProgress,
    answer_items,
    warn_of_limits,
)
from ngtcli.cli.checks import Situation
from ngtcli.cli.command import command
from ngtcli.cli.each_file import (
    RowsOnStdout,
    decisive_values,
    item_ids,
    read_each,
    report_failure,
    say_written,
    warn_of_deleted,
)
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import (
    check_output_files,
    check_written,
    json_of_answer,
    print_line,
    write_page,
)
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.config import PARTS, settings_in
from ngtcli.decoding.grammar.form import Field
from ngtcli.documents.load import Document
from ngtcli.drafting.steps import OWN
from ngtcli.engine.batch.extract import TASK, Asking, Extraction, Row, first_place
from ngtcli.engine.batch.run import Item, ItemId, ListedItems, Work
from ngtcli.engine.batch.table import FileRows, TableOutput
from ngtcli.engine.checks import check_session
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Tasks
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.splitting import Part, whole_or_parts
from ngtcli.render.terminal import reveal, visible
from ngtcli.system.json_form import dump_json
from ngtcli.system.reporting import Reporter, reporting_to
from ngtcli.words import counted

if TYPE_CHECKING:  # it loads numba, which is not to be loaded before vLLM runs
    from ngtcli.engine.session import Session

_OUT = options.file_option(
    "--output",
    "-o",
    help="Table to write: .csv, .tsv, .jsonl or .json; the same command resumes it.",
)
_SOURCES = typer.Option(
    "--sources",
    metavar='"columns"',
    help="columns (the only value): add the source and probability of each value to a CSV or TSV.",
)
_DOUBT = typer.Option(
    "--doubt",
    min=0.0,
    max=1.0,
    help="List values whose probability is below this in a message, and mark them in the table."
    " Without this flag: a message for values below 0.75, and no marks.",
    show_default=False,
)
_HTML = options.file_option(
    "--html", help="Also write an HTML page that links the table to its documents."
)
_DRY = typer.Option(
    "--dry-run", help="Print the first prompt and its schema; do not run the model."
)
# Settings of other answers, of single ones, and of processes that stay.
_UNUSED_SETTINGS = (
    "regex",
    "choices",
    "quote",
    "serve",
    "keep_warm",
    "color",
    "stop",
    "max_repeats",
)
_FACTS = ("page", "quote", "p")  # of a value, with --sources columns
_HINT = "Name files or folders, or pipe a text in."
_WITHOUT_ASK_FIELDS = "Name another model (-m), or give --set ask_fields=no."
_VERSION = 1  # of what makes rows of answers
# Below this a value is named as doubtful where --doubt says nothing: three wrong totals had 0.45 to
# 0.71, labelled values have 0.99 and those found by a field's words 0.9 (guess).
_DOUBTFUL = 0.75
_DOUBTED_SHOWN = 3  # of these values, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractFlags:
    """The flags of `ngt extract`, except for the files and the settings."""

    preset: options.PresetOption = None
    output: Annotated[Path | None, _OUT] = None
    sources: Annotated[str | None, _SOURCES] = None
    doubt: Annotated[float, _DOUBT] = 0.0
    html: Annotated[Path | None, _HTML] = None
    dry_run: Annotated[bool, _DRY] = False
    limit: options.LimitOption = 0
    restart: options.RestartOption = False
    force: options.ForceOption = False
    batch_size: options.SizeOption = 0
    verbose: options.VerboseOption = False


# The field of `ExtractFlags` that each flag sets which may have no effect.
_FIELD_OF = {
    "-o": "output",
    "--html": "html",
    "--sources": "sources",
    "--restart": "restart",
    "--force": "force",
}


@command("extract", settings=settings_in(*PARTS, without=_UNUSED_SETTINGS))
def extract(
    flags: SettingFlags,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    *,
    extract_flags: ExtractFlags,
) -> None:
    """Extract fields into a table: ngt extract reports/ --schema 'author, total float' -o t.csv

    ngt extract reports/ --schema 'author, total float: amount to pay' -o table.jsonl
    ngt extract article.txt --schema 'author, total float'
    """
    extraction = Extraction.of(options.tasks_of(flags, extract_flags.preset, (TASK,)))
    settings, _ = extraction.tasks.by_name[TASK]
    if extraction.by_field and extract_flags.preset is None:
        tasks = Tasks({TASK: (settings, load_preset("ask"))})
        extraction = Extraction(tasks, extraction.form)
    extract_flags = _check(flags, extract_flags, extraction)
    settings, preset = extraction.tasks.by_name[TASK]
    settings = checks.without_unused_models(settings)
    extraction = replace(extraction, tasks=Tasks({TASK: (settings, preset)}))
    check_session(settings, dry=extract_flags.dry_run)
    command = _Extract(extraction, extract_flags)
    with closing(command.opened()):
        command.run(files or [])


def _check(
    flags: Mapping[str, Any], extract_flags: ExtractFlags, extraction: Extraction
) -> ExtractFlags:
    """Warn of flags without effect, and return the others. Raises UsageError."""
    settings = extraction.tasks.by_name[TASK][0]
    checks.check_settings(flags, settings)
    check_output_files({"-o": extract_flags.output, "--html": extract_flags.html})
    if extract_flags.sources not in (None, "columns"):
        raise UsageError(f"--sources is {extract_flags.sources}", hint="Use --sources columns.")
    situations = set[Situation]()
    if extract_flags.output is None:
        situations.add(Situation.EXTRACT_ON_STDOUT)
        if extract_flags.html is None:
            situations.add(Situation.NO_FILE)
    if extract_flags.dry_run:
        situations.add(Situation.DRY_RUN)
    values = {flag: getattr(extract_flags, name) for flag, name in _FIELD_OF.items()}
    checks.warn_of_no_effect(situations, values)
    extract_flags = checks.effective(extract_flags, _FIELD_OF, situations)
    if extraction.by_field:
        flags_of_objects = {
            "--overflow split": settings.retrieval.overflow == "split",
            "--schema-multi": extraction.form.multi,
        }
        for flag, is_given in flags_of_objects.items():
            if is_given:
                raise UsageError(
                    f"{flag} cannot be used where each field is asked for by itself (ask_fields)",
                    hint=_WITHOUT_ASK_FIELDS,
                )
        _check_objects(extraction.form.fields)
    return extract_flags


def _check_objects(fields: Sequence[Field]) -> None:
    """Say which fields a model that only quotes is not asked for; raise UsageError for all."""
    objects = [field.name for field in fields if field.type == "json"]
    if not objects:
        return
    message = f"objects are not asked for with ask_fields: {', '.join(objects)}"
    if len(objects) == len(fields):
        raise UsageError(message, hint=_WITHOUT_ASK_FIELDS)
    Notes().warn(f"{message} will be null. {_WITHOUT_ASK_FIELDS}")


@dataclass(frozen=True, slots=True)
class _Statuses(Reporter):
    """Shows statuses in `notes`, and no warnings, which come again where the prompt is made."""

    notes: Notes

    def status(self, text: str) -> None:
        """As `Reporter.status`."""
        self.notes.status(text)


class _Extract:
    """One run of the command, which takes the rows that come of it."""

    def __init__(self, extraction: Extraction, flags: ExtractFlags) -> None:
        self._extraction = extraction
        self._flags = flags
        self._notes = Notes(flags.verbose)
        self._names = [field.name for field in extraction.form.fields]
        self._settings = extraction.tasks.by_name[TASK][0]
        self._progress = RunProgress(self._notes, "file")
        self._answers = RunAnswers(self._settings, self._progress, size=flags.batch_size)
        self._request = extraction.whole(())
        self._output = Output(path=flags.output, html=flags.html, verbose=flags.verbose)
        self._documents: dict[ItemId, Document] = {}
        self._is_single = False  # whether it is about one text
        self._origins = Counter[str]()  # of the tokens of all answers
        self._steps = 0
        self._out: FileRows = RowsOnStdout(self._text, keeps=bool(flags.html))

    def opened(self) -> FileRows:
        """Open what rows go to.

        Raises UsageError, also where a field has the name of another column.
        """
        path = self._flags.output
        if path is None:
            return self._out
        # An extraction has fields in the place of a question.
        fields = [line.removeprefix("- ") for line in self._request.question.splitlines()]
        head = {"fields": ", ".join(fields), **decisive_values(self._request, self._output)}
        del head["question"]
        self._out = TableOutput(
            path,
            head,
            self._columns(),
            flat=self._flat,
            whole=self._whole,
            restart=self._flags.restart,
            force=self._flags.force,
            heading=visible,
        )
        return self._out

    def _columns(self) -> list[str]:
        """Return the columns of a table. Raises UsageError where two have the same name."""
        columns = ["file"]
        for name in self._names:
            columns.append(name)
            if self._flags.sources:
                columns += [f"{name}.{fact}" for fact in _FACTS]
        if self._flags.doubt:
            columns.append("doubt")
        for name, count in Counter(columns).items():
            if count > 1:
                raise UsageError(
                    f"the field name {name} is reserved for a column of the table",
                    hint="Rename the field.",
                )
        return columns

    def run(self, paths: list[str]) -> None:
        """Make the rows that are not there. Raises NgtError, exit code 7 where files failed."""
        flags = self._flags
        out = self._out
        documents, bad = read_each(
            self._request, self._output, paths, _HINT, self._notes, out.files, out.wrote
        )
        documents = documents[: flags.limit or None]
        if flags.dry_run:
            self._dry_run(documents[0])
            return
        check_written([flags.html], flags.force)
        self._is_single = len(documents) + bad == 1
        self._documents = item_ids(documents, _VERSION)
        out.expect({item: document.name for item, document in self._documents.items()})
        left = out.to_do()
        self._progress.set_total(len(documents), len(left), "already done")
        if flags.output is not None:
            warn_of_deleted(self._notes, flags.output, out.deleted())
        items = ListedItems(self._item(item) for item in left)
        failed = answer_items(
            items,
            self,
            self._answers,
            self._progress,
            self._notes,
            resumes=flags.output is not None,
        )
        if flags.html:
            write_page(self._page(documents), flags.html, force=flags.force)
        self._say_written()
        self._notes.demonstration(self._settings.model.model)
        if flags.verbose:
            self._report_origins()
        hint = ""
        if flags.output is not None:
            hint = "Run the same command again to retry only these."
        self._progress.check_failed(failed + bad, len(documents) + bad, hint)

    def _report_origins(self) -> None:
        """Report how many tokens came of a step, and from where."""
        if self._steps:
            total = self._origins.total()
            shares = [f"{name} {n / total:.0%}" for name, n in self._origins.most_common()]
            self._notes.facts([f"{total / self._steps:.2f} tokens per step", *shares])

    def _say_written(self) -> None:
        """Say where the table is, and which of its values are in doubt."""
        table = self._flags.output
        if table is None:
            return
        threshold = self._flags.doubt or _DOUBTFUL
        doubted = [
            f"{row['file']}: {field}"
            for item in self._documents
            if self._out.has(item)
            for row in self._out.rows(item)
            for field, probability in row["probability"].items()
            if probability is not None and probability < threshold
        ]
        say_written(self._notes, table)
        if not doubted:
            return
        named = ", ".join(doubted[:_DOUBTED_SHOWN])
        if len(doubted) > _DOUBTED_SHOWN:
            named += ", …"
        hint = "" if self._flags.doubt else f"; --doubt {threshold:g} marks them in the table"
        count = counted(len(doubted), "value")
        self._notes.warn(f"check {count} with a probability below {threshold:g}: {named}{hint}")

    # --- what is asked of a document ---

    def _item(self, item: ItemId) -> Item:
        document = self._documents[item]
        return Item(item, document.name, partial(self._work, document))

    def _work(self, document: Document) -> Work:
        """Extract the rows of a document. Raises NgtError where that fails."""
        asking = Asking(self._extraction, document, self._parts(document))
        if not self._extraction.by_field:  # else only what rules leave open is asked
            for request, _ in asking.open:
                warn_of_limits(self._notes, request)
        return (yield from asking.work(self._note))

    def _note(self, answer: Ended) -> None:
        """Count where the tokens of an answer come from."""
        for token in answer.tokens:
            origin = "the model's own" if token.origin == OWN else token.origin
            self._origins[origin] += 1
        self._steps += answer.statistics.steps

    def _parts(self, document: Document) -> Sequence[Part]:
        """Return with --overflow split the parts of a document that does not fit, else none."""
        if self._settings.retrieval.overflow != "split":
            return ()
        if self._flags.dry_run:
            from ngtcli.cli.dry_run import UnloadedSession  # here: few runs are dry

            with reporting_to(_Statuses(self._notes)):
                session: Session = UnloadedSession(self._settings)
            self._notes.clear()
        else:
            session = self._answers.engine().session
        task = session.task(self._request.preset, [document], self._request.question)
        with reporting_to(session):
            parts = whole_or_parts(task)
        if isinstance(parts, Prompt):
            return ()
        self._notes.warn(f"{document.name}: not everything fits: read in {len(parts)} parts")
        return parts

    # --- what comes of it ---

    def put(self, item: Item, row: object) -> bool:
        """As `Results.put`, with all rows of a document."""
        if not isinstance(row, NgtError):
            assert isinstance(row, list)
            self._out.put(item.id, row)
            return False
        self._notes.clear()
        if isinstance(self._out, RowsOnStdout):
            self._out.show(item.id, "")
        report_failure(self._notes, item.name, row)
        return True

    def _text(self, rows: Sequence[Row]) -> str:
        """Return what standard output gets of a file: its rows; of a single text values alone."""
        self._notes.clear()  # both may be on one terminal
        if self._is_single:
            values = [row["values"] for row in rows]
            lines = [json_of_answer(values if self._extraction.form.multi else values[0])]
        else:
            lines = [json_of_answer(self._whole(row), None) for row in rows]
        if sys.stdout.isatty():
            lines = [reveal(line) for line in lines]
        return "".join(f"{line}\n" for line in lines)

    def _whole(self, row: Mapping[str, Any]) -> Row:
        """Return a row as JSON has it, with the fields that are in doubt."""
        if not self._flags.doubt:
            return {**row}
        doubted = [
            name
            for name, p in row["probability"].items()
            if p is not None and p < self._flags.doubt
        ]
        return {**row, "doubt": doubted}

    def _flat(self, row: Mapping[str, Any]) -> Row:
        """Return a row as a CSV has it."""
        cells: Row = {"file": row["file"], "doubt": ", ".join(self._whole(row).get("doubt", ()))}
        for name, value in row["values"].items():
            facts = {**(first_place(row["sources"][name]) or {}), "p": row["probability"][name]}
            cells[name] = value
            for fact in _FACTS:
                cells[f"{name}.{fact}"] = facts.get(fact)
        return {
            column: visible(cell) if isinstance(cell, str) else cell
            for column, cell in cells.items()
        }

    def _page(self, documents: Sequence[Document]) -> str:
        from ngtcli.render.answer_page import table_page  # here: few runs need it

        rows = list[Row]()
        for item in filter(self._out.has, self._documents):
            for row in map(self._whole, self._out.rows(item)):
                places = {field: first_place(at) for field, at in row["sources"].items()}
                rows.append({**row, "sources": places})
        return table_page(
            f"{', '.join(self._names)} of {counted(len(documents), 'file')}",
            options.command_line(),
            self._names,
            rows,
            documents,
            self._settings.model.model,
        )

    def _dry_run(self, document: Document) -> None:
        """Print the first prompt of a document, and the schema of its rows."""
        from ngtcli.cli.dry_run import dry_run  # here: it loads what makes prompts

        asking = Asking(self._extraction, document, self._parts(document))
        if asking.open:
            request, _ = asking.open[0]
            dry_run(request, self._output, self._notes, reports_schema=False)
        if self._extraction.by_field:
            questions = "no prompt: labels in the text give all fields, without the model"
            if asking.open:
                questions = (
                    f"the model is asked for {counted(len(asking.open), 'field')}, one by one"
                )
            self._notes.say(f"{questions}; each row of the table follows this JSON Schema:")
        else:
            self._notes.say("The answer obeys this JSON Schema:")
        print_line(visible(dump_json(self._extraction.form.schema)))
