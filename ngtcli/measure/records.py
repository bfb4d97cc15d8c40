"""One measurement: contestants × prompts × rounds, as a flat list of records.

Live runs, replays and replays with real passes differ in how a contestant answers and in nothing
else. What a drafter learns lives across the prompts of one round, in their order, and is dropped
before the next: no contestant drafts from its own earlier answer to the same prompt, and none from
what another one has answered. With `fresh` it is dropped at each prompt. Knows no torch.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ngtcli.errors import NgtError, counted

if TYPE_CHECKING:
    from ngtcli.measure.machine import PeakMemory

BASELINE = "none"  # plain decoding, which the others are set against
P = TypeVar("P")  # what is answered: a prompt, an item that a prompt is made of, a recorded trace
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: its ids, the passes of the model it took, and what drafting did, where known.

    `decode_s` are seconds without prefill; on a recording they come from a cost curve. `undrafted`
    counts the steps without a draft; `histogram` steps by accepted drafts, `nodes` by nodes of the
    tree, probes included. `draft_us` are microseconds of drafting, step by step. A trie that was
    built for this answer has its seconds and bytes.
    """

    ids: Sequence[int]
    steps: int
    prefill_s: float | None = None
    decode_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    undrafted: int | None = None
    histogram: Counter[int] | None = None
    nodes: Counter[int] | None = None
    draft_us: Sequence[float] | None = None
    split_s: dict[str, float] | None = None
    trie_build_s: float | None = None
    trie_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of a contestant (by its key) to the prompt of that index in that round, from 0.

    `seconds` are wall clock with prefill, `memory` is bytes at most, where it was measured.
    """

    contestant: str
    prompt: int
    round: int
    generation: Generation
    seconds: float = 0.0
    memory: int = 0


Answering = Callable[[P], Generation]


@dataclass(frozen=True, slots=True)
class Contestant(Generic[P]):
    """What is measured: a method, the settings of a cell, another engine; it answers prompts.

    `begin` makes a drafter that has learned nothing and gives the function that answers with it:
    what a long-running program does once is off the clock. With that of `begin_split` the parts of
    a step are timed apart, which waits for the device, so that it is timed for nothing else.
    """

    name: str
    num_draft: int | None
    begin: Callable[[], Answering[P]]
    begin_split: Callable[[], Answering[P]] | None = None
    model: str = ""  # what tells the model that answers, of several

    @property
    def key(self) -> str:
        """Names one contestant among those that are measured together."""
        return self.name if self.num_draft is None else f"{self.name} at {self.num_draft}"


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """One contestant's answer that is to come, to the prompt of that index in that round."""

    contestant: Contestant[P]
    prompt: int
    round: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A method that takes no part, and why."""

    method: str
    reason: str


def refusal(method: str, error: Exception) -> Refusal:
    """Why a method does not take part, as results name it."""
    hint = error.hint if isinstance(error, NgtError) else ""
    return Refusal(method, f"{error}. {hint}" if hint else str(error))


def taking_part(
    methods: Iterable[str], make: Callable[[str], Iterable[Contestant[P]]], refused: list[Refusal]
) -> list[Contestant[P]]:
    """The contestants that `make` gives for each method; methods that cannot begin are refused."""
    found: dict[str, Contestant[P]] = {}
    for method in dict.fromkeys(methods):
        try:
            made = {contestant.key: contestant for contestant in make(method)}
            for contestant in list(made.values())[:1]:
                contestant.begin()
        except (NgtError, ImportError, OSError) as error:  # something it needs is not there
            refused.append(refusal(method, error))
        else:
            found |= made
    return list(found.values())


@dataclass(slots=True)
class Race(Generic[P]):
    """What was measured of `contestants`; `splits` are the answers with the parts of a step."""

    contestants: list[Contestant[P]]
    records: list[Record] = field(default_factory=list)
    splits: list[Record] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def answers(self) -> dict[tuple[str, int], list[Record]]:
        """The records by contestant and prompt, in the order of rounds."""
        found: dict[tuple[str, int], list[Record]] = {}
        for record in self.records:
            found.setdefault((record.contestant, record.prompt), []).append(record)
        return found

    def measured(self) -> list[int]:
        """The prompts that every contestant has answered at least once."""
        answered, keys = self.answers(), [contestant.key for contestant in self.contestants]
        prompts = sorted({prompt for _, prompt in answered})
        return [p for p in prompts if all((key, p) in answered for key in keys)]


def by_prompt(contestants: Sequence[Contestant[P]], prompts: int, rounds: int) -> Iterator[Turn[P]]:
    """All contestants take turns at each prompt, another one first each time.

    A noisy machine troubles all alike. The drafters of all contestants are kept at once.
    """
    for number in range(rounds):
        for prompt in range(prompts):
            first = (number + prompt) % len(contestants)
            for contestant in (*contestants[first:], *contestants[:first]):
                yield Turn(contestant, prompt, number)


def by_contestant(
    contestants: Sequence[Contestant[P]], prompts: int, rounds: int
) -> Iterator[Turn[P]]:
    """Each contestant answers all prompts in a row, in an order of its own each round.

    A machine that slows down or speeds up troubles all alike. One drafter is kept at a time. Those
    of one model come together: each model is loaded once a round.
    """
    for number in range(rounds):
        order = list(contestants)
        random.Random(f"0 {number}").shuffle(order)
        models = list(dict.fromkeys(c.model for c in order))
        order.sort(key=lambda c: models.index(c.model))
        for contestant in order:
            for prompt in range(prompts):
                yield Turn(contestant, prompt, number)


def run(
    turns: Iterable[Turn[P]],
    prompts: Sequence[P],
    *,
    fresh: bool = False,
    memory: "PeakMemory | None" = None,
    tell: Callable[[Turn[P]], None] = lambda _: None,
) -> Iterator[Record]:
    """Take the turns, each on the clock after it is told; of memory only with `memory`."""
    answering: dict[str, Answering[P]] = {}
    for turn in turns:
        tell(turn)
        key = turn.contestant.key
        if fresh or not turn.prompt:
            answering[key] = turn.contestant.begin()
        if memory is not None:
            memory.start()
        clock = time.perf_counter()
        generation = answering[key](prompts[turn.prompt])
        seconds = time.perf_counter() - clock
        most = memory.peak() if memory is not None else 0
        if turn.prompt == len(prompts) - 1:
            del answering[key]  # what it has learned may be large
        yield Record(key, turn.prompt, turn.round, generation, seconds, most)


def race(
    contestants: Sequence[Contestant[P]],
    prompts: Sequence[P],
    rounds: int,
    *,
    warm_up: Sequence[P],
    fresh: bool = False,
    memory: "PeakMemory | None" = None,
    progress: Notify = lambda _: None,
) -> Race[P]:
    """Warm up on `warm_up`, then `rounds` timed rounds, then one that times the parts of a step.

    Warming up fills the cache of tries and shows who cannot run. An interruption after the first
    answers keeps what there is; before, it is raised.
    """
    made = Race(list(contestants))

    def warming(turn: Turn[P]) -> None:
        where = f", {turn.prompt + 1} of {counted(len(warm_up), 'prompt')}"
        progress(f"Warming up: {turn.contestant.key}{where if len(warm_up) > 1 else ''}")

    def racing(turn: Turn[P]) -> None:
        of_rounds = f"Round {turn.round + 1} of {rounds}, " if rounds > 1 else ""
        of_prompts = f"{turn.prompt + 1} of {counted(len(prompts), 'prompt')}"
        progress(f"{of_rounds}{of_prompts}: {turn.contestant.key}")

    for contestant in contestants:
        try:
            turns = by_prompt([contestant], len(warm_up), 1)
            list(run(turns, warm_up, fresh=fresh, tell=warming))
        except (NgtError, ImportError, OSError) as error:
            if contestant.name == BASELINE:
                raise
            made.contestants.remove(contestant)
            made.refused.append(refusal(contestant.name, error))
    try:
        turns = by_prompt(made.contestants, len(prompts), rounds)
        for record in run(turns, prompts, fresh=fresh, memory=memory, tell=racing):
            made.records.append(record)
        for contestant in made.contestants:
            if contestant.begin_split is not None:
                progress(f"Splitting the time of {contestant.key}")
                split = replace(contestant, begin=contestant.begin_split)
                made.splits += run(by_prompt([split], len(prompts), 1), prompts, fresh=fresh)
    except KeyboardInterrupt:
        if not made.measured():
            raise
        made.interrupted = True
    return made
