"""The macros and environments of LaTeX: their arguments, and what a reader sees of them.

The arguments of a macro are written as in pylatexenc: `*` for a star, `[` for an optional argument
in brackets, `(` for one in parentheses, `{` for a required one. If an argument is shown, it follows
those in the string.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache

HEADINGS = frozenset(
    "part chapter section subsection subsubsection paragraph subparagraph frametitle"
    " addchap addsec newsec subsec subsubsec".split()
)
# The arguments of macros that show nothing: lengths, counts, file names, labels, settings.
_UNSEEN_ARGUMENTS = {
    "": "maketitle today centering raggedright raggedleft noindent indent newpage clearpage"
    " cleardoublepage pagebreak nopagebreak linebreak nolinebreak tableofcontents listoffigures"
    " listoftables appendix hline toprule midrule bottomrule selectfont normalfont bfseries"
    " itshape ttfamily sffamily rmfamily scshape mdseries upshape slshape em bf it tt sf rm sc sl"
    " tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge protect relax"
    " leavevmode null nobreak allowbreak break noalign eject vfill hfill vfil hfil hss vss"
    " smallskip medskip bigskip singlespacing doublespacing onehalfspacing makeatletter"
    " makeatother frontmatter mainmatter backmatter sloppy fussy flushbottom raggedbottom"
    " onecolumn immediate printindex makeindex boldmath unboldmath strut displaystyle textstyle"
    " global long outer unskip ignorespaces obeylines frenchspacing nonfrenchspacing endgroup"
    " begingroup bgroup egroup xspace dotfill hrulefill cleardoublepage break".split(),
    "[": "linebreak pagebreak nopagebreak nolinebreak footnotemark newline".split(),
    "{": "label pagestyle thispagestyle pagenumbering bibliographystyle hypersetup graphicspath"
    " usetikzlibrary tikzset geometry lstset hyphenation phantom hphantom vphantom nocite index"
    " glossary cline enlargethispage addvspace newlength newsavebox theoremstyle"
    " special message typeout errmessage includeonly linespread baselinestretch setstretch"
    " urlstyle bookmarksetup sisetup captionsetup allowdisplaybreaks numberwithin"
    " counterwithin selectlanguage mathversion DeclareGraphicsExtensions fontfamily fontseries"
    " fontshape fontencoding usefont stepcounter refstepcounter nobibliography markright"
    " setdefaultlanguage setmainfont setsansfont setmonofont pdfinfo PassOptionsToPackage"
    " usetheme usecolortheme usefonttheme".split(),
    "*{": "hspace vspace".split(),
    "[{": "documentclass documentstyle usepackage RequirePackage color pagecolor nopagecolor"
    " includepdf bibliographyunit".split(),
    "*[[{": ["includegraphics", "includesvg", "epsfig", "epsfbox", "psfig"],
    "{{": "setlength addtolength settowidth settoheight settodepth setcounter addtocounter"
    " markboth fontsize numberwithin setotherlanguage DeclareMathSymbol".split(),
    "{{{": "definecolor providecolor addcontentsline DeclareMathAlphabet rowcolors".split(),
    "[{{": ["rule", "colorlet"],
    "[({": ["cmidrule"],
    "{[": ["newcounter"],
    "*{{": ["titlespacing", "DeclarePairedDelimiter", "titleformat"],
}
# The arguments before the one that is shown.
_LEADING_ARGUMENTS = {
    "[": ["hyperref"],
    "[[": "makebox framebox".split(),
    "[[[{": ["parbox"],
    "{": "hyperlink hypertarget foreignlanguage adjustbox textattachfile".split(),
    "{[[": ["raisebox"],
    "*{{": ["resizebox"],
    "[{": "textcolor colorbox rotatebox scalebox".split(),
    "[{[{": ["fcolorbox"],
    "[{[{[": ["multirow"],
}


def _by_name(names_by_arguments: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The arguments of each macro by its name."""
    return {name: spec for spec, names in names_by_arguments.items() for name in names}


