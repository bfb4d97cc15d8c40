"""What Word shows of a document is read, and nothing that it hides."""
# ruff: noqa: E501 - a part of a file reads best in a line

import pytest

pytest.importorskip("lxml")

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.docx import parse
from tests.document_files import unzipped, zipped
from tests.office_files import docx, item, level, numbering, paragraph, xml


def read(body: str, parts: dict[str, str | bytes] | None = None, **more) -> Extracted:
    return parse(ParserInput(data=docx(body, parts, **more), suffix=".docx", max_bytes=10_000_000))


def text_of(body: str, parts: dict[str, str | bytes] | None = None, **more) -> str:
    return read(body, parts, **more).text


CLAUSES = level(0, "%1.") + level(1, "%1.%2") + level(2, "(%3)", "lowerLetter")
START = '<w:lvlOverride w:ilvl="{}"><w:startOverride w:val="{}"/></w:lvlOverride>'


@pytest.mark.parametrize(
    ("levels", "lists", "items", "marks"),
    [
        (CLAUSES, [""], [0, 1, 1, 2, 2, 0, 1], "1.; 1.1; 1.2; (a); (b); 2.; 2.1"),
        (CLAUSES, [""], [0, 1, 2, 1, 2, 0, 1, 2], "1.; 1.1; (a); 1.2; (a); 2.; 2.1; (a)"),
        (
            level(0, "Article %1", "upperRoman"),
            [""],
            [0, 0, 0, 0],
            "Article I; Article II; Article III; Article IV",
        ),
        (level(0, "%1)", "lowerRoman", 3), [""], [0, 0], "iii); iv)"),
        (level(0, "%1", "decimalZero"), [""], [0, 0], "01; 02"),
        (level(0, "%1.", "upperLetter", 26), [""], [0, 0], "Z.; AA."),
        (level(0, "%1", "ordinal"), [""], [0, 0, 0, 0], "1st; 2nd; 3rd; 4th"),
        (level(0, "%1", "cardinalText"), [""], [0, 0], "One; Two"),
        (level(0, "§ %1"), [""], [0, 0], "§ 1; § 2"),
        (
            level(0, "%1.", "upperRoman") + level(1, "%1.%2"),
            [""],
            [0, 1, 0, 1],
            "I.; I.1; II.; II.1",
        ),
        (
            level(0, "%1.", "upperRoman") + level(1, "%1.%2", more="<w:isLgl/>"),
            [""],
            [0, 0, 1],
            "I.; II.; 2.1",
        ),
        (
            level(0, "%1.") + level(1, "%2)", more='<w:lvlRestart w:val="0"/>'),
            [""],
            [0, 1, 1, 0, 1],
            "1.; 1); 2); 2.; 3)",
        ),
        (
            level(0, "%1.") + level(1, "%2.", more='<w:lvlRestart w:val="1"/>'),
            [""],
            [0, 1, 0, 1],
            "1.; 1.; 2.; 1.",
        ),
        (level(0, "%1.") + level(1, "*", "bullet"), [""], [0, 1, 0], "1.; -; 2."),
        (level(0, "%1", "decimal", more="") + level(1, "%1.%2"), [""], [1, 1, 0], "1.1; 1.2; 2"),
        (level(0, "%1.", start=0), [""], [0, 0], "0.; 1."),
    ],
)
def test_paragraphs_have_the_numbers_that_word_shows(
    levels: str, lists: list[str], items: list[int], marks: str
) -> None:
    body = "".join(item("x", at) for at in items)
    lines = text_of(body, {"numbering.xml": numbering(levels, *lists)}).split("\n")
    assert [line.strip() for line in lines] == [f"{mark} x" for mark in marks.split("; ")]


def test_lists_of_one_numbering_continue_unless_they_restart() -> None:
    parts = {"numbering.xml": numbering(CLAUSES, "", "", START.format(0, 1), START.format(0, 7))}
    body = item("a") + item("b", 0, 2) + item("c", 0, 3) + item("d", 0, 3) + item("e", 0, 4)
    assert text_of(body, parts) == "1. a\n2. b\n1. c\n2. d\n7. e"


def test_lists_override_levels() -> None:
    change = f'<w:lvlOverride w:ilvl="0">{level(0, "%1)", "lowerLetter")}</w:lvlOverride>'
    assert text_of(item("x") + item("y"), {"numbering.xml": numbering(CLAUSES, change)}) == (
        "a) x\nb) y"
    )


