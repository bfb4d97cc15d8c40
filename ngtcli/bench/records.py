"""One measurement: cells × prompts × rounds, as a flat list of records.

A contestant is a cell of settings, and a source answers with them. What a drafter learns lives
across the prompts of one round, in their order, and is dropped before the next: no cell drafts from
its own earlier answer to the same prompt, and none from what another one has answered. With `fresh`
it is dropped at each prompt. Knows no torch.
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
from ngtcli.system.progress import time_left
from ngtcli.words import counted

P = TypeVar("P")  # what is answered, such as the index of a prompt
Notify = Callable[[str], None]
_CANNOT = (NgtError, ImportError, OSError)  # something that a cell needs is not there
# More is no measurement, and stored figures with it are measured again; guess.
Count = Annotated[int, Meta(ge=0, lt=10**15)]
Seconds = Annotated[float, Meta(ge=0, lt=1e15)]


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: its ids, the passes of the model it took, and what drafting did, where known.

    `decode_s` are seconds without prefill. `undrafted` counts the steps without a draft;
    `histogram` steps by accepted drafts. A trie that was built for this answer has its seconds and
    bytes.
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
    def of(cls, ids: Sequence[int], statistics: Statistics, **more: Any) -> "Generation":
        """That of a run with these figures; `more` are further fields."""
        s = statistics
        more |= {"drafted": s.drafted_tokens, "accepted": s.accepted_tokens}
        return cls(ids, s.steps, histogram=s.acceptance_histogram, **more)


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of a cell (by its key) to the prompt of that index in that round, from 0.

    `seconds` are wall clock with prefill.
    """

    cell: str
    prompt: Count
    round: Count
    generation: Generation
    seconds: Seconds = 0.0


Answering = Callable[[P], Generation]


class Source(Protocol[P]):
    """What cells are measured on, such as a model that runs."""

    @property
    def prompts(self) -> Sequence[P]:
        """What every cell answers."""

    def begin(self, cell: Cell, split: bool = False) -> Answering[P]:
        """What answers by a cell, with a drafter that has learned nothing.

        What a long-running program does once is done here, off the clock. With `split` the parts of
        a step are timed apart, which waits for the device, so that it is timed for nothing else.
        """


@dataclass(frozen=True, slots=True)
class Turn:
    """One cell's answer that is to come, to the prompt of that index in that round."""

    cell: Cell
    prompt: int
    round: int


@dataclass(slots=True)
class Race:
    """What was measured of `cells`; `splits` are the answers with the parts of a step."""

    cells: list[Cell]
    records: list[Record] = field(default_factory=list)
    splits: list[Record] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def refuse(self, cell: Cell, error: Exception) -> None:
        """Leave a cell out; a method's reason is kept once."""
        self.cells.remove(cell)
        if (one := refusal(str(cell.values["method"]), error)) not in self.refused:
            self.refused.append(one)

    def answers(self) -> dict[tuple[str, int], list[Record]]:
        """The records by cell and prompt, in the order of rounds."""
        found: dict[tuple[str, int], list[Record]] = {}
        for record in self.records:
            found.setdefault((record.cell, record.prompt), []).append(record)
        return found

    def measured(self) -> list[int]:
        """The prompts that every cell has answered at least once."""
        answered, keys = self.answers(), [cell.key for cell in self.cells]
        prompts = sorted({prompt for _, prompt in answered})
        return [p for p in prompts if all((key, p) in answered for key in keys)]


def by_prompt(cells: Sequence[Cell], prompts: int, rounds: int) -> Iterator[Turn]:
    """All cells take turns at each prompt, another one first each time.

    A noisy machine troubles all alike. The drafters of all cells are kept at once.
    """
    for number in range(rounds):
        for prompt in range(prompts):
            first = (number + prompt) % len(cells)
            for cell in (*cells[first:], *cells[:first]):
                yield Turn(cell, prompt, number)


