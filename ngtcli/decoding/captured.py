"""Forward passes over draft trees, captured by shape as CUDA graphs; elsewhere they are eager.

At first a shape is run eagerly: one that is met once or twice is not worth its capture. It is
captured on an input of other tokens, and the logits of the capture for the true input are compared
with the eager ones: what a model decides in Python by its tokens would show. Where a model cannot
be captured, its forward passes stay eager; where memory ends the graphs go, and a shape is tried
later.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.scores import same_scores
from ngtcli.decoding.support import SUPPORTED, Support
from ngtcli.drafting.steps import PassesReport

# What a forward pass over packed inputs gives: logits, and hidden states where they are wanted.
Outputs = tuple[Tensor, ...]
Pass = Callable[[Tensor], Outputs]
Capture = Callable[[Pass, Tensor], Pass]


class Shape(NamedTuple):
    """What a captured forward pass is known by.

    Attributes:
        rows: Its query tokens.
        capacity: The KV positions that each sequence attends to.
        sequences: How many there are.
        slot_capacity: The KV positions of a slot; 0 where there is one sequence.
        layers: Those whose hidden states are wanted.
        any_kernel: Whether bits may depend on the kernel.
    """

    rows: int
    capacity: int
    sequences: int = 1
    slot_capacity: int = 0
    layers: tuple[int, ...] = ()
    any_kernel: bool = True


# One eager forward pass over the packed inputs (layout.py) of a shape; the number is that of the
# tokens before it, for a model that asks.
EagerPass = Callable[[Tensor, Shape, int], Outputs]
# Shapes captured at most; the one unused for longest makes room. Guess: an answer has about five
# numbers of rows and one capacity.
_MOST = 64
_COMPARED = 8  # rows of logits compared at most, as they are compared on the host; a guess
USES = 2  # eager runs of a shape before its capture; guess: a capture takes as long as ten
LATER = 64  # runs of a shape before it is tried again, where memory ended; a guess


class Passes:
    """Runs forward passes. The logits of one hold until the next.

    Args:
        step: Runs one eagerly.
        vocab_size: Of the model.
        exact: Whether the model runs in float32.

    Attributes:
        capturing: Whether they are captured, where they can be.
        took_longer: Whether the last was eager where others of its shape are captured.
        seconds: That capturing has taken in all.
    """

    def __init__(self, step: EagerPass, vocab_size: int, exact: bool) -> None:
        self._step = step
        self._vocab_size = vocab_size
        self._exact = exact
        self._captured: OrderedDict[Shape, Pass] = OrderedDict()
        self._uses: Counter[Shape] = Counter()  # eager runs
        # Where all graphs of so many rows put their outputs, so that they share memory.
        self._outputs: dict[tuple[int, torch.Size], Tensor] = {}
        self._capture: Capture | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self.capturing = Support.no("switched off")
        self.took_longer = False
        self.seconds = 0.0

    def switch_on(self, device: torch.device, warn: Callable[[str], None]) -> None:
        """Capture from now on, on a device that has graphs."""
        self._capture = graph_recorder() if device.type == "cuda" else None
        self._warn = warn
        self.capturing = SUPPORTED

    @property
    def captures(self) -> bool:
        """Whether shapes are captured, after `USES` eager runs."""
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
        return PassesReport(self.captured, self.seconds, self.capturing.why)

    def forget(self) -> None:
        """Drop what is captured: the buffers of the cache have moved, or memory is short."""
        self._captured.clear()
        self._outputs.clear()

    def run(self, packed: Tensor, shape: Shape, past: int) -> Outputs:
        """The logits (rows, vocab_size), and hidden states where they are wanted."""
        self.took_longer = False
        if (known := self._captured.get(shape)) is not None:
            self._captured.move_to_end(shape)
            return known(packed)
        outputs, clock = self._step(packed, shape, past), time.perf_counter()
        if self._capture is None:
            return outputs
        self.took_longer = True
        self._uses[shape] += 1
        if self._uses[shape] <= USES:
            return outputs
        found = self._captured_outputs(self._capture, packed, shape, past, outputs)
        if found is None:
            found = self._step(packed, shape, past)  # its rows were overwritten
        self.seconds += time.perf_counter() - clock
        return found

    def _captured_outputs(
        self, capture: Capture, packed: Tensor, shape: Shape, past: int, true: Outputs
    ) -> Outputs | None:
        """Capture a shape; what its capture gives, None unless the logits are the `true` ones."""
        rows, other = shape.rows, packed.clone()
        other[:rows] = (other[:rows] + 1) % self._vocab_size
        wrong = past - 1 if past else 1  # a length that a model asks for would be captured, too
        kept = tuple(
            self._outputs.setdefault((at, one.shape), torch.empty_like(one))
            for at, one in enumerate(true)
        )

        def run(given: Tensor) -> Outputs:
            for to, found in zip(kept, self._step(given, shape, wrong), strict=True):
                to.copy_(found)
            return kept

        try:
            replay = capture(run, other.to(true[0].device))
            found = replay(packed)
        except Exception as error:  # whatever a model's own code or the device raises
            self._failed(error, shape)
            return None
        some = slice(0, rows, -(-rows // _COMPARED))
        if not same_scores(list(found[0][some]), true[0][some], self._exact):
            self._give_up("captured, they gave other scores")
            return None
        self._captured[shape] = replay
        if len(self._captured) > _MOST:
            self._captured.popitem(last=False)
        return found

    def _failed(self, error: Exception, shape: Shape) -> None:
        """Where memory ended a shape is tried later, without the other graphs; else none is."""
        if is_out_of_memory(error):
            self.forget()
            torch.cuda.empty_cache()
            self._uses.clear()
            self._uses[shape] = -LATER
            self._warn("memory does not suffice to capture all passes of the model")
            return
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self._give_up(lines[0])

    def _give_up(self, reason: str) -> None:
        self.forget()
        self._capture, self.capturing = None, Support.no(reason)
        self._warn(f"the model's passes are not captured: {reason}")


class _NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it whatever waits for a GPU, or copies to or from it, raises RuntimeError.

    A capture that does is broken off by CUDA, and torch's allocator does not recover from that.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to be left out of that, torch loads its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found, name = func(*args, **(kwargs or {})), func._schema.name
        tensors = [one for one in tree_leaves((args, kwargs, found)) if isinstance(one, Tensor)]
        if all(one.device.type == "cpu" for one in tensors):
            return found
        copies = any(one.device.type == "cpu" and one.ndim for one in tensors)
        of_index = args[1] if name in _INDEXING else ()
        counts = any(one is not None and one.dtype == torch.bool for one in of_index)
        counts |= name not in _INDEXING and torch.Tag.dynamic_output_shape in func.tags
        if copies or counts or isinstance(found, bool | int | float):
            raise RuntimeError(f"its code waits for what the GPU computes ({name})")
        return found


_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}


def graph_recorder() -> Capture:
    """A function that captures passes as CUDA graphs, which share one pool of memory.

    The graphs are never replayed at the same time, and what one gives is read before the next. A
    pass that cannot be captured raises RuntimeError.
    """
    graphs, pool, side = WeakSet[Any](), list[Any](), list[Any]()

    def capture(run: Pass, example: Tensor) -> Pass:
        given = example.clone()  # the graph reads its input here
        if not graphs:  # a pool that all graphs left is of no use while tensors live in it
            pool[:] = [torch.cuda.graph_pool_handle()]
        now = torch.cuda.current_stream(given.device)
        if not side:  # libraries keep memory for each stream
            side.append(torch.cuda.Stream(given.device))  # type: ignore[no-untyped-call]
        side[0].wait_stream(now)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side[0]):
            with _NoCopies():  # type: ignore[no-untyped-call]  # a pass in which libraries set themselves up, too
                run(given)
            # Other threads of a server may do meanwhile what only this one must not.
            graph.capture_begin(pool=pool[0], capture_error_mode="thread_local")
            try:
                outputs = run(given)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        now.wait_stream(side[0])
        graphs.add(graph)

        def replay(packed: Tensor) -> Outputs:
            given.copy_(packed, non_blocking=True)
            graph.replay()
            return outputs

        return replay

    return capture
