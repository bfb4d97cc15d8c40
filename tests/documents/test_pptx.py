"""What PowerPoint shows of slides is read, in the order of its place."""
# ruff: noqa: E501 - a part of a file reads best in a line

import pytest

pytest.importorskip("lxml")

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.pptx import parse
from tests.document_files import zipped
from tests.office_files import CONTENT_TYPES, relations, xml

_LEVELS = "".join(f'<a:lvl{i}pPr><a:buChar char="•"/></a:lvl{i}pPr>' for i in (1, 2, 3))
MASTER_STYLES = f"<p:txStyles><p:titleStyle/><p:bodyStyle>{_LEVELS}</p:bodyStyle></p:txStyles>"


def tree(shapes: str) -> str:
    return f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>"


def shape(
    text: str,
    x: int = 0,
    y: int = 0,
    width: int = 100,
    height: int = 20,
    *,
    more: str = "",
    paragraphs: str = "",
    kind: str = "",
    hidden: str = "",
) -> str:
    """A shape with one paragraph, or these; a placeholder where it has a kind."""
    inside = paragraphs or f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
    named = f"<p:nvPr><p:ph {kind}/></p:nvPr>" if kind else "<p:nvPr/>"
    place = (
        ""
        if width == 0
        else (f'<a:xfrm><a:off x="{x}" y="{y}"/><a:ext cx="{width}" cy="{height}"/></a:xfrm>')
    )
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="1" {hidden}/>{named}</p:nvSpPr><p:spPr>{place}</p:spPr>'
        f"<p:txBody>{more}{inside}</p:txBody></p:sp>"
    )


def title(text: str) -> str:
    return shape(text, 0, 0, kind='type="title"')


def line(text: str, bullet: str = "", level: int = 0) -> str:
    return f'<a:p><a:pPr lvl="{level}">{bullet}</a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>'


def body(paragraphs: str, more: str = "") -> str:
    return shape("", 0, 50, paragraphs=paragraphs, kind='idx="1"', more=more)


def pptx(*slides: str, master: str = "", layout: str = "", targets=None, parts=None) -> bytes:
    """A presentation of these slides' shapes."""
    targets = targets or {}
    numbers = range(1, len(slides) + 1)
    listed = "".join(f'<p:sldId id="{255 + i}" r:id="s{i}"/>' for i in numbers)
    of_main = {f"s{i}": ("slide", f"slides/slide{i}.xml") for i in numbers}
    if "commentAuthors.xml" in (parts or {}):
        of_main["authors"] = ("commentAuthors", "commentAuthors.xml")
    members = {
        "[Content_Types].xml": CONTENT_TYPES,
        "_rels/.rels": relations({"r1": ("officeDocument", "ppt/presentation.xml")}),
        "ppt/presentation.xml": xml("p:presentation", f"<p:sldIdLst>{listed}</p:sldIdLst>"),
        "ppt/_rels/presentation.xml.rels": relations(of_main),
        "ppt/slideLayouts/layout1.xml": xml("p:sldLayout", tree(layout)),
        "ppt/slideLayouts/_rels/layout1.xml.rels": relations(
            {"m1": ("slideMaster", "../slideMasters/master1.xml")}
        ),
        "ppt/slideMasters/master1.xml": xml("p:sldMaster", tree(master) + MASTER_STYLES),
    }
    for number, shapes in enumerate(slides, 1):
        members[f"ppt/slides/slide{number}.xml"] = (
            shapes if shapes.startswith("<p:sld ") else xml("p:sld", tree(shapes))
        )
        members[f"ppt/slides/_rels/slide{number}.xml.rels"] = relations(
            {"l1": ("slideLayout", "../slideLayouts/layout1.xml"), **targets}
        )
    return zipped({**members, **{f"ppt/{name}": part for name, part in (parts or {}).items()}})


def read(*slides: str, **more) -> Extracted:
    return parse(ParserInput(data=pptx(*slides, **more), suffix=".pptx", max_bytes=10_000_000))


