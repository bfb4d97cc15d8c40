"""Scores of an answer against reference answers: exact match, F1 and ROUGE-L, all from 0 to 1.

Exact match and F1 are those of SQuAD: both texts are put in lower case and lose punctuation,
articles and superfluous spaces; the best of several references counts. ROUGE-L is the F measure of
the optional package `rouge-score`, with stemming.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean

NO_ROUGE = "ROUGE-L is left out: it needs rouge-score (pip install -e '.[dev]')"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Normalize `text` as SQuAD does before it compares.

    >>> normalise("The  Oysters, of a town.")
    'oysters of town'
    """
    words = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(words.split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer is one of `references`, else 0.0."""
    return float(normalise(answer) in map(normalise, references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall in words, against the best reference."""
    words = normalise(answer).split()
    scores = [_word_f1(words, normalise(reference).split()) for reference in references]
    return max(scores, default=0.0)


def _word_f1(words: Sequence[str], reference: Sequence[str]) -> float:
    if not words or not reference:  # SQuAD: an empty answer is right only if the reference is empty
        return float(words == reference)
    shared = (Counter(words) & Counter(reference)).total()
    return 2 * shared / (len(words) + len(reference))


def rouge_l() -> Callable[[str, Sequence[str]], float] | None:
    """Return a scorer of (answer, references), or None if `rouge-score` is not installed."""
    if find_spec("rouge_score") is None:
        return None
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)

    def score(answer: str, references: Sequence[str]) -> float:
        measures = [scorer.score(reference, answer)["rougeL"] for reference in references]
        return max((float(measure.fmeasure) for measure in measures), default=0.0)

    return score


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over judged answers; `rouge_l` is None without its package."""

    judged: int
    exact_match: float | None
    f1: float | None
    rouge_l: float | None = None


class Quality:
    """Scores answers. `note` says which score is missing, and why."""

    def __init__(self) -> None:
        self._rouge = rouge_l()
        self.note = "" if self._rouge else NO_ROUGE

    def scores(self, answers: Sequence[tuple[str, Sequence[str], bool]]) -> Scores:
        """Average the scores of (answer, at least one reference, whether a question was asked).

        Exact match and F1 count only answers to questions.
        """
        to_questions = [
            (answer, references) for answer, references, has_question in answers if has_question
        ]
        rouge = None
        if self._rouge:
            rouge = _mean([self._rouge(answer, references) for answer, references, _ in answers])
        return Scores(
            judged=len(answers),
            exact_match=_mean([exact_match(*answer) for answer in to_questions]),
            f1=_mean([f1(*answer) for answer in to_questions]),
            rouge_l=rouge,
        )


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None
