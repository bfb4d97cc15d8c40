"""How good an answer is against reference answers: exact match, F1, ROUGE-L. All from 0 to 1.

Exact match and F1 are SQuAD's: both texts are lowered, punctuation, articles and superfluous
spaces are dropped, and the best of several references counts. ROUGE-L is the F measure of the
`rouge-score` package, stemmed, which is an extra.
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
    """`text` as SQuAD compares it.

    >>> normalise("The  Oysters, of a town.")
    'oysters of town'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1.0 where the answer is one of `references`, else 0.0."""
    return float(normalise(answer) in map(normalise, references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall in words, against the best reference."""
    own, found = normalise(answer).split(), [0.0]
    for wanted in (normalise(reference).split() for reference in references):
        shared = (Counter(own) & Counter(wanted)).total()
        # SQuAD: nothing said equals only nothing wanted.
        both = own and wanted
        found.append(2 * shared / (len(own) + len(wanted)) if both else float(own == wanted))
    return max(found)


def rouge_l() -> Callable[[str, Sequence[str]], float] | None:
    """A scorer of (answer, references); None where `rouge-score` is not installed."""
    if find_spec("rouge_score") is None:
        return None
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return lambda answer, references: max(
        (float(scorer.score(r, answer)["rougeL"].fmeasure) for r in references), default=0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over judged answers; `rouge_l` is None without its package."""

    judged: int
    exact_match: float | None
    f1: float | None
    rouge_l: float | None = None


class Quality:
    """Scores answers; `note` says what could not be had."""

    def __init__(self) -> None:
        self._rouge = rouge_l()
        self.note = "" if self._rouge else NO_ROUGE

    def scores(self, answers: Sequence[tuple[str, Sequence[str], bool]]) -> Scores:
        """Means over (answer, references, one at least, whether a question was asked).

        Exact match and F1 are of the questions alone.
        """
        asked = [(answer, references) for answer, references, asked in answers if asked]
        return Scores(
            judged=len(answers),
            exact_match=_mean([exact_match(*one) for one in asked]),
            f1=_mean([f1(*one) for one in asked]),
            rouge_l=_mean([self._rouge(a, r) for a, r, _ in answers]) if self._rouge else None,
        )


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None