def test_lists_continue_after_other_paragraphs() -> None:
    body = item("a") + paragraph("Between.") + item("b")
    parts = {"numbering.xml": numbering(CLAUSES)}
    assert text_of(body, parts) == "1. a\n\nBetween.\n\n2. b"


HEADINGS = xml(
    "w:styles",
    '<w:style w:type="paragraph" w:default="1" w:styleId="N"><w:name w:val="Normal"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/><w:basedOn w:val="N"/>'
    '<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="H1"/>'
    "</w:style>"
    '<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="Own"/><w:basedOn w:val="H2"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="LP"><w:name w:val="List Paragraph"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="LB"><w:name w:val="List Bullet"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Gone"><w:name w:val="Gone"/><w:rPr><w:vanish/></w:rPr></w:style>'
    '<w:style w:type="character" w:styleId="C"><w:name w:val="C"/><w:rPr><w:vanish/></w:rPr></w:style>'
    '<w:style w:type="character" w:styleId="C2"><w:name w:val="C2"/><w:basedOn w:val="C"/></w:style>'
    '<w:style w:type="character" w:styleId="Up"><w:name w:val="Up"/>'
    '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>',
)
STYLED_LEVELS = level(0, "%1", more='<w:pStyle w:val="H1"/>') + level(
    1, "%1.%2", more='<w:pStyle w:val="H2"/>'
)


def styled(text: str, style: str, more: str = "", run: str = "") -> str:
    return paragraph(text, f'<w:pStyle w:val="{style}"/>{more}', run)


def test_headings_are_numbered_by_their_styles() -> None:
    body = styled("A", "H1") + styled("B", "H2") + styled("C", "H2") + styled("D", "H1")
    extracted = read(body, {"numbering.xml": numbering(STYLED_LEVELS), "styles.xml": HEADINGS})
    assert extracted.text == "1 A\n\n1.1 B\n\n1.2 C\n\n2 D"
    assert [s.heading for s in extracted.about.sections] == ["1 A", "1.1 B", "1.2 C", "2 D"]


def test_paragraphs_leave_the_numbering_of_their_style() -> None:
    body = styled("A", "H1") + styled("B", "H1", '<w:numPr><w:numId w:val="0"/></w:numPr>')
    parts = {"numbering.xml": numbering(STYLED_LEVELS), "styles.xml": HEADINGS}
    assert text_of(body + styled("C", "H1"), parts) == "1 A\n\nB\n\n2 C"


def test_styles_based_on_headings_are_headings() -> None:
    extracted = read(styled("A", "Own") + paragraph("b"), {"styles.xml": HEADINGS})
    assert [section.heading for section in extracted.about.sections] == ["A"]


def test_list_paragraphs_without_a_number_have_no_bullet() -> None:
    assert text_of(styled("a", "LP") + styled("b", "LB"), {"styles.xml": HEADINGS}) == "a\n\n- b"


def test_empty_paragraphs_of_a_list_are_counted_but_not_shown() -> None:
    parts = {"numbering.xml": numbering(CLAUSES)}
    assert text_of(item("a") + item("") + item("b"), parts) == "1. a\n3. b"


def test_lists_inherit_the_numbers_of_a_list_style() -> None:
    inside = (
        '<w:abstractNum w:abstractNumId="0"><w:numStyleLink w:val="S"/></w:abstractNum>'
        f'<w:abstractNum w:abstractNumId="1"><w:styleLink w:val="S"/>{CLAUSES}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    )
    assert text_of(item("a") + item("b", 1), {"numbering.xml": xml("w:numbering", inside)}) == (
        "1. a\n1.1 b"
    )


def cells(*texts: str) -> str:
    return "".join(f"<w:tc>{text}</w:tc>" for text in texts)


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"


def row(inside: str, properties: str = "") -> str:
    return f"<w:tr><w:trPr>{properties}</w:trPr>{inside}</w:tr>"


HEAD = row(cell("A") + cell("B") + cell("C"))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (row(cell("x"), '<w:gridBefore w:val="1"/>'), " | x"),
        (row(cell("x") + cell("y"), '<w:gridBefore w:val="1"/>'), " | x | y"),
        (row(cell("x"), '<w:gridAfter w:val="2"/>'), "x"),
        (row(cell("x", '<w:gridSpan w:val="2"/>') + cell("y")), "x |  | y"),
        (row(cell("x") + cell("y", '<w:gridSpan w:val="2"/>')), "x | y"),
        (
            row(cell("x", '<w:vMerge w:val="restart"/>') + cell("1"))
            + row(cell("", "<w:vMerge/>") + cell("2")),
            "x | 1\n | 2",
        ),
        (
            row(cell("x", '<w:hMerge w:val="restart"/>') + cell("", "<w:hMerge/>") + cell("y")),
            "x |  | y",
        ),
        (
            row(f"{cell('x')}<w:sdt><w:sdtContent>{cell('y')}</w:sdtContent></w:sdt>{cell('z')}"),
            "x | y | z",
        ),
        (f"<w:sdt><w:sdtContent>{row(cell('x') + cell('y'))}</w:sdtContent></w:sdt>", "x | y"),
        (
            row(
                cell("x")
                + f"<w:tc><w:tbl>{row(cell('1') + cell('2'))}{row(cell('3'))}</w:tbl>{paragraph('')}</w:tc>"
                + cell("y")
            ),
            "x | 1, 2; 3 | y",
        ),
        (row(cell("x"), "<w:del/>") + row(cell("y")), "y"),
        (row(cell("x") + cell("y", "<w:cellDel/>") + cell("z")), "x |  | z"),
    ],
)
def test_cells_are_in_their_columns(rows: str, text: str) -> None:
    assert text_of(f"<w:tbl>{HEAD}{rows}</w:tbl>") == f"A | B | C\n{text}"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


