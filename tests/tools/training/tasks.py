"""Training exercises: documents, questions about them, and answers quoted from them.

`TaskMixture.sample` makes a conversation: one document, then several independent turns about it. A
further turn costs about a tenth of the document's tokens. All randomness comes from the caller's
generator, so that a run can be repeated.
"""

import random
from dataclasses import dataclass

from tests.tools.training.corpus import Article, Paragraph, is_prose

# The wording of presets/summarize.yaml and presets/ask.yaml, which a test compares, without a
# sentence that they got later.
SUMMARIZE = "Summarize the text above in a few sentences."
ASK = "Answer the question from the text above.\nQuestion: {question}"

# The shares of the conversations by source, before scaling to a sum of 1. Guesses.
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
    """Make a question from a sentence: remove a span, leave out some words, change others.

    The removed span stands for the answer. The changes (lower case, a lost ending) stand for the
    difference between people's wording and that of the text.
    """
    words = sentence.rstrip(".!?\"')”").split()
    if len(words) > 6:
        span = rng.randint(1, max(1, len(words) // 3))
        start = rng.randrange(len(words) - span + 1)
        words = words[:start] + words[start + span :]
    content_share = rng.choice((0.25, 0.4, 0.6, 0.85))
    chosen = []
    for word in words:
        share = content_share if _is_content(word) else 0.5 * content_share
        if rng.random() < share:
            chosen.append(word)
    if not any(map(_is_content, chosen)):
        chosen = list(filter(_is_content, words))[:3] or words[:3]
    if rng.random() < 0.25:
        rng.shuffle(chosen)
    changed = [_change(word, rng) for word in chosen]
    return f"{rng.choice(_OPENERS)} {' '.join(changed)}?"


def _is_content(word: str) -> bool:
    return word.strip(",;:()\"'“”").lower() not in FUNCTION_WORDS


def _change(word: str, rng: random.Random) -> str:
    """Remove punctuation, and sometimes capitals or an ending."""
    word = word.strip(',;:()"“”') or word
    if rng.random() < 0.2:
        word = word.lower()
    if rng.random() < 0.12:
        for ending in ("ing", "ed", "es", "s", "ly"):
            if word.endswith(ending) and len(word) > len(ending) + 3:
                return word[: -len(ending)]
    return word


def extract_summary(paragraphs: list[Paragraph]) -> str | None:
    """Return two adjacent prose sentences, or None if there are none.

    They are the sentence nearest to a human summary and its neighbour. Without one they are the
    document's first two, which are a strong baseline (lead: Nenkova 2005) and all that a model this
    small learns.
    """
    pairs: list[str] = []
    summary_pairs: list[str] = []  # those with the sentence nearest to a summary
    for paragraph in paragraphs:
        for index in range(len(paragraph.sentences) - 1):
            sentences = paragraph.sentences[index : index + 2]
            if all(map(is_prose, sentences)):
                pair = " ".join(sentences)
                pairs.append(pair)
                if paragraph.summary in (index, index + 1):
                    summary_pairs.append(pair)
    if summary_pairs:
        # The nearest sentence is in two pairs, unless it is at an end: prefer the second, in which
        # it comes first.
        return summary_pairs[:2][-1]
    return pairs[0] if pairs else None


class TaskMixture:
    """Draws conversations from articles."""

    def __init__(self, articles: list[Article]) -> None:
        self._by_source: dict[str, list[Article]] = {}
        for article in articles:
            self._by_source.setdefault(article.source, []).append(article)
        self._sources = [source for source in _WEIGHTS if source in self._by_source]

    def sample(self, rng: random.Random, max_words: int) -> Conversation:
        """Draw a conversation about a document of about 40 to `max_words` words."""
        budget = round(40 * (max(max_words, 41) / 40) ** rng.random())
        while True:
            document = self._document(rng, budget)
            turns = self._turns([paragraph for _, paragraph in document], rng)
            if turns:
                return Conversation(_render(document), tuple(turns))

    def _document(self, rng: random.Random, budget: int) -> list[tuple[str, Paragraph]]:
        """Draw paragraphs of one or several articles, of about `budget` words in all.

        Returns (heading, paragraph) pairs; the heading is "" where an article continues.
        """
        has_several = rng.random() < 0.4
        document: list[tuple[str, Paragraph]] = []
        size = 0
        while size < budget:
            share = rng.randint(40, max(60, budget // 2)) if has_several else budget
            name, paragraphs = self._excerpt(rng, min(share, budget - size))
            heading = name if has_several else ""
            for paragraph in paragraphs:
                document.append((heading, paragraph))
                heading = ""
                size += _word_count(paragraph)
            if not has_several and size:
                break
        return document

    def _excerpt(self, rng: random.Random, budget: int) -> tuple[str, list[Paragraph]]:
        """Draw an article; return its name and about `budget` words of paragraphs, at most."""
        weights = [_WEIGHTS[source] for source in self._sources]
        source = rng.choices(self._sources, weights)[0]
        article = rng.choice(self._by_source[source])
        start = rng.randrange(len(article.paragraphs))
        excerpt: list[Paragraph] = []
        size = 0
        for paragraph in article.paragraphs[start:]:
            length = _word_count(paragraph)
            if excerpt and size + length > budget:
                break
            if not excerpt:  # at least one paragraph is needed, however long it is
                paragraph = _cut(paragraph, budget * 2)
            excerpt.append(paragraph)
            size += length
        suffix = rng.choice((".txt", ".md", "", ""))
        return article.name.split(".")[0] + suffix, excerpt

    def _turns(self, paragraphs: list[Paragraph], rng: random.Random) -> list[tuple[str, str]]:
        """Draw (instruction, answer) pairs about a document; none if it has no prose."""
        prose: list[str] = []
        real_questions: list[tuple[str, str]] = []
        for paragraph in paragraphs:
            prose += filter(is_prose, paragraph.sentences)
            for question, index in paragraph.questions:
                real_questions.append((question, paragraph.sentences[index]))
        if not prose:
            return []
        turns = []
        for _ in range(rng.randint(3, min(8, 3 + len(prose)))):
            if real_questions and rng.random() < 0.75:
                question, answer = real_questions.pop(rng.randrange(len(real_questions)))
            elif rng.random() < 0.12:
                answer = rng.choice(prose)
                opening = " ".join(answer.split()[: rng.randint(2, 5)])
                question = f'What does "{opening}" say?'
            else:
                answer = rng.choice(prose)
                question = pseudo_question(answer, rng)
            turns.append((ASK.format(question=question), answer))
        if rng.random() < 0.6:
            summary = extract_summary(paragraphs)
            if summary:
                turns.insert(0, (SUMMARIZE, summary))
        return turns


def _word_count(paragraph: Paragraph) -> int:
    return sum(len(sentence.split()) for sentence in paragraph.sentences)


def _cut(paragraph: Paragraph, budget: int) -> Paragraph:
    """Cut the paragraph after the sentence that brings it to `budget` words."""
    count = 0
    size = 0
    for sentence in paragraph.sentences:
        count += 1
        size += len(sentence.split())
        if size >= budget:
            break
    summary = paragraph.summary
    if summary is not None and summary >= count:
        summary = None
    return Paragraph(
        sentences=paragraph.sentences[:count],
        questions=tuple(pair for pair in paragraph.questions if pair[1] < count),
        summary=summary,
    )


def _render(document: list[tuple[str, Paragraph]]) -> str:
    """Join (heading, paragraph) pairs to a text."""
    blocks = []
    for heading, paragraph in document:
        text = " ".join(paragraph.sentences)
        blocks.append(f"{heading}\n{text}" if heading else text)
    return "\n\n".join(blocks)