def by_cell(cells: Sequence[Cell], prompts: int, rounds: int) -> Iterator[Turn]:
    """Each cell answers all prompts in a row, in an order of its own each round.

    A machine that slows down or speeds up troubles all alike. One drafter is kept at a time. Cells
    of one model come together: each model is loaded once a round.
    """
    for number in range(rounds):
        order = list(cells)
        random.Random(f"0 {number}").shuffle(order)
        models = [cell.settings.model for cell in order]
        for _, cell in sorted(enumerate(order), key=lambda one: models.index(models[one[0]])):
            for prompt in range(prompts):
                yield Turn(cell, prompt, number)


def take(
    source: Source[P],
    turns: Iterable[Turn],
    prompts: Sequence[P],
    *,
    fresh: bool = False,
    split: bool = False,
    tell: Callable[[Turn], None] = lambda _: None,
) -> Iterator[Record]:
    """Take the turns, each on the clock after it is told."""
    answering: dict[str, Answering[P]] = {}
    for turn in turns:
        tell(turn)
        key = turn.cell.key
        if fresh or not turn.prompt:
            answering[key] = source.begin(turn.cell, split)
        clock = time.perf_counter()
        generation = answering[key](prompts[turn.prompt])
        seconds = time.perf_counter() - clock
        if turn.prompt == len(prompts) - 1:
            del answering[key]  # what it has learned may be large
        yield Record(key, turn.prompt, turn.round, generation, seconds)


def raced(
    source: Source[P],
    options: BenchOptions,
    settings: Settings,
    warm: Sequence[P],
    progress: Notify,
    *,
    splits: bool = False,
) -> Race:
    """Measure the methods of `options`, with plain decoding and its rivals beside them.

    Each answers `warm` before, untimed. Raises UsageError where no method can run, what plain
    decoding raises, and KeyboardInterrupt where no prompt was answered by all.
    """
    cells, refused = cells_of((BASELINE, *options.methods), options.num_drafts, settings)
    for name in AGAINST if options.against else ():
        cells.append(replace(cells[0], key=name, values={"method": name}))
    race = Race(cells, refused=refused)
    warm_up(source, race, warm, progress, fresh=options.fresh)
    check_some_left(options.methods, race.cells, race.refused)
    turns = list(by_prompt(race.cells, len(source.prompts), options.rounds))
    for _ in run(source, race, turns, fresh=options.fresh, splits=splits, progress=progress):
        pass
    if race.interrupted and not race.measured():
        raise KeyboardInterrupt
    return race


def warm_up(
    source: Source[P], race: Race, prompts: Sequence[P], progress: Notify, *, fresh: bool = False
) -> None:
    """Let every cell answer `prompts` untimed, which fills caches; refuse those that cannot.

    Raises what plain decoding raises.
    """
    for cell in list(race.cells):
        progress(f"Warming up: {cell.key}")
        turns = by_prompt([cell], len(prompts), 1)
        try:
            for _ in take(source, turns, prompts, fresh=fresh):
                pass
        except _CANNOT as error:
            if cell.key == BASELINE:
                raise
            race.refuse(cell, error)


def run(
    source: Source[P],
    race: Race,
    turns: Sequence[Turn],
    *,
    fresh: bool = False,
    splits: bool = False,
    progress: Notify = lambda _: None,
) -> Iterator[Record]:
    """Take `turns`, timed, and add them to the race; with `splits` a round more that is split up.

    An interruption ends the race.
    """
    done, total, begin = 0, len(turns), time.perf_counter()

    def tell(turn: Turn) -> None:
        nonlocal done
        left = (time.perf_counter() - begin) / max(done, 1) * (total - done)
        words = f" · about {time_left(left)} left" if done else ""
        progress(f"{done} of {counted(total, 'answer')}{words}: {turn.cell.key}")
        done += 1

    prompts = source.prompts
    try:
        for record in take(source, turns, prompts, fresh=fresh, tell=tell):
            race.records.append(record)
            yield record
        for cell in race.cells if splits else ():
            if cell.key in AGAINST:
                continue
            progress(f"Splitting the time of {cell.key}")
            own = by_prompt([cell], len(prompts), 1)
            race.splits += take(source, own, prompts, fresh=fresh, split=True)
    except KeyboardInterrupt:
        race.interrupted = True
