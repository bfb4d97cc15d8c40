"""OCR of scanned pages and images: words, order, turned pages, and hints if it is not installed."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from ngtcli.cli.docs import _list_row
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import report_skipped
from ngtcli.config import Settings
from ngtcli.documents import find
from ngtcli.documents import read as reading
from ngtcli.documents.content import About, Extracted, ParserInput, Section
from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.load import Document, Row, load
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse
from ngtcli.errors import InputError
from tests import document_files
from tests.support.helpers import sample_cases
from tests.support.recording_reporter import RecordingReporter

pdfium = pytest.importorskip("pypdfium2")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("reportlab")
with_ocr = pytest.mark.skipif(not find.ocr_version(), reason="the extra ocr is not installed")
with_tesseract = pytest.mark.skipif(
    not (find.ocr_version("eng") and Path(find.tessdata_folder(), "eng.traineddata").exists()),
    reason="the extra tesseract, or its language eng, is not installed",
)
SENTENCE = "The ferry leaves at 08:15 and costs 12.50 crowns."


def scan(text: str = SENTENCE) -> "Image.Image":
    """The top of a page as scanned at 150 dpi."""
    with pdfium.PdfDocument(document_files.paged_pdf([text])) as document:
        page = document[0].render(scale=150 / 72).to_pil().convert("RGB")
        return page.crop((90, 90, 790, 200))


def encode(image: "Image.Image", format: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def read(data: bytes, format: str = "picture", ocr: str = "auto", **options: Any) -> Extracted:
    source = ParserInput(data=data, suffix="", max_bytes=10**7, ocr=ocr, **options)
    return parse(format, source)


def with_transparent_background(page: "Image.Image") -> bytes:
    image = Image.new("RGBA", page.size, (0, 0, 0, 0))
    image.putalpha(page.convert("L").point(lambda value: 255 - value))
    return encode(image)


def with_orientation(page: "Image.Image") -> bytes:
    """A photograph on its side, with the orientation in its metadata."""
    metadata = Image.Exif()
    metadata[0x0112] = 6
    return encode(page.rotate(90, expand=True), "JPEG", exif=metadata)


KINDS: dict[str, Callable[["Image.Image"], bytes]] = {
    "one bit": lambda page: encode(page.convert("1"), "TIFF", compression="group4"),
    "palette": lambda page: encode(page.convert("P")),
    "transparent": with_transparent_background,
    "16 bits": lambda page: encode(page.convert("L").convert("I;16").point(lambda v: v * 257)),
    "cmyk": lambda page: encode(page.convert("CMYK"), "JPEG", quality=90),
    "turned left": lambda page: encode(page.rotate(90, expand=True)),
    "turned right": lambda page: encode(page.rotate(270, expand=True), "WEBP", lossless=True),
    "upside down": lambda page: encode(page.rotate(180), "BMP"),
    "turned by its metadata": with_orientation,
    "with a preview": lambda page: encode(page, "MPO", save_all=True, append_images=[page]),
}


@with_ocr
@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_any_kind_is_read(kind: str) -> None:
    extracted = read(KINDS[kind](scan()))
    assert "".join(extracted.text.split()) == "".join(SENTENCE.split())
    assert extracted.about.format == "picture"
    assert extracted.about.recognized == (1,)


@with_ocr
def test_pages_are_numbered_and_each_is_reported() -> None:
    first = scan("Invoice number 1001")
    second = scan("Invoice number 2002")
    data = encode(first, "TIFF", save_all=True, append_images=[second])
    reports: list[str] = []

    extracted = read(data, on_page=lambda: reports.append("page"))

    assert extracted.text.split() == "Invoice number 1001 Invoice number 2002".split()
    assert [section.page for section in extracted.about.sections] == [1, 2]
    assert len(reports) == 2


@pytest.fixture
def mixed() -> bytes:
    """A PDF with a page of text, a scanned page and a blank one."""
    document = pdfium.PdfDocument(document_files.paged_pdf(["The tide came in."]))
    document.import_pages(pdfium.PdfDocument(encode(scan(), "PDF")))
    document.new_page(600, 800)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


@with_ocr
def test_ocr_reads_no_page_or_those_without_text_or_all(mixed: bytes) -> None:
    off = read(mixed, "pdf", "off")
    assert off.text == "The tide came in."
    assert off.about.recognized == ()

    auto = read(mixed, "pdf", "auto")
    assert auto.text.startswith(off.text)
    assert "08:15" in auto.text
    assert auto.about.recognized == (2,)
    assert auto.about.warnings == ()

    force = read(mixed, "pdf", "force")
    assert force.text.split() == auto.text.split()
    assert force.about.recognized == (1, 2)


def line_at(left: float, top: float, text: str, width: float) -> Line:
    return Line(text, left, top, left + width, top + 10.0)


@with_ocr
def test_columns_are_read_one_after_the_other() -> None:
    from ngtcli.documents.formats.ocr import _in_reading_order

    title = line_at(60, 0, "title", width=120)
    columns = [
        line_at(x, 30 + 12 * row + x / 40, f"{x}-{row}", width=100)
        for row in range(4)
        for x in (0, 120)
    ]
    lines = _in_reading_order([title, *columns], 10.0)
    left = [f"0-{row}" for row in range(4)]
    right = [f"120-{row}" for row in range(4)]
    assert [line.text for line in lines] == ["title", *left, *right]


@with_ocr
def test_tables_are_read_by_rows() -> None:
    from ngtcli.documents.formats.ocr import _in_reading_order

    cells = [line_at(x, 12 * row, f"{x}-{row}", width=30) for row in range(4) for x in (120, 0)]
    lines = _in_reading_order(cells, 10.0)
    assert [line.text for line in lines] == [f"0-{row} 120-{row}" for row in range(4)]


# Reads a picture in a worker process, and then in this process, which is not confined but watched.
WATCHED_OCR = """
import sys
from pathlib import Path
from ngtcli.documents.content import ParserInput
from ngtcli.documents.load import load
from ngtcli.documents.worker import parse

