"""What the tools that measure report; the fields are the keys of --json, in this order."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ngtcli.bench.grid import Cell, Refusal
from ngtcli.bench.records import Generation, Race
from ngtcli.bench.results import Invocation, Machine, invocation_field
from ngtcli.bench.summary import Group, column, json_rows, ratio, row_of
from ngtcli.documents.find import Skipped
from ngtcli.system.json_form import json_key

OVERALL = "overall"  # the task of rows over all tasks


@dataclass(frozen=True, slots=True)
class ReplayedGeneration(Generation):
    """An answer of a recording; `draft_us` are microseconds of drafting, step by step."""

    draft_us: Sequence[float] = ()


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile, interpolated; 0.0 of none.

    >>> percentile([1.0, 2.0, 4.0], 75)
    3.0
    """
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def draft_us(group: Group, percent: int) -> float:
    """Microseconds of drafting a step, at that percentile."""
    answers = [g for g in group.last if isinstance(g, ReplayedGeneration)]
    return round(percentile([us for g in answers for us in g.draft_us], percent), 1)


class TaskGroup(Group):
    """A group over the prompts of one task, or of all of them."""

    def __init__(self, task: str, *given: Any) -> None:
        super().__init__(*given)
        self.task = task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """The figures of a cell over the prompts of one task that a recording decides."""

    method: str = column(lambda g: g.cell.values["method"])
    num_draft: int | None = column(lambda g: g.cell.num_draft or 0)
    task: str = column(lambda g: g.task)
    questions: int = column(lambda g: len(g.prompts))
    new_tokens: int = column(lambda g: g.tokens, "tokens", "{}", 7, rank=7)
    steps: int = column(lambda g: g.steps, "steps", "{}", 6, rank=6)
    mean_acceptance_length: float | None = column(Group.length, "accept. length", "{:.2f}", 0)
    draft_acceptance_rate: float | None = column(
        lambda g: g.acceptance_rate() or 0.0, "accepted", "{:.1%}", 1, rank=1
    )
    acceptance_histogram: Mapping[int, int] = column(
        lambda g: sum((Counter(one.histogram or {}) for one in g.last), Counter())
    )
    nodes_per_step: float | None = column(
        lambda g: ratio(g.sum_of("drafted"), g.steps, 3), "nodes/step", "{:.1f}", 2, rank=3
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow(TaskRow):
    """The same with the time that drafting takes."""

    draft_us_median: float = column(lambda g: draft_us(g, 50), "draft µs", "{:.0f}", 3, rank=2)
    draft_us_p99: float = column(lambda g: draft_us(g, 99), "99th", "{:.0f}", 4, rank=5)
    undrafted_share: float | None = column(
        lambda g: ratio(g.sum_of("undrafted"), g.steps), "undrafted", "{:.0%}", 5, rank=4
    )


def rows_by_task(row: Any, race: Race, tasks: Sequence[str], *, tasks_first: bool) -> list[Any]:
    """A row for each cell over all prompts and for each task; `tasks` are those of the prompts.

    With `tasks_first` all tasks of a cell, then what it did over all; else first the rows over all,
    then, of several tasks, those of one after the other.
    """
    measured, records = race.measured(), race.answers()

    def made(cell: Cell, task: str) -> Any:
        prompts = [i for i in measured if task in (OVERALL, tasks[i])]
        return row_of(row, TaskGroup(task, cell, prompts, records))

    found = list(dict.fromkeys(tasks[i] for i in measured))
    if tasks_first:
        return [made(cell, task) for cell in race.cells for task in (*found, OVERALL)]
    wanted = [OVERALL, *(found if len(found) > 1 else [])]
    return [made(cell, task) for task in wanted for cell in race.cells]


def _score(name: str, heading: str, place: int, rank: int) -> Any:
    """The column of a score of judged answers, in percent, or of how many were judged."""
    how: dict[str, Any] = {} if name == "judged" else {"form": "{:.1f}", "scale": 100.0}
    needs = "rouge_l" if name == "rouge_l" else "judged"
    return column(
        lambda s: s.scores and getattr(s.scores, name),
        heading,
        place=place,
        rank=rank,
        needs=needs,
        **how,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """What one dtype, or kind of weights, gives on texts and on prompts with reference answers.

    Shares are from 0 to 1. `perplexity` is over `tokens` tokens. Against float32: how much higher
    it is, the mean KL divergence of the next token's distribution from float32's in nats a token,
    and the share of places where the likeliest token is the same; None of float32 itself.
    """

    weights: str = column(lambda s: s.weights)
    tokens: int = column(lambda s: s.tokens)
    perplexity: float = column(lambda s: s.perplexity, "perplexity", "{:,.3f}", 0)
    perplexity_change: float | None = column(
        lambda s: s.beside[0], "against float32", "{:+.2f}%", 1, rank=1, scale=100.0
    )
    kl_divergence: float | None = column(lambda s: s.beside[1], "KL", "{:.2e}", 2)
    equal_tokens: float | None = column(
        lambda s: s.beside[2], "equal tokens", "{:.2f}%", 3, scale=100.0
    )
    judged: int | None = _score("judged", "answers", 4, 5)
    exact_match: float | None = _score("exact_match", "EM", 5, 2)
    f1: float | None = _score("f1", "F1", 6, 3)
    rouge_l: float | None = _score("rouge_l", "ROUGE-L", 7, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """A replay of a recording."""

    kind: Literal["replay"] = "replay"
    source: str
    model: str
    questions: int
    fresh: bool
    seconds: float
    rows: Sequence[ReplayRow] = json_rows(ReplayRow)
    refused: Sequence[Refusal]
    invocation: Invocation = invocation_field()

    interrupted, notes = False, ()  # one that is interrupted has no result


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """A recording that was written to the folder `path`."""

    kind: Literal["record"] = "record"
    path: str
    model: str
    questions: int
    new_tokens: int
    interrupted: bool
    skipped: Sequence[Skipped] = ()
    invocation: Invocation = invocation_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """What a dtype or a kind of weights costs against float32 of the same checkpoint.

    `scored` says what was scored: `texts` whole texts, or the reference answers of so many prompts.
    A text of more than `window` tokens is scored in windows of that many, one every `stride`.
    `machine` is that of the model that was set against float32.
    """

    kind: Literal["quality"] = "quality"
    model: str
    machine: Machine = field(metadata=json_key(flat=True))
    scored: Literal["texts", "answers"]
    texts: int
    window: int
    stride: int
    notes: Sequence[str]
    rows: Sequence[QualityRow] = json_rows(QualityRow)
    skipped: Sequence[Skipped] = ()
    invocation: Invocation = invocation_field()

    interrupted = False  # one that is has no result
