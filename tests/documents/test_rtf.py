"""What a word processor shows of RTF is read, and nothing that it hides."""

# ruff: noqa: E501 - a table

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("lxml")

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.rtf import parse
from ngtcli.documents.text import Unreadable

FONTS = (
    r"{\fonttbl{\f0\fcharset0 Times;}{\f1\fcharset204 Times;}{\f2\fcharset2 Symbol;}"
    r"{\f3\fcharset128 Mincho;}}"
)


def read(body: str) -> Extracted:
    data = rf"{{\rtf1\ansi\ansicpg1252\deff0{FONTS}{body}}}".encode("latin-1")
    return parse(ParserInput(data=data, suffix=".rtf", max_bytes=10_000_000))


def text_of(body: str) -> str:
    return read(body).text


@pytest.mark.parametrize(
    "body",
    [
        r"{\b\*\cs7 The fox jumps}",
        r"\pard\*\cs7\f0 The fox jumps\par",
        r"{\loch\f0\*\unknown The fox jumps}",
        r"{\*\unknown gone}The fox jumps",
        r"The {\*\bkmkstart a}fox{\*\bkmkend a} jumps",
        r"{\rtlch \*\x1 The fox}{\*\generator gone;} jumps",
    ],
)
def test_star_skips_a_group_only_at_its_start(body: str) -> None:
    assert text_of(body) == "The fox jumps"


@pytest.mark.parametrize(
    "hidden",
    [
        r"{\v gone}",
        r"\v gone\v0 ",
        r"{\deleted gone}",
        r"{\b\v1 gone}",
        r"\v gone\plain ",
        r"{\v {\b gone}}",
        r"\deleted gone\deleted0 ",
    ],
)
def test_hidden_and_deleted_text_is_not_read(hidden: str) -> None:
    extracted = read(rf"Shown{hidden}.")
    assert extracted.text == "Shown."
    assert extracted.about.warnings == ("hidden text left out: 1 word",)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"Gr\u252\'fc\'dfe", "Grüße"),
        (r"\u-10179?\u-8704?", "😀"),
        (r"{\uc2\u252 ue}x", "üx"),
        (r"{\uc0\u252}x", "üx"),
        (r"\uc1\u1084\'ec\u1080?\u1088?", "мир"),
        (r"{\f1 \'ec\'e8\'f0}", "мир"),
        (r"{\f3 \'93\'fa\'96\'7b}", "日本"),
        (r"{\f3 \'83A\'83\'43}", "アイ"),
        (r"{\f2\'b7} x", "• x"),
        (r"\ldblquote a\rdblquote\emdash b\~c\_d\-e", "“a”—b\xa0c-de"),
        (r"a\{b\}\\", "a{b}\\"),
        ("a\\\nb", "a\n\nb"),
        (r"{\upr{gone}{\*\ud{\u1084?x}}}", "мx"),
        (r"a\bin3 {{}b", "ab"),
        (r"one\line two", "one\ntwo"),
        (r"{\field{\*\fldinst HYPERLINK x}{\fldrslt link}} end", "link end"),
        (r"{\pict ffd8}a", "a"),
        (r"{\object{\*\objdata 00}{\result shown}}", "shown"),
        (r"a{\xe\v gone}b", "ab"),
    ],
)
def test_characters_are_read_in_their_encoding(body: str, text: str) -> None:
    assert text_of(body) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"{\pntext\f2\'B7\tab}{\*\pn\pnlvlblt}a\par {\pntext\f2\'B7\tab}b\par", "• a\n• b"),
        (r"{\listtext 1.\tab}a\par {\listtext 2.\tab}b\par", "1. a\n2. b"),
        (r"{\listtext\pard\plain (a)\tab}a\par", "(a) a"),
        (r"{\listtext\f2\u-3913?\tab}a\par", "• a"),
        (r"{\listtext 1.1\tab}a\par text\par {\listtext 1.2\tab}b\par", "1.1 a\n\ntext\n\n1.2 b"),
    ],
)
def test_items_have_the_numbers_that_are_stored_with_them(body: str, text: str) -> None:
    assert text_of(body) == text


