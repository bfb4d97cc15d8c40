"""What `auto` gains from a learned head, on recordings that have the head's success everywhere.

    python -m tests.tools.replay_heads FOLDER [--nodes 32] [--pool]

FOLDER holds `*.jsonl.xz` files as those of SpecDecode-Bench: `prompt_ids`, `answer_ids`, and
`eagle3_tokens`, which says how many tokens a step emits that begins after so many tokens of the
answer, where EAGLE-3 drafts a chain. The chain is a source of `auto`: its tokens are those of the
answer as far as they were accepted, then ids that no model has, down to the deepest chain recorded.
Its probability at each depth is the share accepted on the other half of the ids.
"""

import argparse
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.guesses import Guessed
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.measure.replay import replay
from ngtcli.measure.traces import Trace

_WRONG = 1 << 30  # an id that no model has


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer, and how many tokens of the head's chain were accepted after each of its tokens."""

    trace: Trace
    accepted: tuple[int, ...]


def read(path: Path) -> list[Recorded]:
    """The answers of one file."""
    lines = map(json.loads, lzma.open(path, "rt", encoding="utf-8"))
    return [
        Recorded(_trace(line, path), tuple(count - 1 for count in line["eagle3_tokens"]))
        for line in lines
    ]


def _trace(line: dict[str, Any], path: Path) -> Trace:
    answer = tuple(line["answer_ids"])
    return Trace(line["id"], path.stem, tuple(line["prompt_ids"]), answer, room=len(answer))


def shares(given: Sequence[Recorded], depth: int) -> list[float]:
    """By depth, the share of chains that were right there, of those right until then."""
    counts = np.concatenate([one.accepted for one in given])
    reached = [int((counts >= d).sum()) for d in range(depth + 1)]
    return [after / max(1, before) for before, after in zip(reached, reached[1:], strict=False)]


class RecordedChain:
    """The head, and what reads for it: `begin` names the answer that is replayed."""

    kind, layers, reads_all = "eagle3", (0,), False

    def __init__(self, probabilities: Sequence[float]) -> None:
        self.depth, self.guessers = len(probabilities), (self,)
        self._probabilities = probabilities
        self._chain: list[int] = []

    def begin(self, recorded: Recorded) -> None:
        """Follow this answer from now on."""
        self._recorded = recorded

    def of_kind(self, kind: str) -> "RecordedChain | None":
        return self if kind == self.kind else None

    def reset(self, start: int = 0) -> None:
        pass

    def add(self, ids: list[int], states: Any) -> None:
        pass

    def follow(self, ids: Sequence[int]) -> bool:
        trace, at = self._recorded.trace, len(ids) - len(self._recorded.trace.prompt_ids)
        right = trace.output_ids[at : at + self._recorded.accepted[at]]
        wrong = range(_WRONG, _WRONG + self.depth - len(right))
        self._chain = [*right, *wrong]
        return True

    def first(self, root: int) -> Guessed:
        tokens = np.array(self._chain, np.int32)
        led = np.array([range(self.depth - 1), tokens[:-1]], np.int32)
        return Guessed(tokens[:, None], np.array(self._probabilities)[:, None], led)


def mean_length(
    given: Sequence[Recorded], method: str, nodes: int, pool: bool, heads: RecordedChain | None
) -> tuple[int, int]:
    """(tokens, steps) of answers by one drafter, in their order."""
    settings = DraftSettings(heads=heads, pool=Pool() if pool else None, num_draft=nodes)
    drafter, tokens, steps = parse_method(method, settings).build(), 0, 0
    for one in given:
        if heads is not None:
            heads.begin(one)
        prompt = one.trace.prompt_ids
        made = replay(one.trace, drafter, Context(prompt, None, (prompt,)), nodes)
        drafter.finish()
        tokens, steps = tokens + len(one.trace.output_ids), steps + made.steps
    return tokens, steps


def measured(given: Sequence[Recorded], nodes: int, pool: bool) -> dict[str, float]:
    """Tokens a step: without the head, of its chain alone, and of both."""
    depth = max(max(one.accepted) for one in given)
    halves = [given[::2], given[1::2]]
    probabilities = [shares(half, depth) for half in reversed(halves)]

    def both(method: str, with_head: bool) -> float:
        tokens = steps = 0
        for half, own in zip(halves, probabilities, strict=True):
            heads = RecordedChain(own) if with_head else None
            more = mean_length(half, method, nodes, pool, heads)
            tokens, steps = tokens + more[0], steps + more[1]
        return tokens / steps

    return {
        "auto": both("auto", False),
        "eagle3": both("eagle3", True),
        "auto with eagle3": both("auto", True),
    }


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--pool", action="store_true", help="draft from earlier answers as well")
    args = parser.parse_args(argv)
    for path in sorted(args.folder.glob("*.jsonl.xz")):
        found = measured(read(path), args.nodes, args.pool)
        say(f"{path.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
