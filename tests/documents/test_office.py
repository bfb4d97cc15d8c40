"""What is read of sheets and equations at their limits; what is said of old office files."""

from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.find import Skipped
from ngtcli.documents.formats.archives import parse_zip
from ngtcli.documents.load import load
from ngtcli.errors import InputError
from tests import document_files

pytest.importorskip("lxml")
pytestmark = pytest.mark.usefixtures("kept_workers")


def read(data: bytes, max_bytes: int = 10_000_000) -> Extracted:
    """An archive's text, read in this process."""
    return parse_zip(ParserInput(data=data, suffix="", max_bytes=max_bytes))


def replaced(data: bytes, name: str, old: bytes, new: bytes) -> bytes:
    """An office file with something else in the XML of one part."""
    members = document_files.unzipped(data)
    assert old in members[name]
    return document_files.zipped({**members, name: members[name].replace(old, new)})


def test_nested_equations_take_linear_time() -> None:
    space = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    deep = "<m:d><m:e>" * 60 + "<m:r><m:t>x</m:t></m:r>" + "</m:e></m:d>" * 60
    equation = f"<w:body><w:p><m:oMath {space}>{deep}</m:oMath></w:p>"
    data = replaced(document_files.docx(), "word/document.xml", b"<w:body>", equation.encode())
    assert read(data).text == f"{'(' * 60}x{')' * 60}\n\n{document_files.DOCX_TEXT}"


SHEET = "xl/worksheets/sheet1.xml"


def test_sheets_with_a_wrong_dimension_are_read_completely() -> None:
    wrong = b'<dimension ref="A1:A1"'
    data = replaced(document_files.xlsx(), SHEET, b'<dimension ref="A1:C4"', wrong)
    assert read(data).text == document_files.expected_text("prices.xlsx")


def test_workbooks_with_too_much_text_are_refused(tmp_path: Path) -> None:
    wide = b"<row><c r='XFD1'><v>1</v></c></row>" * 100  # 16384 columns
    data = replaced(document_files.xlsx(), SHEET, b"</sheetData>", wide + b"</sheetData>")
    (tmp_path / "wide.xlsx").write_bytes(data)
    with pytest.raises(InputError, match="an Excel workbook with too much text in it"):
        load([str(tmp_path / "wide.xlsx")], settings=Settings.of(max_mb=1))
    assert len(read(data).text) > 1_000_000


def test_old_and_encrypted_office_files_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ngtcli.cli.notes import Notes
    from ngtcli.cli.reading import report_skipped

    for name in ("a.docx", "a.msg", "a.doc"):
        (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0" + bytes(60))
        with pytest.raises(InputError, match=f"{name}: an old or an encrypted office") as caught:
            load([str(tmp_path / name)])
        assert "without a password" in caught.value.hint
        assert "to docx FILE" in caught.value.hint
        (tmp_path / name).rename(tmp_path / "a.doc")
    with pytest.raises(InputError, match="only .doc 1") as caught:
        load([str(tmp_path)])
    assert "soffice --headless --convert-to docx FILE" in caught.value.hint
    (tmp_path / "b.txt").write_text("fine")
    report_skipped(load([str(tmp_path)]).skipped, Notes())
    told = capsys.readouterr().err
    assert "skipped 1 file of other types: .doc 1" in told
    assert "soffice --headless --convert-to docx FILE" in told
    report_skipped([Skipped("a.jpg", "", ".jpg")], Notes())
    assert "soffice" not in capsys.readouterr().err
