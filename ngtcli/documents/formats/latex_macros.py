"""What the macros and environments of LaTeX do with their arguments, as far as a reader sees it.

An argument is written as in pylatexenc: `*` a star, `[` an optional argument in brackets, `(` one
in parentheses, `{` a required one. The argument that is shown is not in these strings: it follows
them.
"""

import re
import unicodedata
from functools import cache

HEADINGS = frozenset(
    "part chapter section subsection subsubsection paragraph subparagraph frametitle"
    " addchap addsec newsec subsec subsubsec".split()
)
# The arguments of macros of which none is shown: lengths, counts, file names, labels, settings.
_UNSEEN = {
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
# The arguments in front of the one that is shown.
_BEFORE = {
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
UNSEEN = {name: spec for spec, names in _UNSEEN.items() for name in names}
BEFORE = {name: spec for spec, names in _BEFORE.items() for name in names}
# The arguments of environments, none of which is shown.
ENVIRONMENTS = {
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
TABULAR = frozenset(
    "tabular tabularx tabulary longtable supertabular xltabular tabu tblr array".split()
)
MATH = frozenset(
    "equation eqnarray align gather flalign multline alignat math displaymath dmath"
    " IEEEeqnarray xalignat xxalignat".split()
)
VERBATIM = {
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
HIDDEN = frozenset(["comment", "filecontents", "filecontents*", "CCSXML"])
DRAWN = frozenset(["tikzpicture", "pspicture", "picture", "pgfpicture", "tikzcd", "axis"])

CITED = frozenset(
    "cite citet citep citealt citealp citeauthor citeyear citeyearpar Citet Citep parencite"
    " textcite autocite footcite fullcite citenum citetext shortcite citeA citeasnoun onlinecite"
    " supercite smartcite Parencite Textcite Autocite footfullcite citealias".split()
)
REFERRED = dict.fromkeys("ref pageref autoref cref Cref vref nameref Ref fref".split(), "{}")
REFERRED["eqref"] = "({})"
INCLUDED = {"input": "{}", "include": "{}", "subfile": "{}", "bibliography": "{}.bib"}
INCLUDED |= {"addbibresource": "{}", "verbatiminput": "{}", "VerbatimInput": "{}"}

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

# Of siunitx: prefixes, units, and the rest.
_UNITS = {
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
UNITS = {f"\\{name}": sign for name, sign in _UNITS.items()}
PREFIXES = frozenset(f"\\{name}" for name in list(_UNITS)[:24])
POWERS = {"\\squared": "^2", "\\cubed": "^3"}


@cache
def symbols() -> dict[str, str]:
    """What macros without arguments print, by name: those of pylatexenc, and those here."""
    from pylatexenc.latex2text import get_default_latex_context_db

    known = {}
    for spec in get_default_latex_context_db().iter_macro_specs():
        shown = spec.simplify_repl
        if isinstance(shown, str) and "%" not in shown and shown:
            known[spec.macroname] = shown
    return known | SYMBOLS


def accented(accent: str, letter: str) -> str:
    """The letters with this accent of LaTeX upon the first.

    >>> accented('"', "o"), accented("c", "cao"), accented("'", "")
    ('ö', 'çao', '')
    """
    letter = {"ı": "i", "ȷ": "j"}.get(letter[:1], letter[:1]) + letter[1:]
    if not letter[:1].isalpha():
        return letter
    return unicodedata.normalize("NFC", letter[0] + _ACCENTS[accent]) + letter[1:]


def unit(source: str) -> str:
    r"""A unit of siunitx as it is printed.

    >>> unit(r"\kilo\gram"), unit(r"\metre\per\second\squared"), unit("m.s^{-1}")
    ('kg', 'm/s^2', 'm s^-1')
    """
    shown = ""
    for piece in re.findall(r"\\[A-Za-z]+|[^\\]+", source):
        name = piece.strip()
        if name == "\\per":
            shown = f"{shown.rstrip()}/"
        elif name in PREFIXES:
            shown += UNITS[name]
        elif name in POWERS:
            shown = shown.rstrip() + POWERS[name] + " "
        elif name.startswith("\\"):
            shown += UNITS.get(name, name[1:]) + " "
        else:
            shown += re.sub(r"[{}]", "", piece).replace(".", " ").replace("~", " ")
    return " ".join(shown.split()).replace("/ ", "/")
