"""Read about 200 hostile files and judge the results.

    python -m tests.tools.hostile_documents [--seed N]

The files are mutations of valid files, bombs, loops and deep nesting, all made from a seed.

Each file is read by `ngt docs show` with limits of time and memory, and judged as the cases of the
fuzzer are: the result must be the file's text, or one error with a hint, within the limits.
"""

import argparse
import gzip
import io
import random
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.document_files import FILES, HTML, docx, odt, pdf, xlsx, zipped
from tests.tools.fuzz.__main__ import Verdict, report
from tests.tools.fuzz.case import ANSWERED, INPUT, Command, Place, Result
from tests.tools.fuzz.judge import judge
from tests.tools.fuzz.odd import damaged
from tests.tools.fuzz.run import run

Case = tuple[str, Callable[[], bytes]]  # a file's name, and its bytes
MUTATIONS = 13  # of each valid file

_LAUGHS = "<!DOCTYPE l [<!ENTITY a0 'ha'>{}]>".format(
    "".join(f"<!ENTITY a{i} '{f'&a{i - 1};' * 10}'>" for i in range(1, 12))
)
_OUTSIDE = "<!DOCTYPE l [<!ENTITY a11 SYSTEM 'file:///etc/passwd'>]>"
_FETCH = (
    "<!DOCTYPE l SYSTEM 'http://127.0.0.1:9/l.dtd' [<!ENTITY a11 SYSTEM 'http://127.0.0.1:9/'>]>"
)
# Seconds beyond the parser's limit: a busy machine is slow, and a parser that hangs takes longer
# still. Guess.
_SLACK_S = 60.0
# Megabytes beyond the parser's limit, which holds for the address space of its worker. Guess.
_MEMORY_MB = 300


def cases(seed: int = 0) -> list[Case]:
    """All hostile files, about 200."""
    return [*mutations(seed), *_archives(), *_documents(), *_pdfs(), *_texts()]


def mutations(seed: int = 0) -> list[Case]:
    """Damaged copies of every valid file."""

    def damaged_copy(name: str, number: int) -> bytes:
        rng = random.Random(f"{seed}{name}{number}")
        _, data = damaged(rng, FILES[name]())
        return data

    return [
        (f"{number}-{name}", partial(damaged_copy, name, number))
        for name in FILES
        for number in range(MUTATIONS)
    ]


def _archives() -> Iterator[Case]:
    """Bombs, loops and wrong sizes in zip and gzip files."""
    yield "bomb.gz", lambda: _packed(bytes(1_000_000), 400)
    yield "bomb.txt.gz", lambda: _packed(b"word " * 200_000, 400)
    yield "twice.gz", lambda: gzip.compress(gzip.compress(b"text", mtime=0), mtime=0)
    yield "members.gz", lambda: gzip.compress(b"", mtime=0) * 50_000
    yield "trailing.gz", lambda: gzip.compress(b"text", mtime=0) + b"\x1f\x8b\x08" + b"x" * 100
    for name in ("bomb.docx", "bomb.odt", "bomb.epub", "bomb.pptx", "bomb.xlsx"):
        yield name, lambda: _bomb(70)
    yield "small-bomb.docx", lambda: _bomb(50)
    yield "many.epub", lambda: zipped({f"{i}": "" for i in range(20_000)})
    yield "lie.odt", lambda: _lie(odt())
    yield "lie.docx", lambda: _lie(docx())
    for name in ("empty.docx", "empty.pptx", "empty.xlsx"):
        yield name, lambda: zipped({})
    yield (
        "self.epub",
        lambda: zipped(
            {"META-INF/container.xml": "<c><rootfile full-path='META-INF/container.xml'/></c>"}
        ),
    )
    yield "up.epub", lambda: _book("../../../../etc/passwd", 1)
    yield "often.epub", lambda: _book("a.xhtml", 300_000)


