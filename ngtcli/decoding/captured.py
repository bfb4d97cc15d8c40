"""Forward passes over draft trees: CUDA graphs, one per shape, on a GPU, and eager elsewhere.

The first forward passes of a shape are eager, because a capture does not pay for a shape that
occurs once or twice. A graph is captured with other tokens than those of the input. Then it is
replayed on the input, and its logits are compared with the eager ones: they differ if the model's
Python code depends on the tokens. If a model cannot be captured, its forward passes stay eager. If
memory does not suffice, all graphs are dropped, and the shape is tried again later.
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
from ngtcli.system import reporting

# The outputs of a forward pass over packed inputs: logits, and hidden states if they are wanted.
Outputs = tuple[Tensor, ...]
Pass = Callable[[Tensor], Outputs]
Capture = Callable[[Pass, Tensor], Pass]


class Shape(NamedTuple):
    """The key of a captured forward pass.

    Attributes:
        rows: The number of query tokens.
        capacity: The number of KV positions that each sequence attends to.
        sequences: The number of sequences.
        slot_capacity: The number of KV positions of a slot; 0 for a single sequence.
        layers: The layers whose hidden states are wanted.
        any_kernel: Results may depend on the kernel; False in exact decoding.
        narrow: Sliding layers get only the keys of their window.
        has_long_rope: See `PassPlan`.
    """

    rows: int
    capacity: int
    sequences: int = 1
    slot_capacity: int = 0
    layers: tuple[int, ...] = ()
    any_kernel: bool = True
    narrow: bool = False
    has_long_rope: bool = False


# Runs one forward pass eagerly. Its arguments are the packed inputs (layout.py), their shape, and
# the number of tokens before them, for models that ask their cache for it.
EagerPass = Callable[[Tensor, Shape, int], Outputs]
# The maximum number of captured shapes; the least recently used one is dropped (guess: an answer
# has about five numbers of query tokens and one capacity).
_MAX_SHAPES = 64
_MAX_COMPARED_ROWS = 8  # Rows of logits that are compared on the host (guess).
USES = 2  # Eager runs of a shape before its capture (guess: a capture takes as long as ten).
LATER = 64  # Runs of a shape before it is tried again after memory did not suffice (guess).


class Passes:
    """Runs forward passes. Their logits are valid until the next forward pass.

    Args:
        run_eagerly: Runs a forward pass eagerly.
        vocab_size: The size of the model's vocabulary.
        exact: The model runs in float32.

    Attributes:
        capturing: Whether forward passes are captured, on devices with CUDA graphs.
        was_unusually_slow: Whether the last forward pass was eager, while later ones of its shape
            may be replayed.
        seconds: The total time of all captures.
    """

    def __init__(self, run_eagerly: EagerPass, vocab_size: int, exact: bool) -> None:
        self._run_eagerly = run_eagerly
        self._vocab_size = vocab_size
        self._exact = exact
        self._captured: OrderedDict[Shape, Pass] = OrderedDict()
        self._eager_runs: Counter[Shape] = Counter()
        # The outputs of graphs by their index and shape. Graphs share them to save memory.
        self._outputs: dict[tuple[int, torch.Size], Tensor] = {}
        self._capture: Capture | None = None
        self._reporter = reporting.current()
        self.capturing = Support.no("switched off")
        self.was_unusually_slow = False
        self.seconds = 0.0

    def switch_on(self, device: torch.device) -> None:
        """Capture from now on, if the device has graphs.

        The reason of a failure is a warning to the reporter of who switches it on.
        """
        self._capture = graph_recorder() if device.type == "cuda" else None
        self._reporter = reporting.current()
        self.capturing = SUPPORTED

    def refuse(self, why: str) -> None:
        """Capture nothing; forward passes are reported with the reason `why`."""
        self.capturing = Support.no(why)

    @property
    def captures(self) -> bool:
        """Whether shapes are captured, after `USES` eager runs."""
        return self._capture is not None

    @property
    def kind(self) -> str:
        """How forward passes are run, for the keys of measured times."""
        return "captured" if self.captures else "eager"

    @property
    def captured(self) -> int:
        """The number of captured shapes."""
        return len(self._captured)

    def report(self) -> PassesReport:
        """Report the number of captured shapes, the seconds, and why nothing is captured."""
        return PassesReport(self.captured, self.seconds, self.capturing.why)

    def forget(self) -> None:
        """Drop all graphs, because the buffers of the cache have moved or memory is short."""
        self._captured.clear()
        self._outputs.clear()

    def run(self, packed: Tensor, shape: Shape, past: int) -> Outputs:
        """Run a forward pass: replay the graph of its shape, or run it eagerly.

        Args:
            packed: The inputs (layout.py), on the CPU or on the device.
            shape: The shape of the forward pass.
            past: The number of tokens before the inputs, for models that ask their cache.

        Returns:
            The logits (rows, vocab_size), and hidden states if they are wanted.
        """
        self.was_unusually_slow = False
        replay = self._captured.get(shape)
        if replay is not None:
            self._captured.move_to_end(shape)
            return replay(packed)

        expected = self._run_eagerly(packed, shape, past)
        if self._capture is None:
            return expected
        self.was_unusually_slow = True
        self._eager_runs[shape] += 1
        if self._eager_runs[shape] <= USES:
            return expected

        started = time.perf_counter()
        outputs = self._capture_shape(self._capture, packed, shape, past, expected)
        if outputs is None:
            # The attempt has overwritten the KV entries of this forward pass.
            outputs = self._run_eagerly(packed, shape, past)
        self.seconds += time.perf_counter() - started
        return outputs

    def _capture_shape(
        self, capture: Capture, packed: Tensor, shape: Shape, past: int, expected: Outputs
    ) -> Outputs | None:
        """Capture a shape and replay it.

        Args:
            capture: Captures a function.
            packed: The inputs.
            shape: The shape of the forward pass.
            past: The number of tokens before the inputs.
            expected: The outputs of the eager forward pass.

        Returns:
            The outputs; None if the capture fails or its logits differ from the eager ones.
        """
        rows = shape.rows
        other_tokens = packed.clone()
        other_tokens[:rows] = (other_tokens[:rows] + 1) % self._vocab_size
        # A model that asks for the length gets a wrong one, so that the comparison fails if the
        # length becomes a constant of the graph.
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
        except Exception as error:  # The model's code or the device may raise anything.
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
        """Try the shape again later if memory did not suffice; otherwise give up capturing."""
        if is_out_of_memory(error):
            self.forget()
            torch.cuda.empty_cache()
            self._eager_runs.clear()
            self._eager_runs[shape] = -LATER
            self._reporter.warn("not enough memory to capture all forward passes of the model")
            return
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self._give_up(lines[0])

    def _give_up(self, reason: str) -> None:
        self.forget()
        self._capture = None
        self.capturing = Support.no(reason)
        self._reporter.warn(f"forward passes are not captured as CUDA graphs: {reason}")


_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}


class _NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Raise RuntimeError if an operation waits for a GPU, or copies to or from it.

    CUDA aborts a capture with such an operation, and torch's allocator does not recover from that.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Nothing is compiled here; True would make torch import its compiler.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return result

        copies = any(tensor.device.type == "cpu" and tensor.ndim for tensor in tensors)
        if name in _INDEXING:  # The size of the result is the number of true entries of a mask.
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        else:
            waits = torch.Tag.dynamic_output_shape in func.tags
        if copies or waits or isinstance(result, bool | int | float):
            raise RuntimeError(f"its code waits for results of the GPU ({name})")
        return result


class _GraphRecorder:
    """Captures functions as CUDA graphs that share one memory pool.

    They may share it because no two graphs run at the same time, and the outputs of one are read
    before the next one runs.
    """

    def __init__(self) -> None:
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._pool: Any = None  # a handle of torch.cuda
        self._stream: torch.cuda.Stream | None = None

    def capture(self, run: Pass, example: Tensor) -> Pass:
        """Capture a function. Raises RuntimeError if that is not possible."""
        inputs = example.clone()  # The graph reads its inputs from this tensor.
        if not self._graphs:
            # A pool whose graphs are gone cannot be reused while tensors are in it.
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:
            # All captures use one stream, because libraries allocate memory for each stream.
            self._stream = torch.cuda.Stream(inputs.device)  # type: ignore[no-untyped-call]  # of torch

        current_stream = torch.cuda.current_stream(inputs.device)
        self._stream.wait_stream(current_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Libraries initialize themselves in a first run.
            with _NoCopies():  # type: ignore[no-untyped-call]  # of torch
                run(inputs)
            # Other threads of a server may do meanwhile what a capture does not allow.
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
    """Return a function that captures functions as CUDA graphs with one memory pool."""
    return _GraphRecorder().capture
