"""Score how well documents are read: the text of ngt and of plain PDFium beside references.

    python -m tests.tools.documents_score FOLDER

FOLDER has `docling` and `pdfbox` (files with reference texts), `olmocr` (pages, and tests.jsonl
with what their texts must contain), and `found` (files that were once read wrongly, without
references).
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

_MAX_BYTES = 1 << 28  # that a file may unpack to
_REFERENCE_SUFFIX = ".reference.md"
_EQUAL_RATIO = 0.02  # a smaller difference of two ratios does not count
_MARKDOWN_MARKS = re.compile(
    r"<!--.*?-->|^\s*(?:#+|[-*+]|\d+\.|>|```\w*)\s+|^[\s|:-]+$|\||\*\*|__|`|\\(?=[_*#\[\]<>|])",
    re.MULTILINE,
)
_CELL_BARS = re.compile(r"(?: \| ?)+")
_MARKDOWN_LINKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_PLAIN_PUNCTUATION = str.maketrans("‘’“”–—‐", "''\"\"---")


def main(folder: Path) -> None:
    """Print a table of all sets and a line for each PDF of `found`; print each file on stderr."""
    print(f"{'set':<22} {'files':>5} {'ngt':>15} {'PDFium':>15} {'worse':>5} {'better':>6}")
    docling_files = []
    for reference in sorted((folder / "docling").glob("*" + _REFERENCE_SUFFIX)):
        name = reference.name.removesuffix(_REFERENCE_SUFFIX)
        docling_files.append((reference.with_name(name), reference))
    pdfs = [pair for pair in docling_files if pair[0].suffix == ".pdf"]
    others = [pair for pair in docling_files if pair[0].suffix != ".pdf"]
    score_set("docling, PDF", pdfs)
    score_set("docling, other", others)
    for suffix in sorted({path.suffix for path, _ in others}):
        score_set(f"docling, {suffix[1:]}", [pair for pair in others if pair[0].suffix == suffix])

    pdfbox_files = sorted((folder / "pdfbox").glob("*.pdf"))
    for suffix in (".txt", "-sorted.txt"):
        pairs = [(path, path.with_name(path.name + suffix)) for path in pdfbox_files]
        score_set(f"pdfbox {suffix}", pairs)

    score_page_tests(folder / "olmocr")
    for path in sorted((folder / "found").glob("*.pdf")):
        print_lost_text(path)


def score_set(name: str, files: Sequence[tuple[Path, Path]]) -> None:
    """Print the mean character ratio and word F1 of files with a reference.

    For PDFs, print those of PDFium, too, and how many ratios are clearly worse or better than its.
    """
    rows = []
    for path, reference in files:
        scores = _scores(path, reference)
        rows.append(scores)
        shown = " ".join(f"{score:.3f}" for score in scores)
        print(f"  {path.name[:50]:<50} {shown}", file=sys.stderr)

    means = [f"{mean(column):.3f}" for column in zip(*rows, strict=True)]
    cells = ""
    for ratio_mean, f1_mean in zip(means[::2], means[1::2], strict=True):
        cells += f" {ratio_mean + ' / ' + f1_mean:>15}"
    gains = [row[0] - row[2] for row in rows if len(row) > 2]
    if gains:
        worse = sum(gain < -_EQUAL_RATIO for gain in gains)
        better = sum(gain > _EQUAL_RATIO for gain in gains)
        cells += f" {worse:>5} {better:>6}"
    print(f"{name:<22} {len(rows):>5}{cells}")


def _scores(path: Path, reference: Path) -> list[float]:
    """The ratio and F1 of ngt's text, and for a PDF those of PDFium's."""
    expected = reference.read_text("utf-8", "replace")
    if reference.suffix == ".md":
        expected = without_marks(expected)
    if path.suffix == ".pdf":
        # The reference of a PDF has no bars between cells once its marks are removed.
        texts = [_CELL_BARS.sub(" ", ngt_text(path)), pdfium_text(path)]
    else:
        texts = [without_marks(ngt_text(path))]

    scores = []
    for text in texts:
        scores.append(ratio(expected, text))
        scores.append(word_f1(expected, text))
    return scores


def score_page_tests(folder: Path) -> None:
    """Print how many tests of each kind the texts of ngt and of PDFium pass."""
    lines = (folder / "tests.jsonl").read_text("utf-8").splitlines()
    tests = [json.loads(line) for line in lines]
    for kind in ("present", "absent", "order"):
        tests_of_kind = [test for test in tests if test["type"] == kind]
        passed = {"ngt": 0, "PDFium": 0}
        for test in tests_of_kind:
            path = folder / test["pdf"].replace("/", "__")
            passed["ngt"] += _passes(test, ngt_text(path))
            passed["PDFium"] += _passes(test, pdfium_text(path))
        counts = f"{passed['ngt']:>15} {passed['PDFium']:>15}"
        print(f"{'olmocr ' + kind:<22} {len(tests_of_kind):>5} {counts}")


def _passes(test: dict[str, Any], page: str) -> bool:
    """Whether a page's text passes a test of olmOCR-bench."""
    text = _normalized(_CELL_BARS.sub(" ", page))
    max_differences = test.get("max_diffs", 0)
    if test["type"] == "order":
        first = _find(test["before"], text, max_differences)
        second = _find(test["after"], text, max_differences)
        return 0 <= first < second

    if "last_n" in test:
        text = text[-test["last_n"] :]
    is_present = _find(test["text"], text, max_differences) >= 0
    return is_present if test["type"] == "present" else not is_present


