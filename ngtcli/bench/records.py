"""Takes a measurement: cells × prompts × rounds, as a flat list of records.

A source answers prompts by the settings of a cell. A drafter learns from prompt to prompt of one
round and forgets everything before the next. So no cell drafts from its own earlier answer to the
same prompt, or from the answers of another cell. With `fresh` it forgets everything at each prompt.
Imports no torch.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta

from ngtcli.bench.grid import (
    AGAINST,
    BASELINE,
    BenchOptions,
    Cell,
    Refusal,
    cells_of,
    check_some_left,
    refusal,
)
from ngtcli.config import Settings
from ngtcli.drafting.steps import Statistics
from ngtcli.errors import NgtError
from ngtcli.system import reporting
from ngtcli.system.progress import time_left
from ngtcli.words import counted

P = TypeVar("P")  # a prompt, or its index
_UNAVAILABLE = (NgtError, ImportError, OSError)  # errors if a cell's needs are not met
# Limits of plausible figures (guess): stored ones beyond them are measured again.
Count = Annotated[int, Meta(ge=0, lt=10**15)]
Seconds = Annotated[float, Meta(ge=0, lt=1e15)]


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer. Unknown figures are None.

    Attributes:
        ids: Its token ids.
        steps: Forward passes after prefill.
        prefill_s: Seconds of prefill.
        decode_s: Seconds without prefill.
        drafted: Draft tokens.
        accepted: Draft tokens that were accepted.
        undrafted: Steps without a draft.
        histogram: Numbers of steps by the numbers of their accepted draft tokens.
        split_s: Seconds of the parts of steps, if they were timed separately.
        trie_build_s: Seconds that building the trie took, if it was built for this answer.
        trie_bytes: Size of that trie.
    """

    ids: Sequence[int]
    steps: Count
    prefill_s: Seconds | None = None
    decode_s: Seconds | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    undrafted: Count | None = None
    histogram: Mapping[int, int] | None = None
    split_s: dict[str, float] | None = None
    trie_build_s: Seconds | None = None
    trie_bytes: Count | None = None

    @classmethod
    def of(cls, ids: Sequence[int], statistics: Statistics, **figures: Any) -> "Generation":
        """Make it from a sequence's statistics and further fields."""
        return cls(
            ids,
            statistics.steps,
            drafted=statistics.drafted_tokens,
            accepted=statistics.accepted_tokens,
            histogram=statistics.acceptance_histogram,
            **figures,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of a cell.

    Attributes:
        cell: The cell's key.
        prompt: Index of the prompt.
        round: Number of the round, from 0.
        generation: The answer.
        seconds: Wall time with prefill.
    """

    cell: str
    prompt: Count
    round: Count
    generation: Generation
    seconds: Seconds = 0.0


Answering = Callable[[P], Generation]


class Source(Protocol[P]):
    """Something that answers by the settings of cells, such as a model."""

    @property
    def prompts(self) -> Sequence[P]:
        """The prompts that every cell answers."""

    def begin(self, cell: Cell, split: bool = False) -> Answering[P]:
        """Return a function that answers by a cell, with a drafter that has learned nothing.

        Work that a long-running program does once is done here and not timed.

        Args:
            cell: The cell.
            split: Whether the parts of a step are timed separately. That waits for the device, so
                that no other times count.
        """


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer to measure: of a cell, to the prompt of this index, in this round."""

    cell: Cell
    prompt: int
    round: int


@dataclass(slots=True)
class Measurement:
    """A measurement: its cells, and the records so far.

    Attributes:
        cells: The cells that take part.
        records: Their answers.
        splits: Answers of a further round in which the parts of a step were timed separately.
        refused: Methods that do not take part.
        interrupted: Whether the user interrupted it.
    """

    cells: list[Cell]
    records: list[Record] = field(default_factory=list)
    splits: list[Record] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def refuse(self, cell: Cell, error: Exception) -> None:
        """Leave a cell out; the same reason of a method is recorded only once."""
        self.cells.remove(cell)
        refused = refusal(str(cell.values["method"]), error)
        if refused not in self.refused:
            self.refused.append(refused)

    def answers(self) -> dict[tuple[str, int], list[Record]]:
        """Group the records by cell and prompt, in the order of rounds."""
        records: dict[tuple[str, int], list[Record]] = {}
        for record in self.records:
            records.setdefault((record.cell, record.prompt), []).append(record)
        return records

    def measured(self) -> list[int]:
        """Return the indices of the prompts that every cell has answered at least once."""
        answers = self.answers()
        keys = [cell.key for cell in self.cells]
        prompts = sorted({prompt for _, prompt in answers})
        return [prompt for prompt in prompts if all((key, prompt) in answers for key in keys)]


def by_prompt(cells: Sequence[Cell], prompts: int, rounds: int) -> Iterator[Turn]:
    """Let all cells take turns at each prompt, each time with another one first.

    So noise of the machine affects all alike. The drafters of all cells are in memory together.
    """
    for number in range(rounds):
        for prompt in range(prompts):
            first = (number + prompt) % len(cells)
            for cell in (*cells[first:], *cells[:first]):
                yield Turn(cell, prompt, number)


def by_cell(cells: Sequence[Cell], prompts: int, rounds: int) -> Iterator[Turn]:
    """Let each cell answer all prompts in a row; the order of cells differs in each round.

    So a machine that slows down affects all alike. One drafter is in memory at a time. Cells of one
    model come together, so that each model is loaded once a round.
    """
    for number in range(rounds):
        order = list(cells)
        random.Random(f"0 {number}").shuffle(order)
        models = [cell.settings.model for cell in order]
        # A stable sort: cells of one model keep their order.
        for cell in sorted(order, key=lambda cell: models.index(cell.settings.model)):
            for prompt in range(prompts):
                yield Turn(cell, prompt, number)


def take(
    source: Source[P],
    turns: Iterable[Turn],
    prompts: Sequence[P],
    *,
    fresh: bool = False,
    split: bool = False,
    on_turn: Callable[[Turn], None] = lambda _: None,
) -> Iterator[Record]:
    """Take turns and time each.

    Args:
        source: Answers.
        turns: The turns, in order.
        prompts: The prompts that turns name by their indices.
        fresh: Whether drafters forget everything at each prompt.
        split: Whether the parts of a step are timed separately.
        on_turn: Called before each turn, which is not timed.
    """
    answering: dict[str, Answering[P]] = {}
    for turn in turns:
        on_turn(turn)
        key = turn.cell.key
        if fresh or turn.prompt == 0:
            answering[key] = source.begin(turn.cell, split)
        started = time.perf_counter()
        generation = answering[key](prompts[turn.prompt])
        seconds = time.perf_counter() - started
        if turn.prompt == len(prompts) - 1:
            del answering[key]  # its drafter may be large
        yield Record(key, turn.prompt, turn.round, generation, seconds)


def measure_methods(
    source: Source[P],
    options: BenchOptions,
    settings: Settings,
    warm: Sequence[P],
    *,
    splits: bool = False,
) -> Measurement:
    """Measure the methods of `options`, with plain decoding and its rivals beside them.

    Each method answers the prompts `warm` before that, untimed.

    Raises:
        UsageError: No method can run.
        KeyboardInterrupt: The user interrupted it before all methods had answered a prompt.
        Exception: Plain decoding failed with this error.
    """
    cells, refused = cells_of((BASELINE, *options.methods), options.num_drafts, settings)
    for name in AGAINST if options.against else ():
        cells.append(replace(cells[0], key=name, values={"method": name}))
    measurement = Measurement(cells, refused=refused)
    warm_up(source, measurement, warm, fresh=options.fresh)
    check_some_left(options.methods, measurement.cells, measurement.refused)
    turns = list(by_prompt(measurement.cells, len(source.prompts), options.rounds))
    for _ in run(source, measurement, turns, fresh=options.fresh, splits=splits):
        pass
    if measurement.interrupted and not measurement.measured():
        raise KeyboardInterrupt
    return measurement


def warm_up(
    source: Source[P], measurement: Measurement, prompts: Sequence[P], *, fresh: bool = False
) -> None:
    """Let every cell answer `prompts` untimed, which fills caches; leave out those that cannot.

    Raises what plain decoding raises, without which there is no measurement.
    """
    for cell in list(measurement.cells):
        reporting.status(f"Warming up: {cell.key}")
        turns = by_prompt([cell], len(prompts), 1)
        try:
            for _ in take(source, turns, prompts, fresh=fresh):
                pass
        except _UNAVAILABLE as error:
            if cell.key == BASELINE:
                raise
            measurement.refuse(cell, error)


def run(
    source: Source[P],
    measurement: Measurement,
    turns: Sequence[Turn],
    *,
    fresh: bool = False,
    splits: bool = False,
) -> Iterator[Record]:
    """Take turns, add their records to the measurement and yield them; an interrupt ends it.

    Args:
        source: Answers.
        measurement: Receives the records.
        turns: The turns, in order.
        fresh: Whether drafters forget everything at each prompt.
        splits: Whether to add a round in which the parts of a step are timed separately.
    """
    started = time.perf_counter()
    total = len(turns)
    answered = 0

    def report_turn(turn: Turn) -> None:
        nonlocal answered
        estimate = ""
        if answered:
            seconds_left = (time.perf_counter() - started) / answered * (total - answered)
            estimate = f" · about {time_left(seconds_left)} left"
        reporting.status(f"{answered} of {counted(total, 'answer')}{estimate}: {turn.cell.key}")
        answered += 1

    prompts = source.prompts
    try:
        for record in take(source, turns, prompts, fresh=fresh, on_turn=report_turn):
            measurement.records.append(record)
            yield record
        if not splits:
            return
        for cell in measurement.cells:
            if cell.key in AGAINST:
                continue
            reporting.status(f"Splitting the time of {cell.key}")
            split_turns = by_prompt([cell], len(prompts), 1)
            measurement.splits += take(source, split_turns, prompts, fresh=fresh, split=True)
    except KeyboardInterrupt:
        measurement.interrupted = True
