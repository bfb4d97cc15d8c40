"""From records to rows: one figure, one `column`, which is all that a new figure takes.

A row is one cell over the prompts. Its columns say how they are computed and what they are called
in tables and in JSON. A prompt's time is the median of its rounds; a speed-up is formed prompt by
prompt and its median is reported.
Shares and rates are from 0 to 1, quartiles are (lower, upper), a unit stands in the name. None is
what could not be known. Knows no torch.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from ngtcli.bench.grid import BASELINE, Cell
from ngtcli.bench.records import Race, Record
from ngtcli.drafting.steps import PARTS
from ngtcli.system.json_form import Schema, json_key, schema_of, shape, to_json

HF = "hf"  # the cell that speed-ups over `transformers` are of
MISSING = "–"
Pair = tuple[float, float]
Records = Mapping[tuple[str, int], Sequence[Record]]  # by cell and prompt, in the order of rounds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; a single value is all three.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(a: float | None, b: float | None, digits: int = 4) -> float | None:
    """A quotient, rounded; None where one side is not known or there is nothing to divide by."""
    return None if a is None or b is None or not b else round(a / b, digits)


class Group:
    """The records of one cell over some prompts, with those of all cells for comparison.

    Args:
        cell: The cell whose figures are formed.
        prompts: The indices of the prompts.
        records: The records of all cells.
        splits: Those with the parts of a step timed apart, if there are any.
        by_wall: Whether a prompt's seconds are wall time with prefill, else of decoding alone.
    """

    def __init__(
        self,
        cell: Cell,
        prompts: Sequence[int],
        records: Records,
        splits: Records | None = None,
        by_wall: bool = False,
    ) -> None:
        self.cell, self.prompts = cell, prompts
        self._records, self._by_wall = records, by_wall
        self.rounds = [records[cell.key, prompt] for prompt in prompts]
        self.every = [record.generation for rounds in self.rounds for record in rounds]
        self.last = [rounds[-1].generation for rounds in self.rounds]
        self.tokens = sum(len(g.ids) for g in self.last)
        self.steps = sum(g.steps for g in self.last)
        found = splits or {}
        taken = [found.get((cell.key, prompt), ()) for prompt in prompts]
        self.split = [record.generation for rounds in taken for record in rounds]

    def sum_of(self, name: str) -> int | None:
        """The sum of a count over answers; None where it is not known of one."""
        counts = [getattr(g, name) for g in self.last]
        return None if None in counts else sum(counts)

    def length(self) -> float | None:
        """Tokens a pass of the model."""
        return ratio(self.tokens, self.steps)

    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens; None without drafts."""
        return ratio(self.sum_of("accepted"), self.sum_of("drafted"))

    def seconds(self, key: str = "") -> list[float]:
        """The seconds of each prompt, by this cell or by another one."""
        return [
            statistics.median(map(self.clock, self._records[key or self.cell.key, prompt]))
            for prompt in self.prompts
        ]

    def clock(self, record: Record) -> float:
        """The seconds that count."""
        return record.seconds if self._by_wall else record.generation.decode_s or 0.0

    def tokens_per_s(self) -> float | None:
        """New tokens by seconds of decoding."""
        medians = (statistics.median(r.generation.decode_s or 0.0 for r in p) for p in self.rounds)
        return ratio(self.tokens, sum(medians), 2 if self._by_wall else 3)

    def parts(self) -> dict[str, float]:
        """Seconds of prefill and of the parts of steps, over all answers (paper, Figure 5).

        Empty where the parts were not timed.
        """
        if not self.split:
            return {}
        found = {"prefill": sum(g.prefill_s or 0.0 for g in self.split)}
        for part in PARTS:
            found[part] = sum((g.split_s or {}).get(part, 0.0) for g in self.split)
        return found

    def prefill_ms(self) -> float | None:
        """Milliseconds of prefill a prompt, of the answers whose parts were timed."""
        return round(self.parts()["prefill"] / len(self.split) * 1e3, 3) if self.split else None

    def step_us(self) -> dict[str, float] | None:
        """Microseconds of each part of a step; None where the parts were not timed."""
        steps = max(sum(g.steps for g in self.split), 1)
        found = {part: round(s / steps * 1e6, 1) for part, s in self.parts().items()}
        found.pop("prefill", None)
        return found or None

    def shares(self) -> dict[str, float] | None:
        """The share of each part in the time of an answer; None where parts were not timed."""
        parts = self.parts()
        total = sum(parts.values()) or 1.0
        return {part: round(s / total, 4) for part, s in parts.items()} or None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a row, the field `name`: `of` computes it from a group.

    In JSON it is rounded to `digits`, and left out where the field `needs` is None, or if `hidden`.
    One with a `heading` stands in tables, times `scale`, in `form`, which may read the row as
    `{1}`; `place` is its place there and `rank` that of `render.tables.Column`.
    """

    of: Callable[[Any], Any]
    name: str = ""
    needs: str = ""
    heading: str = ""
    form: str = "{}"
    scale: float = 1
    digits: int | None = None
    hidden: bool = False
    place: int = 0
    rank: int = 0

    def value(self, row: Any) -> float | None:
        """What is shown of it, in the unit of the heading."""
        value: float | None = getattr(row, self.name)
        return value if value is None or self.scale == 1 else value * self.scale

    def text(self, row: Any) -> str:
        """The same as text; a dash for None."""
        value = self.value(row)
        return MISSING if value is None else self.form.format(value, row)


def column(
    of: Callable[[Any], Any], heading: str = "", form: str = "{}", place: int = 0, **how: Any
) -> Any:
    """The field of a figure; `how` are further fields of `Figure`."""
    made = Figure(of=of, heading=heading, form=form, place=place, **how)
    return field(default=None, metadata={"column": made})


def _three(values: Sequence[float], digits: int) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, rounded."""
    low, middle, high = quartiles(values)
    return round(low, digits), round(middle, digits), round(high, digits)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 5) if known else None


