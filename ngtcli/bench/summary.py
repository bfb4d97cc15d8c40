"""Makes the rows of results from records: each figure is one `column` of a row.

A row is one cell over all prompts. Its columns say how they are computed, and what they are called
in tables and in JSON. A prompt's time is the median of its rounds. A speed-up is formed prompt by
prompt, and its median is reported. Shares and rates are from 0 to 1, quartiles are (lower, upper),
and a name ends in its unit. None stands for an unknown figure. Imports no torch.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from ngtcli.bench.grid import BASELINE, Cell
from ngtcli.bench.records import Generation, Measurement, Record
from ngtcli.drafting.steps import PARTS
from ngtcli.system.json_form import Schema, json_key, schema_of, shape, to_json

HF = "hf"  # the cell of generate of `transformers`, for `speedup_over_hf`
MISSING = "–"
Pair = tuple[float, float]
Records = Mapping[tuple[str, int], Sequence[Record]]  # by cell and prompt, in the order of rounds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile; a single value is all three.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(a: float | None, b: float | None, digits: int = 4) -> float | None:
    """Return a / b, rounded; None if one of them is unknown, or b is 0."""
    if a is None or not b:
        return None
    return round(a / b, digits)


class Group:
    """The records of one cell over some prompts, with those of all cells for comparison.

    Args:
        cell: The cell.
        prompts: The indices of the prompts.
        records: The records of all cells.
        splits: Records of extra runs in which each phase of a step was timed, if there are any.
        by_wall: Whether a prompt's seconds are wall time with the prefill, or those of decoding
            alone.

    Attributes:
        rounds: The cell's records of each prompt.
        generations: The answers of all rounds.
        last: The answers of the last round.
        tokens: New tokens in the last round.
        steps: Steps in the last round.
        split: The answers of the extra runs.
    """

    def __init__(
        self,
        cell: Cell,
        prompts: Sequence[int],
        records: Records,
        splits: Records | None = None,
        by_wall: bool = False,
    ) -> None:
        self.cell = cell
        self.prompts = prompts
        self._records = records
        self._by_wall = by_wall
        self.rounds = [records[cell.key, prompt] for prompt in prompts]
        self.generations = [record.generation for rounds in self.rounds for record in rounds]
        self.last = [rounds[-1].generation for rounds in self.rounds]
        self.tokens = sum(len(g.ids) for g in self.last)
        self.steps = sum(g.steps for g in self.last)
        self.split: list[Generation] = []
        for prompt in prompts:
            split_records = (splits or {}).get((cell.key, prompt), ())
            self.split += [record.generation for record in split_records]

    def sum_of(self, name: str) -> int | None:
        """Return the sum of a count over the last round; None if one answer does not have it."""
        counts = [getattr(g, name) for g in self.last]
        return None if None in counts else sum(counts)

    def length(self) -> float | None:
        """Return new tokens by steps (the mean acceptance length)."""
        return ratio(self.tokens, self.steps)

    def acceptance_rate(self) -> float | None:
        """Return accepted by drafted tokens; None without drafts."""
        return ratio(self.sum_of("accepted"), self.sum_of("drafted"))

    def seconds(self, key: str = "") -> list[float]:
        """Return the seconds of each prompt, of this cell or of another one."""
        return [
            statistics.median(map(self.clock, self._records[key or self.cell.key, prompt]))
            for prompt in self.prompts
        ]

    def clock(self, record: Record) -> float:
        """Return the seconds of an answer that count."""
        return record.seconds if self._by_wall else record.generation.decode_s or 0.0

    def tokens_per_s(self) -> float | None:
        """Return new tokens by seconds of decoding."""
        medians = []
        for records in self.rounds:
            medians.append(statistics.median(r.generation.decode_s or 0.0 for r in records))
        return ratio(self.tokens, sum(medians), 2 if self._by_wall else 3)

    def parts(self) -> dict[str, float]:
        """Return the seconds of prefill and of the parts of steps, over all answers.

        They are empty if the parts were not timed (paper, Figure 5).
        """
        if not self.split:
            return {}
        seconds = {"prefill": sum(g.prefill_s or 0.0 for g in self.split)}
        for part in PARTS:
            seconds[part] = sum((g.split_s or {}).get(part, 0.0) for g in self.split)
        return seconds

    def prefill_ms(self) -> float | None:
        """Return the mean milliseconds of a prefill; None if the parts were not timed."""
        if not self.split:
            return None
        return round(self.parts()["prefill"] / len(self.split) * 1e3, 3)

    def step_us(self) -> dict[str, float] | None:
        """Return the microseconds of each part of a step; None if the parts were not timed."""
        steps = max(sum(g.steps for g in self.split), 1)
        parts = {part: round(s / steps * 1e6, 1) for part, s in self.parts().items()}
        parts.pop("prefill", None)
        return parts or None

    def shares(self) -> dict[str, float] | None:
        """Return each part's share of an answer's time; None if the parts were not timed."""
        parts = self.parts()
        total = sum(parts.values()) or 1.0
        return {part: round(s / total, 4) for part, s in parts.items()} or None

    def spread(self) -> float | None:
        """Return the median over prompts of a prompt's interquartile range by its median.

        None with one round.
        """
        spreads = []
        for records in self.rounds:
            if len(records) > 1:
                low, middle, high = quartiles([self.clock(record) for record in records])
                spreads.append((high - low) / middle)
        return round(statistics.median(spreads), 4) if spreads else None

    def speedup(
        self, baseline: str = BASELINE
    ) -> tuple[float, Pair, Pair] | tuple[None, None, None]:
        """Compare the seconds of a baseline to this cell's, prompt by prompt.

        Returns:
            Median, quartiles, and minimum and maximum of the ratios. None if the baseline was not
            measured on all these prompts.
        """
        if any((baseline, prompt) not in self._records for prompt in self.prompts):
            return None, None, None
        ratios = []
        for seconds, baseline_seconds in zip(self.seconds(), self.seconds(baseline), strict=True):
            ratios.append(baseline_seconds / seconds)
        low, middle, high = _rounded_quartiles(ratios, 3)
        return middle, (low, high), (round(min(ratios), 3), round(max(ratios), 3))

    def same_ids(self) -> int:
        """Count the prompts with the token ids of plain decoding in every round."""
        count = 0
        for prompt, records in zip(self.prompts, self.rounds, strict=True):
            expected = self._records[BASELINE, prompt][0].generation.ids
            count += all(record.generation.ids == expected for record in records)
        return count

    def speeds(self) -> list[float]:
        """Return the tokens per second of decoding over all prompts, round by round."""
        speeds = []
        for records in zip(*self.rounds, strict=True):
            seconds = sum(r.generation.decode_s or 0.0 for r in records)
            tokens = sum(len(r.generation.ids) for r in records)
            speeds.append(tokens / seconds if seconds > 0 else 0.0)
        return speeds

    def median(self, name: str) -> float | None:
        """Return the median of a field of Generation over all answers that have it."""
        values = [getattr(generation, name) for generation in self.generations]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a row.

    Attributes:
        of: Computes it from a group.
        name: The row's field.
        needs: A field; where that is None, JSON does not have this figure.
        heading: Its heading in tables; "": they do not have it.
        form: Its format in tables, which may use the row as `{1}`.
        scale: Its factor in tables.
        digits: Its decimal places in JSON; None: it is not rounded.
        hidden: Whether JSON does not have it.
        place: Its position in tables, from the left.
        rank: See `render.tables.Column`.
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
        """Return its value in the unit of the heading."""
        value: float | None = getattr(row, self.name)
        if value is None or self.scale == 1:
            return value
        return value * self.scale

    def text(self, row: Any) -> str:
        """Return its value as tables show it; a dash for None."""
        value = self.value(row)
        return MISSING if value is None else self.form.format(value, row)


def column(
    of: Callable[[Any], Any], heading: str = "", form: str = "{}", place: int = 0, **options: Any
) -> Any:
    """Make the field of a row for a figure; `options` are further fields of `Figure`."""
    figure = Figure(of=of, heading=heading, form=form, place=place, **options)
    return field(default=None, metadata={"column": figure})


def _rounded_quartiles(values: Sequence[float], digits: int) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile, rounded."""
    low, middle, high = quartiles(values)
    return round(low, digits), round(middle, digits), round(high, digits)


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, rounded to five places."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 5) if known else None


