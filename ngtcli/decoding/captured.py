"""Forward passes over draft trees, captured by shape as CUDA graphs on a GPU, eager elsewhere.

A shape first runs eagerly, as one that comes once or twice is not worth its capture. It is captured
on an input of other tokens. Then the graph runs on the true input, and its logits are compared with
the eager ones: they differ if the model's Python code depends on the tokens. Where a model cannot
be captured, its forward passes stay eager. Where memory ends, all graphs are dropped, and the shape
is tried again later.
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

from ngtcli.decoding.logits import same_logits
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.support import SUPPORTED, Support
from ngtcli.drafting.steps import PassesReport

# The outputs of a forward pass over packed inputs: logits, and hidden states where they are wanted.
Outputs = tuple[Tensor, ...]
Pass = Callable[[Tensor], Outputs]
Capture = Callable[[Pass, Tensor], Pass]


class Shape(NamedTuple):
    """The key of a captured forward pass.

    Attributes:
        rows: Its query tokens.
        capacity: The KV positions that each sequence attends to.
        sequences: How many there are.
        slot_capacity: The KV positions of a slot; 0 where there is one sequence.
        layers: Those whose hidden states are wanted.
        any_kernel: Whether bits may depend on the kernel.
        narrow: Whether sliding layers are given the keys of their window alone.
        has_long_rope: As in the plan of the forward pass.
    """

    rows: int
    capacity: int
    sequences: int = 1
    slot_capacity: int = 0
    layers: tuple[int, ...] = ()
    any_kernel: bool = True
    narrow: bool = False
    has_long_rope: bool = False


# Runs one forward pass eagerly, on the packed inputs (layout.py) of a shape. The number counts the
# tokens before it, for models that ask their cache.
EagerPass = Callable[[Tensor, Shape, int], Outputs]
# Captured shapes; beyond these the least recently used one is dropped. Guess: an answer has about
# five numbers of rows and one capacity.
_MAX_SHAPES = 64
_MAX_COMPARED_ROWS = 8  # of logits, as they are compared on the host; guess
USES = 2  # eager runs of a shape before its capture; guess: a capture takes as long as ten
LATER = 64  # runs of a shape before it is tried again, where memory ended; guess


class Passes:
    """Runs forward passes. The logits of a forward pass hold until the next one.

    Args:
        run_eagerly: Runs a forward pass eagerly.
        vocab_size: Of the model.
        exact: Whether the model runs in float32.

    Attributes:
        capturing: Whether forward passes are captured on a device that has graphs.
        took_longer: Whether the last forward pass was eager where later ones of its shape may be
            replayed.
        seconds: The time that all captures took.
    """

    def __init__(self, run_eagerly: EagerPass, vocab_size: int, exact: bool) -> None:
        self._run_eagerly = run_eagerly
        self._vocab_size = vocab_size
        self._exact = exact
        self._captured: OrderedDict[Shape, Pass] = OrderedDict()
        self._eager_runs: Counter[Shape] = Counter()
        # Outputs of graphs by their index and shape. Graphs of the same shapes share them, to save
        # memory.
        self._outputs: dict[tuple[int, torch.Size], Tensor] = {}
        self._capture: Capture | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self.capturing = Support.no("switched off")
        self.took_longer = False
        self.seconds = 0.0

    def switch_on(self, device: torch.device, warn: Callable[[str], None]) -> None:
        """Capture from now on, if the device has graphs; `warn` gets the reason of a failure."""
        self._capture = graph_recorder() if device.type == "cuda" else None
        self._warn = warn
        self.capturing = SUPPORTED

    def refuse(self, why: str) -> None:
        """Capture nothing; forward passes are reported with the reason `why`."""
        self.capturing = Support.no(why)

    @property
    def captures(self) -> bool:
        """Return whether shapes are captured, after `USES` eager runs."""
        return self._capture is not None

    @property
    def kind(self) -> str:
        """Name how forward passes are run, for keys of measured times."""
        return "captured" if self.captures else "eager"

    @property
    def captured(self) -> int:
        """The number of captured shapes."""
        return len(self._captured)

    def report(self) -> PassesReport:
        """The number of captured shapes, the seconds that took, and why there are no more."""
        return PassesReport(self.captured, self.seconds, self.capturing.why)

    def forget(self) -> None:
        """Drop all graphs, as the buffers of the cache have moved or memory is short."""
        self._captured.clear()
        self._outputs.clear()

    def run(self, packed: Tensor, shape: Shape, past: int) -> Outputs:
        """Run a forward pass: replay the graph of its shape, or run it eagerly.

        Args:
            packed: The inputs (layout.py), on the CPU or on the device.
            shape: Theirs.
            past: The number of tokens before them, for models that ask their cache.

        Returns:
            The logits (rows, vocab_size), and hidden states where they are wanted.
        """
        self.took_longer = False
        replay = self._captured.get(shape)
        if replay is not None:
            self._captured.move_to_end(shape)
            return replay(packed)

        expected = self._run_eagerly(packed, shape, past)
        if self._capture is None:
            return expected
        self.took_longer = True
        self._eager_runs[shape] += 1
        if self._eager_runs[shape] <= USES:
            return expected

        started = time.perf_counter()
        outputs = self._capture_shape(self._capture, packed, shape, past, expected)
        if outputs is None:  # the attempt has overwritten the KV entries of this forward pass
            outputs = self._run_eagerly(packed, shape, past)
        self.seconds += time.perf_counter() - started
        return outputs

    def _capture_shape(
        self, capture: Capture, packed: Tensor, shape: Shape, past: int, expected: Outputs
    ) -> Outputs | None:
        """Capture a shape, and run it; None where it fails or gives other logits than `expected`.

        Args:
            capture: Captures a function.
            packed: The inputs.
            shape: Theirs.
            past: The number of tokens before them.
            expected: The eager outputs.
        """
        rows = shape.rows
        other_tokens = packed.clone()
        other_tokens[:rows] = (other_tokens[:rows] + 1) % self._vocab_size
        # A model that asks for the length gets another one, so that the comparison fails where the
        # length becomes part of the graph.
        other_past = past - 1 if past else 1
        outputs = tuple(
            self._outputs.setdefault((index, tensor.shape), torch.empty_like(tensor))
            for index, tensor in enumerate(expected)
        )

        def run(inputs: Tensor) -> Outputs:
            results = self._run_eagerly(inputs, shape, other_past)
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)
            return outputs

        try:
            replay = capture(run, other_tokens.to(expected[0].device))
            replayed = replay(packed)
        except Exception as error:  # whatever a model's own code or the device raises
            self._handle_failure(error, shape)
            return None

        compared = slice(0, rows, -(-rows // _MAX_COMPARED_ROWS))
        if not same_logits(list(replayed[0][compared]), expected[0][compared], self._exact):
            self._give_up("with CUDA graphs, the logits differed")
            return None
        self._captured[shape] = replay
        if len(self._captured) > _MAX_SHAPES:
            self._captured.popitem(last=False)
        return replayed

    def _handle_failure(self, error: Exception, shape: Shape) -> None:
        """Try the shape again later if memory ended; else capture no more."""
        if is_out_of_memory(error):
            self.forget()
            torch.cuda.empty_cache()
            self._eager_runs.clear()
            self._eager_runs[shape] = -LATER
            self._warn("not enough memory to capture all forward passes of the model")
            return
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self._give_up(lines[0])

    def _give_up(self, reason: str) -> None:
        self.forget()
        self._capture = None
        self.capturing = Support.no(reason)
        self._warn(f"forward passes are not captured as CUDA graphs: {reason}")


_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}


class _NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Raises RuntimeError where an operation waits for a GPU, or copies to or from it.

    CUDA breaks off a capture that does so, and torch's allocator does not recover from that.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; True would make torch load its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return result

        copies = any(tensor.device.type == "cpu" and tensor.ndim for tensor in tensors)
        if name in _INDEXING:  # a mask has to be counted
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        else:
            waits = torch.Tag.dynamic_output_shape in func.tags
        if copies or waits or isinstance(result, bool | int | float):
            raise RuntimeError(f"its code waits for what the GPU computes ({name})")
        return result


class _GraphRecorder:
    """Captures functions as CUDA graphs, which share one pool of memory.

    The graphs are never replayed at the same time, and the outputs of one are read before the next
    one runs.
    """

    def __init__(self) -> None:
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._pool: Any = None  # a handle of torch.cuda
        self._stream: torch.cuda.Stream | None = None

    def capture(self, run: Pass, example: Tensor) -> Pass:
        """Capture a function. Raises RuntimeError where that cannot be done."""
        inputs = example.clone()  # the graph reads them here
        if not self._graphs:  # a pool without graphs cannot be used again while tensors live in it
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:  # one for all captures: libraries keep memory for each stream
            self._stream = torch.cuda.Stream(inputs.device)  # type: ignore[no-untyped-call]  # of torch

        current_stream = torch.cuda.current_stream(inputs.device)
        self._stream.wait_stream(current_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Libraries set themselves up in a first run.
            with _NoCopies():  # type: ignore[no-untyped-call]  # of torch
                run(inputs)
            # Other threads of a server may meanwhile do what this one must not.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = run(inputs)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        current_stream.wait_stream(self._stream)
        self._graphs.add(graph)

        def replay(packed: Tensor) -> Outputs:
            inputs.copy_(packed, non_blocking=True)
            graph.replay()
            return outputs

        return replay


def graph_recorder() -> Capture:
    """Return a function that captures others as CUDA graphs, which share one pool of memory."""
    return _GraphRecorder().capture