@pytest.mark.parametrize(
    "hidden",
    [
        run("gone", "<w:vanish/>"),
        run("gone", '<w:rStyle w:val="C"/>'),
        run("gone", '<w:rStyle w:val="C2"/>'),
        f"<w:hyperlink>{run('gone', '<w:b/><w:vanish/>')}</w:hyperlink>",
        f"<w:del>{run('gone')}</w:del>",
        f"<w:moveFrom>{run('gone')}</w:moveFrom>",
        f"<w:ins><w:del>{run('gone')}</w:del></w:ins>",
    ],
)
def test_hidden_and_deleted_runs_are_not_read(hidden: str) -> None:
    body = f"<w:p>{run('Shown')}{hidden}{run('.')}</w:p>"
    extracted = read(body, {"styles.xml": HEADINGS})
    assert extracted.text == "Shown."
    told = ("hidden text left out: 1 word",) if "vanish" in hidden or "rStyle" in hidden else ()
    assert extracted.about.warnings == told


@pytest.mark.parametrize(
    "shown",
    [
        run("seen", '<w:vanish w:val="0"/>'),
        run("seen", "<w:webHidden/>"),
        run("seen", '<w:rStyle w:val="C"/><w:vanish w:val="false"/>'),
        f"<w:ins>{run('seen')}</w:ins>",
        f"<w:moveTo>{run('seen')}</w:moveTo>",
    ],
)
def test_visible_runs_are_read(shown: str) -> None:
    assert text_of(f"<w:p>{shown}</w:p>", {"styles.xml": HEADINGS}) == "seen"


def test_paragraphs_of_a_hidden_style_are_not_read() -> None:
    body = styled("gone", "Gone") + paragraph("Seen.")
    assert text_of(body, {"styles.xml": HEADINGS}) == "Seen."


DELETED = "<w:rPr><w:del/></w:rPr>"


def test_paragraphs_with_a_deleted_end_join_the_next() -> None:
    body = paragraph("One ", DELETED) + paragraph("two ", DELETED) + paragraph("three.")
    assert text_of(body) == "One two three."
    whole = f"<w:p><w:pPr>{DELETED}</w:pPr><w:del>{run('gone')}</w:del></w:p>{paragraph('Seen.')}"
    assert text_of(whole) == "Seen."
    lists = {"numbering.xml": numbering(CLAUSES)}
    inside = '<w:numPr><w:numId w:val="1"/></w:numPr>'
    gone = f"<w:p><w:pPr>{inside}{DELETED}</w:pPr><w:del>{run('gone')}</w:del></w:p>"
    assert text_of(item("a") + gone + item("b"), lists) == "1. a\n2. b"


def notes(kind: str, **texts: str) -> str:
    inside = "".join(
        f'<w:{kind} w:id="{i[1:]}">{paragraph(text)}</w:{kind}>' for i, text in texts.items()
    )
    return xml(f"w:{kind}s", f'<w:{kind} w:id="-1" w:type="separator"><w:p/></w:{kind}>{inside}')


def reference(kind: str, identifier: int, more: str = "", text: str = "") -> str:
    return f'<w:r><w:{kind}Reference w:id="{identifier}" {more}/>{text}</w:r>'


