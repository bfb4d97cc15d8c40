"""Passes over draft trees, captured by their shape as CUDA graphs; elsewhere they are eager.

At first a shape is passed eagerly. It is captured on an input of other tokens, and what the capture
gives for the true input is compared with the eager scores: what a model decides in Python by its
tokens would show. Where a model cannot be captured, its passes stay eager.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.scores import same_scores
from ngtcli.draft.steps import PassesReport

# What a pass over packed inputs gives: scores, and hidden states where they are wanted.
Outputs = tuple[Tensor, ...]
Pass = Callable[[Tensor], Outputs]
Capture = Callable[[Pass, Tensor], Pass]
# One eager pass over the packed inputs (layout.py), the rows, the capacity and the length of the
# cache, for a model that asks for it.
EagerPass = Callable[[Tensor, int, int, int], Outputs]
# Shapes captured at most; the one unused for longest makes room. Guess: an answer has about five
# sizes and two capacities. Each holds the scores of its rows.
_MOST = 64
_COMPARED = 8  # rows of a pass compared at most, as they are compared on the host; a guess
_WARM_UPS = 2  # passes on a side stream before a capture, in which libraries set themselves up


class Passes:
    """Runs passes; `reason` says why they are not captured where they could be, or "".

    A pass's scores hold until the next pass. `exact`: the model runs in float32. `first_use` says
    whether the last pass was the first of its capture, which takes longer; `seconds` is what
    capturing has taken in all.
    """

    def __init__(self, step: EagerPass, vocabulary: int, exact: bool) -> None:
        self._step, self._vocabulary, self._exact = step, vocabulary, exact
        # By shape: the rows of a pass, and the places of the cache that it attends to.
        self._captured: OrderedDict[tuple[int, int], Pass] = OrderedDict()
        self._capture: Capture | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self.reason, self.first_use, self.seconds = "switched off", False, 0.0

    def switch_on(self, device: torch.device, warn: Callable[[str], None]) -> None:
        """Capture from now on, on a device that has graphs."""
        self._capture = graph_recorder() if device.type == "cuda" else None
        self._warn, self.reason = warn, ""

    @property
    def captures(self) -> bool:
        """Whether each shape is captured at its first pass."""
        return self._capture is not None

    @property
    def kind(self) -> str:
        """How passes are run, for what depends on it."""
        return "captured" if self.captures else "eager"

    @property
    def captured(self) -> int:
        """How many shapes are captured."""
        return len(self._captured)

    def report(self) -> PassesReport:
        """How many shapes are captured, the seconds that took, and why not."""
        return PassesReport(self.captured, self.seconds, self.reason)

    def forget(self) -> None:
        """Drop what is captured: the buffers of the cache have moved."""
        self._captured.clear()

    def run(self, packed: Tensor, rows: int, capacity: int, past: int) -> Outputs:
        """Scores (rows, vocabulary) of one pass, and hidden states where they are wanted."""
        self.first_use, shape = False, (rows, capacity)
        if (known := self._captured.get(shape)) is not None:
            self._captured.move_to_end(shape)
            return known(packed)
        outputs, clock = self._step(packed, *shape, past), time.perf_counter()
        if self._capture is None:
            return outputs
        found = self._captured_outputs(self._capture, packed, shape, past, outputs[0])
        if found is None:
            found = self._step(packed, *shape, past)  # its rows were overwritten
        self.first_use = True
        self.seconds += time.perf_counter() - clock
        return found

    def _captured_outputs(
        self, capture: Capture, packed: Tensor, shape: tuple[int, int], past: int, true: Tensor
    ) -> Outputs | None:
        """Capture a shape; what its capture gives, None unless the scores are `true`."""
        rows, other = shape[0], packed.clone()
        other[:rows] = (other[:rows] + 1) % self._vocabulary
        wrong = past - 1 if past else 1  # a length that a model asks for would be captured, too
        try:
            replay = capture(lambda given: self._step(given, *shape, wrong), other)
            found = replay(packed)
        except Exception as error:  # whatever a model's own code or the device raises
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._give_up(lines[0], warn=False)
            return None
        some = range(0, rows, -(-rows // _COMPARED))
        scores = found[0]
        if not same_scores([scores[i] for i in some], [true[i] for i in some], self._exact):
            self._give_up("captured, they gave other scores", warn=True)
            return None
        self._captured[shape] = replay
        if len(self._captured) > _MOST:
            self._captured.popitem(last=False)
        return found

    def _give_up(self, reason: str, warn: bool) -> None:
        self._captured.clear()
        self._capture, self.reason = None, reason
        if warn:
            self._warn(f"the model's passes are not captured: {reason}")


def graph_recorder() -> Capture:
    """A function that captures passes as CUDA graphs, which share one pool of memory.

    The graphs are never replayed at the same time, and what one gives is read before the next.
    """
    pool: list[Any] = []

    def capture(run: Pass, example: Tensor) -> Pass:
        given = example.clone()  # the graph reads its input here
        side = torch.cuda.Stream(given.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(given.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run(given)
        torch.cuda.current_stream(given.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool[0] if pool else None):
            outputs = run(given)
        pool[:] = [graph.pool()]

        def replay(packed: Tensor) -> Outputs:
            given.copy_(packed)
            graph.replay()
            return outputs

        return replay

    return capture