(document,) = load(sys.argv[1:]).documents
assert not {"rapidocr", "onnxruntime", "cv2", "PIL"} & set(sys.modules)

def report_writing_and_network(event, arguments):
    is_network = event in ("socket.connect", "socket.getaddrinfo")
    is_rename = event == "os.rename"
    is_writing = False
    if event == "open":
        mode = arguments[1]
        is_writing = isinstance(mode, str) and bool(set(mode) & set("wax+"))
    if is_network or is_rename or is_writing:
        print(event, arguments)

sys.addaudithook(report_writing_and_network)
data = Path(sys.argv[1]).read_bytes()
print(document.text, parse("picture", ParserInput(data=data, suffix=".png", max_bytes=10**7)).text)
"""


@with_ocr
def test_ocr_runs_in_another_process_and_needs_no_network_or_writing(tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    path.write_bytes(encode(scan("Invoice 1001")))
    command = [sys.executable, "-B", "-c", WATCHED_OCR, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Invoice 1001 Invoice 1001\n"


def test_recognized_text_is_cached_for_the_same_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[ParserInput] = []

    def extract(self: Parsers, form: object, source: ParserInput) -> Extracted:
        parsed.append(source)
        return Extracted("Invoice 1001", About(recognized=(1,)))

    monkeypatch.setattr(Parsers, "extract", extract)
    monkeypatch.setattr(find, "ocr_version", lambda language="": f"1 {language}")
    monkeypatch.setattr(reading, "ocr_version", find.ocr_version)
    (tmp_path / "page.png").write_bytes(encode(scan("Invoice 1001")))

    modes_and_languages = [("auto", ""), ("force", ""), ("auto", "deu")]
    for ocr, language in modes_and_languages * 2:
        settings = Settings.of(ocr=ocr, ocr_language=language)
        (document,) = load([str(tmp_path)], settings=settings).documents
        assert document.text == "Invoice 1001"
        assert document.about.recognized == (1,)

    assert [(source.ocr, source.ocr_language) for source in parsed] == modes_and_languages


def test_the_recognizer_is_identified_by_its_version_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rapidocr-1.2.dist-info").mkdir()
    spec = ModuleSpec("rapidocr", None, origin=str(tmp_path / "rapidocr" / "__init__.py"))
    monkeypatch.setattr(find, "find_spec", lambda name: spec)
    assert find.ocr_version.__wrapped__() == "rapidocr-1.2.dist-info"


@with_tesseract
def test_tesseract_reads_turned_pictures_with_languages_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing language is not stored as an error of the files."""
    pages = tmp_path / "pages"
    pages.mkdir()
    kinds = sample_cases([*KINDS])
    for kind in kinds:
        (pages / f"{kind}.bmp").write_bytes(KINDS[kind](scan()))
    languages = shutil.copytree(find.tessdata_folder(), tmp_path / "languages")
    settings = Settings.of(ocr_language="eng+tide")

    for folder, missing_language in (("", "eng"), (str(languages), "tide")):
        monkeypatch.setattr(reading, "tessdata_folder", lambda folder=folder: folder)
        message = f"cannot load the language '{missing_language}'"
        with pytest.raises(InputError, match=message) as caught:
            load([str(pages)], settings=settings)
        assert "tesseract --list-langs" in caught.value.hint

    shutil.copy(languages / "eng.traineddata", languages / "tide.traineddata")
    loaded = load([str(pages)], settings=settings)
    assert [document.text for document in loaded.documents] == [SENTENCE] * len(kinds)
    assert not loaded.skipped


