"""Text from bytes: detect the encoding, or the format if it is not text."""

import codecs
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable

from ngtcli.documents.formats import HEAD, OLD, OLE, format_of
from ngtcli.errors import InputError

# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (BOM_UTF32_LE, "utf-32-le"), (BOM_UTF32_BE, "utf-32-be"), (BOM_UTF8, "utf-8"),
    (BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
# First bytes of files packed in ways that are not read, the way, and what unpacks them.
_PACKED = (
    (b"BZh91AY&SY", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
_BINARY = "binary, not text", "Give a text file (.txt, .md, .rst); UTF-16 needs a byte-order mark."
# Encodings among which is guessed, the most likely first.
_GUESSES = (
    "cp1252 cp1250 cp1251 koi8_r cp1253 cp1254 cp1255 cp1256 cp1257 cp932 euc_jp gb18030 big5 cp949"
).split()
_SAMPLE = 1 << 16  # bytes around the first that is not UTF-8, for the guess; guess
# Thai and Lao, Burmese, Khmer, kana, and Chinese characters, for a regular expression's class.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)


class Unreadable(InputError):
    """A file that cannot be read, or bytes that are not text. The message is the reason alone.

    `advice` says what to do; it is a function where computing it takes time. `lasting` is whether
    the same bytes will be unreadable again.
    """

    def __init__(self, reason: str, advice: str | Callable[[], str], lasting: bool = True) -> None:
        super().__init__(reason)
        self._advice, self.lasting = advice, lasting

    @property
    def advice(self) -> str:
        """What to do."""
        return self._advice if isinstance(self._advice, str) else self._advice()

    def of(self, name: str) -> InputError:
        """The error for the file `name`: its name, the reason, and the advice as hint."""
        return InputError(f"{name}: {self}", self.advice)


def decode_text(data: bytes) -> str:
    """The text of `data` in UTF-8, or by its byte-order mark UTF-16 or UTF-32, without the mark.

    Line ends become "\\n". Raises Unreadable for known formats that are not text, binary data,
    other encodings, and text that is only white space.
    """
    check_format(data)
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "")
    try:
        text = data.decode(marked or "utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(data, marked or "utf-8", error.start) from None
    return checked_text(text.removeprefix("\ufeff") if marked else text)


def check_format(data: bytes) -> None:
    """Raise Unreadable for bytes that begin as a known format that is not text."""
    form = format_of("", data[:HEAD])
    if form is not None and not form.is_text:
        advice = "Make text of it first, as with ngt docs show --text."
        raise Unreadable(f"{form.what} where plain text is wanted", advice)
    for start, way, program in _PACKED:
        if data.startswith(start):
            what = f"compressed ({way}), which is not read"
            raise Unreadable(what, f"Unpack it first, as with {program}.")
    if data.startswith(OLE):
        advice = f"Save it without a password, or as docx, xlsx or pptx: {OLD['.doc']}"
        raise Unreadable("an old or an encrypted office document, which is not read", advice)


def checked_text(text: str) -> str:
    """`text` with line ends as "\\n". Raises Unreadable for binary data and white space alone."""
    if "\0" in text:
        raise Unreadable(*_BINARY)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():  # `strip` would copy it
        raise Unreadable("empty", "Give a document with text in it.")
    return text


def _undecodable(data: bytes, encoding: str, at: int) -> Unreadable:
    if encoding != "utf-8":
        name = encoding[:6].upper()
        return Unreadable(f"damaged {name} (byte {at})", "Save it again, as UTF-8.")
    if b"\0" in data:
        return Unreadable(*_BINARY)
    if not data[:at].isascii():  # other encodings rarely begin with valid UTF-8
        return Unreadable(
            f"not UTF-8 (byte {at}), though it is before that byte",
            "Mend the file, or leave out what is damaged with iconv -c -f utf-8 -t utf-8.",
        )
    sample = data[max(0, at - _SAMPLE // 2) : at + _SAMPLE // 2]

    def advice() -> str:
        if guess := guess_encoding(sample):
            return f"It looks like {guess}; convert it with iconv -f {guess} -t utf-8."
        return "Convert it first, as with iconv -f ENCODING -t utf-8."

    return Unreadable(f"not UTF-8 (byte {at})", advice)


def checked_encoding(data: bytes, declared: str) -> str:
    """The codec for `declared` if `data`, which is not UTF-8, makes sense in it; else ""."""
    from charset_normalizer import from_bytes

    try:
        name = codecs.lookup(declared).name
        name = "cp1252" if name in ("iso8859-1", "ascii") else name  # as browsers take it
        data.decode(name, "replace" if name == "cp1252" else "strict")
        return name if from_bytes(data, cp_isolation=[name]).best() is not None else ""
    except (LookupError, UnicodeError):
        return ""


def guess_encoding(data: bytes) -> str:
    """The most likely encoding of text that is not UTF-8, by its name in iconv; "" if unknown.

    >>> guess_encoding("Schöne Grüße aus dem Süden".encode("latin-1"))
    'windows-1252'
    """
    from charset_normalizer import from_bytes  # imported here, since few runs need it

    found = from_bytes(data, cp_isolation=_GUESSES)
    if (best := found.best()) is None:
        return ""
    equal = [m for m in found if (m.chaos, m.coherence) == (best.chaos, best.coherence)]
    names = {name for match in equal for name in match.could_be_from_charset}
    guess = next((name for name in _GUESSES if name in names), "")
    return guess.replace("cp125", "windows-125").replace("_", "-")


def utf8(text: str) -> str:
    """`text` with "?" for lone surrogates, by which Python writes bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()
