"""What LibreOffice shows of OpenDocument files is read, and nothing that it hides."""
# ruff: noqa: E501 - a part of a file reads best in a line

import pytest

pytest.importorskip("lxml")

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.odt import parse
from tests.document_files import zipped

NAMES = "text table office drawing style presentation svg-compatible chart".split()
SPACES = (
    " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in zip(
            "text table office draw style presentation svg chart".split(), NAMES, strict=True
        )
    )
    + ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def document(
    body: str,
    styles: str = "",
    *,
    kind: str = "text",
    masters: str = "",
    members: dict[str, str] | None = None,
) -> bytes:
    content = (
        f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    of_pages = f"<office:document-styles {SPACES}>{masters}</office:document-styles>"
    return zipped(
        {
            "META-INF/manifest.xml": "<m/>",
            "content.xml": content,
            "styles.xml": of_pages,
            **(members or {}),
        }
    )


def read(body: str, styles: str = "", **more) -> Extracted:
    return parse(
        ParserInput(data=document(body, styles, **more), suffix=".odt", max_bytes=10_000_000)
    )


def text_of(body: str, styles: str = "", **more) -> str:
    return read(body, styles, **more).text


def p(text: str, style: str = "") -> str:
    return f'<text:p text:style-name="{style}">{text}</text:p>'


def item(*inside: str, more: str = "") -> str:
    return f"<text:list-item {more}>{''.join(inside)}</text:list-item>"


def listed(*items: str, more: str = 'text:style-name="L"') -> str:
    return f"<text:list {more}>{''.join(items)}</text:list>"


def number_level(level: int, style: str = "1", suffix: str = ".", more: str = "") -> str:
    return f'<text:list-level-style-number text:level="{level}" style:num-format="{style}" style:num-suffix="{suffix}" {more}/>'


def list_style(*levels: str, name: str = "L") -> str:
    return f'<text:list-style style:name="{name}">{"".join(levels)}</text:list-style>'


CLAUSES = list_style(
    number_level(1),
    number_level(2, more='text:display-levels="2"'),
    number_level(3, "a", ")", 'style:num-prefix="("'),
)


@pytest.mark.parametrize(
    ("body", "styles", "text"),
    [
        (listed(item(p("a")), item(p("b"))), CLAUSES, "1. a\n2. b"),
        (
            listed(
                item(
                    p("a"),
                    listed(
                        item(p("b"), listed(item(p("c")), item(p("d")), more="")),
                        item(p("e")),
                        more="",
                    ),
                ),
                item(p("f")),
            ),
            CLAUSES,
            "1. a\n1.1. b\n(a) c\n(b) d\n1.2. e\n2. f",
        ),
        (
            listed(item(p("a")), item(p("b"), more='text:start-value="7"'), item(p("c"))),
            CLAUSES,
            "1. a\n7. b\n8. c",
        ),
        (
            listed(item(p("a"))),
            list_style(number_level(1, "I", ")", 'text:start-value="4"')),
            "IV) a",
        ),
        (
            listed(item(p("a")), more='text:style-name="L" xml:id="x"')
            + p("between")
            + listed(item(p("b")), more='text:style-name="L" text:continue-list="x"'),
            CLAUSES,
            "1. a\n\nbetween\n\n2. b",
        ),
        (
            listed(item(p("a")))
            + p("between")
            + listed(item(p("b")), more='text:style-name="L" text:continue-numbering="true"'),
            CLAUSES,
            "1. a\n\nbetween\n\n2. b",
        ),
        (
            listed(item(p("a"))) + p("between") + listed(item(p("b"))),
            CLAUSES,
            "1. a\n\nbetween\n\n1. b",
        ),
        (
            listed("<text:list-header>" + p("head") + "</text:list-header>", item(p("a"))),
            CLAUSES,
            "head\n\n1. a",
        ),
        (listed(item(listed(item(p("deep")), more=""))), CLAUSES, "1.1. deep"),
        (listed(item(p("a"), p("more")), item(p("b"))), CLAUSES, "1. a\n\nmore\n\n2. b"),
        (
            listed(item(p("a"), listed(item(p("b"))))),
            list_style(
                '<text:list-level-style-bullet text:level="1"/>',
                '<text:list-level-style-bullet text:level="2"/>',
            ),
            "- a\n  - b",
        ),
        (listed(item(p("a")), more=""), "", "- a"),
        (listed(item(p("a"))), list_style(number_level(1, "")), ". a"),
        (
            listed(item(p("a"))),
            list_style(
                '<text:list-level-style-number text:level="1" style:num-format="1" xmlns:loext="urn:x" loext:num-list-format="Step %1%:"/>'
            ),
            "Step 1: a",
        ),
    ],
)
def test_items_have_the_numbers_that_libreoffice_shows(body: str, styles: str, text: str) -> None:
    assert text_of(body, styles) == text


def h(text: str, level: int = 1, more: str = "") -> str:
    return f'<text:h text:outline-level="{level}" {more}>{text}</text:h>'


def test_headings_are_numbered_by_the_outline() -> None:
    outline = "".join(
        f'<text:outline-level-style text:level="{i}" style:num-format="1" text:display-levels="{i}"/>'
        for i in (1, 2)
    )
    masters = f"<office:styles><text:outline-style>{outline}</text:outline-style></office:styles>"
    body = (
        h("A")
        + h("B", 2)
        + h("C", 2)
        + h("D")
        + h("Free", 1, 'text:is-list-header="true"')
        + h("E", 2)
    )
    extracted = read(body, masters=masters)
    assert extracted.text == "1 A\n\n1.1 B\n\n1.2 C\n\n2 D\n\nFree\n\n2.1 E"
    assert [s.heading for s in extracted.about.sections][:2] == ["1 A", "1.1 B"]
    assert text_of(h("A")) == "A"


def text_style(name: str, properties: str, parent: str = "") -> str:
    return f'<style:style style:name="{name}" style:parent-style-name="{parent}"><style:text-properties {properties}/></style:style>'


HIDDEN = (
    text_style("H", 'text:display="none"')
    + text_style("H2", 'style:x="1"', "H")
    + text_style("V", 'text:display="true"', "H")
)


@pytest.mark.parametrize(
    "body",
    [
        p('Shown<text:span text:style-name="H"> gone</text:span>.'),
        p('Shown<text:span text:style-name="H2"> gone</text:span>.'),
        p("Shown.") + p("gone", "H"),
        p("Shown.") + f'<text:section text:display="none">{p("gone")}</text:section>',
        p("Shown.") + p('<text:hidden-paragraph text:is-hidden="true"/>gone'),
        p("Shown").replace(
            "Shown",
            'Shown.<text:hidden-text text:is-hidden="true" text:string-value="gone">gone</text:hidden-text>',
        ),
        p("Shown.")
        + "<text:tracked-changes><text:deletion>"
        + p("gone")
        + "</text:deletion></text:tracked-changes>",
    ],
)
def test_hidden_text_is_not_read(body: str) -> None:
    assert text_of(body, HIDDEN) == "Shown."


@pytest.mark.parametrize(
    "body",
    [
        p('<text:span text:style-name="V">seen</text:span>'),
        p('<text:hidden-paragraph text:is-hidden="false"/>seen'),
        f'<text:section text:display="true">{p("seen")}</text:section>',
    ],
)
def test_visible_text_is_read(body: str) -> None:
    assert read(body, HIDDEN).text == "seen"


@pytest.mark.parametrize(
    ("position", "body", "text"),
    [
        ("super 58%", "10{6} cells", "10^6 cells"),
        ("33% 58%", "10{6}", "10^6"),
        ("sub 58%", "H{2}O", "H2O"),
        ("-33% 58%", "101{2}", "101_2"),
        ("super 58%", "harbour{1}", "harbour[1]"),
        ("0% 100%", "10{6}", "106"),
    ],
)
def test_raised_digits_do_not_run_into_others(position: str, body: str, text: str) -> None:
    styles = text_style("S", f'style:text-position="{position}"')
    span = body.replace("{", '<text:span text:style-name="S">').replace("}", "</text:span>")
    assert text_of(p(span), styles) == text


def row(*cells: str, more: str = "") -> str:
    return f"<table:table-row {more}>{''.join(cells)}</table:table-row>"


def cell(text: str, more: str = "") -> str:
    return f"<table:table-cell {more}>{p(text) if text else ''}</table:table-cell>"


COVERED = "<table:covered-table-cell/>"


def sheet(*rows: str, columns: str = "") -> str:
    return f'<table:table table:name="S">{columns}{"".join(rows)}</table:table>'


@pytest.mark.parametrize(
    ("table", "text", "warnings"),
    [
        (
            sheet(
                row(cell("a"), cell("b"), cell("c")),
                columns='<table:table-column/><table:table-column table:visibility="collapse"/><table:table-column/>',
            ),
            "a | c",
            ("hidden rows and columns left out: 1 column",),
        ),
        (
            sheet(
                row(*map(cell, "abcd")),
                columns='<table:table-column/><table:table-column table:visibility="collapse" table:number-columns-repeated="2"/><table:table-column/>',
            ),
            "a | d",
            ("hidden rows and columns left out: 2 columns",),
        ),
        (
            sheet(
                row(cell("a")), row(cell("b"), more='table:visibility="collapse"'), row(cell("c"))
            ),
            "a\nc",
            ("hidden rows and columns left out: 1 row",),
        ),
        (
            sheet(row(cell("a")), row(cell("b"), more='table:visibility="filter"')),
            "a",
            ("hidden rows and columns left out: 1 row",),
        ),
        (
            sheet(
                row(cell("a")),
                f'<table:table-row-group table:display="false">{row(cell("b"))}</table:table-row-group>',
            ),
            "a",
            ("hidden rows and columns left out: 1 row",),
        ),
        (
            sheet(row(cell("a", 'table:number-columns-spanned="2"'), COVERED, cell("b"))),
            "a |  | b",
            (),
        ),
        (
            sheet(row(cell("a"), cell("", 'table:number-columns-repeated="2"'), cell("b"))),
            "a |  |  | b",
            (),
        ),
        (
            sheet(
                row(
                    cell("", 'office:value-type="float" office:value="2.50"'),
                    cell("", 'office:value-type="percentage" office:value="0.075"'),
                    cell("", 'office:value-type="boolean" office:boolean-value="true"'),
                    cell("", 'office:value-type="date" office:date-value="2024-05-01"'),
                )
            ),
            "2.5 | 7.5% | TRUE | 2024-05-01",
            (),
        ),
    ],
)
def test_sheets_are_read_as_they_are_shown(
    table: str, text: str, warnings: tuple[str, ...]
) -> None:
    extracted = read(table, kind="spreadsheet")
    assert extracted.text == f"S\n\n{text}"
    assert extracted.about.warnings == warnings


NOTE = "<office:annotation><dc:creator>Ines</dc:creator><text:p>No.</text:p></office:annotation>"


def test_comments_are_read() -> None:
    assert text_of(p(f"a{NOTE}") + p("b")) == "a\n\n[comment by Ines: No.]\n\nb"
    commented = f"<table:table-cell>{NOTE}{p('x')}</table:table-cell>"
    assert text_of(sheet(row(cell("a")), row(cell("b"), commented)), kind="spreadsheet") == (
        "S\n\na\nb | x\n\n[comment B2, Ines: No.]"
    )
    page = f"<draw:page><draw:frame><draw:text-box>{p('a')}</draw:text-box></draw:frame>{NOTE}</draw:page>"
    assert text_of(page, kind="presentation") == "a\n\n[comment by Ines: No.]"


def test_notes_are_numbered_by_their_kind() -> None:
    def note(kind: str, text: str) -> str:
        return f'<text:note text:note-class="{kind}"><text:note-citation>9</text:note-citation><text:note-body>{p(text)}</text:note-body></text:note>'

    body = p(f"a{note('footnote', 'one')} b{note('endnote', 'end')} c{note('footnote', 'two')}")
    assert text_of(body) == "a[^1] b[^e1] c[^2]\n\n[^1]: one\n[^2]: two\n\n[^e1]: end"


def frame(text: str, y: float, x: float = 0, more: str = "") -> str:
    return (
        f'<draw:frame svg:x="{x}cm" svg:y="{y}cm" svg:width="5cm" svg:height="1cm" {more}>'
        f"<draw:text-box>{p(text)}</draw:text-box></draw:frame>"
    )


def test_shapes_of_a_slide_are_read_by_position() -> None:
    shapes = (
        frame("c", 9)
        + frame("b", 5, 6)
        + frame("a", 5)
        + frame("T", 3, more='presentation:class="title"')
    )
    assert text_of(f"<draw:page>{shapes}</draw:page>", kind="presentation") == "T\n\na\n\nb\n\nc"
    group = f"<draw:g>{frame('c', 9)}</draw:g>{frame('b', 2)}"
    assert text_of(f"<draw:page>{group}</draw:page>", kind="presentation") == "b\n\nc"


def test_placeholders_of_slide_numbers_are_not_read() -> None:
    notes = f"<presentation:notes>{frame('said', 1)}{frame('<text:page-number>&lt;number&gt;</text:page-number>', 2)}</presentation:notes>"
    assert (
        text_of(f"<draw:page>{frame('a', 1)}{notes}</draw:page>", kind="presentation")
        == "a\n\nsaid"
    )


def test_texts_of_masters_are_read_once() -> None:
    footer = '<draw:frame presentation:class="footer"><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>'
    page = '<draw:page draw:master-page-name="M" presentation:use-footer-name="f">{}</draw:page>'
    slides = page.format(frame("a", 1)) + page.format(frame("b", 1))
    fixed = (
        f'<style:master-page style:name="M">{footer.format("Master footer")}</style:master-page>'
    )
    assert text_of(slides, kind="presentation", masters=fixed) == "a\n\nMaster footer\n\nb"
    declared = '<presentation:footer-decl presentation:name="f">Harbour</presentation:footer-decl>'
    field = f'<style:master-page style:name="M">{footer.format("<presentation:footer/>")}</style:master-page>'
    assert text_of(declared + slides, kind="presentation", masters=field) == "a\n\nHarbour\n\nb"
    only = page.format("")
    assert text_of(only, kind="presentation", masters=fixed) == "Master footer"


def test_headers_and_footers_of_used_pages_are_read() -> None:
    def master(name: str, inside: str) -> str:
        return f'<style:master-page style:name="{name}">{inside}</style:master-page>'

    used = f"<style:header>{p('Head')}</style:header><style:footer>{p('Foot')}</style:footer>"
    masters = master("Standard", used) + master(
        "Other", f"<style:header>{p('gone')}</style:header>"
    )
    assert text_of(p("a"), masters=masters) == "Head\n\na\n\nFoot"
    off = master("Standard", f'<style:header style:display="false">{p("gone")}</style:header>')
    assert text_of(p("a"), masters=off) == "a"


def test_charts_and_equations_are_read() -> None:
    chart = (
        f"<office:document-content {SPACES}><office:body><office:chart><chart:chart><chart:title>{p('Ferries')}</chart:title>"
        f"<table:table>{row(cell(''), cell('Boats'))}{row(cell('May'), cell('4'))}</table:table></chart:chart>"
        "</office:chart></office:body></office:document-content>"
    )
    math = (
        '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>r</mi><mn>2</mn></msup></math>'
    )
    drawn = '<draw:frame><draw:object xlink:href="./Object {}"/></draw:frame>'
    body = p("a" + drawn.format(1)) + p(f"Area {drawn.format(2)}.")
    shown = text_of(body, members={"Object 1/content.xml": chart, "Object 2/content.xml": math})
    assert shown == "a\n\nFerries\n | Boats\nMay | 4\n\nArea r^2."
    assert text_of(p("a" + drawn.format(7))) == "a"


def test_ruby_follows_its_base() -> None:
    ruby = "<text:ruby><text:ruby-base>東京</text:ruby-base><text:ruby-text>とうきょう</text:ruby-text></text:ruby>は"
    assert text_of(p(ruby)) == "東京(とうきょう)は"
