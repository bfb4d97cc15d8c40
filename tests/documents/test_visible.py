"""What a person sees of a web page is read, and nothing that is hidden."""

import pytest

pytest.importorskip("lxml")
pytest.importorskip("trafilatura")

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.html import parse
from ngtcli.documents.formats.xml import parse as parse_xml


def page(body: str, head: str = "") -> Extracted:
    text = f"<!doctype html><html><head><meta charset=utf-8>{head}</head><body>{body}</body></html>"
    return parse(ParserInput(data=text.encode(), suffix=".html", max_bytes=10_000_000))


def text_of(body: str, head: str = "") -> str:
    return page(body, head).text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<ol><li>Cut<li>Glue<li>Clamp</ol>", "1. Cut\n2. Glue\n3. Clamp"),
        ("<ol start=5><li>Cut<li>Glue</ol>", "5. Cut\n6. Glue"),
        ("<ol><li value=4>Cut<li>Glue</ol>", "4. Cut\n5. Glue"),
        ("<ol reversed><li>Cut<li>Glue</ol>", "2. Cut\n1. Glue"),
        ("<ol reversed start=9><li>Cut<li>Glue</ol>", "9. Cut\n8. Glue"),
        ("<ol type=a><li>Cut<li>Glue</ol>", "a. Cut\nb. Glue"),
        ("<ol type=I start=4><li>Cut<li>Glue</ol>", "IV. Cut\nV. Glue"),
        ("<ol style='list-style-type: lower-roman'><li>Cut<li>Glue</ol>", "i. Cut\nii. Glue"),
        ("<ol style='list-style: upper-alpha inside'><li>Cut</ol>", "A. Cut"),
        ("<ol style='list-style-type:decimal-leading-zero'><li>Cut</ol>", "01. Cut"),
        (
            "<ol><li>Cut<ol type=a><li>long<li>short</ol><li>Glue</ol>",
            "1. Cut\n  a. long\n  b. short\n2. Glue",
        ),
        ("<ol><div><li>Cut</div><li>Glue</ol>", "1. Cut\n2. Glue"),
        ("<ol><li>Cut<ul><li>long</ul><li>Glue</ol>", "1. Cut\n  - long\n2. Glue"),
        ("<ul><li>Cut<ol><li>long</ol></ul>", "- Cut\n  1. long"),
        ("<ol><li><p>Cut</p><p>it well</p><li><p>Glue</p></ol>", "1. Cut\n\nit well\n\n2. Glue"),
        ("<ol><li><h2>Cut</h2>wood</ol>", "1. Cut\n\nwood"),
        ("<table><tr><td>Steps<td><ol><li>Cut<li>Glue</ol></table>", "Steps | 1. Cut 2. Glue"),
    ],
)
def test_items_of_a_list_have_the_numbers_that_a_browser_shows(body: str, text: str) -> None:
    assert text_of(body) == text


LINKS = "<footer>" + "".join(f"<a href='/{i}'>Link {i}</a> " for i in range(9)) + "</footer>"


def test_items_of_an_article_have_their_numbers() -> None:
    steps = [f"{'Press the button until the light is red. ' * 3}({i})" for i in range(3, 9)]
    items = "".join(f"<li>{step}" for step in steps)
    body = (
        f"<nav>Menu</nav><article><h1>Steps</h1><p>{steps[0]}</p><ol start=3>{items}</ol></article>"
    )
    text = text_of(body + LINKS)
    assert "Menu" not in text
    assert "Link 1" not in text
    assert [line for line in text.split("\n") if line[:1].isdigit()] == [
        f"{number}. {step}" for number, step in enumerate(steps, 3)
    ]


def test_texts_of_pictures_are_not_part_of_an_article() -> None:
    words = "Press the button until the light is red. " * 3
    picture = (
        "<p><img alt='A heron at dusk over the reeds of the fen'></p><select><option>Size</select>"
    )
    body = f"<article><h1>Steps</h1><p>{words}</p>{picture}<p>{words}again</p></article>{LINKS}"
    extracted = page(body)
    assert "heron" not in extracted.text
    assert "Size" not in extracted.text
    assert "again" in extracted.text
    assert "left out, since not in the main text" in extracted.about.warnings[0]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ("<tr><td colspan=2>a<td>b<tr><td>1<td>2<td>3", "a |  | b\n1 | 2 | 3"),
        ("<tr><td rowspan=2>a<td>1<tr><td>2<tr><td>b<td>3", "a | 1\n | 2\nb | 3"),
        ("<tr><td>a<td rowspan=2>1<td>x<tr><td>b<td>y", "a | 1 | x\nb |  | y"),
        ("<tr><td rowspan=2 colspan=2>a<td>1<tr><td>2", "a |  | 1\n |  | 2"),
        ("<tr><td rowspan=0>a<td>1<tr><td>2<tr><td>3", "a | 1\n | 2\n | 3"),
        ("<tr><td>a<td rowspan=3>1<tr><td>b<tr><td>c<tr><td>d<td>2", "a | 1\nb\nc\nd | 2"),
        ("<tfoot><tr><td>sum<td>3</tfoot><tbody><tr><td>a<td>3", "a | 3\nsum | 3"),
        ("<tr><td>a<td style='display:none'>gone<td>b", "a | b"),
        ("<tr><td colspan=x>a<td colspan=-1>b<td rowspan=''>c", "a | b | c"),
        (
            "<tr><td>Quay<td><table><tr><td>a<td>1<tr><td>b<td>2</table><td>9",
            "Quay | a, 1; b, 2 | 9",
        ),
        ("<tr><td>Quay<td>See: <table><tr><td>a</table> there", "Quay | See: a there"),
    ],
)
def test_cells_are_in_their_columns(rows: str, text: str) -> None:
    assert text_of(f"<table>{rows}</table>") == text


