"""Text from bytes: which encoding they are in, and what they are where they are no text."""

import unicodedata
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable

from ngtcli.errors import InputError

# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (BOM_UTF32_LE, "utf-32-le"), (BOM_UTF32_BE, "utf-32-be"), (BOM_UTF8, "utf-8"),
    (BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
# First bytes, what such a file is, and how to get text out of it.
_FORMATS = (
    (b"%PDF-", "a PDF, which is not read yet", "Make text of it first, as with pdftotext."),
    (
        b"PK\3\4",
        "a zip archive or an office document, which is not read yet",
        "Unpack it, or save it as text, as with pandoc -t plain.",
    ),
    (b"\x1f\x8b", "compressed (gzip), which is not read", "Unpack it first, as with gunzip."),
    (b"BZh91AY&SY", "compressed (bzip2), which is not read", "Unpack it first, as with bunzip2."),
    (b"\xfd7zXZ\0", "compressed (xz), which is not read", "Unpack it first, as with unxz."),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd), which is not read", "Unpack it first with unzstd."),
    (b"{\\rtf", "RTF, which is not read", "Save it as text, as with pandoc -t plain."),
    (b"\xd0\xcf\x11\xe0", "an old office document, which is not read", "Save it as text first."),
)
# Encodings to guess among, the likeliest first, with the names that iconv knows them by.
_GUESSES = {
    "cp1252": "windows-1252", "cp1250": "windows-1250", "cp1251": "windows-1251",
    "koi8_r": "koi8-r", "cp1253": "windows-1253", "cp1254": "windows-1254",
    "cp1255": "windows-1255", "cp1256": "windows-1256", "cp1257": "windows-1257",
    "cp932": "shift_jis", "euc_jp": "euc-jp", "gb18030": "gb18030", "big5": "big5",
    "cp949": "euc-kr",
}  # fmt: skip
_SAMPLE = 1 << 16  # bytes that a guess is made from, about the first that is not UTF-8
_FOREIGN = frozenset({"Cc", "Cn", "Co", "Cs"})  # control, unassigned, private, surrogates


class Unreadable(InputError):
    """Bytes that are no text, or a file that cannot be read. Its message is the reason alone.

    `advice` says what to do; a function, where finding it out takes time.
    """

    def __init__(self, reason: str, advice: str | Callable[[], str]) -> None:
        super().__init__(reason)
        self._advice = advice

    def of(self, name: str) -> InputError:
        """The error for a user who has named the file."""
        advice = self._advice if isinstance(self._advice, str) else self._advice()
        return InputError(f"{name}: {self}", advice)


def decode_text(data: bytes) -> str:
    """The text that `data` holds, in UTF-8, UTF-16 or (with a mark) UTF-32; no mark is kept.

    Line ends become "\\n". Raises Unreadable for known formats that are no text, binary data,
    other encodings, and where there is nothing but white space.
    """
    for start, what, advice in _FORMATS:
        if data.startswith(start):
            raise Unreadable(what, advice)
    mark, encoding = next((m for m in _MARKS if data.startswith(m[0])), (b"", ""))
    encoding = encoding or _unmarked(data)
    try:
        text = data.decode(encoding).removeprefix("\ufeff") if mark else data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(data, encoding, error.start) from None
    if "\0" in text:
        raise Unreadable("binary, not text", "Give a text file (.txt, .md, .rst).")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():  # to strip it would copy it
        raise Unreadable("empty", "Give a document with text in it.")
    return text


def _unmarked(data: bytes) -> str:
    """The encoding of bytes without a mark: UTF-16 where zero bytes show it, else UTF-8."""
    if b"\0" in data and len(data) % 2 == 0:
        first, second = (data[i::2].count(0) for i in (0, 1))
        encoding = "utf-16-be" if first > second else "utf-16-le"
        if 10 * min(first, second) <= max(first, second) and _is_utf16(data, encoding):
            return encoding
    return "utf-8"


def _is_utf16(data: bytes, encoding: str) -> bool:
    """Whether bytes with zeros nearly all on one side of the pairs are text in `encoding`.

    Binary data are told from it by characters that no text has, and by units that are two ASCII
    characters each, as where zeros end the fields of a table.
    """
    try:
        characters = set(data.decode(encoding))
    except UnicodeDecodeError:
        return False
    if any(unicodedata.category(c) in _FOREIGN and c not in "\t\n\v\f\r" for c in characters):
        return False
    wide = {c for c in characters if "\xff" < c <= "\uffff"}
    pairs = {c for c in wide if 0x20 <= ord(c) >> 8 < 0x7F and 0x20 <= ord(c) & 0xFF < 0x7F}
    return 2 * len(pairs) <= len(wide)


def _undecodable(data: bytes, encoding: str, at: int) -> Unreadable:
    if encoding != "utf-8":
        name = encoding[:6].upper()
        return Unreadable(f"damaged {name} (byte {at})", "Save it again, as UTF-8.")
    if b"\0" in data:
        return Unreadable("binary, not text", "Give a text file (.txt, .md, .rst).")
    if not data[:at].isascii():  # other encodings rarely begin with valid UTF-8
        return Unreadable(
            f"not UTF-8 (byte {at}), though it is before that byte",
            "Mend the file, or leave out what is damaged with iconv -c -f utf-8 -t utf-8.",
        )
    sample = data[max(0, at - _SAMPLE // 2) : at + _SAMPLE // 2]
    return Unreadable(f"not UTF-8 (byte {at})", lambda: _conversion(sample))


def _conversion(sample: bytes) -> str:
    """How to convert a file with `sample` in it to UTF-8."""
    guess = guess_encoding(sample)
    if not guess:
        return "Convert it first, as with iconv -f ENCODING -t utf-8."
    return f"It looks like {guess}; convert it with iconv -f {guess} -t utf-8."


def guess_encoding(data: bytes) -> str:
    """The likeliest encoding of text that is not UTF-8, by the name iconv has for it; or "".

    >>> guess_encoding("Schöne Grüße aus dem Süden".encode("latin-1"))
    'windows-1252'
    """
    from charset_normalizer import from_bytes  # here: few runs need it

    found = from_bytes(data, cp_isolation=list(_GUESSES))
    if (best := found.best()) is None:
        return ""
    even = [m for m in found if (m.chaos, m.coherence) == (best.chaos, best.coherence)]
    names = {name for match in even for name in match.could_be_from_charset}
    return next((shown for name, shown in _GUESSES.items() if name in names), "")


def is_html(text: str) -> bool:
    """Whether a text begins as HTML does."""
    return text[:1000].lstrip().lower().startswith(("<!doctype html", "<html"))