def test_notes_are_numbered_as_they_are_printed() -> None:
    body = (
        f"<w:p>{run('a')}{reference('footnote', 9)}{run(' b')}{reference('endnote', 4)}"
        f"{run(' c')}{reference('footnote', 2)}</w:p>"
    )
    parts = {
        "footnotes.xml": notes("footnote", _2="second", _5="of nothing", _9="first"),
        "endnotes.xml": notes("endnote", _4="end"),
    }
    assert text_of(body, parts) == ("a[^1] b[^e1] c[^2]\n\n[^1]: first\n[^2]: second\n\n[^e1]: end")


def test_notes_keep_custom_marks() -> None:
    star = reference("footnote", 1, 'w:customMarkFollows="1"', "<w:t>*</w:t>")
    body = f"<w:p>{run('a')}{star}{run(' b')}{reference('footnote', 2)}</w:p>"
    parts = {"footnotes.xml": notes("footnote", _1="star", _2="one")}
    assert text_of(body, parts) == "a[^*] b[^1]\n\n[^*]: star\n[^1]: one"


def test_deleted_notes_are_not_counted() -> None:
    body = (
        f"<w:p>{run('a')}<w:del>{reference('footnote', 1)}</w:del>{reference('footnote', 2)}</w:p>"
    )
    parts = {"footnotes.xml": notes("footnote", _1="gone", _2="seen")}
    assert text_of(body, parts) == "a[^1]\n\n[^1]: seen"


def comments(**texts: str) -> str:
    inside = "".join(
        f'<w:comment w:id="{i[1:]}" w:author="Ines" w:initials="I">{text}</w:comment>'
        for i, text in texts.items()
    )
    return xml("w:comments", inside)


MARK = '<w:r><w:commentReference w:id="{}"/></w:r>'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            f"<w:p>{run('a')}{MARK.format(1)}</w:p>{paragraph('b')}",
            "a\n\n[comment by Ines: No. Yes.]\n\nb",
        ),
        (
            f"<w:p>{run('a')}{MARK.format(1)}{MARK.format(2)}</w:p>{paragraph('b')}",
            "a\n\n[comment by Ines: No. Yes.]\n\n[comment by Ines: Indeed.]\n\nb",
        ),
        (
            "<w:tbl>"
            + row(f"<w:tc><w:p>{run('x')}{MARK.format(2)}</w:p></w:tc>" + cell("y"))
            + "</w:tbl>",
            "x | y\n\n[comment by Ines: Indeed.]\n\n[comment by Ines: No. Yes.]",
        ),
        (
            styled("A", "H1").replace("</w:p>", MARK.format(2) + "</w:p>") + paragraph("b"),
            "A\n\n[comment by Ines: Indeed.]\n\nb\n\n[comment by Ines: No. Yes.]",
        ),
        (paragraph("a"), "a\n\n[comment by Ines: No. Yes.]\n\n[comment by Ines: Indeed.]"),
    ],
)
def test_comments_follow_the_block_they_are_on(body: str, text: str) -> None:
    parts = {
        "comments.xml": comments(_1=paragraph("No.") + paragraph("Yes."), _2=paragraph("Indeed.")),
        "styles.xml": HEADINGS,
    }
    if MARK.format(1) in body and MARK.format(2) not in body:
        parts["comments.xml"] = comments(_1=paragraph("No.") + paragraph("Yes."))
    assert text_of(body, parts) == text


def test_comments_with_references_to_comments_are_read() -> None:
    inner = f"<w:p>{run('No.')}{MARK.format(2)}</w:p>"
    parts = {"comments.xml": comments(_1=inner, _2=paragraph("Yes."))}
    text = text_of(f"<w:p>{run('a')}{MARK.format(1)}</w:p>", parts)
    assert text == "a\n\n[comment by Ines: No.]\n\n[comment by Ines: Yes.]"


