"""Simulate a GPU: `python -m tests.tools.pretended summarize FILE --device cuda`, or `mps`.

Operations on "cuda" and "mps" run the CPU's kernels (pretended.cpp, which is built at its first use
by a C++ compiler). Operations that a real GPU refuses are refused: those with tensors of several
devices, float64 on "mps", and, during a capture, whatever waits for the device or copies to or from
the host. Results of a capture are NaN until it is replayed.

Whatever costs time on a GPU is counted by its place in ngt: kernel launches, copies in and out,
and waits. The speed of a GPU, its rounding, and races between streams are not simulated.
"""

import collections
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from ngtcli.decoding import step
from ngtcli.system import process
from ngtcli.system.files import home

_SOURCE = Path(__file__).with_suffix(".cpp")
_TOTAL = 80 << 30  # bytes of the pretended GPU
_DEVICES = ("cuda", "mps")
# Operations without a kernel that are no views, and those that wait for the device.
_NO_KERNEL = {
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::detach",
    "aten::detach_",
    "aten::new_empty_strided",
    "aten::is_pinned",
    "aten::set_",
    "aten::resize_",
}
_WAITS = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::equal",
    "aten::unique_consecutive",
    "aten::is_nonzero",
    "aten::bincount",
    "aten::argwhere",
    "aten::_local_scalar_dense",
    "aten::repeat_interleave",
}
_MOVES = {"aten::_to_copy", "aten::to", "aten::lift_fresh"}
_INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}

# What was done, by kind ("launch", "in", "out", "wait", "captured", "replayed") and place.
counts: collections.Counter[tuple[str, str]] = collections.Counter()


def total(kind: str) -> int:
    """The number of operations of a kind."""
    return sum(number for (of, _), number in counts.items() if of == kind)


def count(kind: str, name: str = "") -> None:
    """Count an operation at the innermost place in ngt that called it."""
    frame = sys._getframe(1)
    place = "?"
    while frame is not None:
        file = frame.f_code.co_filename
        if "/ngtcli/" in file:
            place = f"{file.rpartition('/ngtcli/')[2]}:{frame.f_lineno}"
            break
        frame = frame.f_back  # type: ignore[assignment]
    counts[kind, f"{place} {name}".strip()] += 1


def why_not() -> str:
    """The reason why no device can be simulated; "" if one can."""
    return "" if shutil.which("c++") else "no C++ compiler (c++) is here"


