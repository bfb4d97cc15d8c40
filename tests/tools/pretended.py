"""GPUs that pretend: `python -m tests.tools.pretended summarize FILE --device cuda`, or `mps`.

Operations on "cuda" and "mps" are the CPU's kernels (pretended.cpp, which is built when it is first
used and wants a C++ compiler). What a real GPU would refuse is refused: tensors of several devices
in one operation, float64 on "mps", and in a capture whatever waits for the device or copies to or
from the host. What is computed in a capture is NaN until it is replayed. What costs time on a GPU
is counted, by the place in ngt: launches of kernels, copies in and out, waits. There is no speed,
no rounding of a GPU, and no race between streams here.
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
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::detach",
    "aten::detach_", "aten::new_empty_strided", "aten::is_pinned", "aten::set_", "aten::resize_",
}  # fmt: skip
_WAITS = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::equal",
    "aten::unique_consecutive", "aten::is_nonzero", "aten::bincount", "aten::argwhere",
    "aten::_local_scalar_dense", "aten::repeat_interleave",
}  # fmt: skip
_MOVES = {"aten::_to_copy", "aten::to", "aten::lift_fresh"}
_INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}

# What was done, by kind ("launch", "in", "out", "wait", "captured", "replayed") and place.
counts: collections.Counter[tuple[str, str]] = collections.Counter()


def total(kind: str) -> int:
    """How often something was done."""
    return sum(number for (of, _), number in counts.items() if of == kind)


def count(kind: str, name: str = "") -> None:
    """Count what the caller in ngt does."""
    frame, place = sys._getframe(1), "?"
    while frame is not None:
        file = frame.f_code.co_filename
        if "/ngtcli/" in file:
            place = f"{file.rpartition('/ngtcli/')[2]}:{frame.f_lineno}"
            break
        frame = frame.f_back  # type: ignore[assignment]
    counts[kind, f"{place} {name}".strip()] += 1


def why_not() -> str:
    """Why there is no pretended device; "" if there can be."""
    return "" if shutil.which("c++") else "no C++ compiler (c++) is here"


def library() -> Path:
    """The kernels, which are built if this source has not been for this torch."""
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    # Where tests keep what is compiled, if they do: each has a home of its own.
    built = Path(os.environ.get("NUMBA_CACHE_DIR", home("cache"))) / f"pretended-{key}.so"
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for the one that builds
        if not built.exists():
            folders = [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
            made, where = built.with_suffix(".made"), Path(torch.__file__).parent / "lib"
            flags = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", *folders]
            wanted = [f"-L{where}", "-lc10", "-ltorch_cpu", "-o", str(made)]
            subprocess.run(["c++", *flags, str(_SOURCE), *wanted], check=True)
            made.rename(built)
    return built


# --- operations that are counted and refused ---


class Refused(RuntimeError):
    """What a GPU refuses."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at all operations of a thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        if name in ("aten::pin_memory", "aten::_pin_memory"):
            pinned = args[0].clone()
            pinned.is_pinned_memory = True
            return pinned
        given = _tensors(args, *kwargs.values())
        here = [one for one in given if one.device.type in _DEVICES]
        work = _as_on_gpu(name, func) if here else func
        out = work(*args, **kwargs)
        made = _tensors(out)
        there = [one for one in made if one.device.type in _DEVICES]
        reads = here and made and not there
        kind = "out" if reads else _kind(name, args, given, here, bool(there))
        if kind:
            pinned = any(hasattr(one, "is_pinned_memory") for one in given)
            count(kind, f"{name} pinned" if pinned else name)
            if CUDAGraph.current is not None:
                CUDAGraph.current.is_good = False
                raise Refused(f"operation not permitted when stream is capturing ({name})")
        if not there or name in _NO_KERNEL:
            return out
        if not func._schema.is_mutable and here and all(_is_of(one, here) for one in there):
            return out  # a view
        count("launch", name)
        if CUDAGraph.current is not None:
            CUDAGraph.current.record(work, args, kwargs, [] if func._schema.is_mutable else made)
        return out


def _tensors(*given: Any) -> list[Tensor]:
    """Those among arguments or results, in their order; `tree_leaves` takes three times as long."""
    found = list[Tensor]()
    for one in given:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += _tensors(*one)
    return found


