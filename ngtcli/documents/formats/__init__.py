"""The formats that are read, by suffix and first bytes. Imports no parser.

A format other than plain text is an entry of FORMATS and a function `parse` in the module here that
has its name. Parsers run in a worker process only (`documents/worker.py`).
"""

import os
from dataclasses import dataclass
from importlib import import_module

from ngtcli.documents.content import Extracted, Parse, Source

GZIP = ".gz"
OLE = b"\xd0\xcf\x11\xe0"  # how office files begin that are old or encrypted
# The commands by which LibreOffice makes files that are read of older ones.
OLD = {old: f"soffice --headless --convert-to {old[1:]}x FILE" for old in (".doc", ".xls", ".ppt")}
_BLANK = b"\xef\xbb\xbf \t\r\n"  # what may stand before the first element of a page
HEAD = 1024  # bytes that tell a format: in them a PDF's mark may stand, as in most readers


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name in output, how errors call a file of it, and its suffixes.

    A file that begins with one of `marks`, in lower case and after white space, and a zip archive
    that has the file `member`, are of this format. `is_text`: first bytes do not tell it from plain
    text. `parsed_by` is a module here and a function, where they are not "NAME.parse".
    """

    name: str
    what: str
    suffixes: tuple[str, ...]
    member: str = ""
    marks: tuple[bytes, ...] = ()
    is_text: bool = False
    parsed_by: str = ""

    def parser(self) -> Parse:
        """Its parser, imported here with the packages that it needs. Raises ImportError."""
        module, function = (self.parsed_by or f"{self.name}.parse").split(".")
        found: Parse = getattr(import_module(f"{__name__}.{module}"), function)
        return found


_JSON, _TABLE = "records.parse_json", "records.parse_table"
PDF = Format("pdf", "a PDF", (".pdf",), marks=(b"%pdf-",))
HTML = Format(
    "html", "HTML", (".html", ".htm", ".xhtml"), marks=(b"<!doctype html", b"<html"), is_text=True
)
XML = Format("xml", "XML", (".xml", ".nxml"), is_text=True)
ZIP = Format(
    "zip",
    "a zip archive or an office document",
    (),
    marks=(b"pk\3\4",),
    parsed_by="archives.parse_zip",
)
PICTURE = Format(
    "picture",
    "a picture",
    (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp"),
    marks=(b"\x89png\r\n", b"\xff\xd8\xff", b"ii*\0", b"mm\0*"),
)
GZ = Format("gz", "a gzip file", (GZIP,), marks=(b"\x1f\x8b",), parsed_by="archives.parse_gzip")
FORMATS = (
    PDF,
    HTML,
    Format("docx", "a Word document", (".docx", ".docm"), "word/document.xml"),
    Format("pptx", "a PowerPoint file", (".pptx", ".pptm"), "ppt/presentation.xml"),
    Format("xlsx", "an Excel workbook", (".xlsx", ".xlsm"), "xl/workbook.xml"),
    Format("epub", "an EPUB", (".epub",), "META-INF/container.xml"),
    Format("odt", "an OpenDocument file", (".odt", ".odp", ".ods"), "content.xml"),
    XML,
    Format("latex", "LaTeX", (".tex",), is_text=True),
    Format("rtf", "RTF", (".rtf",), marks=(b"{\\rtf",)),
    Format("json", "JSON", (".json",), is_text=True, parsed_by=_JSON),
    Format("jsonl", "JSON lines", (".jsonl", ".ndjson"), is_text=True, parsed_by=_JSON),
    Format("csv", "CSV", (".csv",), is_text=True, parsed_by=_TABLE),
    Format("tsv", "TSV", (".tsv",), is_text=True, parsed_by=_TABLE),
    Format("eml", "an e-mail", (".eml",), is_text=True, parsed_by="mail.parse"),
    Format("mbox", "a mailbox", (".mbox",), is_text=True, parsed_by="mail.parse_mbox"),
    PICTURE,
    GZ,
    ZIP,
)

TEXT_SUFFIXES = (
    "",
    ".txt",
    ".text",
    ".md",
    ".markdown",
    ".rst",
    ".log",
    ".srt",
    ".vtt",
    ".yaml",
    ".yml",
    ".org",
    ".adoc",
)
_PLAIN = tuple(s for f in FORMATS for s in f.suffixes if s != GZIP) + TEXT_SUFFIXES
SUFFIXES = frozenset((*_PLAIN, *(s + GZIP for s in _PLAIN)))
_MARKED = [f for f in FORMATS if f.marks]
_BY_SUFFIX = {suffix: f for f in FORMATS for suffix in f.suffixes}


def parse(form: Format, source: Source) -> Extracted:
    """The text of a file of this format; what is in a zip archive decides its format.

    Raises Unreadable, ImportError for a missing package, and anything for a broken file.
    """
    return (ZIP if form.member else form).parser()(source)


def suffix_of(path: str) -> str:
    """The suffix in lower case, two for a gzip file; that of "notes." and of "README" is "".

    What has a space in it, or digits alone, is a part of the name.

    >>> suffix_of("a/Report.PDF"), suffix_of("x.tar.gz"), suffix_of("README")
    ('.pdf', '.tar.gz', '')
    >>> suffix_of("Letter to Dr. Smith"), suffix_of("Minutes 3.5.2024"), suffix_of("a.2.gz")
    ('', '', '.gz')
    """
    stem, suffix = os.path.splitext(os.path.basename(path).lower())
    if suffix == GZIP:
        return _checked_suffix(os.path.splitext(stem)[1]) + suffix
    return _checked_suffix(suffix)


def _checked_suffix(suffix: str) -> str:
    is_part_of_name = suffix[1:].isdecimal() or any(map(str.isspace, suffix))
    return "" if suffix == "." or is_part_of_name else suffix


def format_of(suffix: str, head: bytes) -> Format | None:
    """The format of a file with this suffix and these first bytes; None for plain text.

    What the bytes say counts more than the suffix. A zip archive stays unopened here. An office
    file that is old or encrypted is for `text.check_format` to refuse.
    """
    if head.startswith(OLE):
        return None
    start = head[:HEAD].lstrip(_BLANK).lower()
    found = next((f for f in _MARKED if start.startswith(f.marks)), None)
    named = _BY_SUFFIX.get(GZIP if suffix.endswith(GZIP) else suffix)
    # What begins as HTML may be of another format by its name, and so may a zip archive.
    if named is not None and (found is HTML or (found is ZIP and named.member)):
        return named
    if not (found or named) and suffix not in TEXT_SUFFIXES and start.startswith(b"<?xml"):
        return XML
    return found or named
