"""Text from bytes: detect the encoding, or the format if it is not text."""

import codecs
import unicodedata
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable

from ngtcli.documents.formats import HEAD, OLD, OLE, format_of
from ngtcli.errors import InputError

# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (BOM_UTF32_LE, "utf-32-le"),
    (BOM_UTF32_BE, "utf-32-be"),
    (BOM_UTF8, "utf-8"),
    (BOM_UTF16_LE, "utf-16-le"),
    (BOM_UTF16_BE, "utf-16-be"),
)
# First bytes of files packed in ways that are not read, the way, and what unpacks them.
_PACKED = (
    (b"BZh91AY&SY", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
_BINARY = "binary, not text", "Give a text file, such as .txt or .md."
# Encodings among which is guessed, the most likely first.
_GUESSES = (
    "cp1252 cp1250 cp1251 koi8_r cp1253 cp1254 cp1255 cp1256 cp1257 cp932 euc_jp gb18030 big5 cp949"
).split()
_SAMPLE = 1 << 16  # bytes around the first that is not UTF-8, for the guess; guess
_PLAIN = 0.02  # least share of spaces and other ASCII characters in UTF-16 without a mark; guess
_PAIRED = 0.65  # most of the bytes of UTF-16 that are also those of ASCII characters; guess
_ASCII = bytes(range(32, 127))
_NAMES = "Name one as Python does: latin-1, cp1250, shift_jis, utf-16."
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
        return InputError(f"{name}: {self}", hint=self.advice)


def decode_text(data: bytes) -> str:
    """The text of `data` as `decoded` reads it, where nobody hears its warnings."""
    return decoded(data)[0]


def decoded(data: bytes, encoding: str = "", declared: str = "") -> tuple[str, tuple[str, ...]]:
    """The text of `data` without a byte-order mark, and warnings on how it was read.

    A byte-order mark counts first, then whether it is UTF-8, or UTF-16 without a mark. What is
    neither is read in `encoding`, which the user has named, or where that is "" in the one that it
    has `declared`, or else in a likely one. Line ends become "\\n".

    Raises Unreadable for known formats that are not text, binary data, and white space alone.
    """
    check_format(data)
    warnings: tuple[str, ...] = ()
    if marked := next((encoding for mark, encoding in _MARKS if data.startswith(mark)), ""):
        text = _strictly(data, marked).removeprefix("\ufeff")
    elif encoding and _is_of_ascii(encoding):
        text = _strictly(data, encoding)
    else:
        text, warnings = _unmarked(data, encoding, declared)
    return checked_text(text), warnings


def _unmarked(data: bytes, encoding: str, declared: str) -> tuple[str, tuple[str, ...]]:
    """The text of `data`, and warnings. Raises Unreadable."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        at = error.start
    else:
        if "\0" in text and (wide := _without_mark(data)):
            return data.decode(wide), ()
        return text, ()
    if wide := _without_mark(data):
        return data.decode(wide), ()
    if b"\0" in data:
        raise Unreadable(*_BINARY)
    if encoding:
        return _strictly(data, encoding), ()
    if declared and (codec := checked_encoding(data, declared)):
        return data.decode(codec, "replace"), ()
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if sum(character > "\x7f" for character in text) > 2 * broken:  # more characters are whole
        return text, (f"damaged UTF-8: characters that cannot be read: {broken}",)
    guess = guess_encoding(data[max(0, at - _SAMPLE // 2) : at + _SAMPLE // 2])
    if not guess:
        named = "Name its encoding, as in --set encoding=latin-1."
        raise Unreadable(f"not UTF-8 (byte {at}), and no likely encoding was found", named)
    warning = f"not UTF-8; read as {guess}, a guess: --set encoding=NAME reads it otherwise"
    return data.decode(guess, "replace"), (warning,)


def _strictly(data: bytes, encoding: str) -> str:
    """The text of `data` in that encoding. Raises Unreadable where it is not."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding[:6].upper() if encoding.startswith("utf-") else encoding
        damaged = f"damaged {name} (byte {error.start})"
        raise Unreadable(damaged, "Save it again, as UTF-8.") from None
    except LookupError:
        raise Unreadable(f"unknown encoding {encoding!r}", _NAMES) from None


def _is_of_ascii(encoding: str) -> bool:
    """Whether bytes in this encoding may look like UTF-8 with other characters."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        return True
    return name.startswith(("utf-16", "utf-32", "utf-7", "iso2022", "hz"))


def _without_mark(data: bytes) -> str:
    """ "utf-16-le" or "utf-16-be" for what is text in it, without a mark; else "".

    Read the wrong way, it has characters that no text has, or hardly a space.
    """
    head = data[:_SAMPLE]
    if len(data) % 2 or b"\0" not in head:
        return ""
    if len(head.translate(None, _ASCII)) < (1 - _PAIRED) * len(head):  # single bytes and a zero
        return ""
    likely = ""
    most = 0
    for encoding in ("utf-16-le", "utf-16-be"):
        try:
            sample = data.decode(encoding)[:_SAMPLE]
        except UnicodeDecodeError:
            continue
        strange = sum(unicodedata.category(c) in ("Cn", "Co", "Cc") for c in sample)
        strange -= sum(map(sample.count, "\t\n\r\f"))
        plain = sum(c.isascii() for c in sample)
        if not strange and plain > max(most, _PLAIN * len(sample)):
            likely, most = encoding, plain
    return likely


def check_format(data: bytes) -> None:
    """Raise Unreadable for bytes that begin as a known format that is not text."""
    form = format_of("", data[:HEAD])
    if form is not None and not form.is_text:
        advice = "Make text of it first, as with ngt docs show --text."
        raise Unreadable(f"{form.what} where plain text is needed", advice)
    for start, way, program in _PACKED:
        if data.startswith(start):
            what = f"compressed ({way}), which is not read"
            raise Unreadable(what, f"Unpack it first, for example with {program}.")
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
