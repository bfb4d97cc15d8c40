"""Training exercises: documents, questions about them, and answers quoted from them.

`TaskMixture.sample` makes a conversation: one document, then several independent turns about it. A
further turn costs about a tenth of the document's tokens. All randomness comes from the generator
that the caller gives, so a run can be repeated.
"""

import random
from dataclasses import dataclass
from itertools import accumulate

from tests.tools.training.corpus import Article, Paragraph, is_prose

# The wording of presets/summarize.yaml and presets/ask.yaml, without a sentence that came later; a
# test compares them.
SUMMARIZE = "Summarize the text above in a few sentences."
ASK = "Answer the question from the text above.\nQuestion: {question}"

# Share of the conversations by source, before scaling to a sum of 1; guesses.
_WEIGHTS = {
    "newwiki-qa": 0.50,
    "scitldr": 0.14,
    "peps": 0.12,
    "rust-rfcs": 0.08,
    "eips": 0.06,
    "sherlock": 0.08,
    "qmsum": 0.10,
}
FUNCTION_WORDS = frozenset(
    (
        "a an and are as at be been but by can could did do does for from had has have he her his "
        "how i if in into is it its may might more most no not of on or our she should so some "
        "such than that the their them then there these they this those to was we were what when "
        "where which while who why will with would you "
    ).split()
)
_OPENERS = (
    "What",
    "What is",
    "What was",
    "What are",
    "What did",
    "Who",
    "Who was",
    "When",
    "When did",
    "Where",
    "Where is",
    "Which",
    "How",
    "How many",
    "How did",
    "Why",
    "Why is",
    "what",
    "who",
    "when was",
    "where",
    "how",
    "Is",
    "Does",
    "Tell me about",
    "What about",
    "In what",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A document and (instruction, answer) turns about it."""

    document: str
    turns: tuple[tuple[str, str], ...]


def pseudo_question(sentence: str, rng: random.Random) -> str:
    """A question made from a sentence: a span removed, some words left out, some words changed.

    The removed span stands for the answer; the changes (lower case, a lost ending) stand for the
    difference between people's wording and the text's.
    """
    tokens = sentence.rstrip(".!?\"')”").split()
    if len(tokens) > 6:
        gap = rng.randint(1, max(1, len(tokens) // 3))
        start = rng.randrange(len(tokens) - gap + 1)
        tokens = tokens[:start] + tokens[start + gap :]
    keep = rng.choice((0.25, 0.4, 0.6, 0.85))
    kept = [t for t in tokens if rng.random() < (keep if _is_content(t) else 0.5 * keep)]
    if not any(map(_is_content, kept)):
        kept = [t for t in tokens if _is_content(t)][:3] or tokens[:3]
    if rng.random() < 0.25:
        rng.shuffle(kept)
    changed = [_change(t, rng) for t in kept]
    return f"{rng.choice(_OPENERS)} {' '.join(changed)}?"


def _is_content(token: str) -> bool:
    return token.strip(",;:()\"'“”").lower() not in FUNCTION_WORDS


def _change(token: str, rng: random.Random) -> str:
    token = token.strip(',;:()"“”') or token
    if rng.random() < 0.2:
        token = token.lower()
    if rng.random() < 0.12:
        for ending in ("ing", "ed", "es", "s", "ly"):
            if token.endswith(ending) and len(token) > len(ending) + 3:
                return token[: -len(ending)]
    return token


def extract_summary(paragraphs: list[Paragraph]) -> str | None:
    """Two adjacent prose sentences, or None if there are none.

    They are the sentence nearest to a human summary and its neighbour; else the document's first
    two, which are a strong baseline (lead: Nenkova 2005) and all that a model this small learns.
    """
    pairs = [
        (paragraph, i)
        for paragraph in paragraphs
        for i in range(len(paragraph.sentences) - 1)
        if all(map(is_prose, paragraph.sentences[i : i + 2]))
    ]
    marked = [(p, i) for p, i in pairs if p.summary in (i, i + 1)]
    for paragraph, i in [*reversed(marked[:2]), *pairs[:1]]:
        return " ".join(paragraph.sentences[i : i + 2])
    return None


class TaskMixture:
    """Draws conversations from articles."""

    def __init__(self, articles: list[Article]) -> None:
        self._by_source: dict[str, list[Article]] = {}
        for article in articles:
            self._by_source.setdefault(article.source, []).append(article)
        self._sources = [s for s in _WEIGHTS if s in self._by_source]

    def sample(self, rng: random.Random, limit: int) -> Conversation:
        """One conversation with a document of about 40 to `limit` words."""
        budget = round(40 * (max(limit, 41) / 40) ** rng.random())
        while True:
            named = self._document(rng, budget)
            if turns := self._turns([p for _, p in named], rng):
                return Conversation(_render(named), tuple(turns))

    def _document(self, rng: random.Random, budget: int) -> list[tuple[str, Paragraph]]:
        """(heading, paragraph) pairs of about `budget` words; "" continues the document before."""
        several = rng.random() < 0.4
        out: list[tuple[str, Paragraph]] = []
        size = 0
        while size < budget:
            share = budget if not several else rng.randint(40, max(60, budget // 2))
            name, run = self._run(rng, min(share, budget - size))
            out += [(name if i == 0 and several else "", p) for i, p in enumerate(run)]
            size += sum(len(s.split()) for p in run for s in p.sentences)
            if not several and size:
                break
        return out

    def _run(self, rng: random.Random, budget: int) -> tuple[str, list[Paragraph]]:
        """An article's name and consecutive paragraphs of it, of at most about `budget` words."""
        source = rng.choices(self._sources, [_WEIGHTS[s] for s in self._sources])[0]
        article = rng.choice(self._by_source[source])
        at = rng.randrange(len(article.paragraphs))
        run: list[Paragraph] = []
        size = 0
        for paragraph in article.paragraphs[at:]:
            length = sum(len(s.split()) for s in paragraph.sentences)
            if run and size + length > budget:
                break
            run.append(_cut(paragraph, budget * 2) if not run else paragraph)
            size += length
        suffix = rng.choice((".txt", ".md", "", ""))
        return article.name.split(".")[0] + suffix, run

    def _turns(self, paragraphs: list[Paragraph], rng: random.Random) -> list[tuple[str, str]]:
        prose = [s for p in paragraphs for s in p.sentences if is_prose(s)]
        if not prose:
            return []
        real = [(q, p.sentences[i]) for p in paragraphs for q, i in p.questions]
        turns = []
        for _ in range(rng.randint(3, min(8, 3 + len(prose)))):
            if real and rng.random() < 0.75:
                question, answer = real.pop(rng.randrange(len(real)))
                turns.append((ASK.format(question=question), answer))
            elif rng.random() < 0.12:
                answer = rng.choice(prose)
                opening = " ".join(answer.split()[: rng.randint(2, 5)])
                turns.append((ASK.format(question=f'What does "{opening}" say?'), answer))
            else:
                answer = rng.choice(prose)
                turns.append((ASK.format(question=pseudo_question(answer, rng)), answer))
        summary = extract_summary(paragraphs) if rng.random() < 0.6 else None
        if summary:
            turns.insert(0, (SUMMARIZE, summary))
        return turns


def _cut(paragraph: Paragraph, budget: int) -> Paragraph:
    """The paragraph up to the sentence that brings it to `budget` words."""
    sizes = accumulate(len(sentence.split()) for sentence in paragraph.sentences)
    count = next((i for i, size in enumerate(sizes, 1) if size >= budget), len(paragraph.sentences))
    return Paragraph(
        paragraph.sentences[:count],
        tuple(q for q in paragraph.questions if q[1] < count),
        paragraph.summary if (paragraph.summary or 0) < count else None,
    )


def _render(named: list[tuple[str, Paragraph]]) -> str:
    texts = [(name, " ".join(paragraph.sentences)) for name, paragraph in named]
    return "\n\n".join(f"{name}\n{text}" if name else text for name, text in texts)
