"""What is read of LaTeX: what its printed pages say, in time that grows with the text."""

import cProfile
import pstats
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse

pytest.importorskip("pylatexenc")


def read(source: str, body: bool = True) -> Extracted:
    """What is read of a document with this body, or of this source."""
    begin = r"\documentclass{article}\begin{document}"
    end = r"\end{document}"
    text = f"{begin}\n{source}\n{end}" if body else source
    return parse("latex", ParserInput(data=text.encode(), suffix=".tex", max_bytes=10_000_000))


PRINTED = {
    # What no file with them was read for.
    r"\part{Sea} \paragraph{Gales} Nine.": "Sea\n\nGales\n\nNine.",
    r"\subparagraph*{Low} x": "Low\n\nx",
    r"\section[s]{Long name}\label{a}y": "Long name\n\ny",
    r"see \href{http://x.example/a%20b}{the link}, now": "see the link, now",
    r"\url{http://y.example/50%_x}": "http://y.example/50%_x",
    # What is in the source as it is printed.
    r"Type \verb|v e_r% b| and \verb+\x{+.": "Type v e_r% b and \\x{.",
    "\\begin{verbatim}\na_b % kept\n  \\x{\n\\end{verbatim} after": "a_b % kept\n  \\x{\n\nafter",
    "\\begin{lstlisting}[language=C]\nint a; % b\n\\end{lstlisting}": "int a; % b",
    "\\begin{minted}{python}\nx = 1 # y\n\\end{minted}": "x = 1 # y",
    r"\lstinline!x_y! \mintinline{c}|a&b|": "x_y a&b",
    # What the file defines.
    r"\newcommand{\ship}{Gale}The \ship{} and \ship.": "The Gale and Gale.",
    r"\newcommand{\km}[2][km]{#2~#1}\km{5}, \km[mi]{3}": "5 km, 3 mi",
    r"\def\y#1{<#1>}\y{z} \y q": "<z> <q>",
    r"\def\pair(#1,#2){#2 before #1}\pair(a,b).": "b before a.",
    r"\NewDocumentCommand{\x}{m O{one}}{#1-#2}\x{a} \x{b}[two]": "a-one b-two",
    r"\newenvironment{note}[1]{\textbf{#1}: }{ end}\begin{note}{N}x\end{note}": "N: x end",
    r"\let\old\emph \old{word}": "word",
    r"\newcommand{\R}{\mathbb{R}}$x \in \R$": r"$x \in \mathbb{R} $",
    r"\newtheorem{thm}{Theorem}\begin{thm}[Main] Holds.\end{thm}": "Theorem (Main). Holds.",
    # Keys, notes, numbers.
    r"See~\cite{smith,jones} and \citep[see][p.~3]{a}.": "See [smith, jones] and [see a, p. 3].",
    r"Figure~\ref{f}, \eqref{e}, \cref{s}": "Figure f, (e), s",
    r"end\footnote{A \emph{note}.}.": "end[A note.].",
    r"10\textsuperscript{6}, 4\textsuperscript{th}, H\textsubscript{2}O": "10^6, 4th, H2O",
    r"\SI{3.5}{\kilo\gram}, \qty{9.8}{\m\per\s\squared}": "3.5 kg, 9.8 m/s^2",
    r"\num{1e6}, \SIrange{1}{2}{\kHz}, \ang{30}, \si{\ohm}": "1 × 10^6, 1 to 2 kHz, 30°, Ω",
    # Lengths, counts and columns are no text.
    r"\parbox[t]{3cm}{boxed} \raisebox{2pt}{up} \makebox[3cm][l]{m}": "boxed up m",
    r"\begin{minipage}[t]{3cm}mini\end{minipage}": "mini",
    r"\vspace*{2cm}a\hspace{1em}b \vskip 3pt plus 1pt c\kern-2pt d": "ab c d",
    r"\includegraphics[width=3cm]{a.png}x\write18{id}y\rule{1cm}{2pt}": "xy",
    r"\begin{thebibliography}{9}\bibitem{a} T.\end{thebibliography}": "References\n\n[a] T.",
    r"\begin{tabular}{l|r}\hline\multicolumn{2}{c}{head} & x \\[2pt] a & \multirow{2}{*}{b} & c\\"
    r"\end{tabular}": "head |  | x\na | b | c",
    r"\begin{tabular}{l}\begin{tabular}{c}in\\ner\end{tabular} \\ d \& e "
    r"\end{tabular}": "in ner\nd & e",
    # What is not printed.
    "a\n\\begin{comment}\nno \\end{x}\n\\end{comment}\nb % no\nc": "a b c",
    r"\iffalse gone \else kept \fi \newif\ifdraft\ifdraft D\else F\fi": "kept F",
    r"\phantom{no}a\label{x}\index{y}\setlength{\parskip}{3pt}": "a",
    # Lists.
    r"\begin{itemize}\item oak \item ash\end{itemize}": "- oak\n- ash",
    r"\begin{enumerate}\item a \item\begin{enumerate}\item b\end{enumerate}\item[(x)] c"
    r"\end{enumerate}": "1. a\n2. a. b\n(x) c",
    r"\begin{description}\item[Oak] tall\end{description}": "Oak tall",
    # Plain TeX.
    r"\centerline{\bf A title}\centerline{by Ada\foot{x}} "
    r"\newsec{One}Text. \hbox to 3cm{b}\bye no": "A title\n\nby Ada[x]\n\nOne\n\nText. b",
    # Characters.
    r"\'e \"{o} \c{c} \v s \o\ \aa{}x \ss. a---b 1--2 \ldots": "é ö ç š ø åx ß. a—b 1–2 …",
    r"``Said'' `so' don't \$5 10\% a\_b \{c\}": "“Said” ‘so’ don't $5 10% a_b {c}",
    # Of a file that is damaged as much as possible is read.
    r"\begin{itemize}\item a \end{enumerate} b } c {d": "- a b c d",
    r"\section{Open": "Open",
}


