"""From records to rows: one figure, one `column`, which is all that a new figure takes.

A row is one cell over the prompts of one task. Its columns say how they are computed, what they
are called in tables and in JSON, and in which measurements there are any. A prompt's time is the
median of its rounds, on the clock of wall time with prefill in live runs and of decoding alone
elsewhere; a speed-up is formed prompt by prompt and its median is reported.
Shares and rates are from 0 to 1, quartiles are (lower, upper), a unit stands in the name. None is
what could not be known. Knows no torch.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, get_type_hints

from ngtcli.draft.steps import PARTS
from ngtcli.measure.grid import BASELINE, Cell
from ngtcli.measure.quality import Scores
from ngtcli.measure.records import Generation, Race, Record
from ngtcli.system.json_form import Schema, json_key, schema_of, shape, to_json

LIVE, REPLAY, QUALITY, TUNE = "live", "replay", "quality", "tune"  # ways of measuring
SPLIT, PROMPT = "split", "prompt"  # of live ones, too
_LIVE = (LIVE,)
OVERALL = "overall"  # the task of rows over all tasks
HF = "hf"  # the cell that speed-ups over `transformers` are of
MISSING = "–"
Pair = tuple[float, float]
Judge = Callable[[Sequence[tuple[int, Generation]]], Scores | None]  # of answers by prompt


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; a single value is all three.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile, interpolated; 0.0 of none.

    >>> percentile([1.0, 2.0, 4.0], 75)
    3.0
    """
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _ratio(a: float | None, b: float | None, digits: int = 4) -> float | None:
    return None if a is None or b is None or not b else round(a / b, digits)