def _setup_seconds(record: Record) -> float | None:
    """Return the seconds before prefill: loading the trie from the cache, and the drafter."""
    generation = record.generation
    if not generation.prefill_s or generation.decode_s is None:
        return None
    return record.seconds - generation.prefill_s - generation.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell of `ngt bench` over all prompts. Unknown figures are None.

    `prefill_ms` (per prompt), `step_us` and `share` (of an answer's time) come from an additional
    round in which the parts of a step are timed separately.
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
        lambda g: sum((Counter(answer.histogram or {}) for answer in g.last), Counter())
    )
    nodes_per_step: float | None = column(lambda g: ratio(g.sum_of("drafted"), g.steps))
    undrafted_share: float | None = column(
        lambda g: ratio(g.sum_of("undrafted"), g.steps), "undrafted", "{:.0%}", 9, rank=12
    )
    seconds_median: float = column(
        lambda g: _rounded_quartiles(g.seconds(), 5)[1], "seconds", "{:.3f}", 6, rank=8
    )
    seconds_quartiles: Pair = column(lambda g: _rounded_quartiles(g.seconds(), 5)[::2])
    spread: float | None = column(Group.spread, "spread", "{:.0%}", 7, rank=11)
    tokens_per_s: float | None = column(Group.tokens_per_s)
    tokens_per_s_with_prefill: float = column(
        lambda g: round(g.tokens / sum(g.seconds()), 2), "tokens/s", "{:.1f}", 5, rank=3
    )
    prefill_s_median: float | None = column(
        lambda g: _median(answer.prefill_s for answer in g.last)
    )
    setup_s_median: float | None = column(
        lambda g: _median(_setup_seconds(record) for rounds in g.rounds for record in rounds)
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


def _acceptance_length(generations: Sequence[Generation]) -> float:
    """Return new tokens by steps."""
    tokens = sum(len(generation.ids) for generation in generations)
    steps = sum(generation.steps for generation in generations)
    return tokens / max(1, steps)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """A cell of `ngt tune`: medians over rounds; seconds are of decoding alone.

    `prompts` has the new tokens and median seconds of each prompt. The figures of the trie are None
    for methods without one. `standing` is "chosen" (or "ahead" while the report is incomplete),
    "tied" if the cell may be as fast as the best, else "".
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
        lambda g: _acceptance_length(g.generations),
        "length",
        "{:.3f}",
        rank=1,
        digits=4,
    )
    trie_build_s: float | None = column(
        lambda g: g.median("trie_build_s"), "build ms", "{:.2f}", scale=1e3, rank=2, digits=6
    )
    trie_bytes: int | None = column(
        lambda g: _whole(g.median("trie_bytes")),
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
    """Return the columns of a class of rows, in the order of JSON."""
    return [replace(f.metadata["column"], name=f.name) for f in fields(row)]


def shown_columns(row: type) -> list[Figure]:
    """Return the columns of a class of rows that tables have, in their order."""
    shown = [figure for figure in columns(row) if figure.heading]
    return sorted(shown, key=lambda figure: figure.place)


def row_of(row: Any, group: Any) -> Any:
    """Make a row (an instance of the class `row`) by computing every column from a group."""
    return row(**{figure.name: figure.of(group) for figure in columns(row)})


def json_rows(row: type) -> Any:
    """Make the field of a result that has rows of a class, with their JSON and its schema."""
    figures = [figure for figure in columns(row) if not figure.hidden]

    def row_json(values: Any) -> dict[str, Any]:
        keys = {}
        for figure in figures:
            if not figure.needs or getattr(values, figure.needs) is not None:
                keys[figure.name] = to_json(getattr(values, figure.name), figure.digits)
        return keys

    def rows_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
        return [row_json(values) for values in rows]

    def schema() -> Schema:
        hints = get_type_hints(row)
        keys = {figure.name: schema_of(hints[figure.name]) for figure in figures}
        optional = [figure.name for figure in figures if figure.needs]
        return {"type": "array", "items": shape(keys, optional)}

    return field(metadata=json_key(form=rows_json, schema=schema))


def summarized(measurement: Measurement) -> list[Row]:
    """Make a row for each cell, over the prompts that every cell has answered."""
    prompts = measurement.measured()
    records = measurement.answers()
    splits = {(record.cell, record.prompt): [record] for record in measurement.splits}
    rows = []
    for cell in measurement.cells:
        rows.append(row_of(Row, Group(cell, prompts, records, splits, by_wall=True)))
    return rows
