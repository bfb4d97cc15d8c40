"""Text from bytes: detect the encoding, or the format if it is not text."""

import codecs
import unicodedata
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable

from ngtcli.documents.formats import HEAD, OLD, OLE, format_of
from ngtcli.errors import InputError

# Byte-order marks, the longer ones first: that of UTF-32 begins with that of UTF-16.
_BYTE_ORDER_MARKS = (
    (BOM_UTF32_LE, "utf-32-le"),
    (BOM_UTF32_BE, "utf-32-be"),
    (BOM_UTF8, "utf-8"),
    (BOM_UTF16_LE, "utf-16-le"),
    (BOM_UTF16_BE, "utf-16-be"),
)
# Compressed formats that are not supported: first bytes, name, and the program that unpacks them.
_COMPRESSED = (
    (b"BZh91AY&SY", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
_BINARY = "binary, not text"
_BINARY_ADVICE = "Give a text file, such as .txt or .md."
# The encodings that are tried in a guess, the most likely first.
_GUESSES = (
    "cp1252 cp1250 cp1251 koi8_r cp1253 cp1254 cp1255 cp1256 cp1257 cp932 euc_jp gb18030 big5 cp949"
).split()
_SAMPLE_SIZE = 1 << 16  # bytes around the first one that is not UTF-8, for a guess (guess)
# A text is taken for UTF-16 without a byte order mark if at least this share of its characters are
# spaces or other ASCII characters, and at most this share of its bytes are (guesses).
_MIN_ASCII_SHARE = 0.02
_MAX_ASCII_BYTE_SHARE = 0.65
_PRINTABLE_ASCII = bytes(range(32, 127))
_NAMES = "Name one as Python does: latin-1, cp1250, shift_jis, utf-16."
# Thai and Lao, Burmese, Khmer, kana, and Chinese characters, for a regular expression's class.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)


class Unreadable(InputError):
    """A file that cannot be read, or bytes that are not text. The message is the reason alone.

    Args:
        reason: Why it cannot be read, without the name of the file.
        advice: What to do about it; a function if computing it takes time.
        lasting: Whether the same bytes will be unreadable again.
    """

    def __init__(self, reason: str, advice: str | Callable[[], str], lasting: bool = True) -> None:
        super().__init__(reason)
        self._advice = advice
        self.lasting = lasting

    @property
    def advice(self) -> str:
        """The advice to the user, which is the hint of the error."""
        return self._advice if isinstance(self._advice, str) else self._advice()

    def of(self, name: str) -> InputError:
        """Make the error for the file `name`: its name and the reason, with the advice as hint."""
        return InputError(f"{name}: {self}", hint=self.advice)


def decode_text(data: bytes) -> str:
    """Decode a text as `decode_with_warnings` does, without its warnings."""
    return decode_with_warnings(data)[0]


def decode_with_warnings(
    data: bytes, encoding: str = "", declared: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Decode a text, and remove its byte-order mark.

    A byte-order mark decides. Without one, UTF-8 is tried, then UTF-16. A text in neither is
    decoded by `encoding`, or else by `declared` if that makes sense, or else by a likely encoding.

    Args:
        data: The bytes of the text.
        encoding: The encoding that the user named, or "".
        declared: The encoding that the text itself declares, or "".

    Returns:
        The text, with line ends as "\\n", and warnings on how it was decoded.

    Raises:
        Unreadable: The bytes are binary data, only white space, or of another known format.
    """
    check_format(data)
    warnings: tuple[str, ...] = ()
    marked_encoding = _encoding_of_mark(data)
    if marked_encoding:
        text = _decode_strictly(data, marked_encoding).removeprefix("\ufeff")
    elif encoding and _may_look_like_utf8(encoding):
        text = _decode_strictly(data, encoding)
    else:
        text, warnings = _decode_unmarked(data, encoding, declared)
    return checked_text(text), warnings


def _encoding_of_mark(data: bytes) -> str:
    """The encoding that a byte-order mark names; "" without a mark."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding
    return ""


def _decode_unmarked(data: bytes, encoding: str, declared: str) -> tuple[str, tuple[str, ...]]:
    """Decode a text without a byte-order mark. Raises Unreadable."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        error_offset = error.start
    else:
        utf16 = _detect_utf16(data) if "\0" in text else ""
        return (data.decode(utf16) if utf16 else text), ()

    utf16 = _detect_utf16(data)
    if utf16:
        return data.decode(utf16), ()
    if b"\0" in data:
        raise Unreadable(_BINARY, _BINARY_ADVICE)
    if encoding:
        return _decode_strictly(data, encoding), ()
    codec = plausible_codec(data, declared) if declared else ""
    if codec:
        return data.decode(codec, "replace"), ()

    text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    non_ascii = sum(character > "\x7f" for character in text)
    if non_ascii > 2 * damaged:  # more characters are undamaged than damaged
        return text, (f"damaged UTF-8: characters that cannot be read: {damaged}",)

    sample_start = max(0, error_offset - _SAMPLE_SIZE // 2)
    guess = guess_encoding(data[sample_start : error_offset + _SAMPLE_SIZE // 2])
    if not guess:
        raise Unreadable(
            f"not UTF-8 (byte {error_offset}), and no likely encoding was found",
            "Name its encoding, as in --set encoding=latin-1.",
        )
    warning = f"not UTF-8; read as {guess}, a guess: --set encoding=NAME reads it otherwise"
    return data.decode(guess, "replace"), (warning,)


def _decode_strictly(data: bytes, encoding: str) -> str:
    """Decode a text by one encoding. Raises Unreadable if it is damaged, or unknown to Python."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding[:6].upper() if encoding.startswith("utf-") else encoding
        raise Unreadable(
            f"damaged {name} (byte {error.start})", "Save it again, as UTF-8."
        ) from None
    except LookupError:
        raise Unreadable(f"unknown encoding {encoding!r}", _NAMES) from None


def _may_look_like_utf8(encoding: str) -> bool:
    """Return whether text in this encoding may be valid UTF-8 that has other characters."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        return True
    return name.startswith(("utf-16", "utf-32", "utf-7", "iso2022", "hz"))


def _detect_utf16(data: bytes) -> str:
    """Detect UTF-16 without a byte-order mark; return "utf-16-le", "utf-16-be" or "".

    In the wrong byte order a text has characters that are not assigned, or hardly a space.
    """
    head = data[:_SAMPLE_SIZE]
    if len(data) % 2 or b"\0" not in head:
        return ""
    other_bytes = len(head.translate(None, _PRINTABLE_ASCII))
    if other_bytes < (1 - _MAX_ASCII_BYTE_SHARE) * len(head):  # ASCII text with some null byte
        return ""
    likely = ""
    likely_ascii = 0
    for encoding in ("utf-16-le", "utf-16-be"):
        try:
            sample = data.decode(encoding)[:_SAMPLE_SIZE]
        except UnicodeDecodeError:
            continue
        has_invalid = any(
            unicodedata.category(c) in ("Cn", "Co", "Cc") and c not in "\t\n\r\f" for c in sample
        )
        ascii_count = sum(c.isascii() for c in sample)
        is_likely = ascii_count > max(likely_ascii, _MIN_ASCII_SHARE * len(sample))
        if is_likely and not has_invalid:
            likely = encoding
            likely_ascii = ascii_count
    return likely


def check_format(data: bytes) -> None:
    """Raise Unreadable for bytes that begin as a known format that is not text."""
    file_format = format_of("", data[:HEAD])
    if file_format is not None and not file_format.is_text:
        raise Unreadable(
            f"{file_format.noun} where plain text is needed",
            "Make text of it first, for example with ngt docs show --text.",
        )
    for start, name, program in _COMPRESSED:
        if data.startswith(start):
            raise Unreadable(
                f"compressed ({name}), which is not read",
                f"Unpack it first, for example with {program}.",
            )
    if data.startswith(OLE):
        raise Unreadable(
            "an old or an encrypted office document, which is not read",
            f"Save it without a password, or as docx, xlsx or pptx: {OLD['.doc']}",
        )


def checked_text(text: str) -> str:
    """Replace line ends by "\\n". Raises Unreadable for binary data and white space alone."""
    if "\0" in text:
        raise Unreadable(_BINARY, _BINARY_ADVICE)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text or text.isspace():  # `strip` would copy it
        raise Unreadable("empty", "Give a document with text in it.")
    return text


def plausible_codec(data: bytes, declared: str) -> str:
    """Find the codec for a declared encoding; "" unless `data`, not UTF-8, makes sense in it."""
    from charset_normalizer import from_bytes

    try:
        name = codecs.lookup(declared).name
        if name in ("iso8859-1", "ascii"):
            name = "cp1252"  # as in browsers
        data.decode(name, "replace" if name == "cp1252" else "strict")
        return name if from_bytes(data, cp_isolation=[name]).best() is not None else ""
    except (LookupError, UnicodeError):
        return ""


def guess_encoding(data: bytes) -> str:
    """Guess the encoding of text that is not UTF-8; return its name in iconv, "" if unknown.

    >>> guess_encoding("Schöne Grüße aus dem Süden".encode("latin-1"))
    'windows-1252'
    """
    from charset_normalizer import from_bytes  # imported here, since few runs need it

    matches = from_bytes(data, cp_isolation=_GUESSES)
    best = matches.best()
    if best is None:
        return ""
    names = set[str]()
    for match in matches:
        if (match.chaos, match.coherence) == (best.chaos, best.coherence):
            names.update(match.could_be_from_charset)
    guess = next((name for name in _GUESSES if name in names), "")
    return guess.replace("cp125", "windows-125").replace("_", "-")


def utf8(text: str) -> str:
    """Replace lone surrogates, which stand for bytes of a path that are not UTF-8, by "?"."""
    return text.encode("utf-8", "replace").decode()