PAGE = "<html><head><title>T</title></head><body><p>In a chunk.</p><ol><li>one</ol></body></html>"
MHT = (
    "MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n--b\r\n"
    "Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    "<html><body><p>In a chunk.</p><p hidden>gone</p><ol><li>=6fne</ol></body></html>\r\n--b--\r\n"
)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.html", PAGE, "In a chunk.\n\n1. one"),
        ("a.xhtml", PAGE.replace("<li>one", "<li>one</li>"), "In a chunk.\n\n1. one"),
        ("a.mht", MHT, "In a chunk.\n\n1. one"),
        ("a.docx", docx(paragraph("In a chunk.") + paragraph("one")), "In a chunk.\n\none"),
        ("a.rtf", r"{\rtf1\ansi In a chunk.\par one}", "In a chunk.\n\none"),
        ("a.txt", "In a chunk.\r\n\r\none", "In a chunk.\n\none"),
    ],
)
def test_chunks_are_read_in_place(name: str, data: str | bytes, text: str) -> None:
    chunk = '<w:altChunk r:id="c1"/>'
    targets = {"c1": ("aFChunk", name)}
    body = paragraph("Before.") + chunk + paragraph("After.")
    assert text_of(body, {name: data}, targets=targets) == f"Before.\n\n{text}\n\nAfter."
    assert text_of(chunk, {name: data}, targets=targets) == text


@pytest.mark.parametrize(
    "target",
    ["#top", "NULL", "../NULL", "media/none.png", "", "document.xml#place", "file:///C:/none.png"],
)
def test_dangling_relations_are_ignored(target: str) -> None:
    body = (
        paragraph("Read.")
        + '<w:p><w:hyperlink r:id="h1"><w:r><w:t>top</w:t></w:r></w:hyperlink></w:p>'
    )
    assert text_of(body, targets={"h1": ("hyperlink", target)}) == "Read.\n\ntop"


def test_parts_may_be_named_as_on_windows() -> None:
    members = unzipped(docx(item("a"), {"numbering.xml": numbering(CLAUSES)}))
    renamed = {name.replace("/", "\\"): data for name, data in members.items()}
    data = zipped(renamed)
    assert parse(ParserInput(data=data, suffix=".docx", max_bytes=10_000_000)).text == "1. a"


POINTS = (
    '<dgm:ptLst><dgm:pt modelId="0" type="doc"/>'
    + "".join(
        f'<dgm:pt modelId="{i}"><dgm:t><a:p><a:r><a:t>{text}</a:t></a:r></a:p></dgm:t></dgm:pt>'
        for i, text in ((3, "Reap"), (1, "Sow"), (2, "in spring"))
    )
    + '<dgm:pt modelId="9" type="pres"/></dgm:ptLst><dgm:cxnLst>'
    '<dgm:cxn srcId="0" destId="3" srcOrd="1"/><dgm:cxn srcId="0" destId="1" srcOrd="0"/>'
    '<dgm:cxn srcId="1" destId="2" srcOrd="0"/></dgm:cxnLst>'
)
SMART_ART = xml("dgm:dataModel", POINTS)


def test_smart_art_is_read_in_its_order() -> None:
    art = '<w:p><w:r><w:drawing><dgm:relIds r:dm="d1"/></w:drawing></w:r></w:p>'
    targets = {"d1": ("diagramData", "diagrams/data1.xml")}
    parts: dict[str, str | bytes] = {"diagrams/data1.xml": SMART_ART}
    assert text_of(art, parts, targets=targets) == "Sow\nin spring\nReap"
    body = paragraph("a") + art + paragraph("b")
    assert text_of(body, parts, targets=targets) == "a\n\nSow\nin spring\nReap\n\nb"


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (run("10") + run("6", '<w:vertAlign w:val="superscript"/>') + run(" cells"), "10^6 cells"),
        (run("10") + run("6", '<w:rStyle w:val="Up"/>'), "10^6"),
        (run("10") + run("1", '<w:vertAlign w:val="superscript"/>') * 2, "10^11"),
        (run("H") + run("2", '<w:vertAlign w:val="subscript"/>') + run("O"), "H2O"),
        (run("the 1") + run("st", '<w:vertAlign w:val="superscript"/>'), "the 1st"),
        (run("harbour") + run("3", '<w:vertAlign w:val="superscript"/>'), "harbour[3]"),
        (run("10") + run("6", '<w:vertAlign w:val="baseline"/>'), "106"),
    ],
)
def test_raised_digits_do_not_run_into_others(inside: str, text: str) -> None:
    assert text_of(f"<w:p>{inside}</w:p>", {"styles.xml": HEADINGS}) == text


def test_ruby_follows_its_base() -> None:
    ruby = (
        f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('とうきょう')}</w:rt><w:rubyBase>{run('東京')}"
        "</w:rubyBase></w:ruby></w:r>"
    )
    assert text_of(f"<w:p>{ruby}{run('は')}</w:p>") == "東京(とうきょう)は"


BOX = "<w:txbxContent>{}</w:txbxContent>"