def test_layout_tables_are_not_rows() -> None:
    inner = "<table><tr><td>a<td>1</table>"
    body = f"<table><tr><td>{inner}</td></tr><tr><td><p>Text.</p></td></tr></table>"
    assert text_of(body) == "a | 1\n\nText."


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("<p hidden>gone</p>", ""),
        ("<div hidden><p>gone</p></div>", ""),
        ("<p style='display:none'>gone</p>", ""),
        ("<p style='color: red; DISPLAY : none !important'>gone</p>", ""),
        ("<p style='visibility:hidden'>gone</p>", ""),
        ("<span style='mso-hide:all'>gone</span>", ""),
        ("<span style='font-size:0px'>gone</span>", ""),
        ("<p class='a secret'>gone</p>", "<style>.secret { display: none }</style>"),
        ("<b id=x>gone</b>", "<style>#x {visibility:hidden}</style><style>b {top:0}</style>"),
        ("<p class=b>gone</p>", "<style>@media print {p {color:red}} p.b {display:none}</style>"),
        ("<dialog>gone</dialog>", ""),
        ("<div style='max-height:0px;overflow:hidden'>gone</div>", ""),
        ("<p style='position:absolute;left:-9999px'>gone</p>", ""),
        ("<p class=off>gone</p>", "<style>.off {text-indent: -10000px}</style>"),
        ("<map><area alt=gone></map>", ""),
        ("<template><p>gone</p></template>", ""),
        ("<input type=hidden value=gone>", ""),
        ("<canvas>gone</canvas><video>gone</video>", ""),
    ],
)
def test_hidden_text_is_not_read(body: str, head: str) -> None:
    assert text_of(f"<p>Before.</p>{body}<p>After.</p>", head) == "Before.\n\nAfter."


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("<p class=a>seen</p>", "<style>@media print { .a { display: none } }</style>"),
        ("<p class=a>seen</p>", "<style media=print>.a { display: none }</style>"),
        ("<p class='a open'>seen</p>", "<style>.a {display:none} .a.open {display:block}</style>"),
        ("<p class=a>seen</p>", "<style>.a {display:none} .a {display:block}</style>"),
        ("<p class=a style='display:block'>seen</p>", "<style>.a {display:none}</style>"),
        ("<p>seen</p>", "<style>body {visibility:hidden} .menu p {display:none}</style>"),
        ("<dialog open>seen</dialog>", ""),
    ],
)
def test_visible_text_is_read(body: str, head: str) -> None:
    assert text_of(body, head) == "seen"


