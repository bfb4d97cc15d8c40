"""`ngt extract`: fields of documents as a table, with the place and the probability of each value.

A row a file, answered as a batch is; what is done stands in the table's journal.
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
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

if TYPE_CHECKING:  # it loads numba, which is not to be loaded before vLLM runs
    from ngtcli.engine.session import Session

_OUT = options.file_option(
    "--output", "-o", help="The table: csv, tsv, jsonl or json; it is resumed."
)
_SOURCES = typer.Option("--sources", metavar="columns", help="Add place and p to a CSV or TSV.")
_DOUBT = typer.Option("--doubt", min=0.0, max=1.0, help="Name fields whose p is below this.")
_HTML = options.file_option(
    "--html", help="Also write a page: the table next to its documents, linked."
)
_DRY = typer.Option("--dry-run", help="Print the first prompt and its schema; run no model.")
# Settings of other answers, of single ones, and of processes that stay.
_OTHER = ("regex", "choices", "quote", "serve", "keep_warm", "color", "stop", "max_repeats")
_FACTS = ("page", "quote", "p")  # of a value, with --sources columns
_HINT = "Name files or folders, or pipe a text in."
_VERSION = 1
# Below this a value is named as doubtful where --doubt says nothing: three wrong totals had 0.45 to
# 0.71, labelled values have 0.99 and those found by a field's words 0.9; guess.
_DOUBTFUL = 0.75
_DOUBTED_SHOWN = 3  # of these values, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractFlags:
    """The flags of `ngt extract`, but for the files and the settings."""

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


@command("extract", settings=settings_in(*PARTS, without=_OTHER))
def extract(
    flags: SettingFlags,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    *,
    given: ExtractFlags,
) -> None:
    """Fields of documents as a table: ngt extract reports/ --schema 'author, due date' -o t.csv

    ngt extract reports/ --schema 'author, total float: what is to be paid' -o table.jsonl
    ngt extract article.txt --schema 'author, due date'
    """
    extraction = Extraction.of(options.tasks_of(flags, given.preset, (TASK,)))
    settings, _ = extraction.tasks.of[TASK]
    if extraction.by_field and given.preset is None:
        tasks = Tasks({TASK: (settings, load_preset("ask"))})
        extraction = Extraction(tasks, extraction.form)
    given = _check(flags, given, extraction)
    settings, preset = extraction.tasks.of[TASK]
    settings = checks.without_unused_models(settings)
    extraction = replace(extraction, tasks=Tasks({TASK: (settings, preset)}))
    check_session(settings, Notes().warn, dry=given.dry_run)
    command = _Extract(extraction, given)
    with closing(command.opened()):
        command.run(files or [])


def _check(flags: Mapping[str, Any], given: ExtractFlags, extraction: Extraction) -> ExtractFlags:
    """Warn of flags without effect, and return the others. Raises UsageError."""
    settings = extraction.tasks.of[TASK][0]
    notes = Notes(given.verbose)
    checks.check_settings(flags, settings, notes.warn)
    check_output_files({"-o": given.output, "--html": given.html})
    if given.sources not in (None, "columns"):
        raise UsageError(f"--sources is {given.sources}", hint="It may be columns.")
    situations = set[Situation]()
    if given.output is None:
        situations.add(Situation.EXTRACT_ON_STDOUT)
        if given.html is None:
            situations.add(Situation.NO_FILE)
    if given.dry_run:
        situations.add(Situation.DRY_RUN)
    values = {flag: getattr(given, name) for flag, name in _FIELD_OF.items()}
    checks.warn_of_no_effect(situations, values, notes.warn)
    given = checks.effective(given, _FIELD_OF, situations)
    if extraction.by_field:
        split = settings.retrieval.overflow == "split"
        others = {"--overflow split": split, "--schema-multi": extraction.form.multi}
        hint = "Name another model (-m), or give --set ask_fields=no."
        for flag, is_given in others.items():
            if is_given:
                what = f"{flag} cannot be used where each field is asked for by itself (ask_fields)"
                raise UsageError(what, hint=hint)
        _check_objects(extraction.form.fields, hint)
    return given


def _check_objects(fields: Sequence[Field], hint: str) -> None:
    """Say which fields a model that only quotes is not asked for; raise UsageError for all."""
    objects = [one.name for one in fields if one.type == "json"]
    what = f"objects are not asked for with ask_fields: {', '.join(objects)}"
    if len(objects) == len(fields):
        raise UsageError(what, hint=hint)
    if objects:
        Notes().warn(f"{what} will be null. {hint}")


class _Extract:
    """One run of the command, which takes the rows that come of it."""

    def __init__(self, extraction: Extraction, given: ExtractFlags) -> None:
        self._extraction, self._given, self._notes = extraction, given, Notes(given.verbose)
        self._names = [field.name for field in extraction.form.fields]
        self._settings = extraction.tasks.of[TASK][0]
        self._progress = RunProgress(self._notes, "file")
        self._answers = RunAnswers(self._settings, self._progress, size=given.batch_size)
        self._request = extraction.whole(())
        self._output = Output(path=given.output, html=given.html, verbose=given.verbose)
        self._documents: dict[ItemId, Document] = {}
        self._is_single = False  # text
        self._origins = Counter[str]()  # of the tokens of all answers
        self._steps = 0
        self._out: FileRows = RowsOnStdout(self._text, keeps=bool(given.html))

    def opened(self) -> FileRows:
        """Where rows go. Raises UsageError, also where a field has the name of another column."""
        path = self._given.output
        if path is None:
            return self._out
        facts = _FACTS if self._given.sources else ()
        columns = [c for n in self._names for c in (n, *(f"{n}.{fact}" for fact in facts))]
        columns = ["file", *columns, *["doubt"] * bool(self._given.doubt)]
        if twice := next((one for one in columns if columns.count(one) > 1), None):
            what = f"the table has a column {twice} of its own"
            raise UsageError(what, hint="Call the field otherwise.")
        # An extraction has fields in the place of a question.
        listed = ", ".join(line.removeprefix("- ") for line in self._request.question.splitlines())
        head = {"fields": listed, **decisive_values(self._request, self._output)}
        del head["question"]
        self._out = TableOutput(
            path,
            head,
            columns,
            flat=self._flat,
            whole=self._whole,
            restart=self._given.restart,
            force=self._given.force,
            heading=visible,
        )
        return self._out

    def run(self, paths: list[str]) -> None:
        """Make the rows that are not there. Raises NgtError, exit code 7 where files failed."""
        given, out = self._given, self._out
        documents, bad = read_each(
            self._request, self._output, paths, _HINT, self._notes, out.files, out.wrote
        )
        documents = documents[: given.limit or None]
        if given.dry_run:
            self._dry_run(documents[0])
            return
        check_written([given.html], given.force)
        self._is_single = len(documents) + bad == 1
        self._documents = item_ids(documents, _VERSION)
        out.expect({item: document.name for item, document in self._documents.items()})
        left = out.to_do()
        self._progress.set_total(len(documents), len(left), "already done")
        if given.output is not None:
            warn_of_deleted(self._notes, given.output, out.deleted())
        items = ListedItems(self._item(item) for item in left)
        failed = answer_items(
            items,
            self,
            self._answers,
            self._progress,
            self._notes,
            resumes=given.output is not None,
        )
        if given.html:
            write_page(self._page(documents), given.html, force=given.force)
        self._say_written()
        self._notes.demonstration(self._settings.model.model)
        if given.verbose and self._steps:
            total = self._origins.total()
            shares = [f"{name} {n / total:.0%}" for name, n in self._origins.most_common()]
            self._notes.facts([f"{total / self._steps:.2f} tokens a step", *shares])
        again = "The same command tries them again, and no others." * bool(given.output)
        self._progress.check_failed(failed + bad, len(documents) + bad, again)

    def _say_written(self) -> None:
        """Say where the table is, and which of its values are in doubt."""
        table = self._given.output
        if table is None:
            return
        threshold = self._given.doubt or _DOUBTFUL
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
        hint = "" if self._given.doubt else f"; --doubt {threshold:g} marks them in the table"
        count = counted(len(doubted), "value")
        self._notes.warn(f"{count} below p {threshold:g}, to be checked: {named}{hint}")

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
        if self._given.dry_run:
            from ngtcli.cli.dry_run import UnloadedSession  # here: few runs are dry

            session: Session = UnloadedSession(self._settings, self._notes, warns=False)
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
        """What standard output gets of the rows of a file; of a single text its values alone."""
        self._notes.clear()  # both may be on one terminal
        lines = [json_of_answer(self._whole(row), None) for row in rows]
        if self._is_single:
            values = [row["values"] for row in rows]
            lines = [json_of_answer(values if self._extraction.form.multi else values[0])]
        return "".join(f"{reveal(x) if sys.stdout.isatty() else x}\n" for x in lines)

    def _whole(self, row: Mapping[str, Any]) -> Row:
        """A row as JSON has it, with the fields that are in doubt."""
        known = row["probability"].items()
        doubted = [name for name, p in known if p is not None and p < self._given.doubt]
        return {**row, **({"doubt": doubted} if self._given.doubt else {})}

    def _flat(self, row: Mapping[str, Any]) -> Row:
        """A row as a CSV has it."""
        cells: Row = {"doubt": ", ".join(self._whole(row).get("doubt", ())), "file": row["file"]}
        for name, value in row["values"].items():
            known = {**(first_place(row["sources"][name]) or {}), "p": row["probability"][name]}
            cells |= {name: value, **{f"{name}.{fact}": known.get(fact) for fact in _FACTS}}
        return {n: visible(cell) if isinstance(cell, str) else cell for n, cell in cells.items()}

    def _page(self, documents: Sequence[Document]) -> str:
        from ngtcli.render.answer_page import table_page  # here: few runs need it

        rows = list[Row]()
        for item in filter(self._out.has, self._documents):
            for row in map(self._whole, self._out.rows(item)):
                places = {field: first_place(at) for field, at in row["sources"].items()}
                rows.append({**row, "sources": places})
        title = f"{', '.join(self._names)} of {counted(len(documents), 'file')}"
        command, model = options.command_line(), self._settings.model.model
        return table_page(title, command, self._names, rows, documents, model)

    def _dry_run(self, document: Document) -> None:
        """Print the first prompt of a document, and the schema of its rows."""
        from ngtcli.cli.dry_run import dry_run  # here: it loads what makes prompts

        asking = Asking(self._extraction, document, self._parts(document))
        if asking.open:
            request, _ = asking.open[0]
            dry_run(request, self._output, self._notes, reports_schema=False)
        if self._extraction.by_field:
            count = len(asking.open)
            asked = (
                f"{counted(count, 'field')} asked for, each by itself"
                if count
                else ("no field is asked for, as rules are sure of all")
            )
            self._notes.say(f"{asked}; rows obey this JSON Schema:")
        else:
            self._notes.say("The answer obeys this JSON Schema:")
        print_line(visible(dump_json(self._extraction.form.schema)))