def text_of(*slides: str, **more) -> str:
    return read(*slides, **more).text


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (shape("c", 0, 80) + shape("a", 0, 10) + shape("b", 0, 40), "a b c"),
        (shape("b", 120, 10) + shape("a", 0, 12), "a b"),
        (
            shape("d", 120, 50) + shape("b", 120, 10) + shape("c", 0, 50) + shape("a", 0, 10),
            "a b c d",
        ),
        (shape("c", 120, 0, 100, 300) + shape("b", 0, 50) + shape("a", 0, 10), "a b c"),
        (
            shape("d", 120, 60, 100, 300)
            + shape("c", 0, 250)
            + shape("b", 0, 60, 100, 180)
            + shape("a", 0, 0, 220, 50),
            "a b c d",
        ),
        (shape("b", 0, 28, 100, 30) + shape("a", 0, 0, 100, 30), "a b"),
        (shape("z", 0, 0) + title("a") + shape("b", 0, -50), "a b z"),
        (
            "<p:grpSp><p:grpSpPr><a:xfrm><a:off x='0' y='90'/><a:ext cx='9' cy='9'/></a:xfrm></p:grpSpPr>"
            + shape("c", 0, 8)
            + shape("b", 0, 0, height=5)
            + "</p:grpSp>"
            + shape("a", 0, 10),
            "a b c",
        ),
    ],
)
def test_shapes_are_read_by_position(shapes: str, words: str) -> None:
    assert text_of(shapes).split() == words.split()


def test_placeholders_inherit_the_position_of_the_layout() -> None:
    layout = shape("", 0, 0, kind='type="body" idx="7"') + shape(
        "", 0, 200, kind='type="body" idx="8"'
    )
    low = shape("b", width=0, kind='type="body" idx="8"')
    high = shape("a", width=0, kind='type="body" idx="7"')
    assert text_of(low + high, layout=layout).split() == ["-", "a", "-", "b"]


AUTO = '<a:buAutoNum type="{}"/>'
NONE = "<a:buNone/>"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            [("a", AUTO.format("arabicPeriod"), 0), ("b", AUTO.format("arabicPeriod"), 0)],
            "1. a\n2. b",
        ),
        (
            [("a", AUTO.format("alphaUcParenR"), 0), ("b", AUTO.format("alphaUcParenR"), 0)],
            "A) a\nB) b",
        ),
        (
            [("a", AUTO.format("romanLcParenBoth"), 0), ("b", AUTO.format("romanLcParenBoth"), 0)],
            "(i) a\n(ii) b",
        ),
        ([("a", '<a:buAutoNum type="arabicPlain" startAt="5"/>', 0)] * 2, "5 a\n6 a"),
        (
            [
                ("a", AUTO.format("arabicPeriod"), 0),
                ("x", "", 1),
                ("b", AUTO.format("arabicPeriod"), 0),
            ],
            "1. a\n  - x\n2. b",
        ),
        (
            [
                ("a", AUTO.format("arabicPeriod"), 0),
                ("x", AUTO.format("alphaLcPeriod"), 1),
                ("b", AUTO.format("arabicPeriod"), 0),
                ("y", AUTO.format("alphaLcPeriod"), 1),
            ],
            "1. a\n  a. x\n2. b\n  a. y",
        ),
        (
            [
                ("a", AUTO.format("arabicPeriod"), 0),
                ("x", NONE, 0),
                ("b", AUTO.format("arabicPeriod"), 0),
            ],
            "1. a\nx\n1. b",
        ),
        ([("a", "", 0), ("b", "", 1), ("c", "", 2), ("d", "", 0)], "- a\n  - b\n    - c\n- d"),
        ([("a", NONE, 0), ("b", "", 0)], "a\n- b"),
        ([("a", '<a:buChar char="–"/>', 0)], "- a"),
    ],
)
def test_lists_of_slides_have_their_numbers_and_levels(
    lines: list[tuple[str, str, int]], text: str
) -> None:
    assert text_of(title("T") + body("".join(line(*one) for one in lines))) == f"T\n\n{text}"


def test_shapes_override_inherited_bullets() -> None:
    own = "<a:lstStyle><a:lvl1pPr><a:buAutoNum type='arabicPeriod'/></a:lvl1pPr></a:lstStyle>"
    assert text_of(body(line("a") + line("b"), own)) == "1. a\n2. b"
    assert text_of(shape("", paragraphs=line("a") + line("b"))) == "a\nb"
    layout = shape(
        "", 0, 0, kind='idx="1"', more=own.replace("buAutoNum type='arabicPeriod'", "buNone")
    )
    assert text_of(body(line("a")), layout=layout) == "a"


def frame(inside: str, y: int = 90) -> str:
    return (
        f'<p:graphicFrame><p:xfrm><a:off x="0" y="{y}"/><a:ext cx="9" cy="9"/></p:xfrm>'
        f"<a:graphic><a:graphicData>{inside}</a:graphicData></a:graphic></p:graphicFrame>"
    )