ROW = r"\trowd\cellx1000\cellx2000\cellx3000 "


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (ROW + r"\intbl a\cell b\cell c\cell\row\pard after\par", "a | b | c\n\nafter"),
        (ROW + r"\intbl a\cell b\cell c\cell\row after\par", "a | b | c\n\nafter"),
        (ROW + r"a\par b\cell \cell c\cell\row", "a b |  | c"),
        (
            ROW
            + r"\intbl a\cell b\cell c\cell\row\trowd\cellx2000\cellx3000\intbl d\cell e\cell\row",
            "a | b | c\nd |  | e",
        ),
        (
            ROW
            + r"\intbl a\cell b\cell c\cell\row\trowd\trleft1000\cellx2000\cellx3000\intbl d\cell e\cell\row",
            "a | b | c\n | d | e",
        ),
        (
            ROW
            + r"\intbl a\cell\pard\intbl\itap2 1\nestcell 2\nestcell{\*\nesttableprops\trowd\nestrow}\pard\intbl b\cell c\cell\row",
            "a | b 1, 2 | c",
        ),
        (
            r"{\trowd\cellx1000\cellx2000\pard\intbl {a\cell b\cell}{\trowd\cellx1000\cellx2000\row}}",
            "a | b",
        ),
        (r"\trowd\cellx1000\intbl only\cell\row\pard", "only"),
    ],
)
def test_tables_are_read_row_by_row(body: str, text: str) -> None:
    assert text_of(body) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"10{\super 6} cells", "10^6 cells"),
        (r"10{\up6 6}", "10^6"),
        (r"H{\sub 2}O", "H2O"),
        (r"harbour{\super 1}", "harbour[1]"),
        (r"10\super 1\super 2\nosupersub x", "10^12x"),
        (r"the 1{\super st}", "the 1st"),
    ],
)
def test_raised_digits_do_not_run_into_others(body: str, text: str) -> None:
    assert text_of(body) == text


def test_notes_headers_and_comments_are_read_in_their_order() -> None:
    body = (
        r"{\footer\pard Foot\par}{\header\pard Head\par}a{\super\chftn{\footnote{\super\chftn} note}}"
        r" b{\footnote\ftnalt end}{\*\atnauthor Ines}{\*\annotation No.}\par c\par"
        r"{\header\pard Head\par}{\footerf\pard 3\par}"
    )
    assert text_of(body) == (
        "Head\n\na[^1] b[^e1]\n\n[comment by Ines: No.]\n\nc\n\n[^1]: note\n[^e1]: end\n\nFoot"
    )


def test_text_boxes_follow_their_paragraph() -> None:
    box = r"{\shp{\*\shpinst\shpleft1{\sp{\sn x}{\sv 1}}{\shptxt\pard one\par two\par}}}"
    assert text_of(rf"before{box} still\par after\par") == "before still\n\none\n\ntwo\n\nafter"


def test_headings_name_sections() -> None:
    extracted = read(r"\pard\outlinelevel0 Tides\par\pard text\par")
    assert [(s.heading, s.start) for s in extracted.about.sections] == [("Tides", 0)]


@pytest.mark.parametrize("body", [r"{\b a", "a}}}b", r"\cell\row\nestcell", r"a\'zz", "a\\"])
def test_damaged_files_are_read_as_far_as_they_go(body: str) -> None:
    read(body)


def test_other_formats_and_endless_nesting_are_refused() -> None:
    with pytest.raises(Unreadable, match="not RTF"):
        parse(ParserInput(data=b"text", suffix=".rtf", max_bytes=1000))
    with pytest.raises(Unreadable, match="nested too deep"):
        read("{" * 20_000)


_PIECES = st.sampled_from(
    r"{ } \par \cell \row \trowd \cellx9 \intbl \itap2 \nestcell \nestrow \v \v0 \super \plain \u-10179? \'e9 \'81"
    r" \f3 {\footnote {\*\annotation {\listtext {\shptxt {\header {\upr {\*\ud \* \uc0 \bin2 word \\".split()
)


@example([r"{\listtext", r"\u-10179?"])
@given(st.lists(_PIECES, max_size=40))
def test_any_order_of_control_words_is_read(pieces: list[str]) -> None:
    text = read(" ".join(pieces)).text
    text.encode()
