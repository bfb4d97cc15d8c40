"""Does drafting change a token? Runs prompts with and without drafts and compares the ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ngtcli.prompt.build import Prompt
from ngtcli.session import AnswerOptions, Session


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt at one number of drafts. `divergence` is the first place of difference, or None.

    `margin` is the difference of plain decoding's two best scores there (logits, greedy only).
    """

    name: str
    num_draft: int
    new_tokens: int
    mean_acceptance_length: float
    divergence: int | None
    margin: float | None

    @property
    def identical(self) -> bool:
        return self.divergence is None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_draft": self.num_draft,
            "identical": self.identical,
            "new_tokens": self.new_tokens,
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "divergence": self.divergence,
            "margin": self.margin,
        }


def compare(
    session: Session, prompts: Sequence[tuple[str, Prompt]], num_drafts: Sequence[int]
) -> Iterator[Comparison]:
    """Plain decoding once a prompt, then drafted decoding at each of `num_drafts`."""
    for name, prompt in prompts:
        plain = _output(session, prompt, "none", 0)[0]
        for num_draft in num_drafts:
            drafted, length = _output(session, prompt, session.settings.method, num_draft)
            place = first_difference(plain, drafted)
            margin = None if place is None else _margin(session, prompt, plain[:place])
            yield Comparison(name, num_draft, len(drafted), length, place, margin)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference of two sequences, None if they are equal.

    >>> first_difference([1, 2, 3], [1, 2])
    2
    """
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def _output(
    session: Session, prompt: Prompt, method: str, num_draft: int
) -> tuple[list[int], float]:
    options = AnswerOptions(method, num_draft)
    run = session.answer(prompt, options).run.finish()
    return run.output, run.statistics.mean_acceptance_length


def _margin(session: Session, prompt: Prompt, output: Sequence[int]) -> float:
    """Best minus second-best score after `output`, from passes of one token, as plain decoding."""
    from ngtcli.draft.tree import DraftTree

    model = session.model
    ids = [*prompt.ids, *output]
    model.start(len(ids) + 1)
    model.prefill(prompt.ids[:-1])
    for token in ids[len(prompt.ids) - 1 : -1]:
        model.forward(token, DraftTree())
        model.keep(())
    best = model.forward(ids[-1], DraftTree())[0].float().topk(2).values
    return float(best[0] - best[1])
