"""Answers whose spans are checked, each against brute force and against its file's page.

    python -m tests.tools.spans --data newwiki-qa.jsonl.xz

Each line of the data, JSON, has a paragraph `context` and its questions `qas`. Questions are asked
of their paragraph among others, of a collection from which passages are read, and of PDF and Word
files made of the paragraphs; files and paragraphs are summarized, long ones part by part. `--texts`
names other files to summarize; without data the package's examples are. Counts go to standard
output; the exit code is 1 where a span is wrong or fewer answers were made than wanted.
"""

import argparse
import json
import lzma
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import ngtcli
from ngtcli.config import Settings
from ngtcli.documents.content import Section
from ngtcli.documents.load import Document, load
from ngtcli.grounding.sources import Source, Sources, Span, sources_of
from ngtcli.prompt.build import Excerpt, Prompt
from ngtcli.prompt.preset import load_preset
from ngtcli.session.local import LocalSession
from ngtcli.session.parts import Splitting
from tests.tools import document_files
from tests.tools.spans_check import Check

_TOGETHER = 4  # paragraphs beside the one that is asked
_COLLECTION = 300  # paragraphs to find one in
_PAGES = 12  # of a PDF made of paragraphs: more than the built-in model reads at once
_EXAMPLES = Path(ngtcli.__file__).parent / "examples"