def library() -> Path:
    """The library of the kernels; it is built once for each version of the source and of torch."""
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    # Each test has a home of its own, so tests share this folder for compiled code.
    built = Path(os.environ.get("NUMBA_CACHE_DIR", home("cache"))) / f"pretended-{key}.so"
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Other processes wait while one builds.
        if not built.exists():
            headers = [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
            flags = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", *headers]
            libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu"]
            unfinished = built.with_suffix(".made")
            command = ["c++", *flags, str(_SOURCE), *libraries, "-o", str(unfinished)]
            subprocess.run(command, check=True)
            unfinished.rename(built)
    return built


# --- operations that are counted and refused ---


class Refused(RuntimeError):
    """An operation that a GPU refuses."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at all operations of a thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in ("aten::pin_memory", "aten::_pin_memory"):
            pinned = args[0].clone()
            pinned.is_pinned_memory = True
            return pinned
        inputs = _tensors(args, *kwargs.values())
        device_inputs = [tensor for tensor in inputs if tensor.device.type in _DEVICES]
        compute = _as_on_gpu(name, func) if device_inputs else func
        result = compute(*args, **kwargs)
        outputs = _tensors(result)
        device_outputs = [tensor for tensor in outputs if tensor.device.type in _DEVICES]

        if device_inputs and outputs and not device_outputs:
            kind = "out"
        else:
            kind = _kind(name, args, inputs, device_inputs, bool(device_outputs))
        if kind:
            is_pinned = any(hasattr(tensor, "is_pinned_memory") for tensor in inputs)
            count(kind, f"{name} pinned" if is_pinned else name)
            if CUDAGraph.current is not None:
                CUDAGraph.current.is_good = False
                raise Refused(f"operation not permitted when stream is capturing ({name})")

        is_mutable = func._schema.is_mutable
        if not device_outputs or name in _NO_KERNEL:
            return result
        if not is_mutable and device_inputs:
            if all(_shares_memory(tensor, device_inputs) for tensor in device_outputs):
                return result  # a view
        count("launch", name)
        if CUDAGraph.current is not None:
            CUDAGraph.current.record(compute, args, kwargs, [] if is_mutable else outputs)
        return result


def _tensors(*values: Any) -> list[Tensor]:
    """The tensors in arguments or results, in order; `tree_leaves` takes three times as long."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _tensors(*value)
    return tensors


def _kind(
    name: str, args: Any, inputs: list[Tensor], device_inputs: list[Tensor], stays: bool
) -> str:
    """Classify an operation as a copy or a wait.

    Args:
        name: The operation's name.
        args: Its positional arguments.
        inputs: The tensors among its arguments.
        device_inputs: Those on a device.
        stays: Whether it has outputs on a device.

    Returns:
        "in", "out", "wait", or "" for none of them.

    Raises:
        Refused: If it has tensors of several devices.
    """
    if name == "aten::copy_":
        target = args[0].device.type
        source = args[1].device.type
        if target == source:
            return ""
        return "in" if source == "cpu" else "out"
    if name in _MOVES:  # lift_fresh is of torch.tensor, which has sent it
        return "in" if stays and (not device_inputs or name == "aten::lift_fresh") else ""
    if name in _WAITS and device_inputs:
        if len(inputs) > 1 or name != "aten::repeat_interleave":
            return "wait"

    of_cpu = [tensor for tensor in inputs if tensor.device.type == "cpu"]
    has_cpu_array = any(tensor.ndim for tensor in of_cpu)
    if name in _INDEXING and device_inputs:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "wait"
        return "in" if has_cpu_array else ""
    devices = {tensor.device.type for tensor in device_inputs}
    if len(devices) > 1 or (device_inputs and has_cpu_array):
        raise Refused(f"Expected all tensors to be on the same device ({name})")
    sends_number = name == "aten::where" and bool(of_cpu)
    return "in" if device_inputs and sends_number else ""


def _shares_memory(tensor: Tensor, others: list[Tensor]) -> bool:
    """Return whether a tensor shares the memory of one of the others."""
    address = tensor.untyped_storage().data_ptr()
    return any(other.untyped_storage().data_ptr() == address for other in others)


def cpu(values: Any) -> Any:
    """Views of the tensors' memory as CPU tensors."""
    return tree_map_only(Tensor, torch.ops.pretended.cpu, values)


def _as_on_gpu(name: str, func: Any) -> Any:
    """The operation, or a substitute if the CPU has no kernel of that name."""
    kernel = _KERNELS.get(name)
    if kernel is None:
        return func

    def compute(*args: Any, **kwargs: Any) -> Any:
        device = _tensors(args)[0].device
        with _disable_current_modes():
            result = kernel(*cpu(args), **cpu(kwargs))
            return tree_map_only(Tensor, lambda tensor: tensor.to(device), result)

    return compute


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float | None) -> Any:
    """(…, queries, width) and the logarithms of the softmax's sums, (…, queries), in float32."""
    logits = query.float() @ key.float().mT * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        logits = logits + mask.float()
    sums = logits.logsumexp(-1)
    return (logits - sums[..., None]).exp() @ value.float(), sums


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    *_: Any,
    scale: float | None = None,
) -> Any:
    """Flash attention of sequences side by side, (queries, heads, width) each."""
    out = torch.zeros_like(query)
    sums = torch.full((query.shape[1], len(query)), torch.inf)
    bounds = zip(pairwise(query_bounds.tolist()), pairwise(key_bounds.tolist()), strict=True)
    for query_span, key_span in bounds:
        queries = slice(*query_span)
        keys = slice(*key_span)
        if keys.start < keys.stop:
            attended, sums[:, queries] = _attention(
                query[queries].transpose(0, 1),
                key[keys].transpose(0, 1),
                value[keys].transpose(0, 1),
                None,
                scale,
            )
            out[queries] = attended.transpose(0, 1)
    return out, sums, *(query.new_empty(0) for _ in range(3))


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    causal: bool,
    debug: bool = False,
    scale: float | None = None,
) -> Any:
    groups = query.shape[1] // key.shape[1]
    queries = query.shape[2]
    keys = key.shape[2]
    mask = None
    if causal:
        mask = torch.full((queries, keys), -torch.inf).triu(keys - queries + 1)
    key = key.repeat_interleave(groups, 1)
    value = value.repeat_interleave(groups, 1)
    out, sums = _attention(query, key, value, mask, scale)
    return out.to(query.dtype), sums, None, None, queries, keys, None, None, None


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *_: Any, scale: float | None = None
) -> Any:
    assert all(step % 8 == 0 for step in mask.stride()[:-1]) and mask.stride(-1) == 1
    out, sums = _attention(query, key, value, mask, scale)
    padded_sums = torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32), value=torch.inf)
    return out.to(query.dtype), padded_sums, torch.zeros(1), torch.zeros(1)