def find_tessdata_folder() -> str:
    """Find the folder of languages anew, as the first call in a process does."""
    folder: str = find.tessdata_folder.__wrapped__()
    return folder


def test_tesseract_says_where_its_languages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    assert find_tessdata_folder() == ""  # There is no such program.

    program = tmp_path / "tesseract"
    program.write_text("#!/nowhere")
    program.chmod(0o700)
    assert find_tessdata_folder() == ""  # The program cannot be run.

    listing = f'List of available languages in "{tmp_path}/" (1):\ndeu\n'
    program.write_text(f"#!{sys.executable}\nprint({listing!r})")
    assert find_tessdata_folder() == str(tmp_path)


@pytest.mark.parametrize(("value", "folder"), [(os.sep, os.sep), ("/nowhere", "")])
def test_a_variable_says_where_the_languages_of_tesseract_are(
    value: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSDATA_PREFIX", value)
    assert find_tessdata_folder() == folder


def test_pages_are_counted_while_they_are_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: Queue[str] = Queue()

    def extract(self: Parsers, form: object, source: ParserInput) -> Extracted:
        source.on_page()
        source.on_page()
        while statuses.get(timeout=60) != "Reading the documents: 0 of 1, 2 pages by OCR …":
            pass
        return Extracted("Invoice 1001")

    monkeypatch.setattr(Parsers, "extract", extract)
    (tmp_path / "page.pdf").write_bytes(b"%PDF-")
    reporter = RecordingReporter()
    monkeypatch.setattr(reporter, "status", statuses.put)
    loaded = reporter.of(lambda: load([str(tmp_path)]))
    assert loaded.documents[0].text == "Invoice 1001"


# The header of a BMP of 30,000 × 30,000 pixels, 900 megapixels
HUGE = b"BM" + bytes(12) + b"\x28\0\0\0" + b"\x30\x75\0\0" * 2 + b"\1\0\x18\0" + bytes(24)


@with_ocr
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: HUGE, "exceeds limit"),
        (lambda: encode(scan())[:900], "broken picture"),
        (bytes, "empty"),
        (lambda: encode(Image.new("L", (1, 900), 255)), "too tall to be"),
        (lambda: encode(Image.new("L", (3000, 20), 255)), "too wide to be recognized"),
        (lambda: b"plain text", "not a picture"),
    ],
    ids=["huge", "cut", "empty", "thin", "wide", "text"],
)
def test_an_image_that_cannot_be_read_is_reported(
    data: Callable[[], bytes], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "a.bmp").write_bytes(data())
    with pytest.raises(InputError, match=reason) as caught:
        load([str(tmp_path / "a.bmp")])
    assert caught.value.hint


def test_many_images_of_a_folder_are_skipped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("notes.txt", "1.png", "2.jpg", "3.tiff"):
        (tmp_path / name).write_text("The tide came in.")

    def list_files(ocr: str, max_pictures: int, version: str = "1") -> tuple[int, str]:
        """List the folder, and one of its pictures by name; return the count and the warning."""
        monkeypatch.setattr(find, "MAX_PICTURES", max_pictures)
        monkeypatch.setattr(find, "ocr_version", lambda language="": version)
        listing = find.find([str(tmp_path), str(tmp_path / "1.png")], Settings.of(ocr=ocr))
        report_skipped(listing.all_skipped(), Notes())
        return len(listing.files), capsys.readouterr().err

    assert list_files("auto", max_pictures=2) == (4, "")
    assert list_files("force", max_pictures=1) == (4, "")

    needs_ocr = "ngt: skipped 2 files: pictures are not read here. They need the extra ocr"
    count, warning = list_files("auto", max_pictures=1)
    assert count == 2
    assert warning.startswith(needs_ocr)
    _, warning = list_files("auto", max_pictures=2, version="")
    assert warning.startswith(needs_ocr)

    count, warning = list_files("off", max_pictures=2)
    assert count == 2
    assert warning == "ngt: skipped 2 files of other types: .jpg 1, .tiff 1\n"