def _find(words: str, text: str, max_differences: int) -> int:
    """The index of `words` in a normalized text, with some differences; -1 if it lacks them."""
    words = _normalized(words)
    if words in text or len(text) < len(words):
        return text.find(words)
    cutoff = 100 * (1 - max_differences / len(words))
    match = fuzz.partial_ratio_alignment(words, text, score_cutoff=cutoff)
    return match.dest_start if match else -1


def _normalized(text: str) -> str:
    """The text with single spaces and plain quotes and dashes."""
    return with_single_spaces(text).translate(_PLAIN_PUNCTUATION)


def print_lost_text(path: Path) -> None:
    """Print the share of PDFium's letters and words that ngt's text lacks."""
    reference = pdfium_text(path)
    text = ngt_text(path)
    shares = []
    for unit in (r"[^\W_]", r"\w+"):
        expected = Counter(re.findall(unit, reference))
        missing = expected - Counter(re.findall(unit, text))
        shares.append(missing.total() / max(expected.total(), 1))
    print(f"found {path.name:<30} lost letters {shares[0]:6.2%}, words {shares[1]:6.2%}")


def ngt_text(path: Path) -> str:
    """The text as ngt reads it; "" if it refuses the file."""
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
    """The text that PDFium gives."""
    document = pdfium.PdfDocument(path)
    return "\n".join(page.get_textpage().get_text_range() for page in document)


def without_marks(markdown: str) -> str:
    """The text of Markdown, without its marks."""
    without_links = _MARKDOWN_LINKS.sub(r"\1", markdown)
    return html.unescape(_MARKDOWN_MARKS.sub(" ", without_links))


def with_single_spaces(text: str) -> str:
    return " ".join(text.split())


def ratio(expected: str, text: str) -> float:
    """The Indel similarity of two texts, from 0 to 1."""
    return Indel.normalized_similarity(with_single_spaces(expected), with_single_spaces(text))


def word_f1(expected: str, text: str) -> float:
    """The F1 score of the words of two texts; a repeated word counts each time."""
    expected_words = Counter(re.findall(r"\w+", expected))
    words = Counter(re.findall(r"\w+", text))
    common = (expected_words & words).total()
    return 2 * common / max(expected_words.total() + words.total(), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