def test_much_hidden_text_is_reported() -> None:
    extracted = page(f"<p>Shown.</p><div hidden>{'word ' * 20}</div>")
    assert extracted.text == "Shown."
    assert extracted.about.warnings == ("hidden text left out: 20 words",)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("10<sup>6</sup> cells", "10^6 cells"),
        ("10<sup>−6</sup> m", "10^−6 m"),
        ("10<sup><b>12</b></sup>", "10^12"),
        ("5 km<sup>2</sup>", "5 km^2"),
        ("E = mc<sup>2</sup>", "E = mc^2"),
        ("it is<sup>2</sup> so, says the EU<sup>3</sup>", "it is[2] so, says the EU[3]"),
        ("SO<sub>4</sub><sup>2−</sup>", "SO4^(2−)"),
        ("a χ<sup>2</sup> of 4 m/s<sup>2</sup>", "a χ^2 of 4 m/s^2"),
        ("x<sup>n+1</sup>", "x^(n+1)"),
        ("2<sup>10</sup>24", "2^10 24"),
        ("the 3<sup>rd</sup> of May, 1<sup>er</sup>", "the 3rd of May, 1er"),
        ("Acme<sup>TM</sup>", "AcmeTM"),
        ("the harbour<sup>1</sup> is", "the harbour[1] is"),
        ("the harbour.<sup>1,2</sup>", "the harbour.[1,2]"),
        ("in 1999<sup><a href='#n1'>1</a></sup>", "in 1999[1]"),
        ("in 1999<a href='#n1'><sup>1</sup></a>", "in 1999[1]"),
        ("in 1999<sup class=footnote-ref>1</sup>", "in 1999[1]"),
        ("in 1999<sup class=reference><a href='#c'>[1]</a></sup>", "in 1999[1]"),
        ("in 1999<sup>*</sup>", "in 1999*"),
        ("H<sub>2</sub>O and CO<sub>2</sub>", "H2O and CO2"),
        ("101<sub>2</sub>", "101_2"),
        ("log<sub>2</sub>8", "log_2 8"),
    ],
)
def test_raised_and_lowered_digits_do_not_run_into_others(body: str, text: str) -> None:
    assert text_of(f"<p>{body}</p>") == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<ruby>東京<rt>とうきょう</rt></ruby>は", "東京(とうきょう)は"),
        ("<ruby>東京<rp>(</rp><rt>とうきょう</rt><rp>)</rp></ruby>", "東京(とうきょう)"),
        ("<ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>", "東(とう)京(きょう)"),
        ("<ruby><rb>明日</rb><rt>あした</rt></ruby>", "明日(あした)"),
        ("<ruby>漢字<rp>（</rp><rt>かんじ</rt><rp>）</rp></ruby>だ", "漢字(かんじ)だ"),
    ],
)
def test_ruby_follows_its_base(body: str, text: str) -> None:
    assert text_of(f"<p>{body}</p>") == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Name: <input value='Ole Berg'>", "Name: Ole Berg"),
        ("<input type=email value=a@b.example>", "a@b.example"),
        ("<input type=date value=2024-05-01>", "2024-05-01"),
        ("<input type=checkbox checked> gift <input type=checkbox> late", "[x] gift [ ] late"),
        ("<input type=radio> tea <input type=radio checked> coffee", "[ ] tea [x] coffee"),
        ("Note <textarea>Ring\ntwice.</textarea>", "Note\n\nRing\ntwice."),
        ("Size <select><option>S<option selected>M</select>", "Size M"),
        ("Size <select><option>S<option>M</select>", "Size S"),
        ("<select multiple><option selected>S<option>M<option selected>L</select>", "S, L"),
        ("Pay <input type=password value=secret><input type=submit value=Go>now", "Pay now"),
        ("<select><optgroup label=x><option>S<option selected label=Mid>M</select>", "Mid"),
    ],
)
def test_form_fields_are_read(body: str, text: str) -> None:
    assert text_of(f"<form>{body}</form>") == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p><img alt='Map of the fen'></p>", "Map of the fen"),
        (
            "<figure><img alt='A heron'><figcaption>A heron at dusk.</figcaption></figure>",
            "A heron at dusk.",
        ),
        (
            "<figure><div><img alt='A heron'></div>"
            "<figcaption>A heron at dusk.</figcaption></figure>",
            "A heron at dusk.",
        ),
        ("<p><a href=/><img alt=Home>Home</a></p>", "Home"),
        ("<p>a<img alt=''>b</p>", "ab"),
        ("<p><input value=a> <svg><title>icon</title><text>12 kn</text></svg>", "a 12 kn"),
        ("<p><q>Ay</q>, he said</p>", "“Ay”, he said"),
    ],
)
def test_alternative_texts_are_read_once(body: str, text: str) -> None:
    assert text_of(body) == text


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("<mi>a</mi><mo>=</mo><mi>π</mi><msup><mi>r</mi><mn>2</mn></msup>", "a=πr^2"),
        ("<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac>", "(a+b)/2"),
        ("<msqrt><mi>x</mi><mo>+</mo><mn>1</mn></msqrt>", "√(x+1)"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot>", "∛x"),
        ("<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><mi>x</mi>", "∑_i^nx"),
        ("<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>", "x_1^2"),
        ("<semantics><mi>x</mi><annotation>\\x</annotation></semantics>", "x"),
        (
            "<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd>"
            "<mtd><mn>4</mn></mtd></mtr></mtable>",
            "[1, 2; 3, 4]",
        ),
        ("<msup><mi>f</mi><mo>′</mo></msup><mo>&#x2061;</mo><mi>x</mi>", "f′x"),
    ],
)
def test_equations_are_read_in_one_line(inside: str, text: str) -> None:
    assert text_of(f"<p>It is <math>{inside}</math> here</p>") == f"It is {text} here"


def test_equations_with_a_prefix_and_those_of_xml_are_read() -> None:
    inside = "<m:msup><m:mi>r</m:mi><m:mn>2</m:mn></m:msup>"
    assert text_of(f"<p>Area <m:math>{inside}</m:math>.</p>") == "Area r^2."
    space = 'xmlns:m="http://www.w3.org/1998/Math/MathML"'
    article = f"<article {space}><p>Area <m:math>{inside}</m:math>.</p></article>"
    source = ParserInput(data=article.encode(), suffix=".xml", max_bytes=10_000)
    assert parse_xml(source).text == "Area r^2."


def test_an_equation_that_katex_shows_twice_is_read_once() -> None:
    body = (
        "<p><span class=katex><span class=katex-mathml><math><semantics><mi>x</mi><annotation>x"
        "</annotation></semantics></math></span><span class=katex-html>x</span></span></p>"
    )
    assert text_of(body) == "x"
