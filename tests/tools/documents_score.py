"""How well documents are read: ngt's text of real files, and raw PDFium's, beside references.

    python -m tests.tools.documents_score FOLDER

FOLDER holds `docling` and `pdfbox` (files with references), `olmocr` (pages, and tests.jsonl, which
says what must be there), and `found` (files that were once read wrongly; no references).
"""

import html
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pypdfium2 as pdfium
from rapidfuzz import fuzz
from rapidfuzz.distance import Indel

from ngtcli.documents.content import ParserInput
from ngtcli.documents.formats import format_of
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse

_MAX_BYTES = 1 << 28  # bytes that a file may unpack to
_REFERENCE = ".reference.md"
_MARKS = re.compile(
    r"<!--.*?-->|^\s*(?:#+|[-*+]|\d+\.|>|```\w*)\s+|^[\s|:-]+$|\||\*\*|__|`|\\(?=[_*#\[\]<>|])",
    re.MULTILINE,
)
_BARS = re.compile(r"(?: \| ?)+")
_LINKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SIGNS = str.maketrans("‘’“”–—‐", "''\"\"---")


def main(folder: Path) -> None:
    """Print a table of all sets, and a line for each PDF of `found`; each file's row to stderr."""
    print(f"{'set':<22} {'files':>5} {'ngt':>15} {'PDFium':>15} {'worse':>5} {'better':>6}")
    docling = sorted((folder / "docling").glob("*" + _REFERENCE))
    files = [(p.with_name(p.name.removesuffix(_REFERENCE)), p) for p in docling]
    score_set("docling, PDF", [pair for pair in files if pair[0].suffix == ".pdf"])
    score_set("docling, other", [pair for pair in files if pair[0].suffix != ".pdf"])
    for suffix in sorted({path.suffix for path, _ in files} - {".pdf"}):
        score_set(f"docling, {suffix[1:]}", [pair for pair in files if pair[0].suffix == suffix])
    for suffix in (".txt", "-sorted.txt"):
        pdfs = sorted((folder / "pdfbox").glob("*.pdf"))
        score_set(f"pdfbox {suffix}", [(p, p.with_name(p.name + suffix)) for p in pdfs])
    page_tests(folder / "olmocr")
    for path in sorted((folder / "found").glob("*.pdf")):
        lost(path)


def score_set(name: str, files: Sequence[tuple[Path, Path]]) -> None:
    """Print the mean character ratio and word F1 over files with a reference.

    For PDFs also PDFium's, and how many ratios are worse or better by more than 0.02.
    """
    rows = []
    for path, reference in files:
        wanted = reference.read_text("utf-8", "replace")
        wanted = plain(wanted) if reference.suffix == ".md" else wanted
        is_pdf = path.suffix == ".pdf"
        read = ours(path)
        # The reference of a PDF has no bars between cells once its marks are stripped.
        texts = [_BARS.sub(" ", read), pdfium_text(path)] if is_pdf else [plain(read)]
        rows.append([score(wanted, text) for text in texts for score in (ratio, word_f1)])
        print(f"  {path.name[:50]:<50} {' '.join(f'{x:.3f}' for x in rows[-1])}", file=sys.stderr)
    means = [f"{mean(column):.3f}" for column in zip(*rows, strict=True)]
    told = "".join(f" {a + ' / ' + b:>15}" for a, b in zip(means[::2], means[1::2], strict=True))
    gains = [row[0] - row[2] for row in rows if len(row) > 2]
    counts = f" {sum(g < -0.02 for g in gains):>5} {sum(g > 0.02 for g in gains):>6}"
    print(f"{name:<22} {len(rows):>5}{told}{counts if gains else ''}")


def page_tests(folder: Path) -> None:
    """Print how many tests of each kind pass."""
    tests = [json.loads(line) for line in (folder / "tests.jsonl").read_text("utf-8").splitlines()]
    kinds = {"present": _present, "absent": lambda t, x: not _present(t, x), "order": _in_order}
    for kind, holds in kinds.items():
        passed, chosen = [0, 0], [test for test in tests if test["type"] == kind]
        for test in chosen:
            path = folder / test["pdf"].replace("/", "__")
            for i, reader in enumerate((ours, pdfium_text)):
                passed[i] += holds(test, squeezed(_BARS.sub(" ", reader(path))).translate(_SIGNS))
        print(f"{'olmocr ' + kind:<22} {len(chosen):>5} {passed[0]:>15} {passed[1]:>15}")


def _at(words: str, text: str, most: int) -> int:
    """Where `words` are in `text` with at most so many differences; -1 if nowhere."""
    words = squeezed(words).translate(_SIGNS)
    if words in text or len(text) < len(words):
        return text.find(words)
    match = fuzz.partial_ratio_alignment(words, text, score_cutoff=100 * (1 - most / len(words)))
    return match.dest_start if match else -1


def _present(test: dict[str, Any], text: str) -> bool:
    text = text[-test["last_n"] :] if "last_n" in test else text
    return _at(test["text"], text, test.get("max_diffs", 0)) >= 0


def _in_order(test: dict[str, Any], text: str) -> bool:
    first, second = (_at(test[k], text, test.get("max_diffs", 0)) for k in ("before", "after"))
    return 0 <= first < second


def lost(path: Path) -> None:
    """Print the share of PDFium's letters and words that ngt's text lacks."""
    raw, mine = pdfium_text(path), ours(path)
    shares = []
    for unit in (r"[^\W_]", r"\w+"):
        wanted = Counter(re.findall(unit, raw))
        missing = wanted - Counter(re.findall(unit, mine))
        shares.append(missing.total() / max(wanted.total(), 1))
    print(f"found {path.name:<30} lost letters {shares[0]:6.2%}, words {shares[1]:6.2%}")


def ours(path: Path) -> str:
    """The text as ngt reads it; "" for what it refuses."""
    data = path.read_bytes()
    form = format_of(path.suffix, data[:1024])
    assert form is not None, path
    try:
        return parse(
            form.name, ParserInput(data=data, suffix=path.suffix, max_bytes=_MAX_BYTES)
        ).text
    except Unreadable:
        return ""


def pdfium_text(path: Path) -> str:
    """The text as PDFium gives it."""
    document = pdfium.PdfDocument(path)
    return "\n".join(page.get_textpage().get_text_range() for page in document)


def plain(text: str) -> str:
    """Markdown without its marks."""
    return html.unescape(_MARKS.sub(" ", _LINKS.sub(r"\1", text)))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def ratio(a: str, b: str) -> float:
    """The Indel similarity of two texts, from 0 to 1."""
    return Indel.normalized_similarity(squeezed(a), squeezed(b))


def word_f1(a: str, b: str) -> float:
    """The F1 score of the words of two texts, each as often as it is there."""
    first, second = (Counter(re.findall(r"\w+", text)) for text in (a, b))
    return 2 * (first & second).total() / max(first.total() + second.total(), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
