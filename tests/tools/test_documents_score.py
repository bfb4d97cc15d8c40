"""The program that measures how well documents are read."""

import json
from pathlib import Path

import document_files
import pytest

pytest.importorskip("pypdfium2")
pytest.importorskip("rapidfuzz")
pytest.importorskip("reportlab")

from tests.tools import documents_score  # noqa: E402


def write_folder(folder: Path) -> None:
    """Write documents of all four sets, each with one PDF."""
    pdf = document_files.paged_pdf(["High tide is at nine."])
    for name in ("docling", "pdfbox", "olmocr", "found"):
        (folder / name).mkdir()
        (folder / name / "a.pdf").write_bytes(pdf)

    docling = folder / "docling"
    (docling / "a.pdf.reference.md").write_text("# High  **tide** is\n- at nine.\n")
    (docling / "b.csv").write_text("name,town\nAda,Varn\n")
    (docling / "b.csv.reference.md").write_text("| name | city |\n|---|---|\n| Ada | Varn |\n")

    for suffix in (".txt", "-sorted.txt"):
        (folder / "pdfbox" / f"a.pdf{suffix}").write_text("High tide is at ten.\n")

    tests = [
        {"pdf": "a.pdf", "type": "present", "text": "high tide is", "max_diffs": 1},
        {"pdf": "a.pdf", "type": "present", "text": "low tide is"},
        {"pdf": "a.pdf", "type": "absent", "text": "nine", "last_n": 5},
        {"pdf": "a.pdf", "type": "order", "before": "High", "after": "nine"},
    ]
    lines = [json.dumps(test) for test in tests]
    (folder / "olmocr" / "tests.jsonl").write_text("\n".join(lines))


def test_a_folder_of_documents_is_scored_beside_pdfium(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path)

    documents_score.main(tmp_path)

    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[:8] == [
        "docling, PDF 1 1.000 / 1.000 1.000 / 1.000 0 0",
        "docling, other 1 0.833 / 0.750",
        "docling, csv 1 0.833 / 0.750",
        "pdfbox .txt 1 0.878 / 0.800 0.878 / 0.800 0 0",
        "pdfbox -sorted.txt 1 0.878 / 0.800 0.878 / 0.800 0 0",
        "olmocr present 2 1 1",
        "olmocr absent 1 0 0",
        "olmocr order 1 1 1",
    ]
    assert rows[8].startswith("found a.pdf lost letters 0.00%,")
