"""OCR of scanned pages and images: words, order, turned pages, and hints where it is missing."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from queue import Queue

import pytest

from ngtcli.cli.docs import _list_row
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import report_skipped
from ngtcli.config import Settings
from ngtcli.documents import find
from ngtcli.documents import read as reading
from ngtcli.documents.content import About, Extracted, Section, Source
from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.load import Document, Row, load
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse
from ngtcli.errors import InputError
from tests import document_files as made
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


def picture(text: str = SENTENCE) -> "Image.Image":
    """The top of a page as scanned at 150 dpi."""
    with pdfium.PdfDocument(made.paged_pdf([text])) as document:
        page = document[0].render(scale=150 / 72).to_pil().convert("RGB")
        return page.crop((90, 90, 790, 200))


def saved(image: "Image.Image", form: str = "PNG", **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **how)
    return out.getvalue()


def read(data: bytes, form: str = "picture", ocr: str = "auto", **more: object) -> Extracted:
    return parse(form, Source(data=data, suffix="", max_bytes=10**7, ocr=ocr, **more))  # type: ignore


def letters_alone(page: "Image.Image") -> bytes:
    """An image with black letters on a transparent background."""
    clear = Image.new("RGBA", page.size, (0, 0, 0, 0))
    clear.putalpha(page.convert("L").point(lambda value: 255 - value))
    return saved(clear)


def noted(page: "Image.Image") -> bytes:
    """A photograph on its side, with the orientation in its metadata."""
    about = Image.Exif()
    about[0x0112] = 6
    return saved(page.rotate(90, expand=True), "JPEG", exif=about)


KINDS: dict[str, Callable[["Image.Image"], bytes]] = {
    "one bit": lambda page: saved(page.convert("1"), "TIFF", compression="group4"),
    "palette": lambda page: saved(page.convert("P")),
    "transparent": letters_alone,
    "16 bits": lambda page: saved(page.convert("L").convert("I;16").point(lambda v: v * 257)),
    "cmyk": lambda page: saved(page.convert("CMYK"), "JPEG", quality=90),
    "on its side": lambda page: saved(page.rotate(90, expand=True)),
    "on the other": lambda page: saved(page.rotate(270, expand=True), "WEBP", lossless=True),
    "upside down": lambda page: saved(page.rotate(180), "BMP"),
    "noted": noted,
    "with a preview": lambda page: saved(page, "MPO", save_all=True, append_images=[page]),
}


@with_ocr
@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_any_kind_is_read(kind: str) -> None:
    found = read(KINDS[kind](picture()))
    assert "".join(found.text.split()) == "".join(SENTENCE.split())
    assert (found.about.format, found.about.recognized) == ("picture", (1,))


@with_ocr
def test_pages_are_numbered_and_each_has_its_own_time() -> None:
    told: list[int] = []
    first, second = (picture(f"Invoice number {number}") for number in ("1001", "2002"))
    data = saved(first, "TIFF", save_all=True, append_images=[second])
    found = read(data, on_page=lambda: told.append(1))
    assert found.text.split() == "Invoice number 1001 Invoice number 2002".split()
    assert [section.page for section in found.about.sections] == [1, 2] and len(told) == 2


@pytest.fixture
def mixed() -> bytes:
    """A PDF with a page of text, a scanned page and a blank one."""
    document, out = pdfium.PdfDocument(made.paged_pdf(["The tide came in."])), io.BytesIO()
    document.import_pages(pdfium.PdfDocument(saved(picture(), "PDF")))
    document.new_page(600, 800)
    document.save(out)
    return out.getvalue()


@with_ocr
def test_pages_without_text_are_recognized_or_all_or_none(mixed: bytes) -> None:
    off, auto, force = (read(mixed, "pdf", ocr) for ocr in ("off", "auto", "force"))
    assert [one.about.recognized for one in (off, auto, force)] == [(), (2,), (1, 2)]
    assert off.text == "The tide came in." and "08:15" in auto.text
    assert auto.text.startswith(off.text) and force.text.split() == auto.text.split()
    assert auto.about.warnings == ()


@with_ocr
def test_columns_are_read_one_after_the_other_and_tables_by_rows() -> None:
    from ngtcli.documents.formats.ocr import _in_reading_order

    def at(text: str, left: float, top: float, width: float = 100.0) -> Line:
        return Line(text, left, top, left + width, top + 10.0)

    columns = [at(f"{x}-{y}", x, 30 + 12 * y + x / 40) for y in range(4) for x in (0, 120)]
    found = _in_reading_order([at("title", 60, 0, 120), *columns], 10.0)
    assert [line.text for line in found] == [
        "title",
        *(f"{x}-{y}" for x in (0, 120) for y in range(4)),
    ]
    cells = [at(f"{x}-{y}", x, 12 * y, 30) for y in range(4) for x in (120, 0)]
    assert [line.text for line in _in_reading_order(cells, 10.0)] == [
        f"0-{y} 120-{y}" for y in range(4)
    ]


# Read in this process without its confinement, then in another one.
CALLS = """
import sys
from pathlib import Path
from ngtcli.documents.content import Source
from ngtcli.documents.load import load
from ngtcli.documents.worker import parse
(one,) = load(sys.argv[1:]).documents
assert not {"rapidocr", "onnxruntime", "cv2", "PIL"} & set(sys.modules)
def hook(event, given):
    writes = event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")
    if writes or event in ("socket.connect", "socket.getaddrinfo", "os.rename"):
        print(event, given)
