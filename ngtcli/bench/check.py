"""Check that drafting changes no token: decode prompts with and without drafts, and compare.

Prompts come from the same source as those of `ngt bench`. Plain decoding uses forward passes of the
same shape as the drafted run.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ngtcli.bench.live import Live
from ngtcli.bench.results import CheckReport, Comparison
from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.engine.local import LocalSession
from ngtcli.engine.session import AnswerOptions
from ngtcli.prompts.build import Prompt
from ngtcli.system import reporting
from ngtcli.words import counted


def run_check(source: Live, settings: Settings, num_drafts: Sequence[int]) -> CheckReport:
    """Compare drafted with plain decoding for every prompt.

    Each plain answer is decoded once for each shape of forward passes, and compared with all
    drafted answers of that shape.

    Args:
        source: The model and the prompts.
        settings: The settings, with the method.
        num_drafts: Draft budgets, in nodes, to check one by one.

    Returns:
        The report, with `skipped` left empty.
    """
    session = source.session(settings)
    comparisons = list[Comparison]()
    for done, prompt in enumerate(source.built_prompts(session)):
        reporting.status(f"Comparing: {done} of {counted(len(source.items), 'prompt')}")
        comparisons += _compare(session, source.items[done].id, prompt, num_drafts)
    return CheckReport(
        model=settings.model.model,
        method=settings.drafting.method,
        dtype=settings.model.dtype,
        quantize=settings.model.quantize,
        exact=all(c.exact for c in comparisons),
        prompts=len(source.items),
        prompts_available=len(source.items),
        num_draft=num_drafts,
        runs=len(comparisons),
        identical=sum(c.identical for c in comparisons),
        results=comparisons,
        skipped=(),
    )


def _compare(
    session: LocalSession, prompt_id: str, prompt: Prompt, num_drafts: Sequence[int]
) -> Iterator[Comparison]:
    """Compare drafted decoding at each draft budget with plain decoding of the same shape."""
    plain_outputs: dict[Numerics, list[int]] = {}
    for num_draft in num_drafts:
        drafted = _decode(session, prompt, session.settings.drafting.method, num_draft)
        numerics = drafted.numerics
        if numerics not in plain_outputs:
            plain_outputs[numerics] = _decode(session, prompt, "none", num_draft).token_ids
        expected = plain_outputs[numerics]
        position = first_difference(expected, drafted.token_ids)
        margin = None
        if position is not None:
            margin = _logit_margin(session, prompt, expected[:position], numerics)
        yield Comparison(
            prompt_id,
            num_draft,
            len(drafted.token_ids),
            drafted.statistics.mean_acceptance_length,
            position,
            margin,
            drafted.is_exact,
        )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The index of the first difference between two sequences; None if they are equal.

    >>> first_difference([1, 2, 3], [1, 2])
    2
    """
    for index, (x, y) in enumerate(zip_longest(a, b)):
        if x != y:
            return index
    return None


def _decode(session: LocalSession, prompt: Prompt, method: str, num_draft: int) -> DecodedSequence:
    return session.generate(prompt, AnswerOptions(method, num_draft, to_the_end=True))


def _logit_margin(
    session: LocalSession, prompt: Prompt, output: Sequence[int], numerics: Numerics
) -> float:
    """The best minus the second-best logit after `output`, by forward passes of one token."""
    from ngtcli.drafting.tree import DraftTree

    model = session.model
    token_ids = [*prompt.ids, *output]
    capacity = min(len(prompt.ids) + session.settings.answer.max_tokens, model.context)
    model.start(capacity, numerics)
    model.prefill(prompt.ids[:-1])
    for token in token_ids[len(prompt.ids) - 1 : -1]:
        model.forward(token, DraftTree())
        model.keep(())
    logits = model.forward(token_ids[-1], DraftTree())[0].float()
    best, second = logits.topk(2).values
    return float(best - second)