UNSEEN_ARGUMENTS = _by_name(_UNSEEN_ARGUMENTS)
LEADING_ARGUMENTS = _by_name(_LEADING_ARGUMENTS)
# The arguments of environments, which are not shown; the content is.
ENVIRONMENT_ARGUMENTS = {
    "figure": "[",
    "table": "[",
    "tabular": "[{",
    "tabularx": "{[{",
    "tabulary": "{[{",
    "longtable": "[{",
    "supertabular": "[{",
    "xltabular": "[{{",
    "tabu": "{",
    "tblr": "[{",
    "array": "[{",
    "minipage": "[[[{",
    "wrapfigure": "[{[{",
    "wraptable": "[{[{",
    "multicols": "{[",
    "thebibliography": "{",
    "subfigure": "[{",
    "subtable": "[{",
    "adjustbox": "{",
    "itemize": "[",
    "enumerate": "[",
    "description": "[",
    "list": "{{",
    "otherlanguage": "{",
    "spacing": "{",
    "tabbing": "",
    "letter": "",
    "threeparttable": "[",
    "tablenotes": "[",
    "sidewaystable": "[",
    "sidewaysfigure": "[",
    "algorithm": "[",
    "algorithmic": "[",
    "mdframed": "[",
    "tcolorbox": "[",
    "columns": "[",
    "column": "[{",
    "picture": "((",
    "appendices": "",
    "landscape": "",
    "SCfigure": "[[",
    "floatrow": "[",
    "CJK": "[{{",
    "CJK*": "[{{",
    "deluxetable": "{",
    "figwindow": "[",
    "beamercolorbox": "[{",
}
TABLE_ENVIRONMENTS = frozenset(
    "tabular tabularx tabulary longtable supertabular xltabular tabu tblr array".split()
)
MATH_ENVIRONMENTS = frozenset(
    "equation eqnarray align gather flalign multline alignat math displaymath dmath"
    " IEEEeqnarray xalignat xxalignat".split()
)
# Environments whose content is shown as it is, and their arguments.
VERBATIM_ARGUMENTS = {
    "verbatim": "",
    "Verbatim": "[",
    "BVerbatim": "[",
    "LVerbatim": "[",
    "lstlisting": "[",
    "minted": "[{",
    "alltt": "",
    "filecontents": "[{",
    "spverbatim": "",
    "code": "",
}
HIDDEN_ENVIRONMENTS = frozenset(["comment", "filecontents", "filecontents*", "CCSXML"])
PICTURE_ENVIRONMENTS = frozenset(
    ["tikzpicture", "pspicture", "picture", "pgfpicture", "tikzcd", "axis"]
)

CITATIONS = frozenset(
    "cite citet citep citealt citealp citeauthor citeyear citeyearpar Citet Citep parencite"
    " textcite autocite footcite fullcite citenum citetext shortcite citeA citeasnoun onlinecite"
    " supercite smartcite Parencite Textcite Autocite footfullcite citealias".split()
)
# How references to labels are shown.
REFERENCE_PATTERNS = dict.fromkeys(
    "ref pageref autoref cref Cref vref nameref Ref fref".split(), "{}"
)
REFERENCE_PATTERNS["eqref"] = "({})"
# The files that macros include.
INCLUDED_FILES = {"input": "{}", "include": "{}", "subfile": "{}", "bibliography": "{}.bib"}
INCLUDED_FILES |= {"addbibresource": "{}", "verbatiminput": "{}", "VerbatimInput": "{}"}