def _histogram(values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.histc(values.float(), *args, **kwargs).to(values.dtype)


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::conv1d": torch.conv1d,
    "aten::convolution": torch.convolution,
    "aten::_flash_attention_forward": _varlen,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::histc": _histogram,
}


# --- torch.cuda ---


class CUDAGraph:
    """Operations that are recorded, and done again on the same memory."""

    current: "CUDAGraph | None" = None
    modes: set[str] = set()  # that captures were begun in

    def __init__(self, keep_graph: bool = False) -> None:
        # What computes, its arguments and the tensors of its result.
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.is_good = True

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if Stream.now is None:
            raise Refused("CUDA graphs must be captured on a non-default stream")
        self._pool = _pools.setdefault(pool, Pool())
        self._pool.use()
        self.modes.add(capture_error_mode)
        weakref.finalize(self, self._pool.leave).atexit = False
        CUDAGraph.current = self

    def capture_end(self) -> None:
        CUDAGraph.current = None
        count("captured")
        if not self.is_good:
            raise Refused("operation failed due to a previous error during capture")

    def record(self, compute: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> None:
        args, kwargs, seen_by_cpu = cpu((args, kwargs, outputs))
        self._operations.append((compute, args, kwargs, seen_by_cpu))
        for output, on_cpu in zip(outputs, seen_by_cpu, strict=True):
            # Kernels of a GPU do not run in a capture, so that no index is out of bounds there:
            # 0 is the index that every tensor has.
            is_float = output.is_floating_point()
            on_cpu.fill_(float("nan") if is_float else output.dtype == torch.bool)
            self._pool.tensors.append(output.untyped_storage()._weak_ref())

    def replay(self) -> None:
        count("replayed")
        with _disable_current_modes():
            for compute, args, kwargs, outputs in self._operations:
                results = _tensors(compute(*args, **kwargs))
                for output, result in zip(outputs, results, strict=False):
                    output.copy_(result)

    def pool(self) -> Any:
        return next(key for key, pool in _pools.items() if pool is self._pool)


class Pool:
    """Memory of graphs. One that was left by all while tensors live in it is of no use."""

    def __init__(self) -> None:
        self.users = 0
        self.tensors: list[Any] = []  # weak references to their storages
        self.is_new = True

    def use(self) -> None:
        lives = any(not torch.UntypedStorage._expired(storage) for storage in self.tensors)
        if not (self.is_new or self.users or not lives):
            raise Refused("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.users += 1
        self.is_new = False

    def leave(self) -> None:
        self.users -= 1


_pools: dict[Any, Pool] = {}


class Stream:
    """A stream; all do their work at once."""

    now: "Stream | None" = None  # None: the default one

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: "Stream | None") -> None:
        pass


@contextlib.contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    before = Stream.now
    Stream.now = None if stream is _DEFAULT else stream
    try:
        yield
    finally:
        Stream.now = before


_DEFAULT = Stream()


def _wait(device: Any = None) -> None:
    count("wait")
    if CUDAGraph.current is not None:
        raise Refused("operation not permitted when stream is capturing (synchronize)")


def _free(device: Any = None) -> tuple[int, int]:
    return _TOTAL - torch.ops.pretended.live(), _TOTAL


_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "_lazy_init": lambda: None,
    "_initialized": True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=None: "Pretended GPU",
    "_is_in_bad_fork": lambda: False,
    "get_device_capability": lambda device=None: (9, 0),
    "set_device": lambda device: None,
    "get_device_properties": lambda device=None: SimpleNamespace(
        name="Pretended GPU", total_memory=_TOTAL, major=9, minor=0, multi_processor_count=132
    ),
    "is_bf16_supported": lambda including_emulation=True: True,
    "synchronize": _wait,
    "mem_get_info": _free,
    "empty_cache": lambda: None,
    "manual_seed_all": lambda seed: None,
    "memory_allocated": lambda device=None: torch.ops.pretended.live(),
    "memory_reserved": lambda device=None: torch.ops.pretended.live(),
    "Stream": Stream,
    "stream": _stream,
    "current_stream": lambda device=None: Stream.now or _DEFAULT,
    "CUDAGraph": CUDAGraph,
    "graph_pool_handle": lambda: (0, len(_pools)),
    "is_current_stream_capturing": lambda: CUDAGraph.current is not None,
}


