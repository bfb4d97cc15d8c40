"""Supported formats, by suffix and first bytes. Imports no parser.

Each format except plain text has an entry in FORMATS. Its parser is the function `parse` in the
module of this package that has its name, or the function that `parsed_by` names. Parsers run only
in a worker process (`documents/worker.py`).
"""

import os
from dataclasses import dataclass
from importlib import import_module

from ngtcli.documents.content import Extracted, Parse, ParserInput

GZIP = ".gz"
OLE = b"\xd0\xcf\x11\xe0"  # the first bytes of old and of encrypted office files
# LibreOffice commands that convert old office files, by suffix.
OLD = {old: f"soffice --headless --convert-to {old[1:]}x FILE" for old in (".doc", ".xls", ".ppt")}
_BLANK = b"\xef\xbb\xbf \t\r\n"  # characters that may precede the first element of a page
# How many of the first bytes are searched for marks; most PDF readers search as many.
HEAD = 1024


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    A file has this format if it begins with one of `marks`, ignoring case and leading white space,
    or if it is a zip archive that contains the file `member`.

    Attributes:
        name: Its name in output.
        noun: What errors call a file of this format, with the article.
        suffixes: Suffixes of file names, in lower case with the dot.
        member: A file that only zip archives of this format contain.
        marks: First bytes, in lower case.
        is_text: Whether its first bytes may also be those of plain text.
        parsed_by: MODULE.FUNCTION in this package; "" for NAME.parse.
    """

    name: str
    noun: str
    suffixes: tuple[str, ...]
    member: str = ""
    marks: tuple[bytes, ...] = ()
    is_text: bool = False
    parsed_by: str = ""

    def parser(self) -> Parse:
        """Import and return its parser. Raises ImportError if it lacks a package."""
        module, function = (self.parsed_by or f"{self.name}.parse").split(".")
        parser: Parse = getattr(import_module(f"{__name__}.{module}"), function)
        return parser


_JSON = "records.parse_json"
_TABLE = "records.parse_table"
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
_UNPACKED_SUFFIXES = tuple(s for f in FORMATS for s in f.suffixes if s != GZIP) + TEXT_SUFFIXES
SUFFIXES = frozenset((*_UNPACKED_SUFFIXES, *(suffix + GZIP for suffix in _UNPACKED_SUFFIXES)))
_FORMATS_WITH_MARKS = [f for f in FORMATS if f.marks]
_FORMAT_OF_SUFFIX = {suffix: f for f in FORMATS for suffix in f.suffixes}


def parse(file_format: Format, source: ParserInput) -> Extracted:
    """Parse a file. The format of a zip archive is detected from the files in it.

    Raises Unreadable, ImportError for a missing package, or any other exception for a broken file.
    """
    parser = (ZIP if file_format.member else file_format).parser()
    return parser(source)


def suffix_of(path: str) -> str:
    """Return the suffix of a path in lower case, of a gzip file both suffixes; "" for "notes.".

    Digits alone, or a text with a space, are not a suffix but a part of the name.

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
    """Detect the format of a file; None for plain text, and for old or encrypted office files.

    The first bytes take precedence over the suffix. Zip archives are not opened here.
    `text.check_format` refuses office files that are old or encrypted.

    Args:
        suffix: The suffix of the file, as `suffix_of` gives it.
        head: The first bytes of the file.
    """
    if head.startswith(OLE):
        return None
    start = head[:HEAD].lstrip(_BLANK).lower()
    marked = next((f for f in _FORMATS_WITH_MARKS if start.startswith(f.marks)), None)
    named = _FORMAT_OF_SUFFIX.get(GZIP if suffix.endswith(GZIP) else suffix)
    # Files of other formats may begin like HTML, and office files are zip archives.
    if named is not None and (marked is HTML or (marked is ZIP and named.member)):
        return named
    detected = marked or named
    if detected is None and suffix not in TEXT_SUFFIXES and start.startswith(b"<?xml"):
        return XML
    return detected
