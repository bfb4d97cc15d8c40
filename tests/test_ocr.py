"""Scanned pages and pictures: what is recognized, in which order, and what is said without it."""

import io
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ngtcli.cli.docs import _row
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import tell_skipped
from ngtcli.config import Settings
from ngtcli.documents import find
from ngtcli.documents.content import About, Extracted, Section, Source
from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.load import Document, Loaded, Row, load
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse
from ngtcli.errors import InputError
from ngtcli.grounding.sources import sources_of
from tests import document_files as made

pdfium = pytest.importorskip("pypdfium2")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("reportlab")
with_ocr = pytest.mark.skipif(not find.recognizer(), reason="the extra ocr is not installed")
TEXT = (
    "The harbour of Varn was opened in the year 1932 by the fishermen of the village, who had paid"
    " 12,500 crowns for it. Its two basins are 7.5 m deep. The ferry leaves at 08:15."
)


def words(text: str) -> str:
    return " ".join(text.split())


def picture(text: str = TEXT) -> "Image.Image":
    """A page with this text as a scanner sees it, at 150 dpi."""
    with pdfium.PdfDocument(made.paged_pdf([text])) as document:
        found: Image.Image = document[0].render(scale=150 / 72).to_pil()
        return found.crop((0, 0, found.width, 400))


def saved(image: "Image.Image", form: str, **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **how)
    return out.getvalue()


def read(data: bytes, form: str = "picture", ocr: str = "auto", **more: object) -> Extracted:
    return parse(form, Source(data=data, suffix="", most=10**7, ocr=ocr, **more))  # type: ignore


def on_clear(image: "Image.Image") -> "Image.Image":
    """The letters alone, where the page is transparent."""
    clear = Image.new("RGBA", image.size, (0, 0, 0, 0))
    clear.putalpha(image.convert("L").point(lambda value: 255 - value))
    return clear


def noted(image: "Image.Image", turn: int) -> bytes:
    """A photograph that lies on its side, as the camera noted."""
    about = Image.Exif()
    about[0x0112] = turn
    return saved(image.convert("RGB").rotate(90, expand=True), "JPEG", exif=about)


KINDS: dict[str, Callable[["Image.Image"], bytes]] = {
    "gray": lambda page: saved(page.convert("L"), "PNG"),
    "one bit": lambda page: saved(page.convert("1"), "TIFF", compression="group4"),
    "palette": lambda page: saved(page.convert("P"), "PNG"),
    "transparent": lambda page: saved(on_clear(page), "PNG"),
    "16 bits": lambda page: saved(page.convert("I;16").point(lambda value: value * 257), "PNG"),
    "cmyk": lambda page: saved(page.convert("CMYK"), "JPEG", quality=90),
    "noted": lambda page: noted(page, 6),
    "wrongly noted": lambda page: noted(page, 3),
    **{str(by): lambda page, by=by: saved(page.rotate(by, expand=True), "PNG")
       for by in (90, 180, 270)},  # type: ignore
    "webp": lambda page: saved(page, "WEBP"),
    "bmp": lambda page: saved(page.convert("RGB"), "BMP"),
}  # fmt: skip


@with_ocr
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_any_kind_is_read(kind: str) -> None:
    distance = pytest.importorskip("rapidfuzz.distance.Levenshtein").distance
    found = read(KINDS[kind](picture()))
    assert distance(words(found.text), TEXT) <= len(TEXT) // 50
    about = found.about
    assert (about.format, about.pages, about.recognized) == ("picture", 1, (1,))


@with_ocr
def test_pages_are_numbered_and_each_has_its_own_time() -> None:
    told: list[int] = []
    first, second = (picture(f"Invoice number {number}") for number in ("1001", "2002"))
    data = saved(first, "TIFF", save_all=True, append_images=[second])
    found = read(data, on_page=lambda: told.append(1))
    assert words(found.text) == "Invoice number 1001 Invoice number 2002" and len(told) == 2
    assert [section.page for section in found.about.sections] == [1, 2]


@pytest.fixture
def mixed() -> bytes:
    """A PDF with a page of text, one that is a picture, and one that is blank."""
    document = pdfium.PdfDocument(made.paged_pdf(["The tide came in at noon."]))
    document.import_pages(pdfium.PdfDocument(saved(picture().convert("RGB"), "PDF")))
    document.new_page(600, 800)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


@with_ocr
def test_pages_without_text_are_recognized_or_all_or_none(mixed: bytes) -> None:
    off, auto, force = (read(mixed, "pdf", ocr) for ocr in ("off", "auto", "force"))
    assert [one.about.recognized for one in (off, auto, force)] == [(), (2,), (1, 2)]
    assert off.text == "The tide came in at noon." and auto.text.startswith(off.text)
    assert "1932" in auto.text and words(force.text) == words(auto.text)
    assert auto.about.warnings == ("no text on page 3: a scan, or pictures",)


@with_ocr
def test_columns_are_read_one_after_the_other_and_tables_by_rows() -> None:
    from ngtcli.documents.formats.ocr import _ordered

    def at(text: str, left: float, top: float, width: float = 100.0) -> Line:
        return Line(text, left, top, left + width, top + 10.0)

    title = at("title", 60, 0, 120)
    columns = [at(f"{x}{y}", x, 30 + 12 * y + x / 40) for y in range(4) for x in (0, 120)]
    found = [line.text for line in _ordered([title, *columns], 10.0)]
    assert found == ["title", *(f"{x}{y}" for x in (0, 120) for y in range(4))]
    cells = [at(f"{x}{y}", x, 12 * y, 30) for y in range(4) for x in (120, 0)]
    assert [line.text for line in _ordered(cells, 10.0)] == [f"0{y} 120{y}" for y in range(4)]


