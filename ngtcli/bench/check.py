"""Does drafting change a token? Prompts with and without drafts, their ids compared.

The source is that of `ngt bench`, and so are its cells: a method at each number of nodes, and plain
decoding in passes of the same shape.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from ngtcli.bench.live import Live
from ngtcli.bench.results import CheckReport, Comparison
from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.sequence import Sequence as DecodedSequence
from ngtcli.engine.local import LocalSession
from ngtcli.engine.session import AnswerOptions
from ngtcli.prompts.build import Prompt
from ngtcli.words import counted


def run_check(
    source: Live, settings: Settings, num_drafts: Sequence[int], progress: Callable[[str], None]
) -> CheckReport:
    """Every prompt of the source at each of `num_drafts`; `skipped` is left empty.

    Each plain answer is decoded once and compared with all drafted ones, as far as their passes
    have its shape.
    """
    session, found = source.session(settings), list[Comparison]()
    for done, prompt in enumerate(source.worded(session)):
        progress(f"Comparing: {done} of {counted(len(source.items), 'prompt')}")
        found += _compared(session, source.items[done].id, prompt, num_drafts)
    return CheckReport(
        model=settings.model.model,
        method=settings.drafting.method,
        dtype=settings.model.dtype,
        quantize=settings.model.quantize,
        exact=all(c.exact for c in found),
        prompts=len(source.items),
        prompts_available=len(source.items),
        num_draft=num_drafts,
        runs=len(found),
        identical=sum(c.identical for c in found),
        results=found,
        skipped=(),
    )


def _compared(
    session: LocalSession, name: str, prompt: Prompt, num_drafts: Sequence[int]
) -> Iterator[Comparison]:
    """Drafted decoding at each of `num_drafts`, and plain decoding in passes of the same shape."""
    plain: dict[Numerics, list[int]] = {}
    for num_draft in num_drafts:
        drafted = _run(session, prompt, session.settings.drafting.method, num_draft)
        numerics, length = drafted.numerics, drafted.statistics.mean_acceptance_length
        if numerics not in plain:
            plain[numerics] = _run(session, prompt, "none", num_draft).token_ids
        truth, made = plain[numerics], len(drafted.token_ids)
        place = first_difference(truth, drafted.token_ids)
        margin = None if place is None else _margin(session, prompt, truth[:place], numerics)
        yield Comparison(name, num_draft, made, length, place, margin, drafted.is_exact)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference of two sequences, None if they are equal.

    >>> first_difference([1, 2, 3], [1, 2])
    2
    """
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def _run(session: LocalSession, prompt: Prompt, method: str, num_draft: int) -> DecodedSequence:
    return session.generate(prompt, AnswerOptions(method, num_draft, to_the_end=True))


def _margin(
    session: LocalSession, prompt: Prompt, output: Sequence[int], numerics: Numerics
) -> float:
    """Best minus second-best score after `output`, from passes of one token, as plain decoding."""
    from ngtcli.drafting.tree import DraftTree

    model = session.model
    ids = [*prompt.ids, *output]
    model.start(min(len(prompt.ids) + session.settings.answer.max_tokens, model.context), numerics)
    model.prefill(prompt.ids[:-1])
    for token in ids[len(prompt.ids) - 1 : -1]:
        model.forward(token, DraftTree())
        model.keep(())
    best = model.forward(ids[-1], DraftTree())[0].float().topk(2).values
    return float(best[0] - best[1])