def _packed(megabyte: bytes, times: int) -> bytes:
    """A gzip file that repeats a megabyte; its contents are never in memory as a whole."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(megabyte) for _ in range(times)]) + packer.flush()


def _bomb(megabytes: int) -> bytes:
    """An archive in which each part that a document must have is so many megabytes of spaces."""
    names = ("word/document.xml", "content.xml", "META-INF/container.xml", "[Content_Types].xml")
    return zipped(dict.fromkeys(names, " " * (megabytes * 1_000_000)))


def _lie(data: bytes) -> bytes:
    """An archive whose directory says that every member is ten bytes long."""
    archive = bytearray(data)
    entry = archive.find(b"PK\1\2")
    while entry >= 0:
        archive[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
        entry = archive.find(b"PK\1\2", entry + 4)
    return bytes(archive)


def _book(page: str, times: int) -> bytes:
    """An EPUB whose spine names one page so many times."""
    return zipped(
        {
            "META-INF/container.xml": "<c><rootfile full-path='p.opf'/></c>",
            "p.opf": f"<p><item id='a' href='{page}' media-type='text/html'/>"
            + "<itemref idref='a'/>" * times
            + "</p>",
            "a.xhtml": "<p>" + "word " * 5000 + "</p>",
        }
    )


def _documents() -> Iterator[Case]:
    """XML and HTML that nests, expands or fetches."""
    for name, head in (("laughs", _LAUGHS), ("outside", _OUTSIDE), ("fetch", _FETCH)):
        for kind in ("odt", "docx", "html", "xhtml", "epub"):
            yield f"{name}.{kind}", partial(_declared, kind, head)
    deep = 200_000
    yield (
        "deep.odt",
        lambda: _odt("<text:section>" * deep + "<text:p>x</text:p>" + "</text:section>" * deep),
    )
    yield "deep.docx", lambda: _docx("<w:p>" * deep + "</w:p>" * deep)
    yield "deep.html", lambda: b"<html><body>" + b"<div>" * deep + b"text" + b"</div>" * deep
    yield "deep-lists.html", lambda: b"<html>" + b"<ul><li>" * 50_000 + b"text"
    yield "deep-tables.html", lambda: b"<html>" + b"<table><tr><td>" * 20_000 + b"text"
    yield "open.html", lambda: b"<html><p>text" + b"<b><i>" * 100_000
    yield "attributes.html", lambda: b"<html><p " + b"a=b " * 500_000 + b">text"
    yield "entities.html", lambda: b"<html><p>&#xFFFFFFFF;&#0;&#55555;text&amp" * 10_000
    yield "script.html", lambda: b"<html><script>" + b"while(1){}" * 10_000
    yield "comment.html", lambda: b"<html><!--" * 100_000
    yield "nulls.html", lambda: b"<html><p>a\0b</p>" * 1000
    yield "long.html", lambda: (HTML * 3000).encode()
    yield "far.xlsx", lambda: _sheet("<row r='999999999'><c r='XFD999999999'><v>1</v></c></row>")
    yield "wide.xlsx", lambda: _sheet("<row><c r='XFD1'><v>1</v></c></row>" * 100_000)
    yield (
        "repeated.ods",
        lambda: odt(
            "<table:table><table:table-row table:number-rows-repeated='999999999'><table:table-cell"
            " table:number-columns-repeated='999999999'><text:p>x</text:p></table:table-cell>"
            "</table:table-row></table:table>" * 50
        ),
    )
    yield "groups.rtf", lambda: b"{\\rtf1" + b"{" * 500_000 + b"text" + b"\\u-10179?" * 1000
    yield "spaces.odt", lambda: odt("<text:p>a<text:s text:c='999999999'/>b</text:p>" * 1000)
    yield "tiny.docx", lambda: _docx("<w:p/>" * 6_000_000)
    yield "words.docx", lambda: _docx("<w:p><w:r><w:t>w</w:t></w:r></w:p>" * 100_000)
    rows = "<w:tr><w:tc><w:tbl>" * 100 + "</w:tbl></w:tc></w:tr>" * 100
    yield "rows.docx", lambda: _docx("<w:tbl>" + rows)


def _declared(kind: str, head: str) -> bytes:
    """A file of a kind, with a document type declaration and a reference to its entity."""
    if kind == "odt":
        return _odt("<text:p>&a11;</text:p>", head)
    if kind == "docx":
        return _docx("<w:p><w:r><w:t>&a11;</w:t></w:r></w:p>", head)
    if kind == "epub":
        return zipped({"META-INF/container.xml": f"{head}<c>&a11;</c>"})
    declaration = "<?xml version='1.0'?>" if kind == "xhtml" else ""
    return f"{declaration}{head}<html><body><p>&a11; text</p></body></html>".encode()


def _odt(body: str, head: str = "") -> bytes:
    space = "urn:oasis:names:tc:opendocument:xmlns"
    content = (
        f'<?xml version="1.0"?>{head}<office:document-content xmlns:office="{space}:office:1.0"'
        f' xmlns:text="{space}:text:1.0"><office:body><office:text>{body}</office:text>'
        "</office:body></office:document-content>"
    )
    return zipped({"META-INF/manifest.xml": "<m/>", "content.xml": content})


def _docx(body: str, head: str = "") -> bytes:
    """A valid document with another body."""
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    content = f'{head}<w:document xmlns:w="{space}"><w:body>{body}</w:body></w:document>'
    return _with(docx(), "word/document.xml", f'<?xml version="1.0"?>{content}')


def _with(package: bytes, part: str, content: str) -> bytes:
    """A package in which one part has other contents."""
    with zipfile.ZipFile(io.BytesIO(package)) as old:
        members: dict[str, str | bytes] = {name: old.read(name) for name in old.namelist()}
    return zipped({**members, part: content})


def _sheet(rows: str) -> bytes:
    """A valid workbook with other rows in its first sheet."""
    sheet = "xl/worksheets/sheet1.xml"
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    return _with(
        xlsx(), sheet, f"<worksheet xmlns='{space}'><sheetData>{rows}</sheetData></worksheet>"
    )


def _pdf(objects: list[bytes], tail: bytes = b"") -> bytes:
    """A PDF of these objects, numbered from 1; the first is its root, `tail` ends its trailer."""
    file = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, body)

    size = len(objects) + 1
    table_offset = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for offset in offsets:
        file += b"%010d 00000 n \n" % offset
    file += b"trailer\n<</Size %d/Root 1 0 R%s>>\n" % (size, tail)
    file += b"startxref\n%d\n%%%%EOF" % table_offset
    return bytes(file)


def _one_page(content: bytes, box: bytes = b"0 0 600 800", more: bytes = b"") -> bytes:
    """A PDF of one page; `more` are further resources of the page."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[%s]/Contents 4 0 R/Resources<<%s>>>>"
    packed = zlib.compress(content)
    return _pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            page % (box, b"/Font<</F 5 0 R>>" + more),
            b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(packed), packed),
            b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
            b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 6 0 R>>>>"
            b"/Length 4>>stream\n/X Do\nendstream",
        ]
    )


