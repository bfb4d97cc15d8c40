"""What choosing tokens costs: `python -m ngtcli.evaluate.dev.sampling_bench`.

Random scores of a pass over a draft of 32 nodes, peaked as a model's are (a few tokens have nearly
all of the probability) and flat; behind a text of 60,000 tokens for the penalties. Milliseconds,
medians, of one node and of a step whose path has four.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.load import use_threads
from ngtcli.decode.sampling import Sampler, SamplingSettings
from ngtcli.render.sinks import dump_json

_ROWS, _PATH = 33, 4  # of a pass with 32 nodes; nodes walked in a step
_ROW = "{:>20} {:>12} {:>12} {:>12} {:>12}"
CASES = {
    "greedy": SamplingSettings(),
    "temperature": SamplingSettings(temperature=0.8),
    "top-p 0.9": SamplingSettings(temperature=0.8, top_p=0.9),
    "top-k 40": SamplingSettings(temperature=0.8, top_k=40),
    "top-k and top-p": SamplingSettings(temperature=0.8, top_k=40, top_p=0.9),
    "min-p 0.05": SamplingSettings(temperature=0.8, min_p=0.05),
    "greedy, penalties": SamplingSettings(repetition_penalty=1.1, presence_penalty=0.1),
    "top-p, penalties": SamplingSettings(
        temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.1
    ),
}


def random_scores(vocabulary: int, peaked: bool) -> Tensor:
    """Normal scores (rows, vocabulary); `peaked`: 20 of each row stand out."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(_ROWS, vocabulary, generator=generator) * 3
    if peaked:
        places = torch.randint(vocabulary, (_ROWS, 20), generator=generator)
        scores.scatter_(1, places, torch.rand(_ROWS, 20, generator=generator) * 6 + 16)
    return scores


def measure(
    settings: SamplingSettings, scores: Tensor, context: int, times: int
) -> dict[str, float]:
    """Milliseconds of a node and of a step, behind a prompt and an output of `context` tokens."""
    rng = random.Random(0)
    text = [min(int(rng.paretovariate(0.7)), scores.shape[1] - 1) for _ in range(context)]
    sampler = Sampler(settings, text[: context // 2])
    sampler.commit(text[context // 2 :])
    path = text[:_PATH]

    def step() -> object:
        at_once = sampler.choose_all(scores, range(len(scores)))
        if at_once is not None:
            return at_once
        return [sampler.choose(scores[row], path[:row]) for row in range(_PATH)]

    node = _milliseconds(lambda: sampler.choose(scores[0]), times)
    return {"node_ms": node, "step_ms": _milliseconds(step, times)}


def _milliseconds(work: Callable[[], object], times: int) -> float:
    work()
    taken = []
    for _ in range(times):
        clock = time.perf_counter()
        work()
        taken.append((time.perf_counter() - clock) * 1e3)
    return round(statistics.median(taken), 4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Measure what choosing tokens costs.")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--context", type=int, default=60_000, help="tokens")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as cores are idle")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    use_threads(args.threads)
    kinds = {k: random_scores(args.vocabulary, k == "peaked") for k in ("peaked", "flat")}
    rows: list[dict[str, Any]] = []
    for name, settings in CASES.items():
        row: dict[str, Any] = {"sampling": name}
        for kind, scores in kinds.items():
            row[kind] = measure(settings, scores.to(args.device), args.context, args.times)
        rows.append(row)
    if args.json:
        print(dump_json({"vocabulary": args.vocabulary, "context": args.context, "rows": rows}))
        return
    print(_ROW.format("milliseconds of", "node, peaked", "step", "node, flat", "step"))
    for row in rows:
        figures = (f"{row[k][f]:.3f}" for k in kinds for f in ("node_ms", "step_ms"))
        print(_ROW.format(row["sampling"], *figures))


if __name__ == "__main__":
    main()
