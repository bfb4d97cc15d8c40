r"""LaTeX: the text that is printed, formulas as they are written, and headings.

The source is read once, token by token, and macros that it defines are expanded, so that the time
grows linearly with the text. (pylatexenc is used only for its table of symbols: its parser reads a
group again after each error in it, and took minutes for real theses.)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ngtcli.documents.content import Extracted, ParserInput, Writer, row_of
from ngtcli.documents.formats import latex_macros as macros
from ngtcli.documents.text import Unreadable, decode_with_warnings

_TOKEN = re.compile(
    r"\\[A-Za-z@]+(?:[ \t]*\n(?![ \t]*\n))?[ \t]*"  # a control word, and the space after it
    r"|\\(?:\r?\n|.)"  # a control symbol
    r"|%[^\n]*(?:\n[ \t]*)?"  # a comment, which hides the end of its line
    r"|\n[ \t]*\n\s*"  # the end of a paragraph
    r"|\$\$|[{}\[\]$&~#]"
    r"|[^\\%{}\[\]$&~#\n]+|\n|\\",
    re.DOTALL,
)
_ARGUMENT = re.compile(r"#+([1-9])")
_SPACE = re.compile(r"[ \t\n\r\f]+")
_AROUND_BREAK = re.compile(r" ?\v ?")
_DIMENSION = re.compile(
    r"\s*=?\s*[-+]?(?:\d*\.?\d+\s*(?:true\s*)?(?:pt|cm|mm|in|ex|em|bp|pc|dd|cc|sp|fil+)?"
    r"|\\[A-Za-z@]+)(?:\s*(?:plus|minus)\s*[-+]?\d*\.?\d+\s*(?:pt|cm|mm|in|ex|em|fil+)?)*"
)
# Registers of TeX. The number or length that may follow one is not printed.
_REGISTERS = frozenset(
    "vskip hskip kern hsize vsize parindent parskip baselineskip textwidth textheight topmargin"
    " oddsidemargin evensidemargin headheight headsep footskip hoffset voffset columnsep tabcolsep"
    " magnification tolerance penalty hbadness vbadness looseness clubpenalty widowpenalty"
    " topskip leftskip rightskip lineskip abovedisplayskip belowdisplayskip arraystretch"
    " mathsurround pageno overfullrule raise lower moveleft moveright vglue hglue linewidth"
    " unitlength arraycolsep itemsep parsep topsep partopsep leftmargin labelwidth".split()
)
# Patterns of what follows other primitives of TeX, and is not printed.
_PRIMITIVE_ARGUMENTS = {
    **dict.fromkeys(("hbox", "vbox", "vtop"), r"(?:to|spread)\s*[-\d.]*\s*[\\A-Za-z]+"),
    "font": r"\\[A-Za-z@]+\s*=?\s*[\w./-]+(?:\s+(?:scaled|at)\s+[\w.\\]+)?",
    "advance": r"\\?[A-Za-z@\d]+\s*(?:by)?\s*[-+]?(?:[\d.]+\s*(?:pt|cm|mm|in|ex|em)?|\\[A-Za-z@]+)",
    "setbox": r"(?:\d+|\\[A-Za-z@]+)\s*=?",
    **dict.fromkeys(
        ("catcode", "lccode", "uccode", "mathcode", "sfcode"),
        r"(?:`\\?.|\d+)\s*=?\s*(?:`\\?.|\d+|\\active)",
    ),
    **dict.fromkeys(
        ("count", "dimen", "skip", "toks", "box", "copy"), r"\d+\s*(?:=\s*[-+]?[\d.]+\w*)?"
    ),
    "char": r"(?:`\\?.|\"[0-9A-F]+|\d+)",
}
# How many tokens each condition compares.
_COMPARED_TOKENS = {"ifx": 2, "if": 2, "ifcat": 2, "ifdefined": 1, "ifcsname": 1}
_QUOTES = (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”"), (",,", "„"), ("`", "‘"))
_SINGLE_QUOTED = re.compile(r"‘((?:[^‘'\n]|'(?=\w)){1,200})'(?!\w)")
_DIGITS = re.compile(r"[-+−–]?\d+(?:[.,]\d+)?")
_NODE = re.compile(r"\bnode\b[^;{]*(?=\{)")
_BEGIN_DOCUMENT = re.compile(r"^[^%\n]*\\begin\s*\{document\}", re.MULTILINE)
_BOOK_CLASS = re.compile(r"\\documentclass[^{]*\{[^}]*(?:book|report)")
_INPUT_ENCODING = re.compile(rb"\\usepackage\s*\[([\w-]+)\]\s*\{inputenc\}")
_ENCODINGS = {"ansinew": "cp1252", "applemac": "mac_roman", "latin9": "iso8859-15"}
_LISTS = frozenset("itemize enumerate description list compactitem compactenum".split())
# The star and the distance that may follow \\.
_LINE_BREAK_ARGUMENTS = r"\*?(?:[ \t]*\[\s*[-+]?[\d.]+\s*\\?[A-Za-z]*\s*\])?"
_MAX_EXPANSION_RATIO = 20  # characters of expansions per character of the file (guess)
_MIN_EXPANSION_LIMIT = 1_000_000  # characters of expansions that any file may have (guess)
_MAX_OPTIONAL_TOKENS = 200  # tokens; beyond it, the bracket is taken for unclosed (guess)
_MAX_DEPTH = 30  # of texts that are collected within others (guess)
_MAX_HEADING = 300  # characters; a longer heading has an unclosed brace (guess)
_ORDINALS = ("1", "a", "i", "A")  # of nested lists, from the outermost
_BRACES = {"{": 1, "}": -1}  # the change of the group depth

Finish = Callable[[str], None]


@dataclass(slots=True)
class _Macro:
    """A macro that the file defines.

    Attributes:
        body: Its expansion.
        spec: A letter for each argument, as in `latex_macros`.
        default: The default of an optional first argument.
        until: For \\def, the text that ends each argument.
        begin: For \\def, the text before the first argument.
    """

    body: str
    spec: str = ""
    default: str = ""
    until: tuple[str, ...] = ()
    begin: str = ""


@dataclass(slots=True)
class _Scope:
    """An open group "{" or environment.

    Attributes:
        name: "{", or the name of the environment.
        finish: Called at its end.
        collects: Whether `finish` gets its text, which then does not go to the output.
    """

    name: str
    finish: Callable[[str], None] | None = None
    collects: bool = False


@dataclass(slots=True)
class _List:
    """An open list, and the number of its last item."""

    is_numbered: bool
    number: int = 0


class _Table:
    """The rows of a table; `ahead` is the number of further columns that the current cell spans."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.row: list[str] = []
        self.out: list[str] = []  # of the cell that is being read
        self.ahead = 0

    def cell(self, text: str) -> None:
        self.row.append(text)
        self.row += [""] * self.ahead
        self.ahead = 0

    def end_row(self) -> None:
        if any(self.row):
            self.rows.append(self.row)
        self.row = []