@pytest.mark.parametrize(
    "body",
    [
        f"<w:p><w:r><w:pict><v:shape><v:textbox>{BOX.format(paragraph('Boxed.'))}</v:textbox></v:shape></w:pict></w:r></w:p>",
        "<w:p><w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wps:txbx>"
        f"{BOX.format(paragraph('Boxed.'))}</wps:txbx></w:drawing></mc:Choice><mc:Fallback>"
        f"{BOX.format(paragraph('Boxed.'))}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
        "<w:p><w:r><w:pict><v:shape><v:textpath string='Boxed.'/></v:shape></w:pict></w:r></w:p>",
    ],
)
def test_documents_with_only_a_text_box_are_read(body: str) -> None:
    assert text_of(body) == "Boxed."


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("<w:checkBox><w:checked/></w:checkBox>", "[x] late"),
        ('<w:checkBox><w:default w:val="1"/><w:checked w:val="0"/></w:checkBox>', "[ ] late"),
        ("<w:checkBox/>", "[ ] late"),
        (
            '<w:ddList><w:result w:val="1"/><w:listEntry w:val="S"/><w:listEntry w:val="M"/></w:ddList>',
            "M late",
        ),
    ],
)
def test_form_fields_are_read(data: str, text: str) -> None:
    begin = f'<w:r><w:fldChar w:fldCharType="begin"><w:ffData>{data}</w:ffData></w:fldChar></w:r>'
    assert text_of(f"<w:p>{begin}{run(' late')}</w:p>") == text


def running(kind: str, text: str) -> str:
    return xml("w:hdr" if kind == "header" else "w:ftr", paragraph(text))


def test_only_headers_and_footers_of_pages_are_read() -> None:
    names = {"h1": "default", "h2": "first", "h3": "even"}
    parts: dict[str, str | bytes] = {
        f"{i}.xml": running("header", f"{kind} head") for i, kind in names.items()
    }
    parts["f1.xml"] = running("footer", "Foot")
    targets = {i: ("header", f"{i}.xml") for i in names} | {"f1": ("footer", "f1.xml")}
    heads = "".join(f'<w:headerReference w:type="{k}" r:id="{i}"/>' for i, k in names.items())
    foot = '<w:footerReference w:type="default" r:id="f1"/>'
    section = f"<w:sectPr>{heads}{foot}</w:sectPr>"
    body = paragraph("Text.") + section
    assert text_of(body, parts, targets=targets) == "default head\n\nText.\n\nFoot"
    first = (
        f"<w:p><w:pPr>{section}</w:pPr></w:p>{paragraph('Text.')}<w:sectPr><w:titlePg/></w:sectPr>"
    )
    assert text_of(first, parts, targets=targets).startswith("default head\n\nfirst head\n\nText.")
    parts["settings.xml"] = xml("w:settings", "<w:evenAndOddHeaders/>")
    assert "even head" in text_of(body, parts, targets=targets)


def test_charts_show_their_values_as_word_does() -> None:
    chart = xml(
        "c:chartSpace",
        "<c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Ferries</a:t></a:r></a:p></c:rich></c:tx></c:title>"
        "<c:plotArea><c:barChart><c:ser><c:tx><c:strRef><c:strCache><c:pt idx='0'><c:v>Share</c:v></c:pt>"
        "</c:strCache></c:strRef></c:tx><c:cat><c:numRef><c:numCache><c:formatCode>yyyy-mm-dd</c:formatCode>"
        "<c:pt idx='0'><c:v>45413</c:v></c:pt></c:numCache></c:numRef></c:cat><c:val><c:numRef><c:numCache>"
        "<c:formatCode>0.0%</c:formatCode><c:pt idx='0'><c:v>0.075</c:v></c:pt></c:numCache></c:numRef></c:val>"
        "</c:ser></c:barChart><c:valAx><c:title><c:tx><c:rich><a:p><a:r><a:t>of all</a:t></a:r></a:p></c:rich>"
        "</c:tx></c:title></c:valAx></c:plotArea></c:chart>",
    )
    body = '<w:p><w:r><w:drawing><c:chart r:id="k1"/></w:drawing></w:r></w:p>'
    shown = text_of(body, {"charts/c.xml": chart}, targets={"k1": ("chart", "charts/c.xml")})
    assert shown == "Ferries\nof all\n | Share\n2024-05-01 | 7.5%"


def test_embedded_objects_are_reported() -> None:
    body = paragraph("a") + "<w:p><w:r><w:object><o:OLEObject/></w:object></w:r></w:p>"
    assert read(body).about.warnings == ("embedded objects are not read: 1",)
