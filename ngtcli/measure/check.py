"""Does drafting change a token? Runs prompts with and without drafts and compares the ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ngtcli.config import SETTINGS
from ngtcli.decode.sampling import penalizes
from ngtcli.documents.find import Skipped
from ngtcli.errors import NgtError
from ngtcli.measure.contestants import generate
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import AnswerOptions, AnswerRun
from ngtcli.session.local import LocalSession
from ngtcli.system.json_form import HIDDEN, json_key, json_property

_GENERATE = "how many plain answers are those of transformers' generate; information only"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt at one number of drafts. `divergence` is the first place of difference, or None.

    `margin` is the difference of plain decoding's two best scores there (logits, greedy only).
    `as_generate`: whether plain decoding gives what `generate` of `transformers` gives; None where
    that was not tried: it is where passes are exact, and greedy choices without penalties.
    """

    name: str
    num_draft: int
    new_tokens: int
    mean_acceptance_length: float = field(metadata=json_key(digits=4))
    divergence: int | None
    margin: float | None
    exact: bool = field(metadata=HIDDEN)
    as_generate: bool | None = field(metadata=HIDDEN)

    @property
    @json_property(after="num_draft")
    def identical(self) -> bool:
        """Whether drafting changed no token."""
        return self.divergence is None


@dataclass(frozen=True, slots=True)
class GenerateReport:
    """At one number of drafts, how many plain answers are as `generate` gives them."""

    num_draft: int
    prompts: int
    identical: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All comparisons of `ngt check`; `generate` has a row for each number of drafts."""

    model: str
    method: str
    dtype: str = field(metadata=json_key(choices=SETTINGS["dtype"].choices))
    exact: bool
    prompts: int
    num_draft: Sequence[int]
    runs: int
    identical: int
    results: Sequence[Comparison]
    generate: Sequence[GenerateReport] = field(metadata=json_key(about=_GENERATE))
    skipped: Sequence[Skipped]


def compare(
    session: LocalSession, prompts: Sequence[tuple[str, Prompt]], num_drafts: Sequence[int]
) -> Iterator[Comparison]:
    """Drafted decoding at each of `num_drafts`, and plain decoding in passes of the same shape."""
    for name, prompt in prompts:
        plain: dict[int | None, list[int]] = {}
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
        return list(generate(session, "hf").begin()(prompt).ids)
    except NgtError:
        return None


def _margin(
    session: LocalSession, prompt: Prompt, output: Sequence[int], rows: int | None
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