def install() -> None:
    """Let this process have both devices from now on, for good."""
    torch.ops.load_library(str(library()))  # type: ignore[no-untyped-call]
    for name, value in _CUDA.items():
        setattr(torch.cuda, name, value)
    torch.backends.mps.is_available = lambda: True  # type: ignore[assignment]
    torch.mps.synchronize = _wait
    torch.Tensor.__deepcopy__ = lambda self, memo: self.clone()  # type: ignore[method-assign]
    generator = torch.Generator
    torch.Generator = lambda device="cpu": generator()  # type: ignore[assignment, misc]
    run = threading.Thread.run

    def watched(self: threading.Thread) -> None:
        with Watch():  # type: ignore[no-untyped-call]
            run(self)

    threading.Thread.run = watched  # type: ignore[method-assign]
    Watch().__enter__()  # type: ignore[no-untyped-call]


# --- ngt on it ---


def steps() -> list[collections.Counter[tuple[str, str]]]:
    """Count the operations of each decoding step from now on; steps that capture are left out."""
    step_counts: list[collections.Counter[tuple[str, str]]] = []
    run_step = step.run_step

    def run_and_count(*args: Any) -> bool:
        counts["step", ""] += 1
        before = counts.copy()
        result = run_step(*args)
        step_count = counts - before
        if not any(kind == "captured" for kind, _ in step_count):
            step_counts.append(step_count)
        return result

    step.run_step = run_and_count  # type: ignore[assignment]
    return step_counts


def numbers_of(kind: str, step_counts: list[collections.Counter[tuple[str, str]]]) -> list[int]:
    """How often each step did something."""
    return [
        sum(number for (other, _), number in step_count.items() if other == kind)
        for step_count in step_counts
    ]


def report(step_counts: list[collections.Counter[tuple[str, str]]]) -> None:
    """Print the counts of steps on stderr: the mean and maximum of each kind, and the places."""
    steps_total: collections.Counter[tuple[str, str]] = collections.Counter()
    for step_count in step_counts:
        steps_total.update(step_count)
    in_all = {kind: total(kind) for kind, _ in counts}
    print(f"{len(step_counts)} steps; in all {in_all}", file=sys.stderr)
    for kind in sorted({kind for kind, _ in steps_total}):
        numbers = numbers_of(kind, step_counts)
        mean = sum(numbers) / len(numbers)
        print(f"{kind}: {mean:.1f} a step, {max(numbers)} at most", file=sys.stderr)
        for (other, place), number in steps_total.most_common():
            if other == kind and number >= len(step_counts) / 10:
                print(f"  {number / len(step_counts):6.2f} {place}", file=sys.stderr)


def main() -> None:
    """Run ngt with the command line's arguments, and print the counts of its steps."""
    install()
    megabytes = os.environ.get("PRETENDED_MB")
    if megabytes:
        torch.ops.pretended.limit(int(float(megabytes) * 1e6))
    step_counts = steps()
    leave = process.leave

    def report_and_leave(code: int) -> None:
        report(step_counts)
        leave(code)

    process.leave = report_and_leave  # type: ignore[assignment]
    from ngtcli.__main__ import main as ngt

    sys.argv[0] = "ngt"
    ngt()


if __name__ == "__main__":
    # The module by its name, whose state the devices use.
    from tests.tools import pretended

    pretended.main()