def read(path: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """The paragraphs, and each question with the index of its paragraph."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions = [(i, qa["question"]) for i, row in enumerate(rows) for qa in row["qas"]]
    return [row["context"].strip() for row in rows], questions


@contextmanager
def own_cache() -> Iterator[None]:
    """An empty cache folder for as long as it runs."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, NGT_HOME=folder):
        yield


@dataclass(frozen=True, slots=True)
class Case:
    """Something to answer, and of what kind it is; no question: a summary."""

    kind: str
    documents: Sequence[Document]
    question: str = ""


@dataclass(slots=True)
class Count:
    """What came of the answers of one kind."""

    answers: int = 0
    spans: int = 0
    placed: int = 0  # spans with a page or a heading
    failures: list[str] = field(default_factory=list)


def cases(data: Path | None, texts: Sequence[Path], folder: Path) -> Iterator[Case]:
    """Everything to answer, kinds mixed, so that any number of the first ones has all kinds."""
    kinds = [_given(texts or sorted(_EXAMPLES.iterdir())), _made(folder)]
    if data is not None:
        paragraphs, questions = read(data)
        kinds += _of_data(paragraphs, questions, folder)
    while kinds:
        for kind in list(kinds):
            if (case := next(kind, None)) is None:
                kinds.remove(kind)
            else:
                yield case


def _given(texts: Sequence[Path]) -> Iterator[Case]:
    for path in texts:
        yield Case("a file", load([str(path)]).documents)
    yield Case("files", load([str(path) for path in texts]).documents)


def _made(folder: Path) -> Iterator[Case]:
    """Of small files of every format."""
    for name, make in document_files.FILES.items():
        if not name.startswith(("locked", "scan")):
            (folder / name).write_bytes(make())
            documents = load([str(folder / name)]).documents
            yield Case("small files", documents)
            yield Case("small files", documents, "What is it?")


def _of_data(
    paragraphs: Sequence[str], questions: Sequence[tuple[int, str]], folder: Path
) -> list[Iterator[Case]]:
    texts = [Document(f"{i}.txt", text) for i, text in enumerate(paragraphs)]
    asked = questions[:: max(1, len(questions) // 2000)]
    few = (Case("a question", [texts[i]], q) for i, q in asked)
    beside = (
        Case("a question, five documents", texts[i - i % 5 :][: _TOGETHER + 1], q)
        for i, q in asked[1:]
    )
    found = (Case("a question, passages", texts[:_COLLECTION], q) for i, q in asked)
    summaries = (Case("a summary", texts[i : i + 3]) for i in range(0, len(texts), 3))
    return [few, beside, found, summaries, _of_files(paragraphs, questions, folder)]


def _of_files(
    paragraphs: Sequence[str], questions: Sequence[tuple[int, str]], folder: Path
) -> Iterator[Case]:
    """Of PDF and Word files with a paragraph a page or chapter; whole, they do not fit."""
    makers = {document_files.PAGED: document_files.paged_pdf, ".docx": document_files.headed_docx}
    for first in range(0, len(paragraphs) - _PAGES, _PAGES):
        for ending, make in makers.items():
            path = folder / f"{first}{ending}"
            path.write_bytes(make(paragraphs[first : first + _PAGES]))
            documents = load([str(path)]).documents
            yield Case(f"a long {path.suffix[1:]}, split", documents)
            inside = [q for i, q in questions if first <= i < first + _PAGES]
            yield from (
                Case(f"a long {path.suffix[1:]}, passages", documents, q) for q in inside[:4]
            )


class Answers:
    """Answers of one model, and what comes of the checks of their spans, by kind."""

    def __init__(self, settings: Settings) -> None:
        self._session = LocalSession(settings, persist=False)
        self._summarize, self._ask = load_preset("summarize"), load_preset("ask")
        self.counts: dict[str, Count] = {}

    def check(self, case: Case) -> None:
        """Answer, and count what is right and wrong of the spans."""
        prompt = self._prompt(case)
        answer = "".join(t.text for step in self._session.answer(prompt) for t in step.tokens)
        excerpts = prompt.selection.excerpts if prompt.selection else None
        sources = sources_of(answer, case.documents, excerpts)
        count = self.counts.setdefault(case.kind, Count())
        count.answers += 1
        count.spans += len(sources.found)
        count.placed += sum(bool(s.page or s.heading) for s in sources.found)
        whole = [Excerpt(i, 0, len(d.text)) for i, d in enumerate(case.documents)]
        count.failures += failures(answer, case, sources, excerpts or whole)

    def _prompt(self, case: Case) -> Prompt:
        if case.question:
            return self._session.prompt(self._ask, case.documents, case.question)
        splitting = Splitting(self._session, self._summarize, case.documents, _ignore, _ignore)
        prompt = splitting.prompt()
        splitting.forget()
        return prompt


def _ignore(_: str) -> None:
    pass


def failures(
    answer: str, case: Case, sources: Sources, excerpts: Sequence[Excerpt]
) -> Iterator[str]:
    """What is wrong: with the spans, in the documents themselves and the excerpts read of them."""
    for source in sources.found:
        span, document = source.span, case.documents[source.span.document]
        said = answer[span.start : span.end]
        if "".join(said.split()) != "".join(document.text[_where(span)].split()):
            yield f"{said!r} stands elsewhere in {document.name}"
        if why := misplaced(document, source):
            yield f"{said!r}: {why}"
    texts = [case.documents[e.document].text[e.start : e.end] for e in excerpts]
    spans = [_within(source.span, excerpts) for source in sources.found]
    yield from Check(answer, texts).failures(spans)


def _where(span: Span) -> slice:
    return slice(span.source_start, span.source_end)


def _within(span: Span, excerpts: Sequence[Excerpt]) -> Span:
    """The span with its document counted among the excerpts, and its place in that excerpt."""
    for i, e in enumerate(excerpts):
        if e.document == span.document and e.start <= span.source_start < e.end:
            start, end = span.source_start - e.start, span.source_end - e.start
            return replace(span, document=i, source_start=start, source_end=end)
    raise ValueError("a span outside what was read")


def misplaced(document: Document, source: Source) -> str:
    """What is wrong with the page and heading named; "" if nothing is.

    In a PDF of `document_files.paged_pdf` the page itself is read again, without `documents`.
    """
    before = [s for s in document.about.sections if s.start <= source.span.source_start]
    section = before[-1] if before else Section(0)
    if before and (section.page, section.heading) != (source.page, source.heading):
        return f"page {source.page} and heading {source.heading!r} are not {section}"
    if not document.name.endswith(document_files.PAGED):
        return ""
    from pypdfium2 import PdfDocument

    with PdfDocument(document.path) as pdf:
        pages = [pdf[source.page - 1 + i] for i in range(min(2, len(pdf) - source.page + 1))]
        letters = "".join(_letters(page.get_textpage().get_text_range()) for page in pages)
    return "" if _letters(source.quote) in letters else f"not on page {source.page}"


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


def table(counts: dict[str, Count]) -> str:
    """A line for each kind, and one for all."""
    rows = [*sorted(counts.items()), ("all", _sum(counts.values()))]
    head = f"{'kind':<28}{'answers':>8}{'spans':>8}{'placed':>8}{'failures':>10}"
    lines = [
        f"{kind:<28}{c.answers:>8}{c.spans:>8}{c.placed:>8}{len(c.failures):>10}"
        for kind, c in rows
    ]
    return "\n".join([head, *lines])


def _sum(counts: Iterable[Count]) -> Count:
    whole = Count()
    for count in counts:
        whole.answers += count.answers
        whole.spans += count.spans
        whole.placed += count.placed
        whole.failures += count.failures
    return whole


def main() -> int:
    """Answer, check every span, print the counts; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--data", type=Path, help="JSON lines with context and qas; .xz too")
    parser.add_argument("--texts", type=Path, nargs="+", default=[], help="files to summarize")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    settings = Settings(
        model=given.model, max_tokens=given.max_tokens, temperature=given.temperature,
        overflow="retrieve", calibrate=False,
    )  # fmt: skip
    with own_cache(), tempfile.TemporaryDirectory() as folder:
        answers = Answers(settings)
        for case in islice(cases(given.data, given.texts, Path(folder)), given.answers):
            answers.check(case)
    whole = _sum(answers.counts.values())
    print(table(answers.counts))
    for line in whole.failures:
        print(line, file=sys.stderr)
    return int(bool(whole.failures) or whole.answers < given.answers)


_Formatter = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    sys.exit(main())