CONFINED = """
import sys
from pathlib import Path
def hook(event, arguments):
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event in ("socket.connect", "socket.getaddrinfo", "os.mkdir", "os.rename") or writes:
        print(event, arguments)
sys.addaudithook(hook)
from ngtcli.documents.content import Source
from ngtcli.documents.worker import parse
data = Path(sys.argv[1]).read_bytes()
print(parse("picture", Source(data=data, suffix=".png", most=10**7, ocr="auto")).text)
"""
APART = """
import sys
from ngtcli.documents.load import load
print(load([sys.argv[1]]).documents[0].text)
assert not {"rapidocr", "onnxruntime", "cv2", "PIL"} & set(sys.modules)
"""


@with_ocr
@pytest.mark.parametrize("code", [CONFINED, APART], ids=["no network", "another process"])
def test_reading_asks_no_network_writes_nothing_and_is_done_elsewhere(
    code: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.png"
    path.write_bytes(saved(picture("Invoice 1001"), "PNG"))
    done = subprocess.run([sys.executable, "-B", "-c", code, path], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("Invoice 1001\n", 0), done.stderr


@with_ocr
def test_what_was_recognized_is_kept_for_the_same_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    extract = Parsers.extract
    monkeypatch.setattr(Parsers, "extract", lambda *a: parsed.append(a[2].ocr) or extract(*a))
    (tmp_path / "page.png").write_bytes(saved(picture("Invoice 1001"), "PNG"))
    for ocr in ("auto", "auto", "force", "auto"):
        (one,) = load([str(tmp_path)], settings=Settings(ocr=ocr)).documents
        assert (one.text, one.about.recognized) == ("Invoice 1001", (1,))
    assert parsed == ["auto", "force"]


def huge() -> bytes:
    """The first bytes of a PNG of 900 million pixels."""
    body = b"IHDR" + b"\0\0\x75\x30" * 2 + b"\x01\0\0\0\0"
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + body + zlib.crc32(body).to_bytes(4, "big")


@with_ocr
@pytest.mark.parametrize(
    ("data", "reason"),
    [(huge, "broken picture .*exceeds limit"), (lambda: huge()[:20], "broken picture"),
     (lambda: saved(picture(), "JPEG")[:5000], "truncated"), (bytes, "empty"),
     (lambda: saved(Image.new("L", (300, 200), 255), "PNG"), "no text"),
     (lambda: saved(Image.new("L", (1, 3000), 255), "PNG"), "no text"),
     (lambda: b"plain text", "not a picture")],
    ids=["huge", "cut", "half", "empty", "white", "thin", "text"],
)  # fmt: skip
def test_a_picture_that_cannot_be_read_is_told(
    data: Callable[[], bytes], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(data())
    with pytest.raises(InputError, match=reason) as caught:
        load([str(tmp_path / "a.png")])
    assert caught.value.hint


def in_folder(tmp_path: Path, count: int, ocr: str = "auto") -> Loaded:
    (tmp_path / "notes.txt").write_text("The tide came in.")
    for number in range(count):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    return load([str(tmp_path)], settings=Settings(ocr=ocr))


def told(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> str:
    tell_skipped(loaded.skipped, Notes())
    return capsys.readouterr().err


def test_many_pictures_of_a_folder_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "MOST_PICTURES", 2)
    monkeypatch.setattr(find, "recognizer", lambda: "1")
    assert "left out 3 files: pictures. They need the extra ocr" in told(
        in_folder(tmp_path, 3), capsys
    )
    assert "other kinds: .png 3" in told(in_folder(tmp_path, 3, "off"), capsys)
    named = find.find([str(tmp_path), str(tmp_path / "0.png")], Settings()).found
    assert len(named) == 4  # the rest are few
    forced = find.find([str(tmp_path)], Settings(ocr="force")).found
    assert len(forced) == 4


def test_without_the_extra_it_is_named(
    mixed: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find, "recognizer", lambda: "")
    for name in ("rapidocr", "ngtcli.documents.formats.ocr"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "left out 1 file: pictures. They need the extra ocr" in told(
        in_folder(tmp_path, 1), capsys
    )
    assert read(mixed, "pdf").about.warnings == ("no text on pages 2-3: a scan, or pictures",)
    with pytest.raises(Unreadable, match="2 pages have no text") as caught:
        read(made.FILES["scan.pdf"](), "pdf")
    assert "ngtcli[ocr]" in caught.value.advice


def test_pages_that_were_recognized_are_marked() -> None:
    about = About("pdf", 2, 0, (Section(0, 1), Section(19, 2)), recognized=(2,))
    document = Document("a.pdf", "The tide came in.\n\nThe ferry leaves at noon.", about)
    answer = "The tide came in. The ferry leaves at noon."
    found = {source.place for source in sources_of(answer, [document]).spans}
    assert found == {"a.pdf, page 1", "a.pdf, page 2 (OCR)"}
    row = Row("a.pdf", "a.pdf", "pdf", 2, 9, 9, 0, (), (2,))
    assert _row(row)[2] == "2 (1 by OCR)"