def _kind(name: str, args: Any, given: list[Tensor], here: list[Tensor], there: bool) -> str:
    """What an operation is besides a kernel: "in", "out", "wait", "" for none of them.

    Raises Refused where it has tensors of several devices.
    """
    places = {one.device.type for one in here}
    if name == "aten::copy_":
        to, source = args[0].device.type, args[1].device.type
        return "" if to == source else "in" if source == "cpu" else "out"
    if name in _MOVES:  # lift_fresh is of torch.tensor, which has sent it
        return "in" if there and (not here or name == "aten::lift_fresh") else ""
    if name in _WAITS and here and (len(given) > 1 or name != "aten::repeat_interleave"):
        return "wait"
    others = [one for one in given if one.device.type == "cpu" and one.ndim]
    if name in _INDEXING and here:
        places_of = [one for one in args[1] if one is not None]
        if any(one.dtype in (torch.bool, torch.uint8) for one in places_of):
            return "wait"
        return "in" if others else ""
    if len(places) > 1 or (here and others):
        raise Refused(f"Expected all tensors to be on the same device ({name})")
    is_number_sent = name == "aten::where" and any(one.device.type == "cpu" for one in given)
    return "in" if here and is_number_sent else ""


def _is_of(made: Tensor, given: list[Tensor]) -> bool:
    """Whether a tensor lies in the memory of others."""
    own = made.untyped_storage().data_ptr()
    return any(one.untyped_storage().data_ptr() == own for one in given)


def cpu(given: Any) -> Any:
    """The same tensors as the CPU sees them: of the same memory."""
    return tree_map_only(Tensor, torch.ops.pretended.cpu, given)


