"""LaTeX: its text without commands and comments, formulas as they are written, and headings."""

import re

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.text import decode_text

_HEADING = "\x1e"  # stands before one until the text is taken apart
_HEADINGS = "part chapter section subsection subsubsection paragraph subparagraph".split()
_EMPTY_LINE = re.compile(r"\n\s*\n")


def parse(source: Source) -> Extracted:
    """The text of a document; files that it includes are not read. Raises Unreadable."""
    context = get_default_latex_context_db()
    shown = [(name, f"{_HEADING}%(3)s") for name in _HEADINGS]
    shown += [("title", f"{_HEADING}%(1)s"), ("author", "%(1)s"), ("date", "%(1)s")]
    macros = [MacroTextSpec(name, simplify_repl=f"\n\n{form}\n\n") for name, form in shown]
    macros += [MacroTextSpec(name, simplify_repl="") for name in ("maketitle", "today")]
    context.add_context_category("blocks", prepend=True, macros=macros)
    reader = LatexNodes2Text(latex_context=context, math_mode="verbatim")
    writer = Writer()
    for block in _EMPTY_LINE.split(reader.latex_to_text(decode_text(source.data))):
        if block.startswith(_HEADING):
            writer.heading(block.removeprefix(_HEADING))
        else:
            writer.add(block)
    return writer.extracted("latex")