# What macros without arguments print; "\v" is the end of a line.
SYMBOLS = {
    "\\": "\v",
    "newline": "\v",
    "and": "\v",
    "tabularnewline": "\v",
    "cr": "\v",
    "par": "\n\n",
    "endgraf": "\n\n",
    "quad": " ",
    "qquad": " ",
    ",": " ",
    ";": " ",
    ":": " ",
    " ": " ",
    "!": "",
    "-": "",
    "/": "",
    "@": "",
    "\n": " ",
    "\t": " ",
    "space": " ",
    ">": " ",
    "<": "",
    "+": "",
    "thinspace": " ",
    "enspace": " ",
    "LaTeX": "LaTeX",
    "LaTeXe": "LaTeX2e",
    "TeX": "TeX",
    "BibTeX": "BibTeX",
    "ldots": "…",
    "dots": "…",
    "textellipsis": "…",
    "textbar": "|",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textunderscore": "_",
    "textless": "<",
    "textgreater": ">",
    "textbackslash": "\\",
    "slash": "/",
    "euro": "€",
    "texteuro": "€",
    "EUR": "€",
    "textdegree": "°",
    "degree": "°",
    "celsius": "°C",
    "textmu": "µ",
    "textohm": "Ω",
    "textperthousand": "‰",
    "textnumero": "№",
    "checkmark": "✓",
    "textquotesingle": "'",
    "guillemotleft": "«",
    "guillemotright": "»",
    "og": "« ",
    "fg": " »",
    "glqq": "„",
    "grqq": "“",
    "glq": "‚",
    "grq": "‘",
    "textquotedblleft": "“",
    "textquotedblright": "”",
    "textquoteleft": "‘",
    "textquoteright": "’",
    "textendash": "–",
    "textemdash": "—",
    "textbullet": "•",
    "textperiodcentered": "·",
    "textsterling": "£",
    "pounds": "£",
    "copyright": "©",
    "textcopyright": "©",
    "textregistered": "®",
    "texttrademark": "™",
    "S": "§",
    "P": "¶",
    "dag": "†",
    "ddag": "‡",
    "lq": "‘",
    "rq": "’",
    "%": "%",
    "$": "$",
    "&": "&",
    "#": "#",
    "_": "_",
    "{": "{",
    "}": "}",
    "i": "ı",
    "j": "ȷ",
    "ss": "ß",
    "o": "ø",
    "O": "Ø",
    "ae": "æ",
    "AE": "Æ",
    "oe": "œ",
    "OE": "Œ",
    "aa": "å",
    "AA": "Å",
    "l": "ł",
    "L": "Ł",
    "dh": "ð",
    "DH": "Ð",
    "th": "þ",
    "TH": "Þ",
    "dj": "đ",
    "DJ": "Đ",
    "ng": "ŋ",
    "NG": "Ŋ",
}
# The combining characters of accents.
_ACCENTS = {
    "'": "\u0301",
    "`": "\u0300",
    '"': "\u0308",
    "^": "\u0302",
    "~": "\u0303",
    "=": "\u0304",
    ".": "\u0307",
    "u": "\u0306",
    "v": "\u030c",
    "H": "\u030b",
    "c": "\u0327",
    "k": "\u0328",
    "d": "\u0323",
    "b": "\u0331",
    "r": "\u030a",
    "t": "\u0361",
    "G": "\u030f",
}
ACCENTS = frozenset(_ACCENTS)