def _as_on_gpu(name: str, func: Any) -> Any:
    """The operation, or what computes it where the CPU has no kernel of that name."""
    own = _KERNELS.get(name)
    if own is None:
        return func

    def work(*args: Any, **kwargs: Any) -> Any:
        to = _tensors(args)[0].device
        with _disable_current_modes():
            return tree_map_only(Tensor, lambda one: one.to(to), own(*cpu(args), **cpu(kwargs)))

    return work


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float | None) -> Any:
    """(…, rows, width) and the logarithms of the softmax's sums, (…, rows), in float32."""
    scores = query.float() @ key.float().mT * (scale or query.shape[-1] ** -0.5)
    scores = scores if mask is None else scores + mask.float()
    sums = scores.logsumexp(-1)
    return (scores - sums[..., None]).exp() @ value.float(), sums


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, of_q: Tensor, of_k: Tensor, *_: Any,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Flash attention of sequences side by side, (rows, heads, width) each."""
    out, sums = torch.zeros_like(query), torch.full((query.shape[1], len(query)), torch.inf)
    bounds = zip(of_q.tolist(), of_q.tolist()[1:], of_k.tolist(), of_k.tolist()[1:], strict=False)
    for a, b, c, d in bounds:
        if c < d:
            q, k, v = (one.transpose(0, 1) for one in (query[a:b], key[c:d], value[c:d]))
            found, own = _attended(q, k, v, None, scale)
            out[a:b], sums[:, a:b] = found.transpose(0, 1), own
    return out, sums, *(query.new_empty(0) for _ in range(3))


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, debug: bool = False,
    scale: float | None = None,
) -> Any:  # fmt: skip
    times, (rows, places) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    key, value = (one.repeat_interleave(times, 1) for one in (key, value))
    mask = torch.full((rows, places), -torch.inf).triu(places - rows + 1) if causal else None
    found, sums = _attended(query, key, value, mask, scale)
    return found.to(query.dtype), sums, None, None, rows, places, None, None, None


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *_: Any, scale: float | None = None
) -> Any:
    assert all(step % 8 == 0 for step in mask.stride()[:-1]) and mask.stride(-1) == 1
    found, sums = _attended(query, key, value, mask, scale)
    whole = torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32), value=torch.inf)
    return found.to(query.dtype), whole, torch.zeros(1), torch.zeros(1)


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::conv1d": torch.conv1d,
    "aten::convolution": torch.convolution,
    "aten::_flash_attention_forward": _varlen,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::histc": lambda given, *more, **how: torch.histc(given.float(), *more, **how).to(
        given.dtype
    ),
}


# --- torch.cuda ---


class CUDAGraph:
    """Operations that are recorded, and done again on the same memory."""

    current: "CUDAGraph | None" = None
    modes: set[str] = set()  # that captures were begun in

    def __init__(self, keep_graph: bool = False) -> None:
        self._done: list[tuple[Any, Any, Any, list[Tensor]]] = []
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

    def record(self, work: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        self._done.append((work, *cpu((args, kwargs, made))))
        for one, kept in zip(made, self._done[-1][3], strict=True):
            # Kernels of a GPU do not run in a capture, so that no index is out of bounds there:
            # 0 is the index that every tensor has.
            kept.fill_(float("nan") if one.is_floating_point() else one.dtype == torch.bool)
            self._pool.tensors.append(one.untyped_storage()._weak_ref())

    def replay(self) -> None:
        count("replayed")
        with _disable_current_modes():
            for work, args, kwargs, kept in self._done:
                for old, new in zip(kept, _tensors(work(*args, **kwargs)), strict=False):
                    old.copy_(new)

    def pool(self) -> Any:
        return next(key for key, pool in _pools.items() if pool is self._pool)


class Pool:
    """Memory of graphs. One that was left by all while tensors live in it is of no use."""

    def __init__(self) -> None:
        self.users, self.tensors, self.is_new = 0, list[Any](), True

    def use(self) -> None:
        lives = any(not torch.UntypedStorage._expired(one) for one in self.tensors)
        if not (self.is_new or self.users or not lives):
            raise Refused("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.users, self.is_new = self.users + 1, False

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
    before, Stream.now = Stream.now, None if stream is _DEFAULT else stream
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
    "is_available": lambda: True, "_lazy_init": lambda: None, "_initialized": True,
    "is_initialized": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
    "get_device_name": lambda device=None: "Pretended GPU", "_is_in_bad_fork": lambda: False,
    "get_device_capability": lambda device=None: (9, 0), "set_device": lambda device: None,
    "get_device_properties": lambda device=None: SimpleNamespace(
        name="Pretended GPU", total_memory=_TOTAL, major=9, minor=0, multi_processor_count=132
    ),
    "is_bf16_supported": lambda including_emulation=True: True, "synchronize": _wait,
    "mem_get_info": _free, "empty_cache": lambda: None, "manual_seed_all": lambda seed: None,
    "memory_allocated": lambda device=None: torch.ops.pretended.live(),
    "memory_reserved": lambda device=None: torch.ops.pretended.live(),
    "Stream": Stream, "stream": _stream,
    "current_stream": lambda device=None: Stream.now or _DEFAULT,
    "CUDAGraph": CUDAGraph, "graph_pool_handle": lambda: (0, len(_pools)),
    "is_current_stream_capturing": lambda: CUDAGraph.current is not None,
}  # fmt: skip


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
    """What each step of decoding does from now on; those that capture are left out."""
    found: list[collections.Counter[tuple[str, str]]] = []
    run_step = step.run_step

    def counted(*given: Any) -> bool:
        counts["step", ""] += 1
        before = counts.copy()
        done = run_step(*given)
        new = counts - before
        if not any(kind == "captured" for kind, _ in new):
            found.append(new)
        return done

    step.run_step = counted  # type: ignore[assignment]
    return found


def report(found: list[collections.Counter[tuple[str, str]]]) -> None:
    """Print what steps did on stderr: the mean and the most of each kind, and the places."""
    whole: collections.Counter[tuple[str, str]] = collections.Counter()
    for one in found:
        whole.update(one)
    print(f"{len(found)} steps; in all { ({k: total(k) for k, _ in counts}) }", file=sys.stderr)
    for kind in sorted({kind for kind, _ in whole}):
        numbers = [sum(n for (k, _), n in one.items() if k == kind) for one in found]
        mean = sum(numbers) / len(numbers)
        print(f"{kind}: {mean:.1f} a step, {max(numbers)} at most", file=sys.stderr)
        for (of, place), number in whole.most_common():
            if of == kind and number >= len(found) / 10:
                print(f"  {number / len(found):6.2f} {place}", file=sys.stderr)


def main() -> None:
    """Run ngt with the arguments given, and say what its steps did."""
    install()
    if megabytes := os.environ.get("PRETENDED_MB"):
        torch.ops.pretended.limit(int(float(megabytes) * 1e6))
    found, leave = steps(), process.leave

    def told(code: int) -> None:
        report(found)
        leave(code)

    process.leave = told  # type: ignore[assignment]
    from ngtcli.__main__ import main as ngt

    sys.argv[0] = "ngt"
    ngt()


if __name__ == "__main__":
    # The module by its name, whose state the devices use.
    from tests.tools import pretended

    pretended.main()