sys.addaudithook(hook)
data = Path(sys.argv[1]).read_bytes()
print(one.text, parse("picture", Source(data=data, suffix=".png", max_bytes=10**7)).text)
"""


@with_ocr
def test_it_is_done_in_another_process_without_network_or_writing(tmp_path: Path) -> None:
    (path := tmp_path / "page.png").write_bytes(saved(picture("Invoice 1001")))
    done = subprocess.run([sys.executable, "-B", "-c", CALLS, path], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("Invoice 1001 Invoice 1001\n", 0), done.stderr


def test_recognized_text_is_cached_for_the_same_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = list[Source]()
    found = Extracted("Invoice 1001", About(recognized=(1,)))
    monkeypatch.setattr(Parsers, "extract", lambda *a: parsed.append(a[2]) or found)
    monkeypatch.setattr(find, "ocr_version", lambda language="": f"1 {language}")
    monkeypatch.setattr(reading, "ocr_version", find.ocr_version)
    (tmp_path / "page.png").write_bytes(saved(picture("Invoice 1001")))
    asked = [("auto", ""), ("force", ""), ("auto", "deu")]
    for ocr, language in asked * 2:
        settings = Settings.of(ocr=ocr, ocr_language=language)
        (one,) = load([str(tmp_path)], settings=settings).documents
        assert (one.text, one.about.recognized) == ("Invoice 1001", (1,))
    assert [(one.ocr, one.ocr_language) for one in parsed] == asked


def test_the_recognizer_is_identified_by_its_version_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rapidocr-1.2.dist-info").mkdir()
    spec = ModuleSpec("rapidocr", None, origin=str(tmp_path / "rapidocr" / "__init__.py"))
    monkeypatch.setattr(find, "find_spec", lambda name: spec)
    assert find.ocr_version.__wrapped__() == "rapidocr-1.2.dist-info"


@with_tesseract
def test_tesseract_reads_pictures_however_they_lie_with_languages_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing language is not stored as an error of the files."""
    (pages := tmp_path / "pages").mkdir()
    for kind in (kinds := sample_cases([*KINDS])):
        (pages / f"{kind}.bmp").write_bytes(KINDS[kind](picture()))
    languages = shutil.copytree(find.tessdata_folder(), tmp_path / "languages")
    settings = Settings.of(ocr_language="eng+tide")
    for folder, missing in (("", "eng"), (str(languages), "tide")):
        monkeypatch.setattr(reading, "tessdata_folder", lambda folder=folder: folder)
        with pytest.raises(InputError, match=f"cannot load the language '{missing}'") as caught:
            load([str(pages)], settings=settings)
        assert "tesseract --list-langs" in caught.value.hint
    shutil.copy(languages / "eng.traineddata", languages / "tide.traineddata")
    loaded = load([str(pages)], settings=settings)
    assert [one.text for one in loaded.documents] == [SENTENCE] * len(kinds) and not loaded.skipped


def test_the_folder_of_languages_is_named_by_a_variable_or_by_tesseract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    assert find.tessdata_folder.__wrapped__() == ""
    (program := tmp_path / "tesseract").write_text("#!/nowhere")
    program.chmod(0o700)
    assert find.tessdata_folder.__wrapped__() == ""
    told = f'List of available languages in "{tmp_path}/" (1):\ndeu\n'
    program.write_text(f"#!{sys.executable}\nprint({told!r})")
    assert find.tessdata_folder.__wrapped__() == str(tmp_path)
    for named, found in ((os.sep, os.sep), ("/nowhere", "")):
        monkeypatch.setenv("TESSDATA_PREFIX", named)
        assert find.tessdata_folder.__wrapped__() == found


def test_pages_are_counted_while_they_are_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Queue[str] = Queue()

    def extract(self: Parsers, form: object, source: Source) -> Extracted:
        source.on_page()
        source.on_page()
        while told.get(timeout=60) != "Reading the documents: 0 of 1, 2 pages by OCR …":
            pass
        return Extracted("Invoice 1001")

    monkeypatch.setattr(Parsers, "extract", extract)
    (tmp_path / "page.pdf").write_bytes(b"%PDF-")
    reported = RecordingReporter()
    monkeypatch.setattr(reported, "status", told.put)
    loaded = reported.of(lambda: load([str(tmp_path)]))
    assert loaded.documents[0].text == "Invoice 1001"


