"""The results of the measuring tools. Their fields are the keys of --json, in this order."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ngtcli.bench.grid import Cell, Refusal
from ngtcli.bench.records import Generation, Measurement
from ngtcli.bench.results import Invocation, Machine, invocation_field
from ngtcli.bench.summary import Group, column, json_rows, ratio, row_of
from ngtcli.documents.find import Skipped
from ngtcli.system.json_form import json_key

OVERALL = "overall"  # The name of the task in rows over all tasks.


@dataclass(frozen=True, slots=True)
class ReplayedGeneration(Generation):
    """An answer of a recording; `draft_us` are microseconds of drafting, step by step."""

    draft_us: Sequence[float] = ()


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the interpolated percentile, or 0.0 if there are no values.

    >>> percentile([1.0, 2.0, 4.0], 75)
    3.0
    """
    if not values:
        return 0.0
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def draft_us(group: Group, percent: int) -> float:
    """Return a percentile of the microseconds that drafting takes in a step."""
    times: list[float] = []
    for answer in group.last:
        if isinstance(answer, ReplayedGeneration):
            times += answer.draft_us
    return round(percentile(times, percent), 1)


def acceptance_histogram(group: Group) -> Mapping[int, int]:
    """Count the steps of all answers by the number of accepted drafts."""
    histogram: Counter[int] = Counter()
    for answer in group.last:
        histogram += Counter(answer.histogram or {})
    return histogram


class TaskGroup(Group):
    """A group over the prompts of one task, or of all tasks."""

    def __init__(self, task: str, *group_arguments: Any) -> None:
        super().__init__(*group_arguments)
        self.task = task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """The figures of a cell over the prompts of one task that do not depend on the machine."""

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
    acceptance_histogram: Mapping[int, int] = column(acceptance_histogram)
    nodes_per_step: float | None = column(
        lambda g: ratio(g.sum_of("drafted"), g.steps, 3), "nodes/step", "{:.1f}", 2, rank=3
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow(TaskRow):
    """The figures of a task, and the time that drafting takes."""

    draft_us_median: float = column(lambda g: draft_us(g, 50), "draft µs", "{:.0f}", 3, rank=2)
    draft_us_p99: float = column(lambda g: draft_us(g, 99), "99th", "{:.0f}", 4, rank=5)
    undrafted_share: float | None = column(
        lambda g: ratio(g.sum_of("undrafted"), g.steps), "undrafted", "{:.0%}", 5, rank=4
    )


def rows_by_task(
    row: Any, measurement: Measurement, tasks: Sequence[str], *, tasks_first: bool
) -> list[Any]:
    """Make a row for each cell over all prompts, and one for each task.

    Args:
        row: The class of the rows.
        measurement: The measured cells.
        tasks: The tasks of the prompts.
        tasks_first: Order the rows by cell, each with its tasks before the row over all. Otherwise
            the rows over all come first, then those of each task, unless there is only one.
    """
    measured = measurement.measured()
    records = measurement.answers()

    def make_row(cell: Cell, task: str) -> Any:
        prompts = [index for index in measured if task in (OVERALL, tasks[index])]
        return row_of(row, TaskGroup(task, cell, prompts, records))

    measured_tasks = list(dict.fromkeys(tasks[index] for index in measured))
    if tasks_first:
        names = [*measured_tasks, OVERALL]
        return [make_row(cell, task) for cell in measurement.cells for task in names]
    names = [OVERALL]
    if len(measured_tasks) > 1:
        names += measured_tasks
    return [make_row(cell, task) for task in names for cell in measurement.cells]


def _score(name: str, heading: str, place: int, rank: int) -> Any:
    """Make the column of a score in percent, or of the number of judged answers."""
    options: dict[str, Any] = {}
    if name != "judged":
        options = {"form": "{:.1f}", "scale": 100.0}
    needs = "rouge_l" if name == "rouge_l" else "judged"
    return column(
        lambda s: s.scores and getattr(s.scores, name),
        heading,
        place=place,
        rank=rank,
        needs=needs,
        **options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """The quality of one dtype or kind of weights, on texts or on reference answers.

    Shares are from 0 to 1. `perplexity` is over `tokens` tokens. The next three compare with
    float32, and are None for float32 itself: the relative change of the perplexity, the mean KL
    divergence of the next token's distribution in nats a token, and the share of positions with
    the same most likely token.
    """

    weights: str = column(lambda s: s.weights)
    tokens: int = column(lambda s: s.tokens)
    perplexity: float = column(lambda s: s.perplexity, "perplexity", "{:,.3f}", 0)
    perplexity_change: float | None = column(
        lambda s: s.differences[0], "against float32", "{:+.2f}%", 1, rank=1, scale=100.0
    )
    kl_divergence: float | None = column(lambda s: s.differences[1], "KL", "{:.2e}", 2)
    equal_tokens: float | None = column(
        lambda s: s.differences[2], "equal tokens", "{:.2f}%", 3, scale=100.0
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

    # An interrupted replay has no result.
    interrupted = False
    notes = ()


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
    """The quality of a dtype or a kind of weights against float32 of the same checkpoint.

    `scored` says what was scored: whole texts, or the reference answers to prompts; `texts` is
    their number. A text of more than `window` tokens is scored in windows of that size, one every
    `stride` tokens. `machine` is that of the model that was compared with float32.
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

    interrupted = False  # An interrupted comparison has no result.
