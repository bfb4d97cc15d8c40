"""Where the rows of `ngt extract` go: a table, standard output, a page; and what is said."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.batch.extract import TASK, Extraction
from ngtcli.batch.output import journal_of
from ngtcli.batch.rows import RowObject
from ngtcli.batch.table import Row, TableOutput, check_table
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import command_line
from ngtcli.cli.output import print_line, write_page
from ngtcli.cli.per_file import warn_of
from ngtcli.documents.load import Document
from ngtcli.draft.steps import OWN
from ngtcli.errors import NgtError, UsageError, counted
from ngtcli.prompt.preset import deciding
from ngtcli.render.terminal import visible
from ngtcli.session.events import Ended
from ngtcli.system.files import key_of
from ngtcli.system.json_form import dump_json, to_json

if TYPE_CHECKING:
    from ngtcli.cli.extract import ExtractFlags

_VERSION = 1
_FACTS = ("page", "quote", "p")  # of a value, with --sources columns


class Rows:
    """Takes the rows of documents. `close` it.

    Raises UsageError for a table that is not as it was written here, and for columns of one name.
    """

    def __init__(self, extraction: Extraction, given: "ExtractFlags") -> None:
        self._extraction, self._given, self._notes = extraction, given, Notes(given.verbose)
        self._names = [one.name for one in extraction.form.fields]
        self.files: tuple[Path, ...] = ()
        self._table: TableOutput | None = None
        self._made: dict[str, Sequence[Row]] = {}  # that no table has, by file
        self._failed: set[str] = set()
        self._left: list[str] = []  # files whose rows are not printed
        self._is_single = False  # one text, of which the values alone are printed
        self._origins: Counter[str] = Counter()
        self._steps = 0
        columns = self._columns()
        if twice := [name for name, count in Counter(columns).items() if count > 1]:
            what = f"the table has a column {twice[0]} of its own"
            raise UsageError(what, "Give the field another name.")
        if given.output is not None and not given.dry_run:
            check_table(given.output)
            self.files = given.output, journal_of(given.output)
            self._table = TableOutput(
                given.output,
                _how(extraction),
                columns,
                flat=self._flat,
                whole=self._whole,
                restart=given.restart,
            )

    def _columns(self) -> list[str]:
        found = ["file"]
        for name in self._names:
            found.append(name)
            if self._given.sources:
                found += [f"{name}.{fact}" for fact in _FACTS]
        return [*found, *(["doubt"] if self._given.doubt else [])]

    def wrote(self, path: str) -> bool:
        """Whether a document was written here: tables are left out by their paths."""
        return False

    def expect(self, documents: Sequence[Document]) -> None:
        """Say what documents there are. Raises UsageError for a table that was changed."""
        self._left = [document.name for document in documents]
        self._is_single = len(documents) == 1
        if self._table is not None:
            self._table.expect({d.name: key_of(_VERSION, d.name, d.sha256) for d in documents})

    def has(self, name: str) -> bool:
        """Whether the rows of a document are there."""
        return self._table is not None and self._table.has(name)

    def put(self, name: str, rows: Sequence[RowObject]) -> None:
        """Take the rows of a document. Raises NgtError where they cannot be written."""
        made: list[Row] = [to_json(row) for row in rows]
        if self._table is None:
            self._made[name] = made
            self._print()
        else:
            self._table.put(name, made)

    def fail(self, name: str, error: NgtError) -> None:
        """Say why a document has no row."""
        warn_of(self._notes, name, error)
        self._failed.add(name)
        self._print()

    def _print(self) -> None:
        """Print the rows whose turn has come."""
        while self._table is None and self._left:
            if (name := self._left[0]) not in self._made and name not in self._failed:
                return
            self._left.pop(0)
            self._notes.clear()  # both may be on one terminal
            rows = [self._whole(row) for row in self._made.get(name, ())]
            if not self._is_single:
                for row in rows:
                    print_line(dump_json(row, None))
            elif name in self._made:
                values = [row["values"] for row in rows]
                print_line(dump_json(values if self._extraction.form.multi else values[0]))

    def count(self, answer: Ended) -> None:
        """Count where the tokens of an answer came from."""
        self._origins.update(token.origin for token in answer.tokens)
        self._steps += answer.statistics.steps

    def conclude(self, documents: Sequence[Document]) -> None:
        """Write the page, where one is wanted, and say with -v where tokens came from."""
        if self._given.html:
            write_page(self._page(documents), self._given.html)
        total = self._origins.total()
        if self._given.verbose and self._steps:
            told = {"the model's own" if n == OWN else n: c for n, c in self._origins.most_common()}
            shares = [f"{name} {count / total:.0%}" for name, count in told.items()]
            self._notes.facts([f"{total / self._steps:.2f} tokens a step", *shares])

    def _page(self, documents: Sequence[Document]) -> str:
        from ngtcli.render.extract_page import extract_page  # here: few runs need it

        made = self._made
        if (table := self._table) is not None:
            made = {d.name: table.rows(d.name) for d in documents if table.has(d.name)}
        rows = {name: [self._whole(row) for row in own] for name, own in made.items()}
        of = f"{counted(len(rows), 'file')}"
        return extract_page(f"Fields of {of}", command_line(), self._names, rows, documents)

    def _whole(self, row: Row) -> Row:
        """A row as JSON has it, with the fields that are in doubt."""
        if not self._given.doubt:
            return row
        return {**row, "doubt": self._doubted(row)}

    def _doubted(self, row: Row) -> list[str]:
        known = row["probability"].items()
        return [name for name, p in known if p is not None and p < self._given.doubt]

    def _flat(self, row: Row) -> Row:
        """A row as a table has it."""
        cells: dict[str, Any] = {"file": row["file"], "doubt": ", ".join(self._doubted(row))}
        for name in self._names:
            cells[name] = row["values"].get(name)
            place = row["sources"].get(name)
            place = next(filter(None, place), None) if isinstance(place, list) else place
            known = {**(place or {}), "p": row["probability"].get(name)}
            cells |= {f"{name}.{fact}": known.get(fact) for fact in _FACTS}
        return {n: visible(cell) if isinstance(cell, str) else cell for n, cell in cells.items()}

    def close(self) -> None:
        """Write the table."""
        if self._table is not None:
            self._table.close()


def _how(extraction: Extraction) -> Mapping[str, Any]:
    """All that decides rows but their documents, JSON-ready."""
    settings, preset = extraction.tasks.of[TASK]
    own = sorted(deciding(settings, preset).items())
    return {"engine": settings.engine, **{f"{TASK}.{name}": value for name, value in own}}
