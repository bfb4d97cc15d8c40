"""Does drafting change a token? Runs prompts with and without drafts and compares the ids."""

from collections.abc import Iterator, Sequence

from ngtcli.decode.sampling import penalizes
from ngtcli.draft.drafter import PassRows
from ngtcli.errors import NgtError
from ngtcli.measure.live import generate
from ngtcli.measure.results import Comparison
from ngtcli.prompt.build import Prompt
from ngtcli.session.local import LocalSession
from ngtcli.session.session import AnswerOptions, AnswerRun


def compare(
    session: LocalSession, prompts: Sequence[tuple[str, Prompt]], num_drafts: Sequence[int]
) -> Iterator[Comparison]:
    """Drafted decoding at each of `num_drafts`, and plain decoding in passes of the same shape."""
    for name, prompt in prompts:
        plain: dict[PassRows | None, list[int]] = {}
        generated: list[int] | None = None
        tried = False
        for num_draft in num_drafts:
            drafted = _run(session, prompt, session.settings.method, num_draft)
            rows, length = drafted.rows, drafted.statistics.mean_acceptance_length
            if rows not in plain:
                plain[rows] = _run(session, prompt, "none", num_draft).output
            if drafted.exact and not tried:
                generated, tried = _generated(session, prompt), True
            truth = plain[rows]
            place = first_difference(truth, drafted.output)
            margin = None if place is None else _margin(session, prompt, truth[:place], rows)
            same = None if generated is None else generated[: len(truth)] == truth
            yield Comparison(
                name, num_draft, len(drafted.output), length, place, margin, drafted.exact, same
            )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference of two sequences, None if they are equal.

    >>> first_difference([1, 2, 3], [1, 2])
    2
    """
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def _run(session: LocalSession, prompt: Prompt, method: str, num_draft: int) -> AnswerRun:
    return session.answer(prompt, AnswerOptions(method, num_draft, to_the_end=True)).run.finish()


def _generated(session: LocalSession, prompt: Prompt) -> list[int] | None:
    """The ids of `transformers`' generate; None where it cannot run the model, or would sample."""
    if session.settings.temperature or penalizes(session.settings):
        return None
    try:
        return list(generate(session, "hf", prompt).ids)
    except NgtError:
        return None


def _margin(
    session: LocalSession, prompt: Prompt, output: Sequence[int], rows: PassRows | None
) -> float:
    """Best minus second-best score after `output`, from passes of one token, as plain decoding."""
    from ngtcli.draft.tree import DraftTree

    model = session.model
    ids = [*prompt.ids, *output]
    model.start(min(len(prompt.ids) + session.settings.max_tokens, model.context), rows)
    model.prefill(prompt.ids[:-1])
    for token in ids[len(prompt.ids) - 1 : -1]:
        model.forward(token, DraftTree())
        model.keep(())
    best = model.forward(ids[-1], DraftTree())[0].float().topk(2).values
    return float(best[0] - best[1])