def _pdfs() -> Iterator[Case]:
    """Loops, giants and floods in PDFs."""
    show = b"BT /F 12 Tf 50 700 Td (Some text of a page) Tj ET "
    catalog = b"<</Type/Catalog/Pages 2 0 R>>"
    yield "kids.pdf", lambda: _pdf([catalog, b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 99>>"])
    yield "count.pdf", lambda: _pdf([catalog, b"<</Type/Pages/Kids[]/Count 2000000000>>"])
    yield (
        "many-pages.pdf",
        lambda: _pdf(
            [
                catalog,
                b"<</Type/Pages/Count 300000/Kids[%s]>>" % (b"3 0 R " * 300_000),
                b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>",
            ]
        ),
    )
    yield "previous.pdf", lambda: _pdf([catalog], b"/Prev 9")
    yield "form.pdf", lambda: _one_page(show + b"/X Do", more=b"/XObject<</X 6 0 R>>")
    for name, box in (
        ("huge", b"0 0 1e30 1e30"),
        ("negative", b"600 800 -600 -800"),
        ("words", b"a b c d"),
        ("tiny", b"0 0 1e-30 1e-30"),
    ):
        yield f"{name}-box.pdf", partial(_one_page, show, box)
    yield "flood.pdf", lambda: _one_page(show * 200_000)
    yield "nested-q.pdf", lambda: _one_page(b"q " * 5_000_000 + show)
    yield "bomb-stream.pdf", lambda: _one_page(b" " * 100_000_000)
    yield "stacked.pdf", lambda: _one_page(b"BT /F 12 Tf 50 700 Td " + b"(x) Tj -6 0 Td " * 60_000)
    yield "far.pdf", lambda: _one_page(b"BT /F 1e9 Tf 1e30 -1e30 Td (text) Tj ET" * 100)
    yield "array.pdf", lambda: _pdf([b"[" * 100_000 + b"]" * 100_000])
    yield "mark-only.pdf", lambda: b"%PDF-1.7"
    yield "late-mark.pdf", lambda: b"x" * 900 + pdf(1)
    yield "text.pdf", lambda: b"%PDF-1.7\n" + b"no objects at all\n" * 100_000


def _texts() -> Iterator[Case]:
    """Very long or deeply nested JSON, tables and mails."""
    yield "deep.json", lambda: b"[" * 1_000_000 + b"]" * 1_000_000
    yield "deep-objects.json", lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield "number.json", lambda: b"[" + b"9" * 1_000_000 + b"]"
    yield "surrogates.json", lambda: b'["\\ud800", "\\udfff"]'
    yield "nan.json", lambda: b"[NaN, Infinity, 1e999999]"
    yield "nulls.jsonl", lambda: b'"\\u0000"\n' * 1000
    yield "wide.csv", lambda: b"a," * 2_000_000
    yield "quote.csv", lambda: b'a,"' + b"b,\n" * 1_000_000
    yield "nulls.csv", lambda: b"a,\0b\n" * 100
    yield "parts.eml", _nested_mail
    yield "header.eml", lambda: b"Subject: " + b"=?utf-8?q?=41?= " * 100_000 + b"\n\ntext"
    yield "charset.eml", lambda: b"From: a\nContent-Type: text/plain; charset=nothing\n\nt\xe9xt"
    yield "base64.eml", lambda: b"From: a\nContent-Transfer-Encoding: base64\n\n!!!!" + b"A" * 9999
    yield "address.eml", lambda: b"From: " + b"(" * 100_000 + b"\nSubject: s\n\ntext"


def _nested_mail() -> bytes:
    parts = [f"Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n" for i in range(3000)]
    return ("From: a\n" + "".join(parts) + "Content-Type: text/plain\n\ntext").encode()


def main() -> int:
    """Read each file by itself, judge the result, and print a report; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=5, help="parser_seconds")
    parser.add_argument("--mb", type=int, default=500, help="parser_mb")
    parser.add_argument("--only", default="", help="names that contain this")
    args = parser.parse_args()
    flags = [f"--set=parser_seconds={args.seconds}", f"--set=parser_mb={args.mb}"]
    verdicts: list[Verdict] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), Path(folder) / "home", Path(folder), {})
        for name, make_file in cases(args.seed):
            if args.only not in name:
                continue
            file = place.work / name
            file.write_bytes(make_file())
            command = Command(
                ["docs", "show", "--text", name, *flags],
                [ANSWERED, INPUT],
                check=find_leaks,
                seconds=2 * args.seconds + _SLACK_S,
                memory=(args.mb + _MEMORY_MB) * 10**6,
            )
            result = run(command, place)
            verdict = Verdict(
                kind="hostile",
                seed=args.seed,
                description=name,
                command=command,
                result=result,
                complaints=judge(command, result),
                repeat=f"hostile_documents --seed {args.seed} --only {name}",
            )
            verdicts.append(verdict)
            file.unlink()
    print("\n".join(report(verdicts, args.seed, time.monotonic() - started)))
    return int(any(verdict.complaints for verdict in verdicts))


def find_leaks(result: Result) -> Iterator[str]:
    """Yield a complaint if the output has /etc/passwd, to which some files refer."""
    if "root:x:0" in result.out:
        yield "another file was read"


if __name__ == "__main__":
    sys.exit(main())