def test_without_ocr_the_extra_to_install_is_named(
    mixed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ngtcli.documents.formats.ocr", None)
    assert read(mixed, "pdf").about.warnings == ("no text on page 2: a scan, or pictures",)
    with pytest.raises(Unreadable, match="2 pages have no text") as caught:
        read(document_files.FILES["scan.pdf"](), "pdf")
    assert "ngtcli[ocr]" in caught.value.advice
    with pytest.raises(Unreadable, match="no text is recognized here"):
        read(mixed, "pdf", "force")


def test_without_tesseract_the_extra_to_install_is_named(
    mixed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    with pytest.raises(Unreadable, match="without the package tesserocr") as caught:
        read(mixed, "pdf", ocr_language="deu")
    assert "ngtcli[tesseract]" in caught.value.advice
    assert not caught.value.lasting


def test_the_extra_is_named_for_a_folder_of_pictures_and_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "ocr_version", lambda language="": "")
    (tmp_path / "page.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(InputError, match="empty") as caught:
        load([str(tmp_path)])
    assert "ngtcli[ocr]" in caught.value.hint


def test_pages_that_were_recognized_are_marked() -> None:
    tide = "The tide came in at noon."
    ferry = "Then the ferry left the old harbour."
    about = About("pdf", 2, 0, (Section(0, 1), Section(len(tide) + 2, 2)), recognized=(2,))
    document = Document("a.pdf", f"{tide}\n\n{ferry}", about)
    places = [source.place for source in sources_of(f"{ferry} {tide}", [document]).spans]
    assert places == ["a.pdf, page 2 (OCR)", "a.pdf, page 1"]

    row = Row("a.pdf", "a.pdf", "pdf", 2, 9, 9, 0, (), (2,))
    assert _list_row(row)[2] == "2 (1 by OCR)"


A4 = (595, 842)  # points


def stamped_scan(
    stamp: str, size: tuple[int, int] = A4, in_form: bool = False, scale: float = 1.0
) -> bytes:
    """A page of a PDF with a picture of a size in points, and with text on it.

    In a form the picture has its size divided by `scale`, by which the page scales the form.
    """
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, invariant=1)
    sheet = Image.new("RGB", (1190, 1684), "white")
    sheet.paste(scan().resize((1050, 165)), (60, 300))
    if in_form:
        canvas.beginForm("sheet", 0, 0, 5950, 8420)
        canvas.drawImage(ImageReader(sheet), 0, 0, size[0] / scale, size[1] / scale)
        canvas.endForm()
        canvas.saveState()
        canvas.scale(scale, scale)
        canvas.doForm("sheet")
        canvas.restoreState()
    else:
        canvas.drawImage(ImageReader(sheet), 0, 0, *size)
    canvas.setFont("Helvetica", 9)
    canvas.drawString(480, 15, stamp)
    canvas.save()
    return out.getvalue()


@with_ocr
@pytest.mark.parametrize("stamp", ["SMITH000001", "Page 1 of 1", "scanned by ScanApp"])
def test_a_scan_with_a_stamp_is_recognized(stamp: str) -> None:
    extracted = read(stamped_scan(stamp), "pdf")
    assert "08:15" in extracted.text
    assert extracted.text.count(stamp) == 1
    assert extracted.about.recognized == (1,)
    assert not extracted.about.warnings


def test_a_scan_with_a_stamp_is_reported_if_it_is_not_recognized() -> None:
    extracted = read(stamped_scan("SMITH000001"), "pdf", ocr="off")
    assert extracted.text == "SMITH000001"
    warning = "pictures cover page 1, and what is in them is not read"
    assert extracted.about.warnings == (warning,)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("size", "is_scan"), [(A4, True), ((200, 200), False)])
def test_a_picture_in_a_form_counts_by_its_size_on_the_page(
    scale: float, size: tuple[int, int], is_scan: bool
) -> None:
    data = stamped_scan("SMITH000001", size, in_form=True, scale=scale)
    warnings = read(data, "pdf", ocr="off").about.warnings
    assert bool(warnings) == is_scan


@pytest.mark.parametrize(
    ("stamp", "size"),
    [("SMITH000001", (200, 200)), ("word " * 30, A4)],
    ids=["small picture", "much text"],
)
def test_a_page_with_a_small_picture_or_much_text_is_no_scan(
    stamp: str, size: tuple[int, int]
) -> None:
    extracted = read(stamped_scan(stamp, size), "pdf")
    assert not extracted.about.recognized
    assert not extracted.about.warnings