@pytest.mark.parametrize(("source", "text"), PRINTED.items())
def test_what_is_printed_is_read(source: str, text: str) -> None:
    assert read(source).text == text


def test_title_and_abstract_are_read_and_the_rest_of_the_preamble_is_not() -> None:
    source = r"""\documentclass[11pt]{article}
\usepackage[utf8]{inputenc}\geometry{a4paper}\lhead[\x]{\y} stray
\title{Tides}\author{Ada\thanks{Varn} \and Ben}
\begin{document}\maketitle\begin{abstract}We say.\end{abstract}Text.\end{document} after"""
    found = read(source, body=False)
    assert found.text == "Tides\n\nAda[Varn]\nBen\n\nAbstract\n\nWe say.\n\nText."
    assert [s.heading for s in found.about.sections] == ["Tides", "Abstract"]


def test_included_files_and_drawings_are_told() -> None:
    picture = r"\begin{tikzpicture}\node[x] at (0,0) {Start}; \draw (0,0)--(1,1);\end{tikzpicture}"
    found = read(rf"a \input{{one}} \include{{two}} {picture} \bibliography{{refs}}")
    assert found.text == "a\n\nStart"
    assert found.about.warnings == (
        "included files were not read: one, two, refs.bib",
        "drawings left out, except for the words in them: 1",
    )


def test_the_encoding_that_a_file_declares_is_its_own() -> None:
    source = r"\usepackage[cp1251]{inputenc}\begin{document}Съешь же ещё булок\end{document}"
    found = parse(
        "latex", ParserInput(data=source.encode("cp1251"), suffix=".tex", max_bytes=10**6)
    )
    assert found.text == "Съешь же ещё булок"
    assert not found.about.warnings


def calls(source: str) -> int:
    profile = cProfile.Profile()
    profile.runcall(read, source)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    "piece",
    [
        r"\begin{a}\begin{b}{ x \end{a} $y $ } \emph{",
        r"{\bf [ \begin{equation} a \end{align} ",
        r"x \newcommand{\a}{\b\b}\newcommand{\b}{\a\a}\frac{{",
        r"\begin{tabular}{ll} a & b \\ { & ",
        r"\footnote{\section{\item[ \begin{itemize} ",
        "text ~ & % comment\n\n \\\\ \\verb|x \\if \\else ",
    ],
)
def test_the_work_grows_with_the_text_however_wrong_it_is(piece: str) -> None:
    assert calls(piece * 400) < 2.6 * calls(piece * 200)


def test_macros_without_end_are_left_out_and_told() -> None:
    found = read(r"a \def\x{\x y\x}\x b")
    assert found.about.warnings == ("macros that expand to too much text were left out",)
    assert found.text.startswith("a")


@pytest.mark.parametrize("count", ["12", "99999999999", "9" * 5000, "x", "-1"])
@pytest.mark.parametrize("definition", [r"\newcommand{\note}", r"\newenvironment{note}"])
def test_more_arguments_than_latex_allows_count_as_none(definition: str, count: str) -> None:
    """A number may be wrong by a typing error, or so large that memory would not suffice."""
    source = f"{definition}[{count}]{{The}}{{}}\\begin{{note}}tide\\end{{note}} \\note turns."
    assert read(source).text.endswith("turns.")


PIECES = (
    r"\begin{document} \begin{tabular}{ll} \begin{longtable} \end{tabular} \begin{itemize} \item"
    r" \item[ \end{itemize} \begin{equation} \end{equation} \begin{verbatim} \verb \section{"
    r" \footnote{ \title \newcommand{\x}[1] \x \def\y#1 \y \let\z \begin{x} \if \else \fi"
    r" \multicolumn{2} \' \SI \cite[ \begin{tikzpicture} \begin{abstract} \\ { } [ ] $ $$ & % ~ #1"
    r" \( \) \caption \vskip \input x 3pt"
).split() + ["\n\n", " "]


@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_whatever_stands_in_a_file_is_read_or_has_no_text(pieces: list[str]) -> None:
    with suppress(Unreadable):
        assert read(" ".join(["words", *pieces]), body=False).text
