"""Office files made of their parts' XML, with what a test is about and little else."""

from collections.abc import Mapping

from tests.document_files import zipped

OPEN = "http://schemas.openxmlformats.org/"
_RELATIONS = f"{OPEN}officeDocument/2006/relationships"
SPACES = {
    "w": f"{OPEN}wordprocessingml/2006/main",
    "a": f"{OPEN}drawingml/2006/main",
    "p": f"{OPEN}presentationml/2006/main",
    "r": _RELATIONS,
    "c": f"{OPEN}drawingml/2006/chart",
    "m": f"{OPEN}officeDocument/2006/math",
    "mc": f"{OPEN}markup-compatibility/2006",
    "dgm": f"{OPEN}drawingml/2006/diagram",
    "xdr": f"{OPEN}drawingml/2006/spreadsheetDrawing",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "v": "urn:schemas-microsoft-com:vml",
    "o": "urn:schemas-microsoft-com:office:office",
    "cx": "http://schemas.microsoft.com/office/drawing/2014/chartex",
    "p188": "http://schemas.microsoft.com/office/powerpoint/2018/8/main",
}
_DECLARED = " ".join(f'xmlns:{name}="{space}"' for name, space in SPACES.items())


CONTENT_TYPES = (
    f'<Types xmlns="{OPEN}package/2006/content-types">'
    '<Default Extension="rels" ContentType='
    '"application/vnd.openxmlformats-package.relationships+xml"/>'
    + "".join(
        f'<Default Extension="{suffix}" ContentType="application/{suffix}"/>'
        for suffix in ("xml", "html", "xhtml", "mht", "docx", "rtf", "txt")
    )
    + "</Types>"
)


def xml(tag: str, inside: str, more: str = "") -> str:
    """A part whose root is this element."""
    return f"<{tag} {_DECLARED} {more}>{inside}</{tag}>"


def relations(targets: Mapping[str, tuple[str, str]], external: tuple[str, ...] = ()) -> str:
    """The relations of a part: a kind and a target for each id."""
    rows = "".join(
        f'<Relationship Id="{i}" Type="{_RELATIONS}/{kind}" Target="{target}"'
        + (' TargetMode="External"' if i in external else "")
        + "/>"
        for i, (kind, target) in targets.items()
    )
    return f'<Relationships xmlns="{OPEN}package/2006/relationships">{rows}</Relationships>'


def docx(
    body: str,
    parts: Mapping[str, str | bytes] | None = None,
    targets: Mapping[str, tuple[str, str]] | None = None,
) -> bytes:
    """A Word file; parts lie in `word/`, and those of usual names are related to."""
    parts = parts or {}
    kinds = {
        "numbering.xml": "numbering",
        "styles.xml": "styles",
        "comments.xml": "comments",
        "footnotes.xml": "footnotes",
        "endnotes.xml": "endnotes",
        "settings.xml": "settings",
    }
    usual = {f"u{kind}": (kind, name) for name, kind in kinds.items() if name in parts}
    return zipped(
        {
            "[Content_Types].xml": CONTENT_TYPES,
            "_rels/.rels": relations({"r1": ("officeDocument", "word/document.xml")}),
            "word/document.xml": xml("w:document", f"<w:body>{body}</w:body>"),
            "word/_rels/document.xml.rels": relations({**usual, **(targets or {})}),
            **{f"word/{name}": part for name, part in parts.items()},
        }
    )


def paragraph(text: str, properties: str = "", run: str = "") -> str:
    """A paragraph of one run, with these properties."""
    words = f'<w:t xml:space="preserve">{text}</w:t>' if text else ""
    of_run = f"<w:rPr>{run}</w:rPr>" if run else ""
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r>{of_run}{words}</w:r></w:p>"


def item(text: str, level: int = 0, number: int | str = 1) -> str:
    """A paragraph of a list."""
    return paragraph(
        text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>'
    )


def level(index: int, text: str, style: str = "decimal", start: int = 1, more: str = "") -> str:
    """A level of a numbering."""
    return (
        f'<w:lvl w:ilvl="{index}"><w:start w:val="{start}"/><w:numFmt w:val="{style}"/>{more}'
        f'<w:lvlText w:val="{text}"/></w:lvl>'
    )


def numbering(levels: str, *nums: str) -> str:
    """A numbering of these levels; each of `nums` is what a list changes of it."""
    lists = "".join(
        f'<w:num w:numId="{i}"><w:abstractNumId w:val="0"/>{change}</w:num>'
        for i, change in enumerate(nums or ("",), 1)
    )
    return xml("w:numbering", f'<w:abstractNum w:abstractNumId="0">{levels}</w:abstractNum>{lists}')