def _setup_seconds(record: Record) -> float | None:
    """Seconds before prefill: the trie from the cache, and the drafter."""
    generation = record.generation
    if not generation.prefill_s or generation.decode_s is None:
        return None
    return record.seconds - generation.prefill_s - generation.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell of `ngt bench` over all prompts. What is not known of it is None.

    `prefill_ms` (a prompt), `step_us` and `share` (of the whole time) are of answers whose parts
    were timed apart, in a run of their own.
    """

    method: str = column(lambda g: g.cell.values["method"])
    num_draft: int | None = column(lambda g: g.cell.num_draft)
    questions: int = column(lambda g: len(g.prompts))
    new_tokens: int = column(lambda g: g.tokens)
    steps: int = column(lambda g: g.steps)
    drafted_tokens: int | None = column(lambda g: g.sum_of("drafted"))
    accepted_tokens: int | None = column(lambda g: g.sum_of("accepted"))
    mean_acceptance_length: float | None = column(
        Group.length, "accept. length", "{:.2f}", 3, rank=1
    )
    draft_acceptance_rate: float | None = column(
        Group.acceptance_rate, "accepted", "{:.1%}", 8, rank=10
    )
    acceptance_histogram: Mapping[int, int] = column(
        lambda g: sum((Counter(one.histogram or {}) for one in g.last), Counter())
    )
    nodes_per_step: float | None = column(lambda g: ratio(g.sum_of("drafted"), g.steps))
    undrafted_share: float | None = column(
        lambda g: ratio(g.sum_of("undrafted"), g.steps), "undrafted", "{:.0%}", 9, rank=12
    )
    seconds_median: float = column(
        lambda g: _three(g.seconds(), 5)[1], "seconds", "{:.3f}", 6, rank=8
    )
    seconds_quartiles: Pair = column(lambda g: _three(g.seconds(), 5)[::2])
    spread: float | None = column(Group.spread, "spread", "{:.0%}", 7, rank=11)
    tokens_per_s: float | None = column(Group.tokens_per_s)
    tokens_per_s_with_prefill: float = column(
        lambda g: round(g.tokens / sum(g.seconds()), 2), "tokens/s", "{:.1f}", 5, rank=3
    )
    prefill_s_median: float | None = column(lambda g: _median(one.prefill_s for one in g.last))
    setup_s_median: float | None = column(
        lambda g: _median(_setup_seconds(r) for rounds in g.rounds for r in rounds)
    )
    speedup: float = column(lambda g: g.speedup()[0], "speed-up", "{:.2f}×", 0)
    speedup_quartiles: Pair = column(
        lambda g: g.speedup()[1], "quartiles", "{0[0]:.2f}–{0[1]:.2f}", 1, rank=4
    )
    speedup_least_and_most: Pair = column(lambda g: g.speedup()[2])
    speedup_over_hf: float = column(
        lambda g: g.speedup(HF)[0], "over hf", "{:.2f}×", 2, rank=9, needs="speedup_over_hf"
    )
    speedup_over_hf_quartiles: Pair = column(lambda g: g.speedup(HF)[1], needs="speedup_over_hf")
    speedup_over_hf_least_and_most: Pair = column(
        lambda g: g.speedup(HF)[2], needs="speedup_over_hf"
    )
    same_ids: int = column(Group.same_ids, "same ids", "{0}/{1.questions}", 4, rank=2)
    prefill_ms: float | None = column(Group.prefill_ms)
    step_us: Mapping[str, float] | None = column(Group.step_us)
    share: Mapping[str, float] | None = column(Group.shares)


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
        lambda g: statistics.median(g.speeds()), "tokens/s", "{:.1f}", digits=3
    )
    tokens_per_s_least_and_most: Pair = column(
        lambda g: (min(g.speeds()), max(g.speeds())), digits=3
    )
    mean_acceptance_length: float = column(
        lambda g: sum(len(x.ids) for x in g.every) / max(1, sum(x.steps for x in g.every)),
        "length",
        "{:.3f}",
        rank=1,
        digits=4,
    )
    trie_build_s: float | None = column(
        lambda g: g.middle("trie_build_s"), "build ms", "{:.2f}", scale=1e3, rank=2, digits=6
    )
    trie_bytes: int | None = column(
        lambda g: None if (size := g.middle("trie_bytes")) is None else int(size),
        "kB",
        "{:.1f}",
        scale=1e-3,
        rank=3,
    )
    standing: str = column(lambda g: "")
    prompts: Sequence[tuple[int, float]] = column(
        lambda g: [
            (len(rounds[0].generation.ids), seconds)
            for rounds, seconds in zip(g.rounds, g.seconds(), strict=True)
        ],
        hidden=True,
    )


def columns(row: type) -> list[Figure]:
    """The columns of a class of rows, in the order of JSON."""
    return [replace(f.metadata["column"], name=f.name) for f in fields(row)]


def shown_columns(row: type) -> list[Figure]:
    """The columns in the table of these rows."""
    return sorted((one for one in columns(row) if one.heading), key=lambda one: one.place)


def row_of(row: Any, group: Any) -> Any:
    """The row of a group: every column computed."""
    return row(**{one.name: one.of(group) for one in columns(row)})


def json_rows(row: type) -> Any:
    """The field of a result that holds such rows: their JSON and its schema."""
    printed = [one for one in columns(row) if not one.hidden]

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
        hints = get_type_hints(row)
        keys = {one.name: schema_of(hints[one.name]) for one in printed}
        return {"type": "array", "items": shape(keys, [o.name for o in printed if o.needs])}

    return field(metadata=json_key(form=form, schema=schema))


def summarized(race: Race) -> list[Row]:
    """A row for each cell, over the prompts that every cell has answered."""
    measured, records = race.measured(), race.answers()
    splits = {(one.cell, one.prompt): [one] for one in race.splits}
    groups = (Group(cell, measured, records, splits, by_wall=True) for cell in race.cells)
    return [row_of(Row, group) for group in groups]
