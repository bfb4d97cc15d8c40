"""Documents an hour on several GPUs, on paper: `python -m ngtcli.evaluate.dev.vllm_scale`.

What is measured: for each kind of question of the recording (Vicuna-7B on Spec-Bench) the tokens of
prompt and answer, and for chains of at most k drafts the acceptance length, the drafts a step and
the seconds to draft, replayed with one child a node (`CHAINS`). What is assumed is in `Assumed`.

A step of s sequences takes the longer of reading the weights and the keys and values once, and of
computing s (1 + drafts) rows; then come vLLM's own time and that of drafting:

    step_s = max((weights + s x context x kv) / bandwidth, 2 x parameters x rows / flops)
             + own_s + s x drafting_s
    document_s = 2 x parameters x prompt / flops + answer / (s x acceptance length) x step_s

Of the chains measured, none included, the quickest counts. Every GPU holds the whole model and
shares nothing with the others, so n of them do n times as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GPUS = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafts of at most `most` a step: the acceptance length, the drafts made, µs to draft."""

    most: int
    acceptance: float
    drafted: float
    drafting_us: float


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of question: mean tokens of prompt and answer, and the chains replayed on it."""

    name: str
    prompt: float
    answer: float
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class Assumed:
    """An 8B model in bfloat16 of Llama 3.1's shape on an H100 (its data sheet, and guesses)."""

    parameters: float = 8e9
    weights: float = 16e9  # bytes
    kv: float = 131_072  # bytes a token: 32 layers x 8 heads x 128 x 2 x 2 bytes
    bandwidth: float = 0.7 * 3.35e12  # bytes a second; 70% of the data sheet's, guess
    flops: float = 0.5 * 989e12  # a second; 50% of the data sheet's, guess
    own_s: float = 0.003  # vLLM's scheduling, sampling and launching, a step; guess
    sequences: int = 64  # at a time; guess


NONE = Chain(0, 1.0, 0.0, 0.0)
CHAINS = (
    Task("summarization", 877, 178, (
        Chain(4, 2.34, 3.03, 26.8), Chain(8, 2.66, 5.36, 29.4), Chain(16, 2.86, 10.05, 40.5),
        Chain(32, 2.96, 21.26, 55.3),
    )),
    Task("rag", 842, 93, (
        Chain(4, 1.83, 3.02, 30.5), Chain(8, 1.96, 5.27, 32.8), Chain(16, 2.02, 9.51, 42.1),
        Chain(32, 2.04, 18.32, 51.6),
    )),
    Task("qa", 52, 147, (
        Chain(4, 1.54, 2.82, 25.8), Chain(8, 1.60, 4.75, 29.4), Chain(16, 1.63, 8.66, 33.0),
        Chain(32, 1.65, 18.84, 45.7),
    )),
)  # fmt: skip


def step_s(task: Task, chain: Chain, a: Assumed) -> float:
    """Seconds of a step.

    >>> a = Assumed(1e9, 1e9, 0, 1e12, 1e15, 0.0, 1)
    >>> step_s(Task("", 0, 0, ()), NONE, a)
    0.001
    """
    context = task.prompt + task.answer / 2
    rows = a.sequences * (1 + chain.drafted)
    reading = (a.weights + a.sequences * context * a.kv) / a.bandwidth
    computing = 2 * a.parameters * rows / a.flops
    return max(reading, computing) + a.own_s + a.sequences * chain.drafting_us / 1e6


def document_s(task: Task, chain: Chain, a: Assumed) -> float:
    """Seconds of one GPU for one document."""
    prefill = 2 * a.parameters * task.prompt / a.flops
    return prefill + task.answer / (a.sequences * chain.acceptance) * step_s(task, chain, a)


def best(task: Task, a: Assumed) -> Chain:
    """The chain with the least time for a document."""
    return min((NONE, *task.chains), key=lambda chain: document_s(task, chain, a))


def rows(tasks: Sequence[Task], a: Assumed) -> list[list[str]]:
    """The cells of the table: a row for each task, plain and with drafts."""
    found = []
    for task in tasks:
        for chain in (NONE, best(task, a)):
            seconds = document_s(task, chain, a)
            hourly = [f"{n * 3600 / seconds:,.0f}" for n in GPUS]
            step = f"{1000 * step_s(task, chain, a):.1f}"
            found.append([task.name, str(chain.most), f"{chain.acceptance:.2f}", step, *hourly])
    return found


def main() -> None:
    """Print the table as Markdown."""
    head = ["task", "chain", "acceptance length", "ms a step", *(f"{n} GPU" for n in GPUS)]
    for sequences in (Assumed().sequences, 8):
        print(f"\n{sequences} sequences at a time\n")
        table = rows(CHAINS, Assumed(sequences=sequences))
        for cells in (head, ["---"] * len(head), *table):
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