def cell(text: str, more: str = "") -> str:
    return f"<a:tc {more}><a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:txBody></a:tc>"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (cell("a", 'gridSpan="2"') + cell("", 'hMerge="1"') + cell("b"), "a |  | b"),
        (
            cell("a", 'rowSpan="2"')
            + cell("b")
            + "</a:tr><a:tr>"
            + cell("", 'vMerge="1"')
            + cell("c"),
            "a | b\n | c",
        ),
        (cell("") + cell("b"), " | b"),
        (cell("a") + cell("left over", 'hMerge="true"') + cell("b"), "a |  | b"),
    ],
)
def test_cells_are_in_their_columns(rows: str, text: str) -> None:
    assert text_of(frame(f"<a:tbl><a:tr>{rows}</a:tr></a:tbl>")) == text.strip("\n")


def test_smart_art_is_read_in_place() -> None:
    from tests.documents.test_docx import SMART_ART

    targets = {"d1": ("diagramData", "../diagrams/data1.xml")}
    slide = title("T") + shape("Below.", 0, 200) + frame('<dgm:relIds r:dm="d1"/>')
    assert text_of(slide, targets=targets, parts={"diagrams/data1.xml": SMART_ART}) == (
        "T\n\nSow\nin spring\nReap\n\nBelow."
    )


LEGACY = xml(
    "p:cmLst",
    '<p:cm authorId="0"><p:text>Which year?</p:text></p:cm><p:cm authorId="9"><p:text>2</p:text></p:cm>',
)
AUTHORS = xml("p:cmAuthorLst", '<p:cmAuthor id="0" name="Ines"/>')
TEXT = "<p188:txBody><a:p><a:r><a:t>{}</a:t></a:r></a:p></p188:txBody>"
MODERN = xml(
    "p188:cmLst",
    f'<p188:cm authorId="0"><p188:replyLst><p188:reply authorId="9">{TEXT.format("2")}</p188:reply>'
    f"</p188:replyLst>{TEXT.format('Which year?')}</p188:cm>",
)


@pytest.mark.parametrize("comments", [LEGACY, MODERN])
def test_comments_on_a_slide_are_read(comments: str) -> None:
    shown = text_of(
        title("T"),
        targets={"c1": ("comments", "../comments/comment1.xml")},
        parts={"comments/comment1.xml": comments, "commentAuthors.xml": AUTHORS},
    )
    assert shown == "T\n\n[comment by Ines: Which year?]\n\n[comment: 2]"


@pytest.mark.parametrize(
    ("run", "text"),
    [("10", "10^6"), ("harbour", "harbour[6]"), ("1st", "1st[6]")],
)
def test_raised_digits_do_not_run_into_others(run: str, text: str) -> None:
    raised = '<a:r><a:rPr baseline="30000"/><a:t>6</a:t></a:r>'
    paragraphs = f"<a:p><a:r><a:t>{run}</a:t></a:r>{raised}</a:p>"
    assert text_of(shape("", paragraphs=paragraphs)) == text


def test_hidden_shapes_and_slides_are_not_read() -> None:
    hidden = xml("p:sld", tree(shape("gone")), 'show="0"')
    extracted = read(shape("seen") + shape("gone", hidden='hidden="1"'), hidden)
    assert extracted.text == "seen"
    assert extracted.about.warnings == ("hidden slides left out: 1",)


def test_texts_of_the_master_are_read_once() -> None:
    master = shape("Confidential", 0, 300) + shape("Click to edit", kind='type="body"')
    layout = shape("Harbour Office", 0, 400) + shape("Click", kind='type="title"')
    shown = text_of(title("One"), title("Two"), master=master, layout=layout)
    assert shown == "One\n\nHarbour Office\n\nConfidential\n\nTwo"
    bare = xml("p:sld", tree(title("One")), 'showMasterSp="0"')
    assert text_of(bare, master=master, layout=layout) == "One"


def test_fixed_dates_are_read_once_and_automatic_ones_are_not() -> None:
    fixed = shape("12 May 2024", 0, 300, kind='type="dt"')
    field = shape("", paragraphs="<a:p><a:fld><a:t>1 June</a:t></a:fld></a:p>", kind='type="dt"')
    assert (
        text_of(title("One") + fixed, title("Two") + fixed + field) == "One\n\n12 May 2024\n\nTwo"
    )


@pytest.mark.parametrize("target", ["#_ftn1", "NULL", "../media/none.png", ""])
def test_dangling_relations_are_ignored(target: str) -> None:
    assert text_of(title("T"), targets={"h1": ("hyperlink", target)}) == "T"


def test_embedded_objects_are_reported() -> None:
    slide = title("T") + frame('<p:oleObj r:id="o1"/>')
    assert read(slide).about.warnings == ("embedded objects are not read: 1",)
