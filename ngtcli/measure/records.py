"""Contestants × prompts × rounds: who answers what, in which order, and how long it takes.

What a drafter learns lives across the prompts of one round, in their order, and is dropped before
the next: no contestant drafts from its own earlier answer to the same prompt, and none from what
another one has answered. With `fresh` it is dropped at each prompt.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from ngtcli.measure.memory import PeakMemory  # it loads torch

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
class Sample:
    """One timed answer: seconds of wall clock with prefill, and bytes of memory at most."""

    generation: Generation
    seconds: float
    memory: int


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

    @property
    def key(self) -> str:
        """Names one contestant among those that are measured together."""
        return self.name if self.num_draft is None else f"{self.name} at {self.num_draft}"


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """One contestant's answer to the prompt of that index in that round, both from 0."""

    contestant: Contestant[P]
    prompt: int
    round: int


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

    A machine that slows down or speeds up troubles all alike. One drafter is kept at a time.
    """
    for number in range(rounds):
        order = list(contestants)
        random.Random(f"0 {number}").shuffle(order)
        for contestant in order:
            for prompt in range(prompts):
                yield Turn(contestant, prompt, number)


def run(
    turns: Iterable[Turn[P]],
    prompts: Sequence[P],
    *,
    fresh: bool = False,
    memory: "PeakMemory | None" = None,
    describe: Callable[[Turn[P]], str] = lambda _: "",
    progress: Notify = lambda _: None,
) -> Iterator[tuple[Turn[P], Sample]]:
    """Take the turns, and give each with its sample; `progress` gets each new description."""
    answering: dict[str, Answering[P]] = {}
    said = ""
    for turn in turns:
        if (words := describe(turn)) != said:
            progress(said := words)
        key = turn.contestant.key
        if fresh or not turn.prompt:
            answering[key] = turn.contestant.begin()
        sample = timed(answering[key], prompts[turn.prompt], memory)
        if turn.prompt == len(prompts) - 1:
            del answering[key]  # what it has learned may be large
        yield turn, sample


def timed(answer: Answering[P], prompt: P, memory: "PeakMemory | None" = None) -> Sample:
    """One answer on the clock; bytes of memory only where they are measured."""
    if memory is not None:
        memory.start()
    clock = time.perf_counter()
    generation = answer(prompt)
    seconds = time.perf_counter() - clock
    return Sample(generation, seconds, memory.peak() if memory is not None else 0)