# The prefixes of siunitx, its units, and their abbreviations.
_PREFIXES = {
    "yocto": "y",
    "zepto": "z",
    "atto": "a",
    "femto": "f",
    "pico": "p",
    "nano": "n",
    "micro": "µ",
    "milli": "m",
    "centi": "c",
    "deci": "d",
    "deca": "da",
    "hecto": "h",
    "kilo": "k",
    "mega": "M",
    "giga": "G",
    "tera": "T",
    "peta": "P",
    "exa": "E",
    "zetta": "Z",
    "yotta": "Y",
    "kibi": "Ki",
    "mebi": "Mi",
    "gibi": "Gi",
    "tebi": "Ti",
}
_UNITS = {
    "ampere": "A",
    "candela": "cd",
    "kelvin": "K",
    "kilogram": "kg",
    "gram": "g",
    "metre": "m",
    "meter": "m",
    "mole": "mol",
    "second": "s",
    "becquerel": "Bq",
    "degreeCelsius": "°C",
    "celsius": "°C",
    "coulomb": "C",
    "farad": "F",
    "gray": "Gy",
    "hertz": "Hz",
    "henry": "H",
    "joule": "J",
    "katal": "kat",
    "lumen": "lm",
    "lux": "lx",
    "newton": "N",
    "ohm": "Ω",
    "pascal": "Pa",
    "radian": "rad",
    "siemens": "S",
    "sievert": "Sv",
    "steradian": "sr",
    "tesla": "T",
    "volt": "V",
    "watt": "W",
    "weber": "Wb",
    "day": "d",
    "hour": "h",
    "minute": "min",
    "litre": "l",
    "liter": "L",
    "tonne": "t",
    "hectare": "ha",
    "degree": "°",
    "arcminute": "′",
    "arcsecond": "″",
    "percent": "%",
    "electronvolt": "eV",
    "dalton": "Da",
    "bel": "B",
    "decibel": "dB",
    "neper": "Np",
    "astronomicalunit": "au",
    "bar": "bar",
    "angstrom": "Å",
    "byte": "B",
    "bit": "bit",
    "knot": "kn",
    "mmHg": "mmHg",
    "atomicmassunit": "u",
    "kg": "kg",
    "g": "g",
    "mg": "mg",
    "ug": "µg",
    "m": "m",
    "km": "km",
    "cm": "cm",
    "mm": "mm",
    "um": "µm",
    "nm": "nm",
    "s": "s",
    "ms": "ms",
    "us": "µs",
    "ns": "ns",
    "A": "A",
    "mA": "mA",
    "V": "V",
    "mV": "mV",
    "kV": "kV",
    "W": "W",
    "mW": "mW",
    "kW": "kW",
    "MW": "MW",
    "J": "J",
    "kJ": "kJ",
    "K": "K",
    "Hz": "Hz",
    "kHz": "kHz",
    "MHz": "MHz",
    "GHz": "GHz",
    "N": "N",
    "kN": "kN",
    "Pa": "Pa",
    "kPa": "kPa",
    "MPa": "MPa",
    "L": "L",
    "ml": "ml",
    "mL": "mL",
    "eV": "eV",
    "keV": "keV",
    "MeV": "MeV",
    "GeV": "GeV",
    "mol": "mol",
    "kWh": "kWh",
    "F": "F",
    "pF": "pF",
    "nF": "nF",
    "uF": "µF",
    "dB": "dB",
    "C": "C",
    "h": "h",
    "min": "min",
}
PREFIXES = {f"\\{name}": sign for name, sign in _PREFIXES.items()}
UNITS = {f"\\{name}": sign for name, sign in _UNITS.items()}
POWERS = {"\\squared": "^2", "\\cubed": "^3"}


@cache
def symbols() -> dict[str, str]:
    """Map macros without arguments to what they print: those of pylatexenc, and SYMBOLS."""
    from pylatexenc.latex2text import get_default_latex_context_db

    texts = {}
    for spec in get_default_latex_context_db().iter_macro_specs():
        text = spec.simplify_repl
        has_arguments = isinstance(text, str) and "%" in text
        if isinstance(text, str) and text and not has_arguments:
            texts[spec.macroname] = text
    return texts | SYMBOLS


def add_accent(accent: str, text: str) -> str:
    """Put an accent of LaTeX on the first letter of a text.

    >>> add_accent('"', "o"), add_accent("c", "cao"), add_accent("'", "")
    ('ö', 'çao', '')
    """
    first = {"ı": "i", "ȷ": "j"}.get(text[:1], text[:1])  # an accent replaces the dot
    rest = text[1:]
    if not first.isalpha():
        return first + rest
    return unicodedata.normalize("NFC", first + _ACCENTS[accent]) + rest


def unit_text(source: str) -> str:
    r"""Write a unit of siunitx as it is printed.

    >>> unit_text(r"\kilo\gram"), unit_text(r"\metre\per\second\squared"), unit_text("m.s^{-1}")
    ('kg', 'm/s^2', 'm s^-1')
    """
    text = ""
    for part in re.findall(r"\\[A-Za-z]+|[^\\]+", source):
        macro = part.strip()
        if macro == "\\per":
            text = f"{text.rstrip()}/"
        elif macro in PREFIXES:
            text += PREFIXES[macro]
        elif macro in POWERS:
            text = f"{text.rstrip()}{POWERS[macro]} "
        elif macro.startswith("\\"):
            text += UNITS.get(macro, macro[1:]) + " "
        else:
            text += re.sub(r"[{}]", "", part).replace(".", " ").replace("~", " ")
    return " ".join(text.split()).replace("/ ", "/")
