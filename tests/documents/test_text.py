"""Decoding: texts survive every supported encoding, and binary data is refused."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ngtcli.documents.text import Unreadable, decode_text, decode_with_warnings, guess_encoding

# No NUL, no mark, and no "\r", which becomes "\n".
ANY = st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"]), min_size=1)
MARKED = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0",
    "utf-32-be": b"\0\0\xfe\xff",
}


@pytest.mark.parametrize("encoding", MARKED)
@given(text=ANY)
@example("one\ntwo 한 🦜")
def test_text_survives_every_encoding(encoding: str, text: str) -> None:
    data = MARKED[encoding] + text.encode(encoding)
    assume(text.strip() and not data.startswith((b"%PDF-", b"PK\3\4", b"BZh", b"{\\rtf")))
    assert decode_text(data) == text


def test_line_ends_become_one_kind_in_every_encoding() -> None:
    for encoding in ("utf-8", "utf-16", "utf-32"):
        assert decode_text("one\r\ntwo\rthree\n".encode(encoding)) == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "data",
    [
        b"abc\0def",
        b"abc\0",
        b"some text and then a zero\0",
        b"\x89HDF\r\n\x1a\n\0\0\0",
        "a\0b".encode("utf-16"),
        b"x" * 200_001 + b"\0",
        b"\xef\xbb\xbfabc\0d",
    ],
)
def test_zero_bytes_are_binary(data: bytes) -> None:
    with pytest.raises(Unreadable, match="binary"):
        decode_text(data)


@given(data=st.binary())
def test_any_bytes_give_clean_text_or_a_reason(data: bytes) -> None:
    try:
        text = decode_text(data)
    except Unreadable as error:
        assert str(error)
        assert error.of("a.txt").hint
        return
    assert text.strip()
    assert "\0" not in text
    assert "\r" not in text
    text.encode()  # no lone surrogates


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("café au lait", "latin-1", "windows-1252"),
        ("Der Übergang über die Straße war schön.", "latin-1", "windows-1252"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "cp1251", "windows-1251"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "koi8-r", "koi8-r"),
        ("これは日本語の文章です。読みやすいテキストを書きます。", "cp932", "cp932"),
        ("这是一个中文文本文件，用来测试编码。", "gb18030", "gb18030"),
    ],
)
def test_other_encodings_are_guessed_with_a_warning(text: str, encoding: str, name: str) -> None:
    data = text.encode(encoding)
    assert guess_encoding(data) == name
    warning = f"not UTF-8; read as {name}, a guess: --set encoding=NAME reads it otherwise"
    assert decode_with_warnings(data) == (text, (warning,))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "text",
    ["without a mark", "Grüße", "Привет, мир!\n", "今日は 良い 天気。\n明日も。", "שלום לכם."],
)
def test_utf_16_is_read_without_a_mark(text: str, encoding: str) -> None:
    assert decode_with_warnings(text.encode(encoding)) == (text, ())


def test_an_encoding_that_is_named_counts_where_text_is_not_utf_8() -> None:
    assert decode_with_warnings("Čeština".encode("cp1250"), "cp1250") == ("Čeština", ())
    assert decode_with_warnings("Grüße".encode(), "cp1250") == ("Grüße", ())
    assert decode_with_warnings("日本".encode("iso2022_jp"), "iso2022_jp") == ("日本", ())
    assert decode_with_warnings("日本".encode("utf-16-le"), "utf-16-le") == ("日本", ())
    with pytest.raises(Unreadable, match=r"damaged ascii \(byte 2\)"):
        decode_with_warnings(b"Gr\xfc", "ascii")


def test_damaged_utf_8_is_read_with_a_warning_and_damaged_utf_16_is_refused() -> None:
    warning = "damaged UTF-8: characters that cannot be read: 1"
    assert decode_with_warnings("Grüße: 🦜".encode()[:-1]) == ("Grüße: \ufffd", (warning,))
    with pytest.raises(Unreadable, match=r"damaged UTF-16 \(byte 4\)"):
        decode_text(b"\xff\xfea\0\x00\xd8b\0")