def parse(source: ParserInput) -> Extracted:
    """Return the text of a file. Files that it includes are named, not read. Raises Unreadable."""
    declared = _INPUT_ENCODING.search(source.data)
    encoding = declared[1].decode() if declared else ""
    text, warnings = decode_with_warnings(
        source.data, source.encoding, _ENCODINGS.get(encoding, encoding)
    )
    reader = _Reader(text)
    reader.read()
    if not len(reader.writer) and reader.included:
        names = ", ".join(reader.included)[:200]
        raise Unreadable(
            f"it has no text, but includes these files: {names}", "Read those files instead."
        )
    return reader.writer.extracted("latex", warnings + reader.warnings())


class _Reader:
    """Reads a source from beginning to end; `writer` gets the printed text."""

    def __init__(self, source: str) -> None:
        self.writer = Writer()
        self.included: dict[str, None] = {}
        self._drawings = 0
        self._has_endless_macro = False
        self._frames: list[tuple[str, int]] = [(source, 0)]
        self._expansion_left = max(_MIN_EXPANSION_LIMIT, _MAX_EXPANSION_RATIO * len(source))
        self._macros: dict[str, _Macro] = {}
        self._environments: dict[str, tuple[_Macro, str]] = {}
        self._theorems: dict[str, str] = {}
        self._conditions: dict[str, bool] = {}
        self._open: list[_Scope] = []
        self._counts: dict[str, int] = {}  # of open groups and environments, by name
        # The pieces of the current block, and of the texts that are collected within it.
        self._outputs: list[list[str]] = [[]]
        self._tables: list[_Table] = []
        self._lists: list[_List] = []
        self._item = ""  # the mark of a list item whose text has not begun
        self._item_depth = 0  # how many lists that item is in
        self._in_preamble = _BEGIN_DOCUMENT.search(source) is not None
        self._is_book = _BOOK_CLASS.search(source) is not None
        self._done = False
        self._symbols = macros.symbols()

    def warnings(self) -> tuple[str, ...]:
        """Return warnings of what was left out."""
        warnings = []
        if self.included:
            names = ", ".join(self.included)[:200]
            warnings.append(f"included files were not read: {names}")
        if self._drawings:
            warnings.append(f"drawings left out, except for the words in them: {self._drawings}")
        if self._has_endless_macro:
            warnings.append("macros that expand to too much text were left out")
        return tuple(warnings)

    def read(self) -> None:
        """Read the whole source."""
        while not self._done and (token := self._next()):
            self._read_construct(token)
        while self._open:
            self._close()
        self._flush()

    # Tokens.

    def _next(self) -> str:
        """Return the next token that is not a comment; "" at the end."""
        while self._frames:
            text, at = self._frames[-1]
            if at >= len(text):
                self._frames.pop()
                continue
            match = _TOKEN.match(text, at)
            assert match is not None
            self._frames[-1] = text, match.end()
            if not match[0].startswith("%"):
                return match[0]
        return ""

    def _push(self, text: str) -> None:
        """Read `text` next, before the rest of the source."""
        if text:
            while self._frames and self._frames[-1][1] >= len(self._frames[-1][0]):
                self._frames.pop()  # so that tail recursion of a macro takes no memory
            self._frames.append((text, 0))

    def _push_expansion(self, text: str) -> None:
        """Read the expansion of a macro next, unless all expansions together are too long."""
        self._expansion_left -= len(text) + 1
        if self._expansion_left < 0:
            self._has_endless_macro = True
        else:
            self._push(text)

    def _peek(self) -> str:
        """Skip white space and return the next token without reading it."""
        while token := self._next():
            if not token.isspace():
                token = token.lstrip()
                self._push(token)
                return token
            if "\n" in token.strip(" \t") and token.count("\n") > 1:  # a paragraph ends here
                self._push(token)
                return token
        return ""

    def _rest_of_group(self) -> str:
        """Read the rest of a group and its closing brace; return the source without the brace."""
        parts = list[str]()
        depth = 0
        while token := self._next():
            if depth == 0 and token == "}":
                break
            depth += _BRACES.get(token, 0)
            parts.append(token)
        return "".join(parts)

    def _is_blank_ahead(self) -> bool:
        """Return whether white space comes next that does not end a paragraph."""
        token = self._next()
        self._push(token)
        return token[:1].isspace() and token.count("\n") < 2

    def _required(self) -> str:
        """Read a required argument, a group or one token; return its source."""
        token = self._peek()
        if not token or token == "}" or token.count("\n") > 1:
            return ""
        self._next()
        if token == "{":
            return self._rest_of_group()
        if token[0] not in "\\{}[]$&~#":
            self._push(token[1:])
            return token[0]
        return token.strip() if len(token) > 2 else token

    def _optional(self) -> str | None:
        """Read an argument in brackets; return its source, or None if there is none or no "]"."""
        is_blank_ahead = self._is_blank_ahead()
        if self._peek() != "[":
            if is_blank_ahead:
                self._push(" ")
            return None
        self._next()
        parts = list[str]()
        depth = 0
        while (token := self._next()) and len(parts) < _MAX_OPTIONAL_TOKENS:
            if depth == 0 and token == "]":
                return "".join(parts)
            depth += _BRACES.get(token, 0)
            if depth < 0 or token.count("\n") > 1:
                break
            parts.append(token)
        self._push("".join(["[", *parts, token]))
        return None

    def _skip(self, spec: str) -> list[str]:
        """Read arguments of these kinds; return the sources of the required ones."""
        required = []
        for kind in spec:
            if kind == "{":
                required.append(self._required())
            elif kind == "[":
                self._optional()
            elif kind == "*":
                self._match(r"\*")
            elif kind == "(":
                self._match(r"\([^()\n]*\)")
        return required

    def _match(self, pattern: str) -> str:
        """Read and return what comes next in this frame if it matches a pattern; else return ""."""
        while self._frames and self._frames[-1][1] >= len(self._frames[-1][0]):
            self._frames.pop()
        if not self._frames:
            return ""
        text, at = self._frames[-1]
        match = re.compile(rf"[ \t]*{pattern}").match(text, at)
        if match is None:
            return ""
        self._frames[-1] = text, match.end()
        return match[0]

    def _raw_group(self) -> str:
        """Read a group in which "%" is an ordinary character, such as a URL; return its text."""
        if self._peek() != "{":
            return self._required()
        self._next()
        while self._frames[-1][1] >= len(self._frames[-1][0]) and len(self._frames) > 1:
            self._frames.pop()
        text, at = self._frames[-1]
        group = _group(text, at)
        self._frames[-1] = text, at + len(group) + 1
        return re.sub(r"\\([%#&_~{}])", r"\1", group)

    # What is printed.

    def _put(self, text: str) -> None:
        if not self._in_preamble or len(self._outputs) > 1:
            self._outputs[-1].append(text)

    def _pop_output(self) -> str:
        """Remove the innermost output; return its text with white space normalized."""
        text = _SPACE.sub(" ", "".join(self._outputs.pop()))
        return (
            _SINGLE_QUOTED.sub(r"‘\1’", _AROUND_BREAK.sub("\n", text))
            .replace("\u00a0", " ")
            .strip()
        )

    def _flush(self) -> None:
        """End the block; within collected text, put a space instead."""
        if len(self._outputs) > 1:
            self._put(" ")
            return
        block = self._pop_output()
        self._outputs.append([])
        if self._item and block:
            self.writer.add(f"{self._item} {block}", "li")
            self._item = ""
        elif block:
            self.writer.add(block)

    def _block(self, text: str) -> None:
        """Write a block of its own, unchanged; within collected text, put its words instead."""
        if len(self._outputs) > 1:
            self._put(f" {text} ")
        elif not self._in_preamble:
            self._flush()
            self.writer.add(f"{self._item} {text}".lstrip())
            self._item = ""

    def _heading(self, text: str) -> None:
        """Write a heading; within collected text put its words, in the preamble nothing."""
        if len(self._outputs) > 1:
            self._put(f" {text} ")
            return
        if self._in_preamble:
            return
        self._flush()
        if len(text) <= _MAX_HEADING:
            self.writer.heading(text)
        else:
            self.writer.add(text)

    # Groups and environments.

    def _begin(self, name: str, finish: Finish | None = None, collects: bool = False) -> None:
        if collects and len(self._outputs) > _MAX_DEPTH:  # its text is shown in place
            finish = None
            collects = False
        self._open.append(_Scope(name, finish, collects))
        self._counts[name] = self._counts.get(name, 0) + 1
        if collects:
            self._outputs.append([])

    def _close(self) -> None:
        last = self._open.pop()
        self._counts[last.name] -= 1
        text = self._pop_output() if last.collects else ""
        if last.finish:
            last.finish(text)

    def _end(self, name: str) -> None:
        """Close `name` and everything that is open within it, if it is open."""
        if self._counts.get(name, 0):
            while self._open[-1].name != name:
                self._close()
            self._close()

    def _with_next(self, finish: Finish, collects: bool = True) -> None:
        """Call `finish` at the end of the next argument; if `collects`, with its text."""
        if self._peek() == "{":
            self._next()
        else:
            self._push(self._required() + "}")
        self._begin("{", finish, collects)

    def _read_construct(self, token: str) -> None:
        """Read the construct that begins with this token."""
        first = token[0]
        if first == "\\":
            self._read_macro(token)
        elif token == "{":
            self._begin("{")
        elif token == "}":
            self._end("{")
        elif first == "$":
            self._math(token, token)
        elif token == "&":
            if self._tables:
                self._end_cell()
            else:
                self._put(" ")
        elif token == "~":
            self._put(" ")
        elif token.isspace():
            if token.count("\n") > 1:
                self._flush()
            else:
                self._put(" ")
        elif token != "#":
            for source, sign in _QUOTES:
                token = token.replace(source, sign)
            self._put(token)

    def _read_macro(self, token: str) -> None:
        """Read a macro."""
        name = token[1:].strip() or token[1:2]
        if name in self._macros:
            self._expand_macro(self._macros[name])
        elif name == "begin":
            self._begin_environment(self._required().strip())
        elif name == "end":
            self._end_environment(self._required().strip())
        elif name in ("(", "["):
            self._math(token, "\\)" if name == "(" else "\\]")
        elif (method := _DEFINING.get(name)) or (method := _PRINTING.get(name)):
            method(self, name)
        elif name in macros.HEADINGS:
            self._skip("*[")
            self._with_next(self._heading)
        elif name in macros.CITATIONS:
            self._cite()
        elif name in macros.REFERENCE_PATTERNS:
            self._skip("*")
            self._put(macros.REFERENCE_PATTERNS[name].format(self._required()))
        elif name in macros.INCLUDED_FILES:
            self._include(name)
        elif name in macros.ACCENTS and not (name in "=`'" and self._counts.get("tabbing")):
            self._with_next(lambda text: self._put(macros.add_accent(name, text)))
        elif name.startswith("if") and name not in ("ifthenelse", "iff"):
            self._condition(name)
        elif name in ("else", "or"):
            self._skip_branch()
        elif name == "fi":
            pass
        elif name in macros.UNSEEN_ARGUMENTS:
            self._skip(macros.UNSEEN_ARGUMENTS[name])
        elif name in macros.LEADING_ARGUMENTS:
            self._skip(macros.LEADING_ARGUMENTS[name])
        elif name in _REGISTERS:
            self._match(_DIMENSION.pattern)
        elif name in _PRIMITIVE_ARGUMENTS:
            self._match(_PRIMITIVE_ARGUMENTS[name])
        elif name in self._symbols:
            self._put_symbol(name, self._symbols[name])
        elif "@" in name:
            pass  # an internal macro
        else:
            # The argument of an unknown macro is shown.
            is_optional_passed = self._match(r"\[[^\[\]{}\n]*\](?=\{)")
            if not is_optional_passed:
                self._match(r"\*(?=\{)")

    def _put_symbol(self, name: str, shown: str) -> None:
        if shown == "\n\n":
            self._flush()
        elif shown == "\v" and self._tables:
            self._end_row()
        elif shown == "\v":
            if name == "\\":
                self._match(_LINE_BREAK_ARGUMENTS)
            self._put("\v")
        else:
            self._put(shown)

    def _include(self, name: str) -> None:
        """Note a file that LaTeX would read here; it is not read."""
        self._skip("[")
        if self._peek() == "{":
            file = " ".join(self._required().split())
        else:
            file = self._match(r"[\w./-]+").strip()
        if file and (not self._in_preamble or "bib" in name):
            self.included[macros.INCLUDED_FILES[name].format(file)] = None

    # Macros of the file.

    def _expand_macro(self, macro: _Macro) -> None:
        """Read the arguments of a macro and expand it."""
        arguments = []
        if macro.begin:
            self._match(re.escape(macro.begin))
        for i, kind in enumerate(macro.spec):
            if kind == "[":
                optional = self._optional()
                arguments.append(macro.default if optional is None else optional)
            elif kind == "*":
                arguments.append(self._match(r"\*").strip())
            elif i < len(macro.until) and macro.until[i]:
                arguments.append(self._until(macro.until[i]))
            else:
                arguments.append(self._required())

        def argument(match: re.Match[str]) -> str:
            index = int(match[1]) - 1
            return arguments[index] if index < len(arguments) else ""

        body = _ARGUMENT.sub(argument, macro.body) if arguments else macro.body
        if self._expansion_left > 0 and len(body) > self._expansion_left:
            body = ""
            self._has_endless_macro = True
        self._push_expansion(body)

    def _until(self, mark: str) -> str:
        """Read the source up to and with `mark`; if the paragraph lacks it, a required argument."""
        text, at = self._frames[-1] if self._frames else ("", 0)
        end = text.find(mark, at)
        if end < 0 or "\n\n" in text[at:end]:
            return self._required()
        self._frames[-1] = text, end + len(mark)
        return text[at:end]

    def _define(self, name: str) -> None:
        r"""Define a macro by \newcommand or its variants."""
        self._skip("*")
        macro = self._required().strip().lstrip("\\").strip()
        spec, default = self._declared_arguments()
        body = self._required()
        is_kept = name == "providecommand" and macro in self._macros
        if macro and not is_kept and macro not in _PROTECTED:
            self._macros[macro] = _Macro(body, spec, default)

    def _declared_arguments(self) -> tuple[str, str]:
        r"""Read how many arguments \newcommand or \newenvironment declares, and the default.

        Returns:
            The `spec` and the `default` of a `_Macro`. LaTeX allows at most nine
            arguments, so a number of several digits counts as 0.
        """
        number = (self._optional() or "").strip()
        default = self._optional()
        count = int(number) if number.isdecimal() and len(number) == 1 else 0
        if default is None:
            return "{" * count, ""
        return "[" + "{" * (count - 1), default

    def _define_document_command(self, _: str) -> None:
        r"""Define a macro by \NewDocumentCommand or its variants; skip unknown argument types."""
        macro = self._required().strip().lstrip("\\").strip()
        letters = self._required()
        body = self._required()
        declared = re.search(r"O\s*\{([^{}]*)\}", letters)
        default = declared[1] if declared else ""
        letters = re.sub(r"\{[^{}]*\}", "", letters)
        kinds = {"m": "{", "o": "[", "O": "[", "s": "*", "v": "{"}
        spec = "".join(kinds[letter] for letter in letters if letter in kinds)
        if macro:
            self._macros[macro] = _Macro(body, spec, default)

    def _define_plain(self, name: str) -> None:
        r"""Define a macro by \def or its variants, with the text between its parameters."""
        macro = self._next()
        if not macro.startswith("\\"):
            return
        parts = list[str]()
        while (token := self._next()) and token != "{":
            parts.append(token)
        body = self._rest_of_group()
        pieces = re.split(r"#([1-9])", "".join(parts))
        until = tuple(piece.strip(" ") for piece in pieces[2::2])
        macro = macro[1:].strip()
        if macro and macro not in _PROTECTED:
            self._macros[macro] = _Macro(body, "{" * len(until), "", until, pieces[0].strip())

    def _let(self, _: str) -> None:
        new = self._next()[1:].strip()
        self._match("=")
        old = self._next()
        name = old[1:].strip()
        if not new or new in _PROTECTED:
            return
        if name in self._macros:
            self._macros[new] = self._macros[name]
        elif name not in (new, "relax"):
            self._macros[new] = _Macro(old)

    def _define_environment(self, _: str) -> None:
        self._skip("*")
        name = self._required().strip()
        spec, default = self._declared_arguments()
        begin = self._required()
        end = self._required()
        if name not in macros.TABLE_ENVIRONMENTS | macros.MATH_ENVIRONMENTS and name != "document":
            self._environments[name] = _Macro(begin, spec, default), end

    def _define_theorem(self, _: str) -> None:
        self._skip("*")
        name = self._required().strip()
        self._optional()
        self._theorems[name] = " ".join(self._required().split())
        self._optional()

    def _define_condition(self, _: str) -> None:
        name = self._next()[1:].strip().removeprefix("if")
        self._conditions[name] = False
        self._macros[f"{name}true"] = _Macro(f"\\ngt@set{{{name}}}{{1}}")
        self._macros[f"{name}false"] = _Macro(f"\\ngt@set{{{name}}}{{}}")

    def _set_condition(self, _: str) -> None:
        name = self._required()
        self._conditions[name] = bool(self._required())

    def _condition(self, name: str) -> None:
        r"""Read the condition of \if…; skip its first branch if it is known to be false."""
        holds = True
        if name == "iffalse":
            holds = False
        elif name[2:] in self._conditions:
            holds = self._conditions[name[2:]]
        elif name in _COMPARED_TOKENS:
            compared = [self._next() for _ in range(_COMPARED_TOKENS[name])]
            holds = len({token.strip() for token in compared}) == 1
        elif name in ("ifnum", "ifdim", "ifcase"):
            self._match(r"[-\w.\\@]*\s*[<=>]?\s*[-\w.\\@]*")
        if not holds:
            self._skip_branch()

    def _skip_branch(self) -> None:
        r"""Skip the source up to the \else or \fi of this condition."""
        depth = 0
        while token := self._next():
            name = token[1:].strip() if token[0] == "\\" else ""
            if name.startswith("if") and name not in ("ifthenelse", "iff"):
                depth += 1
            elif name == "fi" and depth:
                depth -= 1
            elif name == "fi" or (name == "else" and not depth):
                return

    # Macros that are shown in a special way.

    def _footnote(self, _: str) -> None:
        """Put a footnote or the like in brackets."""
        self._skip("*[")
        self._put("[")
        self._with_next(lambda _: self._put("]"), collects=False)

    def _title(self, name: str) -> None:
        """Write a title, author or date, even from the preamble."""
        self._skip("*[")

        def finish(text: str) -> None:
            in_preamble = self._in_preamble
            self._in_preamble = False
            if name in ("title", "chapter"):
                self._heading(text)
            elif len(self._outputs) > 1:
                self._put(text)
            else:
                self._flush()
                self.writer.add(text)
            self._in_preamble = in_preamble

        self._with_next(finish)

    def _line(self, _: str) -> None:
        """Write a line of its own."""
        self._flush()
        self._with_next(self._end_block, collects=False)

    def _caption(self, name: str) -> None:
        self._skip("{*[" if name == "captionof" else "*[")
        self._with_next(self._block)

    def _cite(self) -> None:
        """Put the keys of a citation in brackets, with the notes before and after them."""
        self._skip("*")
        before = self._optional()
        after = self._optional()
        if after is None:  # a single note follows the keys
            before, after = None, before
        keys = ", ".join(key.strip() for key in self._required().split(","))
        citation = " ".join(filter(None, [(before or "").strip(), keys]))
        parts = filter(None, [citation, (after or "").strip()])
        self._push_expansion("{[}" + ", ".join(parts) + "{]}")

    def _verb(self, _: str) -> None:
        r"""Put the text of \verb or its variants, between two equal characters, unchanged."""
        self._match(r"\*")
        self._match(r"\[[^\]\n]*\]")
        text, at = self._frames[-1] if self._frames else ("", 0)
        if at >= len(text):
            return
        mark = "}" if text[at] == "{" else text[at]
        end = text.find(mark, at + 1)
        if end < 0:
            return
        self._frames[-1] = text, end + 1
        self._put(text[at + 1 : end].replace(" ", "\u00a0"))

    def _mintinline(self, name: str) -> None:
        self._skip("[{")
        self._verb(name)

    def _url(self, name: str) -> None:
        address = self._raw_group()
        if name != "href":
            self._put(address)

    def _superscript(self, _: str) -> None:
        """Put a superscript; a number after a letter or a digit is an exponent."""
        before = "".join(self._outputs[-1][-3:])[-1:]

        def finish(text: str) -> None:
            is_power = before.isalnum() and _DIGITS.fullmatch(text)
            self._put(f"^{text}" if is_power else text)

        self._with_next(finish)

    def _quantity(self, name: str) -> None:
        """Put a number, a unit or a quantity of siunitx."""
        self._skip("[")
        if name in ("si", "unit"):
            text = ""
        elif name in ("SIrange", "qtyrange", "numrange"):
            first = _number(self._required())
            last = _number(self._required())
            text = f"{first} to {last}"
        else:
            text = _number(self._required())
        if name == "SI":
            self._skip("[")
        if name == "ang":
            text += "°"
        elif name not in ("num", "numlist", "numrange"):
            text += " " + macros.unit_text(self._required())
        self._put(text.strip())

    def _quotation(self, _: str) -> None:
        self._skip("*")
        self._put("“")
        self._with_next(lambda _: self._put("”"), collects=False)

    def _ensuremath(self, _: str) -> None:
        self._push_expansion("$" + self._required() + "$")

    def _bib_item(self, _: str) -> None:
        """Begin an entry of a bibliography with its key, which citations show, too."""
        self._optional()
        key = self._required()
        self._flush()
        self._push("{[}" + key + "{]} ")

    def _list_item(self, _: str) -> None:
        """Begin a list item. If an outer item begins with this list, put both marks on one line."""
        self._flush()
        if not self._lists:
            return
        outer = self._end_mark()
        label = self._optional()
        open_list = self._lists[-1]
        if label is not None:
            self._begin("{", lambda text: self._set_item(f"{outer} {text}"), collects=True)
            self._push_expansion(label + "}")
        elif open_list.is_numbered:
            open_list.number += 1
            depth = sum(level.is_numbered for level in self._lists)
            number = _ordinal(open_list.number, _ORDINALS[min(depth, 4) - 1])
            self._set_item(f"{outer} {number}.")
        else:
            self._set_item(f"{outer} -")

    def _set_item(self, mark: str) -> None:
        self._item = mark.strip()
        self._item_depth = len(self._lists)

    def _end_mark(self) -> str:
        """End an item without text: return its mark if a list is open within it, else write it."""
        mark = self._item
        self._item = ""
        if self._item_depth < len(self._lists):
            return mark
        if mark != "-":
            self.writer.add(mark, "li")
        return ""

    def _multicolumn(self, _: str) -> None:
        """Read how many columns a cell spans."""
        count = self._required().strip()
        self._required()
        if self._tables and count.isdecimal() and 1 < int(count[:3]) <= 99:
            self._tables[-1].ahead = int(count[:3]) - 1

    def _ifthenelse(self, _: str) -> None:
        r"""Read the first branch of \ifthenelse."""
        self._required()
        first = self._required()
        self._required()
        self._push_expansion(first)

    def _first_of_two(self, _: str) -> None:
        first = self._required()
        self._required()
        self._push_expansion(first)

    def _write(self, _: str) -> None:
        self._match(r"\d+")
        self._required()

    def _bye(self, _: str) -> None:
        self._done = True

    # Environments.

    def _begin_environment(self, name: str) -> None:
        plain = name.rstrip("*")
        if name in self._environments:
            macro, end = self._environments[name]
            self._begin(name, None)
            self._expand_macro(macro)
            return
        if name == "document":
            while self._open:  # which the preamble left open
                self._close()
            self._in_preamble = False
            self._outputs = [[]]
            self._begin(name)
        elif name in macros.HIDDEN_ENVIRONMENTS:
            self._raw_until(name)
        elif plain in macros.VERBATIM_ARGUMENTS:
            self._verbatim(name, plain)
        elif plain in macros.MATH_ENVIRONMENTS:
            self._math(f"\\begin{{{name}}}", f"\\end{{{name}}}")
        elif plain in macros.PICTURE_ENVIRONMENTS:
            self._drawing(name)
        elif plain in macros.TABLE_ENVIRONMENTS:
            if name == "tabular*":
                self._skip("{")
            self._skip(macros.ENVIRONMENT_ARGUMENTS[plain])
            self._begin_table(name)
        else:
            self._skip(
                macros.ENVIRONMENT_ARGUMENTS.get(name, macros.ENVIRONMENT_ARGUMENTS.get(plain, ""))
            )
            self._begin_other(name)

    def _begin_other(self, name: str) -> None:
        """Begin an environment that is a block or consists of blocks."""
        self._flush()
        plain = name.rstrip("*")
        finish = self._end_block
        if plain in _LISTS:
            self._lists.append(_List(plain.endswith(("enumerate", "enum"))))
            finish = self._end_list
        elif plain == "thebibliography":
            self._heading("Bibliography" if self._is_book else "References")
        elif plain == "abstract":
            self._heading("Abstract")
        elif plain == "frame":
            self._match(r"(?:<[^>\n]*>|\[[^\]\n]*\])+")
            self._begin(name, finish)
            if self._peek() == "{":
                self._with_next(self._heading)
            return
        elif plain in self._theorems or plain == "proof":
            title = self._theorems.get(plain, "Proof")
            note = self._optional()
            if note:
                title = f"{title} ({note})"
            self._push(f"{title}. ")
        else:
            self._match(r"\[[^\[\]\n]*\]")
        self._begin(name, finish)

    def _end_block(self, _: str) -> None:
        self._flush()

    def _end_list(self, _: str) -> None:
        self._flush()
        if self._lists:
            if self._item_depth >= len(self._lists):
                self._end_mark()
            self._lists.pop()
        if not self._lists:
            self.writer.stand_apart()

    def _end_environment(self, name: str) -> None:
        if name in self._environments:
            self._push(self._environments[name][1] + f"\\ngt@end{{{name}}}")
        elif name == "document":
            self._done = True
        else:
            self._end(name)

    def _end_user_environment(self, _: str) -> None:
        self._end(self._required())

    def _raw_until(self, name: str) -> str:
        """Read and return the raw source up to the end of this environment, or of the frame."""
        text, at = self._frames[-1] if self._frames else ("", 0)
        mark = f"\\end{{{name}}}"
        end = text.find(mark, at)
        end = len(text) if end < 0 else end
        self._frames[-1:] = [(text, end + len(mark))]
        return text[at:end]

    def _verbatim(self, name: str, plain: str) -> None:
        for kind in macros.VERBATIM_ARGUMENTS[plain]:
            self._match(r"\[[^\]]*\]" if kind == "[" else r"\{[^}]*\}")
        block = self._raw_until(name)
        if not self._in_preamble:
            self._block(block.strip("\n").rstrip())

    def _drawing(self, name: str) -> None:
        """Write the text of the nodes of a drawing."""
        if not self._in_preamble:
            self._drawings += 1
        source = self._raw_until(name)
        nodes = (_group(source, node.end() + 1) for node in _NODE.finditer(source))
        words = filter(None, map(self._words_of, nodes))
        self._block("\n".join(words))

    def _words_of(self, source: str) -> str:
        """Return the printed text of a piece of the source, on one line."""
        reader = _Reader(source)
        reader._macros = self._macros
        reader._expansion_left = min(self._expansion_left, _MIN_EXPANSION_LIMIT // 100)
        reader.read()
        return " ".join(reader.writer.text().split())

    def _math(self, begin: str, end: str) -> None:
        """Put a formula as it is written, with the file's own macros expanded."""
        begin = begin.strip()
        parts = [begin]
        depth = 0
        is_environment = begin.startswith("\\begin")
        while token := self._next():
            plain = token.strip() if token[0] == "\\" else token
            if token.count("\n") > 1 and token.isspace() and not is_environment:
                self._push(token)  # the formula is not closed
                break
            if plain == "\\end" and is_environment:
                name = self._required()
                parts.append(f"\\end{{{name}}}")
                if parts[-1] == end:
                    break
                continue
            if plain == end and depth <= 0:
                parts.append(end)
                break
            name = plain[1:] if plain[0] == "\\" else ""
            if name in self._macros:
                macro = self._macros[name]
                self._expand_macro(replace(macro, body=f"{macro.body} "))
                continue
            depth += _BRACES.get(token, 0)
            parts.append(token)
        formula = "".join(parts).strip()
        if self._in_preamble and len(self._outputs) == 1:
            return
        if begin in ("$", "\\("):
            self._put(_SPACE.sub(" ", formula))
        else:
            self._block(re.sub(r"\n\s*\n\s*", "\n", formula))

    def _begin_table(self, name: str) -> None:
        if len(self._outputs) == 1:
            self._flush()
        if len(self._outputs) > _MAX_DEPTH:
            self._begin(name)
            return
        table = _Table()
        self._tables.append(table)
        self._begin(name, self._end_table)
        self._outputs.append(table.out)

    def _end_table(self, _: str) -> None:
        self._end_row()
        table = self._tables.pop()
        self._outputs.pop()
        if len(self._outputs) > 1:  # within a cell
            self._put(" ".join(filter(None, map(row_of, table.rows))))
        elif not self._in_preamble:
            self.writer.table(table.rows)
            self.writer.stand_apart()

    def _end_cell(self) -> None:
        table = self._tables[-1]
        text = _AROUND_BREAK.sub(" ", _SPACE.sub(" ", "".join(table.out))).strip()
        table.out.clear()
        table.cell(text)

    def _end_row(self) -> None:
        self._match(_LINE_BREAK_ARGUMENTS)
        self._end_cell()
        self._tables[-1].end_row()


def _group(text: str, at: int) -> str:
    """Return the text from `at` to the closing brace of the group, or to the end without one.

    >>> _group("{a{b}c} d", 1)
    'a{b}c'
    """
    depth = 0
    end = at
    while end < len(text) and (depth or text[end] != "}"):
        depth += _BRACES.get(text[end], 0)
        end += 2 if text[end] == "\\" else 1
    return text[at:end]


def _ordinal(number: int, form: str) -> str:
    """Return the number of a list item in the form that LaTeX uses at its depth.

    >>> _ordinal(4, "1"), _ordinal(2, "a"), _ordinal(4, "i"), _ordinal(3, "A")
    ('4', 'b', 'iv', 'C')
    """
    if form in "aA" and number <= 26:
        return chr(ord(form) + number - 1)
    if form == "i" and number < 40:
        tens, ones = divmod(number, 10)
        return "x" * tens + ["", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix"][ones]
    return str(number)


def _number(source: str) -> str:
    """Return a number of siunitx as it is printed.

    >>> _number("1e6"), _number("3.5"), _number("2x3"), _number("1.2(3)")
    ('1 × 10^6', '3.5', '2 × 3', '1.2(3)')
    """
    text = re.sub(r"\s*[eE]\s*([-+]?\d+)", r" × 10^\1", source.strip())
    text = re.sub(r"(?<=\d)\s*x\s*(?=\d)", " × ", text)
    return text.replace("+-", " ± ").replace("\\pm", " ± ").strip()


_DEFINING: dict[str, Callable[[_Reader, str], None]] = {
    **dict.fromkeys(
        ("newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"), _Reader._define
    ),
    **dict.fromkeys(("def", "gdef", "edef", "xdef"), _Reader._define_plain),
    **dict.fromkeys(
        (
            "NewDocumentCommand",
            "RenewDocumentCommand",
            "DeclareDocumentCommand",
            "ProvideDocumentCommand",
            "NewExpandableDocumentCommand",
        ),
        _Reader._define_document_command,
    ),
    "let": _Reader._let,
    "newenvironment": _Reader._define_environment,
    "renewenvironment": _Reader._define_environment,
    "newtheorem": _Reader._define_theorem,
    "newif": _Reader._define_condition,
    "ngt@set": _Reader._set_condition,
    "ngt@end": _Reader._end_user_environment,
}
_PRINTING: dict[str, Callable[[_Reader, str], None]] = {
    **dict.fromkeys(
        ("footnote", "footnotetext", "thanks", "foot", "marginpar", "todo"), _Reader._footnote
    ),
    **dict.fromkeys(
        ("title", "author", "date", "subtitle", "affiliation", "institute"), _Reader._title
    ),
    **dict.fromkeys(("caption", "captionof", "subcaption"), _Reader._caption),
    **dict.fromkeys(("verb", "lstinline", "Verb", "spverb"), _Reader._verb),
    "mintinline": _Reader._mintinline,
    **dict.fromkeys(("url", "href", "path", "nolinkurl"), _Reader._url),
    **dict.fromkeys(("textsuperscript", "inst", "up"), _Reader._superscript),
    **dict.fromkeys(
        "SI si num ang qty unit SIrange qtyrange numrange numlist".split(), _Reader._quantity
    ),
    **dict.fromkeys(("enquote", "textquote"), _Reader._quotation),
    "ensuremath": _Reader._ensuremath,
    "bibitem": _Reader._bib_item,
    "item": _Reader._list_item,
    "multicolumn": _Reader._multicolumn,
    "ifthenelse": _Reader._ifthenelse,
    "texorpdfstring": _Reader._first_of_two,
    "write": _Reader._write,
    **dict.fromkeys(("centerline", "leftline", "rightline"), _Reader._line),
    "bye": _Reader._bye,
}
# Macros that are read as above even if the file redefines them.
_PROTECTED = frozenset(
    [*_DEFINING, *_PRINTING, *macros.HEADINGS, *macros.CITATIONS, "begin", "end", "\\", "par"]
)
