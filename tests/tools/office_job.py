"""What a newcomer's job comes to: right and wrong answers of `ngt` about thirty documents.

`python -m tests.tools.office_job [-m MODEL …]` writes the documents of `office_texts` into a
temporary folder, asks ten questions and one that they do not answer, asks six minutes for the next
meeting, extracts five fields of the invoices and of the reports, and summarizes each document.
Flags are handed on to `ngt`. An answer is right if it has the words that the texts have; of a
question without an answer, if it says that it has none.
"""

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tools.office_texts import (
    FOLDERS,
    INVOICE_FIELDS,
    INVOICES,
    MEETING_QUESTION,
    MINUTES,
    PROJECT_FIELDS,
    QUESTIONS,
    REPORTS,
    OfficeText,
    write,
)

_LONGEST = 300  # characters of an answer that names one thing; a longer one quotes half a document
_SHOWN = 70  # characters of a wrong answer that are printed


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer to a question of the job, and whether it is right."""

    subject: str
    answer: str
    is_right: bool


def says(answer: str, words: str) -> bool:
    """Return whether an answer of at most _LONGEST characters has the words.

    >>> says("It costs 640,000 pounds.", "640,000"), says("It was built in 1971.", "640,000")
    (True, False)
    """
    plain = " ".join(answer.split())
    return len(plain) <= _LONGEST and words.casefold() in plain.casefold()


def same(value: str, expected: str) -> bool:
    """Return whether a cell has a value: a number in any form, a text whole except for a full stop.

    >>> same("10000.0", "10000"), same("Ludlow County.", "Ludlow County"), same("4", "11520")
    (True, True, False)
    """
    try:
        return float(value) == float(expected)
    except ValueError:
        return value.strip(" .").casefold() == expected.strip(" .").casefold()


def _ngt(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ngtcli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def questions(folder: Path, flags: Sequence[str]) -> Iterator[Judged]:
    """Ask the questions of all documents, each as `ngt ask` does."""
    lines = [json.dumps({"question": q.text, "paths": list(FOLDERS)}) for q in QUESTIONS]
    (folder / "questions.jsonl").write_text("\n".join(lines))
    done = _ngt("batch", "questions.jsonl", *flags, folder=folder)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for question, row in zip(QUESTIONS, rows, strict=True):
        answer = row.get("text", "") or str(row.get("error"))
        is_refused = row.get("finish_reason") == "not_in_documents"
        is_right = is_refused
        if question.answer:
            is_right = not is_refused and says(answer, question.answer)
        yield Judged(question.text, answer, is_right)


def meetings(folder: Path, flags: Sequence[str]) -> Iterator[Judged]:
    """Ask each of the minutes for the next meeting."""
    _ngt("ask", "--each", "minutes", MEETING_QUESTION, "-o", "m.csv", *flags, folder=folder)
    rows = _table(folder / "m.csv")
    for text in MINUTES:
        answer = rows.get(text.name, {}).get("answer", "")
        yield Judged(text.name, answer, says(answer, text.meeting))


def fields(
    folder: Path, kind: str, texts: Sequence[OfficeText], schema: str, flags: Sequence[str]
) -> Iterator[Judged]:
    """Extract the fields of all texts of a folder."""
    table = f"{kind}.csv"
    _ngt("extract", kind, "--schema", schema, "-o", table, *flags, folder=folder)
    rows = _table(folder / table)
    for text in texts:
        row = rows.get(text.name, {})
        for name, expected in text.fields.items():
            value = row.get(name, "")
            is_right = expected in value if name == "cost" else same(value, expected)
            yield Judged(f"{text.name}: {name}", value, is_right)


def summaries(folder: Path, flags: Sequence[str]) -> Iterator[Judged]:
    """Summarize each document; a summary is useful if it has one of the document's facts."""
    for kind, texts in FOLDERS.items():
        out = f"{kind}-summaries.csv"
        _ngt("summarize", "--per-file", kind, "-o", out, *flags, folder=folder)
        rows = _table(folder / out)
        for text in texts:
            answer = rows.get(text.name, {}).get("answer", "")
            yield Judged(text.name, answer, any(fact in answer for fact in text.facts))


def _table(path: Path) -> Mapping[str, Mapping[str, str]]:
    """The rows of a table, by the name of their file; none where there is no table."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {Path(row["file"]).name: row for row in csv.DictReader(file)}


def report(title: str, judged: Sequence[Judged]) -> None:
    """Print the number of right answers, and the wrong ones beside what was expected."""
    wrong = [answer for answer in judged if not answer.is_right]
    print(f"{title}: {len(judged) - len(wrong)} right, {len(wrong)} wrong", flush=True)
    for answer in wrong:
        print(f"    {answer.subject}: {' '.join(answer.answer.split())[:_SHOWN]!r}", flush=True)


def main(flags: Sequence[str]) -> None:
    """Do the job, and print the result."""
    with tempfile.TemporaryDirectory(prefix="ngt-office-") as name:
        folder = Path(name)
        write(folder)
        *answerable, control = questions(folder, flags)
        report("ten questions (ask)", answerable)
        report("one without an answer", [control])
        report("next meeting, six minutes (--each)", list(meetings(folder, flags)))
        invoices = fields(folder, "invoices", INVOICES, INVOICE_FIELDS, flags)
        report("invoices, 8 × 5 fields (extract)", list(invoices))
        reports = fields(folder, "reports", REPORTS, PROJECT_FIELDS, flags)
        report("reports, 8 × 5 fields (extract)", list(reports))
        report("30 summaries (--per-file)", list(summaries(folder, flags)))


if __name__ == "__main__":
    main(sys.argv[1:])