class Group:
    """The records of one cell over some prompts, with those of all cells for comparison."""

    def __init__(
        self,
        kind: str,
        cell: Cell,
        task: str,
        prompts: Sequence[int],
        records: Mapping[tuple[str, int], Sequence[Record]],
        judge: Judge | None = None,
    ) -> None:
        self.kind, self.cell, self.task, self.prompts = kind, cell, task, prompts
        self._records, self._judge = records, judge
        self.rounds = [records[cell.key, prompt] for prompt in prompts]
        self.every = [record.generation for rounds in self.rounds for record in rounds]
        self.last = [rounds[-1].generation for rounds in self.rounds]
        self.tokens = sum(len(g.ids) for g in self.last)
        self.steps = sum(g.steps for g in self.last)

    def sum_of(self, name: str) -> int | None:
        """The sum of a count over answers; None where it is not known of one."""
        counts = [getattr(g, name) for g in self.last]
        return None if None in counts else sum(counts)

    def length(self) -> float | None:
        """Tokens a pass of the model."""
        return _ratio(self.tokens, self.steps)

    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens; without drafts None, in a replay 0."""
        rate = _ratio(self.sum_of("accepted"), self.sum_of("drafted"))
        return 0.0 if rate is None and self.kind == REPLAY else rate

    def draft_us(self, percent: int) -> float:
        """Microseconds of drafting a step, at that percentile."""
        return round(percentile([us for g in self.last for us in g.draft_us or ()], percent), 1)

    def clock(self, record: Record) -> float:
        """The seconds that count."""
        return record.seconds if self.kind == LIVE else record.generation.decode_s or 0.0

    def seconds(self, key: str = "") -> list[float]:
        """The seconds of each prompt, by this cell or by another one."""
        return [
            statistics.median(map(self.clock, self._records[key or self.cell.key, prompt]))
            for prompt in self.prompts
        ]

    def tokens_per_s(self) -> float | None:
        """New tokens by seconds of decoding."""
        medians = (statistics.median(r.generation.decode_s or 0.0 for r in p) for p in self.rounds)
        return _ratio(self.tokens, sum(medians), 2 if self.kind == LIVE else 3)

    def parts(self) -> dict[str, float]:
        """Seconds of prefill and of the parts of steps, over all answers (paper, Figure 5)."""
        found = {"prefill": sum(g.prefill_s or 0.0 for g in self.last)}
        return found | {p: sum((g.split_s or {}).get(p, 0.0) for g in self.last) for p in PARTS}

    def spread(self) -> float | None:
        """A prompt's interquartile range over its median, typically; None with one round."""
        several = [quartiles([self.clock(r) for r in rs]) for rs in self.rounds if len(rs) > 1]
        spreads = [(high - low) / middle for low, middle, high in several]
        return round(statistics.median(spreads), 4) if spreads else None

    def speedup(self, other: str = BASELINE) -> tuple[float, Pair, Pair] | tuple[None, None, None]:
        """The other's time by own time, prompt by prompt: median, quartiles, least and most.

        None where the other took no part.
        """
        if any((other, prompt) not in self._records for prompt in self.prompts):
            return None, None, None
        ratios = [b / a for a, b in zip(self.seconds(), self.seconds(other), strict=True)]
        low, middle, high = _three(ratios, 3)
        return middle, (low, high), (round(min(ratios), 3), round(max(ratios), 3))

    def same_ids(self) -> int:
        """Prompts with the ids of plain decoding, in every round."""
        return sum(
            all(r.generation.ids == self._records[BASELINE, p][0].generation.ids for r in rounds)
            for p, rounds in zip(self.prompts, self.rounds, strict=True)
        )

    def speeds(self) -> list[float]:
        """Tokens a second of decoding over all prompts, round by round."""
        found = []
        for records in zip(*self.rounds, strict=True):
            seconds = sum(r.generation.decode_s or 0.0 for r in records)
            tokens = sum(len(r.generation.ids) for r in records)
            found.append(tokens / seconds if seconds > 0 else 0.0)
        return found

    def middle(self, name: str) -> float | None:
        """The median of a figure over all answers that have it."""
        known = [value for g in self.every if (value := getattr(g, name)) is not None]
        return statistics.median(known) if known else None

    @cached_property
    def scores(self) -> Scores | None:
        """The quality of the answers; None where they are not judged."""
        answers = list(zip(self.prompts, self.last, strict=True))
        return self._judge(answers) if self._judge else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a row, the field `name`: `of` computes it, for the `kinds` that have it.

    In JSON it is rounded to `digits`, and left out where the field `needs` is None, or if `hidden`.
    `shown` has its place in the table of a kind and its rank (see `render.tables.Column`); there it
    stands under `heading`, times `scale`, in `form`, which may read the row as `{1}`, and with a
    `bar` behind it where it is compared. `less`: less is better.
    """

    of: Callable[[Any], Any]
    kinds: Sequence[str]
    name: str = ""
    needs: str = ""
    heading: str = ""
    form: str = "{}"
    scale: float = 1
    digits: int | None = None
    hidden: bool = False
    less: bool = False
    bar: bool = False
    shown: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    everywhere: bool = False

    def value(self, row: Any) -> float | None:
        """What is shown of it, in the unit of the heading."""
        value: float | None = getattr(row, self.name)
        return value if value is None or self.scale == 1 else value * self.scale

    def text(self, row: Any) -> str:
        """The same as text; a dash for None."""
        value = self.value(row)
        return MISSING if value is None else self.form.format(value, row)


def column(
    of: Callable[[Any], Any],
    heading: str = "",
    form: str = "{}",
    kinds: Sequence[str] = (),
    **how: Any,
) -> Any:
    """The field of a figure; `live=(place, rank)` and the like show it in that kind's table.

    Without `kinds` those have it that show it, or all where none does, or with `everywhere`.
    """
    known = {f.name for f in fields(Figure)}
    shown = {kind: how.pop(kind) for kind in list(how) if kind not in known}
    kinds = kinds or tuple(shown)
    made = Figure(of=of, kinds=kinds, heading=heading, form=form, shown=shown, **how)
    return field(default=None, metadata={"column": made})


def _three(values: Sequence[float], digits: int) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, rounded."""
    low, middle, high = quartiles(values)
    return round(low, digits), round(middle, digits), round(high, digits)