HUGE = b"BM" + bytes(12) + b"\x28\0\0\0" + b"\x30\x75\0\0" * 2 + b"\1\0\x18\0" + bytes(24)  # 900 MP


@with_ocr
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: HUGE, "exceeds limit"),
        (lambda: saved(picture())[:900], "broken picture"),
        (bytes, "empty"),
        (lambda: saved(Image.new("L", (1, 900), 255)), "too tall to be"),
        (lambda: saved(Image.new("L", (3000, 20), 255)), "too wide to be recognized"),
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

    def found(ocr: str, most: int, version: str = "1") -> tuple[int, str]:
        monkeypatch.setattr(find, "MAX_PICTURES", most)
        monkeypatch.setattr(find, "ocr_version", lambda language="": version)
        listing = find.find([str(tmp_path), str(tmp_path / "1.png")], Settings.of(ocr=ocr))
        report_skipped(listing.all_skipped(), Notes())
        return len(listing.files), capsys.readouterr().err

    needs = "ngt: skipped 2 files: pictures are not read here. They need the extra ocr"
    assert found("auto", 2) == (4, "") == found("force", 1)  # one is named
    assert found("auto", 1)[0] == 2 and found("auto", 1)[1].startswith(needs)
    assert found("auto", 2, "")[1].startswith(needs)
    assert found("off", 2) == (2, "ngt: skipped 2 files of other types: .jpg 1, .tiff 1\n")


def test_without_the_extra_it_is_named(mixed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ngtcli.documents.formats.ocr", None)
    assert read(mixed, "pdf").about.warnings == ("no text on page 2: a scan, or pictures",)
    with pytest.raises(Unreadable, match="2 pages have no text") as caught:
        read(made.FILES["scan.pdf"](), "pdf")
    assert "ngtcli[ocr]" in caught.value.advice
    with pytest.raises(Unreadable, match="no text is recognized here"):
        read(mixed, "pdf", "force")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    with pytest.raises(Unreadable, match="without the package tesserocr") as caught:
        read(mixed, "pdf", ocr_language="deu")
    assert "ngtcli[tesseract]" in caught.value.advice and not caught.value.lasting


def test_of_a_folder_with_pictures_and_broken_files_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "ocr_version", lambda language="": "")
    (tmp_path / "page.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(InputError, match="empty") as caught:
        load([str(tmp_path)])
    assert "ngtcli[ocr]" in caught.value.hint


def test_pages_that_were_recognized_are_marked() -> None:
    tide, ferry = "The tide came in at noon.", "Then the ferry left the old harbour."
    about = About("pdf", 2, 0, (Section(0, 1), Section(len(tide) + 2, 2)), recognized=(2,))
    document = Document("a.pdf", f"{tide}\n\n{ferry}", about)
    places = [source.place for source in sources_of(f"{ferry} {tide}", [document]).spans]
    assert places == ["a.pdf, page 2 (OCR)", "a.pdf, page 1"]
    assert _list_row(Row("a.pdf", "a.pdf", "pdf", 2, 9, 9, 0, (), (2,)))[2] == "2 (1 by OCR)"


def stamped(
    stamp: str, size: tuple[int, int] = (595, 842), in_form: bool = False, scale: float = 1.0
) -> bytes:
    """A page with a picture of so many points, and with text upon it.

    In a form the picture may be of another size than on the page.
    """
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(595, 842), invariant=1)
    sheet = Image.new("RGB", (1190, 1684), "white")
    sheet.paste(picture().resize((1050, 165)), (60, 300))
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
    found = read(stamped(stamp), "pdf")
    assert "08:15" in found.text and found.text.count(stamp) == 1
    assert found.about.recognized == (1,) and not found.about.warnings


def test_a_scan_with_a_stamp_is_reported_if_it_is_not_recognized() -> None:
    found = read(stamped("SMITH000001"), "pdf", ocr="off")
    assert found.text == "SMITH000001"
    warning = "pictures cover page 1, and what is in them is not read"
    assert found.about.warnings == (warning,)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("size", "is_scan"), [((595, 842), True), ((200, 200), False)])
def test_a_picture_in_a_form_counts_as_it_is_seen(
    scale: float, size: tuple[int, int], is_scan: bool
) -> None:
    found = read(stamped("SMITH000001", size, True, scale), "pdf", ocr="off")
    assert len(found.about.warnings) == is_scan


def test_a_page_with_a_small_picture_or_much_text_is_no_scan() -> None:
    for data in (stamped("SMITH000001", (200, 200)), stamped("word " * 30)):
        found = read(data, "pdf")
        assert not found.about.recognized and not found.about.warnings
