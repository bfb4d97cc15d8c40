"""The program that measures how well documents are read."""

import json
from pathlib import Path

import document_files as made
import pytest

pytest.importorskip("pypdfium2")
pytest.importorskip("rapidfuzz")
pytest.importorskip("reportlab")

from tests.tools import documents_score  # noqa: E402


def test_a_folder_of_documents_is_scored_beside_pdfium(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("docling", "pdfbox", "olmocr", "found")]
    for folder in folders:
        folder.mkdir()
        (folder / "a.pdf").write_bytes(made.paged_pdf(["High tide is at nine."]))
    (folders[0] / "a.pdf.reference.md").write_text("# High  **tide** is\n- at nine.\n")
    (folders[0] / "b.csv").write_text("name,town\nAda,Varn\n")
    (folders[0] / "b.csv.reference.md").write_text("| name | city |\n|---|---|\n| Ada | Varn |\n")
    for suffix in (".txt", "-sorted.txt"):
        (folders[1] / f"a.pdf{suffix}").write_text("High tide is at ten.\n")
    tests = [
        {"pdf": "a.pdf", "type": "present", "text": "high tide is", "max_diffs": 1},
        {"pdf": "a.pdf", "type": "present", "text": "low tide is"},
        {"pdf": "a.pdf", "type": "absent", "text": "nine", "last_n": 5},
        {"pdf": "a.pdf", "type": "order", "before": "High", "after": "nine"},
    ]
    (folders[2] / "tests.jsonl").write_text("\n".join(map(json.dumps, tests)))
    documents_score.main(tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    whole, part = ["1.000", "/", "1.000"], ["0.878", "/", "0.800"]
    assert rows[:5] == [
        ["docling,", "PDF", "1", *whole, *whole, "0", "0"],
        ["docling,", "other", "1", "0.833", "/", "0.750"],
        ["docling,", "csv", "1", "0.833", "/", "0.750"],
        ["pdfbox", ".txt", "1", *part, *part, "0", "0"],
        ["pdfbox", "-sorted.txt", "1", *part, *part, "0", "0"],
    ]
    assert [row[2:] for row in rows[5:8]] == [["2", "1", "1"], ["1", "0", "0"], ["1", "1", "1"]]
    assert rows[8][:5] == ["found", "a.pdf", "lost", "letters", "0.00%,"]
