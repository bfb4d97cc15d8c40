"""How well documents are read: ngt's text of real files, and raw PDFium's, beside references.

    python -m tests.tools.documents_score FOLDER

FOLDER holds `docling` and `pdfbox` (files with references), `olmocr` (pages, and tests.jsonl, which
says what must stand there), and `found` (files that were once read wrongly; no references).
"""

import html
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pypdfium2 as pdfium
from rapidfuzz import fuzz
from rapidfuzz.distance import Indel

from ngtcli.documents.content import Source
from ngtcli.documents.formats import format_of
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse

_MOST = 1 << 28  # bytes that a file may unpack to
_MARKS = re.compile(
    r"<!--.*?-->|^\s*(?:#+|[-*+]|\d+\.|>|```\w*)\s+|^[\s|:-]+$|\||\*\*|__|`|\\(?=[_*#\[\]<>|])",
    re.MULTILINE,
)
_LINKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SIGNS = str.maketrans("‘’“”–—‐", "''\"\"---")


def main(folder: Path) -> None:
    """Print a table of all sets, and a line for each PDF of `found`."""
    print(f"{'set':<22} {'files':>5} {'ngt':>15} {'PDFium':>15} {'worse':>5} {'better':>6}")
    sets: dict[str, tuple[list[Path], str]] = {
        "docling, PDF": (sorted((folder / "docling").glob("*.pdf")), ".reference.md"),
        "docling, other": (
            sorted(p.with_suffix("").with_suffix("") for p in _other(folder / "docling")),
            ".reference.md",
        ),
        "pdfbox .txt": (sorted((folder / "pdfbox").glob("*.pdf")), ".txt"),
        "pdfbox -sorted.txt": (sorted((folder / "pdfbox").glob("*.pdf")), "-sorted.txt"),
    }
    for name, (paths, suffix) in sets.items():
        score_set(name, [(p, p.with_name(p.name + suffix)) for p in paths])
    page_tests(folder / "olmocr")
    for path in sorted((folder / "found").glob("*.pdf")):
        lost(path)


def _other(folder: Path) -> list[Path]:
    return [p for p in folder.glob("*.reference.md") if not p.name.endswith(".pdf.reference.md")]


def score_set(name: str, files: Sequence[tuple[Path, Path]]) -> None:
    """Print the mean character ratio and word F1 over files with a reference."""
    rows = []
    for path, reference in files:
        wanted = reference.read_text("utf-8", "replace")
        wanted = plain(wanted) if reference.suffix == ".md" else wanted
        is_pdf = path.suffix == ".pdf"
        texts = (ours(path), pdfium_text(path)) if is_pdf else (plain(ours(path)),)
        rows.append([f(wanted, text) for text in texts for f in (ratio, word_f1)])
        print(f"  {path.name[:50]:<50} {' '.join(f'{x:.3f}' for x in rows[-1])}", file=sys.stderr)
    means = [f"{mean(column):.3f}" for column in zip(*rows, strict=True)]
    told = [" / ".join(means[i : i + 2]) for i in range(0, len(means), 2)]
    worse, better = (
        sum(sign * (row[0] - row[2]) > 0.02 for row in rows if len(row) > 2) for sign in (-1, 1)
    )
    counts = (worse, better) if len(told) > 1 else ("", "")
    shown = [*told, "", ""][:2]
    print(f"{name:<22} {len(rows):>5} {shown[0]:>15} {shown[1]:>15} {counts[0]:>5} {counts[1]:>6}")


def page_tests(folder: Path) -> None:
    """Print how many tests of each kind pass."""
    tests = [json.loads(line) for line in (folder / "tests.jsonl").open(encoding="utf-8")]
    passed: Counter[tuple[str, str]] = Counter()
    kinds = {"present": _present, "absent": lambda t, x: not _present(t, x), "order": _in_order}
    for test in (t for t in tests if t["type"] in kinds):
        path = folder / test["pdf"].replace("/", "__")
        for reader in (ours, pdfium_text):
            text = squeezed(reader(path)).translate(_SIGNS)
            passed[test["type"], reader.__name__] += kinds[test["type"]](test, text)
    for kind, count in Counter(t["type"] for t in tests if t["type"] in kinds).items():
        mine, raw = passed[kind, ours.__name__], passed[kind, pdfium_text.__name__]
        print(f"{'olmocr ' + kind:<22} {count:>5} {mine:>15} {raw:>15}")


def _at(words: str, text: str, most: int) -> int:
    """Where `words` stand in `text` with at most so many differences; -1 if nowhere."""
    words = squeezed(words).translate(_SIGNS)
    if (found := text.find(words)) >= 0:
        return found
    if len(text) < len(words):
        return -1
    match = fuzz.partial_ratio_alignment(words, text)
    good = match and match.score >= 100 * (1 - most / len(words))
    return match.dest_start if match and good else -1


def _present(test: dict[str, Any], text: str) -> bool:
    text = text[-test["last_n"] :] if "last_n" in test else text
    return _at(test["text"], text, test.get("max_diffs", 0)) >= 0


def _in_order(test: dict[str, Any], text: str) -> bool:
    first, second = (_at(test[k], text, test.get("max_diffs", 0)) for k in ("before", "after"))
    return 0 <= first < second


def lost(path: Path) -> None:
    """Print the share of PDFium's letters and words that ngt's text lacks."""
    raw, mine = pdfium_text(path), ours(path)
    units: tuple[Callable[[str], Iterable[str]], ...] = (lambda t: filter(str.isalnum, t), words_of)
    shares = []
    for unit in units:
        wanted = Counter(unit(raw))
        shares.append((wanted - Counter(unit(mine))).total() / max(wanted.total(), 1))
    print(f"found {path.name:<30} lost letters {shares[0]:6.2%}, words {shares[1]:6.2%}")


def ours(path: Path) -> str:
    """The text as ngt reads it; "" for what it refuses."""
    data = path.read_bytes()
    form = format_of(path.suffix, data[:1024])
    try:
        return parse(form.name, Source(data=data, suffix=path.suffix, most=_MOST)).text  # type: ignore[union-attr]
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


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def ratio(a: str, b: str) -> float:
    """The Indel similarity of two texts, from 0 to 1."""
    return Indel.normalized_similarity(squeezed(a), squeezed(b))


def word_f1(a: str, b: str) -> float:
    """The F1 score of the words of two texts, each as often as it stands there."""
    first, second = Counter(words_of(a)), Counter(words_of(b))
    return 2 * (first & second).total() / max(first.total() + second.total(), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