def _score(name: str, heading: str = "", **how: Any) -> Any:
    """The column of a score of judged answers, in percent, or of how many were judged."""
    if name != "judged":
        how |= {"form": "{:.1f}", "scale": 100.0}
    needs = "rouge_l" if name == "rouge_l" else "judged"
    return column(lambda g: g.scores and getattr(g.scores, name), heading, needs=needs, **how)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 5) if known else None


_HF: dict[str, Any] = {"kinds": _LIVE, "needs": "speedup_over_hf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell over the prompts of one task. What its measurement does not have is None."""

    method: str = column(lambda g: g.cell.values["method"])
    num_draft: int | None = column(
        lambda g: 0 if g.kind == REPLAY and g.cell.num_draft is None else g.cell.num_draft
    )
    task: str = column(lambda g: g.task)
    questions: int = column(lambda g: len(g.prompts))
    new_tokens: int = column(lambda g: g.tokens, "tokens", replay=(7, 7), everywhere=True)
    steps: int = column(lambda g: g.steps, "steps", replay=(6, 6), everywhere=True)
    drafted_tokens: int | None = column(lambda g: g.sum_of("drafted"), kinds=_LIVE)
    accepted_tokens: int | None = column(lambda g: g.sum_of("accepted"), kinds=_LIVE)
    mean_acceptance_length: float | None = column(
        Group.length, "accept. length", "{:.2f}", live=(3, 1), replay=(0, 0), bar=True,
        everywhere=True,
    )  # fmt: skip
    draft_acceptance_rate: float | None = column(
        Group.acceptance_rate, "accepted", "{:.1%}", live=(11, 10), replay=(1, 1), everywhere=True
    )
    acceptance_histogram: Mapping[int, int] = column(
        lambda g: sum((Counter(one.histogram or {}) for one in g.last), Counter())
    )
    nodes_per_step: float | None = column(
        lambda g: _ratio(g.sum_of("drafted"), g.steps, 3 if g.kind == REPLAY else 4),
        "nodes/step", "{:.1f}", replay=(2, 3), everywhere=True,
    )  # fmt: skip
    draft_us_median: float = column(lambda g: g.draft_us(50), "draft µs", "{:.0f}", replay=(3, 2))
    draft_us_p99: float = column(lambda g: g.draft_us(99), "99th", "{:.0f}", replay=(4, 5))
    undrafted_share: float | None = column(
        lambda g: _ratio(g.sum_of("undrafted"), g.steps),
        "undrafted", "{:.0%}", live=(12, 12), replay=(5, 4), everywhere=True,
    )  # fmt: skip
    seconds_median: float = column(
        lambda g: _three(g.seconds(), 5)[1], "seconds", "{:.3f}", live=(9, 8)
    )
    seconds_quartiles: Pair = column(lambda g: _three(g.seconds(), 5)[::2], kinds=_LIVE)
    spread: float | None = column(Group.spread, "spread", "{:.0%}", live=(10, 11))
    tokens_per_s: float | None = column(Group.tokens_per_s, "tokens/s", "{:.1f}", kinds=_LIVE)
    tokens_per_s_with_prefill: float = column(
        lambda g: round(g.tokens / sum(g.seconds()), 2), "tokens/s", "{:.1f}", live=(5, 3)
    )
    prefill_s_median: float | None = column(
        lambda g: _median(one.prefill_s for one in g.last), kinds=_LIVE
    )
    setup_s_median: float | None = column(  # before prefill: the trie from the cache, the drafter
        lambda g: _median(
            r.generation.prefill_s and r.seconds - r.generation.prefill_s - r.generation.decode_s
            for rounds in g.rounds for r in rounds
        ), kinds=_LIVE,
    )  # fmt: skip
    speedup: float = column(lambda g: g.speedup()[0], "speed-up", "{:.2f}×", live=(0, 0), bar=True)
    speedup_quartiles: Pair = column(
        lambda g: g.speedup()[1], "quartiles", "{0[0]:.2f}–{0[1]:.2f}", live=(1, 4)
    )
    speedup_least_and_most: Pair = column(lambda g: g.speedup()[2], kinds=_LIVE)
    speedup_over_hf: float = column(
        lambda g: g.speedup(HF)[0], "over hf", "{:.2f}×", live=(2, 9), **_HF
    )
    speedup_over_hf_quartiles: Pair = column(lambda g: g.speedup(HF)[1], **_HF)
    speedup_over_hf_least_and_most: Pair = column(lambda g: g.speedup(HF)[2], **_HF)
    same_ids: int = column(Group.same_ids, "same ids", "{0}/{1.questions}", live=(4, 2))
    judged: int = _score("judged", kinds=_LIVE)
    exact_match: float | None = _score("exact_match", "EM", live=(6, 6))
    f1: float | None = _score("f1", "F1", live=(7, 5))
    rouge_l: float | None = _score("rouge_l", "ROUGE-L", live=(8, 7))


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """What one dtype, or kind of weights, gives on texts and on prompts with reference answers.

    Shares are from 0 to 1. `perplexity` is over `tokens` tokens. Against float32: how much higher
    it is, the mean KL divergence of the next token's distribution from float32's in nats a token,
    and the share of places where the likeliest token is the same; None of float32 itself.
    """

    weights: str = column(lambda s: s.weights)
    tokens: int = column(lambda s: s.tokens)
    perplexity: float = column(lambda s: s.perplexity, "perplexity", "{:,.3f}", quality=(0, 0))
    perplexity_change: float | None = column(
        lambda s: s.beside[0], "against float32", "{:+.2f}%", quality=(1, 1), scale=100.0
    )
    kl_divergence: float | None = column(lambda s: s.beside[1], "KL", "{:.2e}", quality=(2, 0))
    equal_tokens: float | None = column(
        lambda s: s.beside[2], "equal tokens", "{:.2f}%", quality=(3, 0), scale=100.0
    )
    judged: int | None = _score("judged", "answers", quality=(4, 5))
    exact_match: float | None = _score("exact_match", "EM", quality=(5, 2))
    f1: float | None = _score("f1", "F1", quality=(6, 3))
    rouge_l: float | None = _score("rouge_l", "ROUGE-L", quality=(7, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """A combination of settings as measured: medians over rounds, seconds of decoding alone.

    `prompts` holds new tokens and median seconds of each prompt. The trie's figures are None for
    methods without one. `standing` is "chosen" in a report that is complete and "ahead" in another,
    "tied" for cells that cannot be told from the best, "" for the rest.
    """

    cell: str = column(lambda g: g.cell.key)
    values: Mapping[str, Any] = column(lambda g: g.cell.values)
    rounds: int = column(lambda g: len(g.rounds[0]))
    tokens_per_s: float = column(
        lambda g: statistics.median(g.speeds()), "tokens/s", "{:.1f}", tune=(0, 0), digits=3
    )
    tokens_per_s_least_and_most: Pair = column(
        lambda g: (min(g.speeds()), max(g.speeds())), digits=3
    )
    mean_acceptance_length: float = column(
        lambda g: sum(len(x.ids) for x in g.every) / max(1, sum(x.steps for x in g.every)),
        "acceptance length",
        "{:.3f}",
        tune=(1, 1),
        digits=4,
    )
    trie_build_s: float | None = column(
        lambda g: g.middle("trie_build_s"), "trie build, ms", "{:.2f}", scale=1e3, less=True,
        tune=(2, 2), digits=6,
    )  # fmt: skip
    trie_bytes: int | None = column(
        lambda g: None if (size := g.middle("trie_bytes")) is None else int(size),
        "trie, kB", "{:.1f}", scale=1e-3, less=True, tune=(3, 3),
    )  # fmt: skip
    standing: str = column(lambda g: "")
    prompts: Sequence[tuple[int, float]] = column(
        lambda g: [
            (len(rounds[0].generation.ids), seconds)
            for rounds, seconds in zip(g.rounds, g.seconds(), strict=True)
        ],
        hidden=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTimes:
    """The rounds of one prompt by one cell."""

    rounds: int = column(lambda g: len(g.rounds[0]))
    seconds_median: float = column(lambda g: _three([r.seconds for r in g.rounds[0]], 5)[1])
    seconds_quartiles: Pair = column(lambda g: _three([r.seconds for r in g.rounds[0]], 5)[::2])
    new_tokens: int = column(lambda g: g.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """Where a method's time goes: prefill in ms a prompt, the parts of a step in µs, shares."""

    method: str = column(lambda g: g.cell.values["method"])
    num_draft: int | None = column(lambda g: g.cell.num_draft)
    steps: int = column(lambda g: g.steps)
    prefill_ms: float = column(lambda g: round(g.parts()["prefill"] / len(g.every) * 1e3, 3))
    step_us: Mapping[str, float] = column(
        lambda g: {p: round(s / max(g.steps, 1) * 1e6, 1) for p, s in [*g.parts().items()][1:]}
    )
    share: Mapping[str, float] = column(
        lambda g: {p: round(s / (sum(g.parts().values()) or 1.0), 4) for p, s in g.parts().items()}
    )


AnyRow = Row | QualityRow | CellRow
ROWS: dict[str, type[Any]] = {  # by the kind; a tool may add one
    LIVE: Row,
    REPLAY: Row,
    QUALITY: QualityRow,
    TUNE: CellRow,
    SPLIT: SplitRow,
    PROMPT: PromptTimes,
}


def columns(kind: str) -> list[Figure]:
    """The columns of a kind in the order of JSON."""
    found = (replace(f.metadata["column"], name=f.name) for f in fields(ROWS[kind]))
    return [one for one in found if one.everywhere or not one.kinds or kind in one.kinds]


def shown_columns(kind: str) -> list[Figure]:
    """The columns in the table of a kind."""
    found = [one for one in columns(kind) if kind in one.shown]
    return sorted(found, key=lambda one: one.shown[kind][0])


def row_of(kind: str, group: Any) -> Any:
    """The row of a group (for quality: of what was scored): every column computed."""
    return ROWS[kind](**{one.name: one.of(group) for one in columns(kind)})


def json_rows(kind: str) -> Any:
    """The field of a result that holds the rows of a kind: their JSON and its schema."""
    printed = [one for one in columns(kind) if not one.hidden]

    def form(found: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                one.name: to_json(getattr(row, one.name), one.digits)
                for one in printed
                if not one.needs or getattr(row, one.needs) is not None
            }
            for row in found
        ]

    def schema() -> Schema:
        hints = get_type_hints(ROWS[kind])
        keys = {one.name: schema_of(hints[one.name]) for one in printed}
        return {"type": "array", "items": shape(keys, [o.name for o in printed if o.needs])}

    return field(metadata=json_key(form=form, schema=schema))


def summarized(
    kind: str, race: Race, tasks: Sequence[str], judge: Judge | None = None
) -> list[Any]:
    """A row for each cell over all prompts, then, of several tasks, one for each.

    Of replays first all tasks of a cell, then what it did over all. `tasks` are those of the
    prompts; `judge` scores answers.
    """
    measured, records = race.measured(), race.answers()

    def row(cell: Cell, task: str) -> Any:
        prompts = [i for i in measured if task in (OVERALL, tasks[i])]
        return row_of(kind, Group(kind, cell, task, prompts, records, judge))

    found = list(dict.fromkeys(tasks[i] for i in measured))
    if kind == REPLAY:
        return [row(cell, task) for cell in race.cells for task in (*found, OVERALL)]
    wanted = [OVERALL, *(found if len(found) > 1 else [])]
    return [row(cell, task) for task in wanted for cell in race.cells]
