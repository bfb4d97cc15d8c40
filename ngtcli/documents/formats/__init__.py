"""The formats that are read, by suffix and first bytes. Imports no parser.

Each format other than plain text has a module here with a function `parse`, which runs in a worker
process only (`documents/worker.py`).
"""

import os
from dataclasses import dataclass

GZIP = ".gz"
_ZIP, _GZIP = b"PK\3\4", b"\x1f\x8b"
OLE = b"\xd0\xcf\x11\xe0"  # how office files begin that are old or encrypted
# Kinds that LibreOffice makes another of, which is read.
OLD = {".doc": "docx", ".xls": "xlsx", ".ppt": "pptx"}
_HEAD = 1024  # bytes in which a PDF's mark may stand, as in most readers


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name in output, its parser's module here, and the packages that needs.

    `what` is how errors call a file of the format. Which format a zip archive holds `packed` tells
    from what is inside.
    """

    name: str
    module: str
    what: str
    suffixes: tuple[str, ...]
    needs: tuple[str, ...] = ()


PDF = Format("pdf", "pdf", "a PDF", (".pdf",), ("pypdfium2",))
HTML = Format("html", "html", "HTML", (".html", ".htm", ".xhtml"), ("trafilatura", "lxml"))
ZIPPED = Format("zip", "packed", "a zip archive", ())
DOCX = Format("docx", "packed", "a Word document", (".docx", ".docm"), ("docx", "lxml"))
PPTX = Format("pptx", "packed", "a PowerPoint file", (".pptx", ".pptm"), ("pptx", "lxml"))
XLSX = Format("xlsx", "packed", "an Excel workbook", (".xlsx", ".xlsm"), ("openpyxl", "defusedxml"))
EPUB = Format("epub", "packed", "an EPUB", (".epub",), ("lxml", "defusedxml"))
ODT = Format("odt", "packed", "an OpenDocument file", (".odt", ".odp", ".ods"), ("defusedxml",))
RTF = Format("rtf", "rtf", "RTF", (".rtf",), ("striprtf",))
JSON = Format("json", "records", "JSON", (".json",))
JSONL = Format("jsonl", "records", "JSON lines", (".jsonl", ".ndjson"))
CSV = Format("csv", "table", "CSV", (".csv",))
TSV = Format("tsv", "table", "TSV", (".tsv",))
MAIL = Format("eml", "mail", "an e-mail", (".eml",))
GZ = Format("gz", "gz", "a gzip file", (GZIP,))
FORMATS = (PDF, HTML, DOCX, PPTX, XLSX, EPUB, ODT, RTF, JSON, JSONL, CSV, TSV, MAIL, GZ, ZIPPED)

TEXT_SUFFIXES = ("", ".txt", ".text", ".md", ".markdown", ".rst")
_PLAIN = tuple(s for f in FORMATS for s in f.suffixes if s != GZIP) + TEXT_SUFFIXES
SUFFIXES = frozenset((*_PLAIN, *(s + GZIP for s in _PLAIN)))
_BY_SUFFIX = {suffix: f for f in FORMATS for suffix in f.suffixes}


def conversion(kind: str) -> str:
    """The command that makes a file of that kind of an older one.

    >>> conversion(OLD[".doc"])
    'soffice --headless --convert-to docx FILE'
    """
    return f"soffice --headless --convert-to {kind} FILE"


def suffix_of(path: str) -> str:
    """The suffix in lower case, two for a gzip file; that of "notes." and of "README" is "".

    >>> suffix_of("a/Report.PDF"), suffix_of("x.tar.gz"), suffix_of("README")
    ('.pdf', '.tar.gz', '')
    """
    stem, suffix = os.path.splitext(os.path.basename(path).lower())
    if suffix == GZIP:
        return os.path.splitext(stem)[1] + suffix
    return "" if suffix == "." else suffix


def format_of(suffix: str, head: bytes) -> Format | None:
    """The format of a file with this suffix and these first bytes; None for plain text.

    What the bytes say counts more than the suffix. A zip archive stays unopened here. An office
    file that is old or encrypted is for `text.check_format` to refuse.
    """
    if head.startswith(OLE):
        return None
    found = _by_bytes(head)
    named = _BY_SUFFIX.get(GZIP if suffix.endswith(GZIP) else suffix)
    if found is HTML and named is not None:  # text that other formats may begin with
        return named
    if found is ZIPPED and named in (DOCX, PPTX, XLSX, EPUB, ODT):
        return named
    return found or named


def _by_bytes(head: bytes) -> Format | None:
    if head.startswith(_ZIP):
        return ZIPPED
    if head.startswith(_GZIP):
        return GZ
    if head.startswith(b"{\\rtf"):
        return RTF
    start = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:15].lower().startswith((b"<!doctype html", b"<html")):
        return HTML
    return PDF if start.startswith(b"%PDF-") else None
