"""From records to rows: one figure, one `column`, which is all that a new figure takes.

A row is one contestant over the prompts of one task. Its columns say how they are computed, what
they are called in tables and in JSON, and in which measurements there are any. A prompt's time is
the median of its rounds, on the clock of wall time with prefill in live runs and of decoding alone
in replays with real passes; a speed-up is formed prompt by prompt and its median is reported.
Shares and rates are from 0 to 1, quartiles are (lower, upper), a unit stands in the name. None is
what could not be known. Knows no torch.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, get_type_hints

from ngtcli.measure.quality import Scores
from ngtcli.measure.records import BASELINE, Contestant, Generation, P, Race, Record
from ngtcli.system.json_form import Schema, json_key, schema_of, shape, to_json

LIVE, REPLAY, SHAPE, QUALITY = "live", "replay", "shape", "quality"  # ways of measuring
_ALL, _TIMED = (LIVE, REPLAY, SHAPE), (LIVE, SHAPE)
_LIVE, _REPLAY, _SHAPE, _QUALITY = (LIVE,), (REPLAY,), (SHAPE,), (QUALITY,)
OVERALL = "overall"  # the task of rows over all tasks
HF = "hf"  # the contestant that speed-ups over `transformers` are of
MIB = 2**20
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
    """The records of one contestant over some prompts, with those of all for comparison."""

    def __init__(
        self,
        kind: str,
        contestant: Contestant[Any],
        task: str,
        prompts: Sequence[int],
        records: Mapping[tuple[str, int], Sequence[Record]],
        judge: Judge | None = None,
    ) -> None:
        self.kind, self.contestant, self.task, self.prompts = kind, contestant, task, prompts
        self._records, self._judge = records, judge
        self.rounds = [records[contestant.key, prompt] for prompt in prompts]
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

    def histogram(self) -> Counter[int]:
        """Steps by accepted drafts."""
        return sum((g.histogram or Counter() for g in self.last), Counter())

    def nodes_per_step(self) -> float | None:
        """Drafted tokens a step."""
        return _ratio(self.sum_of("drafted"), self.steps, 3 if self.kind == REPLAY else 4)

    def draft_us(self, percent: int) -> float:
        """Microseconds of drafting a step, at that percentile."""
        return round(percentile([us for g in self.last for us in g.draft_us or ()], percent), 1)

    def draft_ms(self) -> float | None:
        """Milliseconds of a pass that are spent drafting; None where that cannot be told."""
        drafts = [g.split_s["draft"] for g in self.last if g.split_s is not None]
        return _ratio(sum(drafts) * 1e3, self.steps) if len(drafts) == len(self.last) else None

    def clock(self, record: Record) -> float:
        """The seconds that count."""
        return record.seconds if self.kind == LIVE else record.generation.decode_s or 0.0

    def seconds(self, key: str = "") -> list[float]:
        """The seconds of each prompt, by this contestant or by another one."""
        return [
            statistics.median(map(self.clock, self._records[key or self.contestant.key, prompt]))
            for prompt in self.prompts
        ]

    def tokens_per_s(self) -> float | None:
        """New tokens by seconds of decoding."""
        medians = (statistics.median(r.generation.decode_s or 0.0 for r in p) for p in self.rounds)
        return _ratio(self.tokens, sum(medians), 2 if self.kind == LIVE else 3)

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

    def speedup_overall(self) -> float:
        """All of plain decoding's time by all own time."""
        return round(sum(self.seconds(BASELINE)) / sum(self.seconds()), 3)

    def prefill_s(self) -> float | None:
        """Seconds of prefill, in the last round."""
        return _median([g.prefill_s for g in self.last if g.prefill_s is not None])

    def setup_s(self) -> float | None:
        """Seconds before prefill: the trie from the cache, the drafter."""
        every = [(r.seconds, r.generation) for rounds in self.rounds for r in rounds]
        return _median(
            [s - g.prefill_s - (g.decode_s or 0.0) for s, g in every if g.prefill_s is not None]
        )

    def same_ids(self) -> int:
        """Prompts with the ids of plain decoding, in every round."""
        return sum(
            all(r.generation.ids == self._records[BASELINE, p][0].generation.ids for r in rounds)
            for p, rounds in zip(self.prompts, self.rounds, strict=True)
        )

    def memory_mib(self) -> float:
        """Most memory of a run."""
        return round(max(r.memory for rounds in self.rounds for r in rounds) / MIB, 1)

    @cached_property
    def scores(self) -> Scores | None:
        """The quality of the answers; None where they are not judged."""
        if self._judge is None:
            return None
        return self._judge(list(zip(self.prompts, self.last, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of a row: `of` computes it, for the `kinds` of measurements that have it.

    In JSON it is called `key`, by default as its field, and left out where the field `needs` is
    None. `shown` has its place in the table of a kind and its rank (see `render.tables.Column`);
    there it stands under `heading`, times `scale`, in `form`, which may read the row as `{1}`.
    """

    of: Callable[[Any], Any]
    kinds: Sequence[str]
    key: str = ""
    needs: str = ""
    heading: str = ""
    form: str = "{}"
    scale: float = 1
    shown: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def column(
    of: Callable[[Any], Any],
    heading: str = "",
    form: str = "{}",
    kinds: Sequence[str] = (),
    **how: Any,
) -> Any:
    """The field of a figure; `live=(place, rank)` and the like show it in that kind's table.

    Without `kinds` those have it that show it, or all where none does.
    """
    shown = {kind: how.pop(kind) for kind in (*_ALL, QUALITY) if kind in how}
    kinds = kinds or tuple(shown) or _ALL
    made = Column(of=of, kinds=kinds, heading=heading, form=form, shown=shown, **how)
    return field(default=None, metadata={"column": made})


def _three(values: Sequence[float], digits: int) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, rounded."""
    low, middle, high = quartiles(values)
    return round(low, digits), round(middle, digits), round(high, digits)


def _score(name: str) -> Callable[[Group], Any]:
    return lambda group: getattr(group.scores, name) if group.scores else None


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 5) if values else None


def _sum(name: str) -> Callable[[Group], Any]:
    return lambda group: group.sum_of(name)


def _per_step(name: str) -> Callable[[Group], Any]:
    return lambda group: _ratio(group.sum_of(name), group.steps)


def _over_hf(place: int) -> Callable[[Group], Any]:
    return lambda group: group.speedup(HF)[place]


_HF: dict[str, Any] = {"kinds": _LIVE, "needs": "speedup_over_hf"}
_JUDGED: dict[str, Any] = {"needs": "judged", "scale": 100.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A contestant over the prompts of one task. What its measurement does not have is None."""

    method: str = column(lambda g: g.contestant.name)
    num_draft: int | None = column(lambda g: g.contestant.num_draft)
    task: str = column(lambda g: g.task)
    questions: int = column(lambda g: len(g.prompts))
    new_tokens: int = column(lambda g: g.tokens, "tokens", kinds=_ALL, replay=(7, 7))
    steps: int = column(lambda g: g.steps, "steps", kinds=_ALL, replay=(6, 6))
    drafted_tokens: int | None = column(_sum("drafted"), kinds=_TIMED)
    accepted_tokens: int | None = column(_sum("accepted"), kinds=_TIMED)
    mean_acceptance_length: float | None = column(
        Group.length, "accept. length", "{:.2f}", live=(3, 1), replay=(0, 0), shape=(3, 1)
    )
    draft_acceptance_rate: float | None = column(
        Group.acceptance_rate, "accepted", "{:.1%}", live=(11, 10), replay=(1, 1), shape=(8, 8)
    )
    acceptance_histogram: Mapping[int, int] = column(Group.histogram)
    nodes_per_step: float | None = column(
        Group.nodes_per_step, "nodes/step", "{:.1f}", kinds=_ALL, replay=(2, 3), shape=(7, 7)
    )
    draft_us_median: float = column(lambda g: g.draft_us(50), "draft µs", "{:.0f}", replay=(3, 2))
    draft_us_p99: float = column(lambda g: g.draft_us(99), "99th", "{:.0f}", replay=(4, 5))
    undrafted_share: float | None = column(
        _per_step("undrafted"), "undrafted", "{:.0%}", live=(12, 12), replay=(5, 4), shape=(9, 9)
    )
    seconds_median: float = column(
        lambda g: _three(g.seconds(), 5)[1], "seconds", "{:.3f}", live=(9, 8)
    )
    seconds_quartiles: Pair = column(lambda g: _three(g.seconds(), 5)[::2], kinds=_LIVE)
    spread: float | None = column(Group.spread, "spread", "{:.0%}", live=(10, 11))
    decode_s: float = column(lambda g: round(sum(g.seconds()), 4), kinds=_SHAPE)
    tokens_per_s: float | None = column(
        Group.tokens_per_s, "tokens/s", "{:.1f}", kinds=_TIMED, shape=(4, 2)
    )
    tokens_per_s_with_prefill: float = column(
        lambda g: round(g.tokens / sum(g.seconds()), 2), "tokens/s", "{:.1f}", live=(5, 3)
    )
    prefill_s_median: float | None = column(Group.prefill_s, kinds=_LIVE)
    setup_s_median: float | None = column(Group.setup_s, kinds=_LIVE)
    step_ms: float = column(
        lambda g: round(sum(g.seconds()) / g.steps * 1e3, 3), "ms/step", "{:.1f}", shape=(5, 5)
    )
    draft_ms: float | None = column(Group.draft_ms, "draft ms", "{:.2f}", shape=(6, 6))
    speedup_overall: float = column(Group.speedup_overall, "of sums", "{:.2f}×", shape=(2, 3))
    decode_spread: float | None = column(
        Group.spread, "spread", "{:.0%}", key="spread", shape=(10, 10)
    )
    speedup: float = column(
        lambda g: g.speedup()[0], "speed-up", "{:.2f}×", live=(0, 0), shape=(0, 0)
    )
    speedup_quartiles: Pair = column(
        lambda g: g.speedup()[1], "quartiles", "{0[0]:.2f}–{0[1]:.2f}", live=(1, 4), shape=(1, 4)
    )
    speedup_least_and_most: Pair = column(lambda g: g.speedup()[2], kinds=_TIMED)
    speedup_over_hf: float = column(_over_hf(0), "over hf", "{:.2f}×", live=(2, 9), **_HF)
    speedup_over_hf_quartiles: Pair = column(_over_hf(1), **_HF)
    speedup_over_hf_least_and_most: Pair = column(_over_hf(2), **_HF)
    same_ids: int = column(Group.same_ids, "same ids", "{0}/{1.questions}", live=(4, 2))
    peak_memory_mib: float = column(Group.memory_mib, "MiB", "{:.1f}", live=(13, 13))
    judged: int = column(_score("judged"), kinds=_LIVE, needs="judged")
    exact_match: float | None = column(
        _score("exact_match"), "EM", "{:.1f}", live=(6, 6), **_JUDGED
    )
    f1: float | None = column(_score("f1"), "F1", "{:.1f}", live=(7, 5), **_JUDGED)
    rouge_l: float | None = column(
        _score("rouge_l"), "ROUGE-L", "{:.1f}", live=(8, 7), needs="rouge_l", scale=100.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """What one dtype, or kind of weights, gives on texts and on prompts with reference answers.

    Shares are from 0 to 1. `perplexity` is over `tokens` tokens. Against float32: how much higher
    it is, the mean KL divergence of the next token's distribution from float32's in nats a token,
    and the share of places where the likeliest token is the same; None of float32 itself.
    """

    weights: str = column(lambda s: s.weights, kinds=_QUALITY)
    tokens: int = column(lambda s: s.tokens, kinds=_QUALITY)
    perplexity: float = column(lambda s: s.perplexity, "perplexity", "{:,.3f}", quality=(0, 0))
    perplexity_change: float | None = column(
        lambda s: s.change, "against float32", "{:+.2f}%", quality=(1, 1), scale=100.0
    )
    kl_divergence: float | None = column(lambda s: s.kl, "KL", "{:.2e}", quality=(2, 0))
    equal_tokens: float | None = column(
        lambda s: s.equal, "equal tokens", "{:.2f}%", quality=(3, 0), scale=100.0
    )
    judged: int | None = column(_score("judged"), "answers", quality=(4, 5), needs="judged")
    exact_match: float | None = column(
        _score("exact_match"), "EM", "{:.1f}", quality=(5, 2), **_JUDGED
    )
    f1: float | None = column(_score("f1"), "F1", "{:.1f}", quality=(6, 3), **_JUDGED)
    rouge_l: float | None = column(
        _score("rouge_l"), "ROUGE-L", "{:.1f}", quality=(7, 4), needs="rouge_l", scale=100.0
    )


AnyRow = Row | QualityRow


def columns(kind: str) -> dict[str, Column]:
    """The columns of a kind by the names of their fields, in the order of JSON."""
    found = {f.name: f.metadata["column"] for f in fields(_rows_of(kind))}
    return {name: one for name, one in found.items() if kind in one.kinds}


def _rows_of(kind: str) -> type[AnyRow]:
    return QualityRow if kind == QUALITY else Row


def shown_columns(kind: str) -> list[tuple[str, Column]]:
    """The columns in the table of a kind, with the names of their fields."""
    found = [(name, one) for name, one in columns(kind).items() if kind in one.shown]
    return sorted(found, key=lambda pair: pair[1].shown[kind][0])


def json_rows(kind: str) -> Any:
    """The field of a result that holds the rows of a kind: their JSON and its schema."""

    def form(rows: Sequence[AnyRow]) -> list[dict[str, Any]]:
        return [
            {
                one.key or name: to_json(getattr(row, name))
                for name, one in columns(kind).items()
                if not one.needs or getattr(row, one.needs) is not None
            }
            for row in rows
        ]

    def schema() -> Schema:
        hints = get_type_hints(_rows_of(kind))
        found = {one.key or name: schema_of(hints[name]) for name, one in columns(kind).items()}
        optional = [one.key or name for name, one in columns(kind).items() if one.needs]
        return {"type": "array", "items": shape(found, optional)}

    return field(metadata=json_key(form=form, schema=schema))


def summarized(
    kind: str, race: Race[P], tasks: Sequence[str], judge: Judge | None = None
) -> list[Row]:
    """A row for each contestant over all prompts, then, of several tasks, one for each.

    Of replays first all tasks of a contestant, then what it did over all. `tasks` are those of the
    prompts; `judge` scores answers.
    """
    measured, records = race.measured(), race.answers()

    def row(contestant: Contestant[P], task: str) -> Row:
        prompts = [i for i in measured if task in (OVERALL, tasks[i])]
        group = Group(kind, contestant, task, prompts, records, judge)
        return Row(**{name: one.of(group) for name, one in columns(kind).items()})

    found = list(dict.fromkeys(tasks[i] for i in measured))
    if kind == REPLAY:
        return [row(c, task) for c in race.contestants for task in (*found, OVERALL)]
    wanted = [OVERALL, *(found if len(found) > 1 else [])]
    return [row(c, task) for task in wanted for c in race.contestants]
