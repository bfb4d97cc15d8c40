"""What is found out by trying, stored in the cache under all that it depends on.

That is the device and the number of threads, the versions of ngt, torch and transformers, the CPU
with its flags, the switches of instruction sets, and what the caller adds. Times that were measured
on a busy machine are not final: the next uses measure again, until one finds the machine idle or
`_MOST_TRIES` have been made.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

from ngtcli import __version__
from ngtcli.system.files import key_of
from ngtcli.system.machine import busy
from ngtcli.system.store import Kind

Result = TypeVar("Result")
_MOST_TRIES = 3  # measurements on a machine that is always busy; guess
_CPU_INFO = Path("/proc/cpuinfo")
# What tells CPUs apart in it; the other lines change from core to core and from moment to moment.
_CPU_LINES = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "cpu", "isa", "uarch",
}  # fmt: skip
# Which instructions oneDNN, torch and MKL use, and in what precision oneDNN and CUDA compute.
_SWITCHES = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial(Generic[Result]):
    """One trial of a `kind` on a device (a torch.device), and the type of its result.

    What the type refuses by a ValueError is not read. `timed`: it is a measurement of time.
    """

    kind: str
    device: Any
    depends_on: tuple[object, ...]
    result: type[Result]
    timed: bool = False

    @property
    def key(self) -> str:
        """The kind, and a hash of all that the result depends on."""
        here = *device_and_threads(self.device), *versions_and_cpu()
        return f"{self.kind} {key_of(*here, *self.depends_on)}"

    def find(self, make: Callable[[], Result]) -> Result:
        """The stored result, or else what `make` finds, which is stored."""
        result, left = self._stored() or (None, _MOST_TRIES)
        if result is not None and not left:
            return result
        threads = device_and_threads(self.device)[2]
        disturbed = self.timed and busy(threads)
        found = make()
        disturbed = disturbed or (self.timed and busy(threads))
        self._pieces.put(self.key, (found, left - 1 if disturbed else 0))
        return found

    def load(self) -> Result | None:
        """The stored result, a busy machine's too; None where there is none."""
        return (self._stored() or (None, 0))[0]

    def save(self, result: Result) -> None:
        """Store what was learned since in the place of a result: it is no surer than that was."""
        self._pieces.put(self.key, (result, (self._stored() or (None, 0))[1]))

    def _stored(self) -> tuple[Result, int] | None:
        return self._pieces.get(self.key)

    @property
    def _pieces(self) -> Kind[tuple[Result, int]]:
        """Results, and how often each may still be measured on a busy machine: 0: it is final."""
        form: Any = tuple.__class_getitem__((self.result, int))
        return Kind("trials", form)


def device_and_threads(device: Any) -> tuple[str, str, int]:
    """The kind of a torch.device, the GPU's name or "", and how many threads compute for it.

    Beside the name stands in what float32 is multiplied, where that is less.
    """
    import torch  # here: light commands do without

    precision = float32_precision().removeprefix("highest")
    if device.type == "cuda":
        return "cuda", torch.cuda.get_device_name(device) + precision, 1
    return str(device.type), precision, torch.get_num_threads()


def float32_precision() -> str:
    """In what torch may multiply float32: "highest" is float32; "mixed": a device differs."""
    import torch  # here: light commands do without

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for one device alone
        return "mixed"


def versions_and_cpu() -> tuple[str, ...]:
    """The versions, the CPU, and the switches, of which each result may depend on all."""
    switches = (f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ)
    return __version__, *_libraries(), cpu(), *switches


@lru_cache(maxsize=1)
def _libraries() -> tuple[str, str]:
    """The versions of torch and transformers; to read them takes milliseconds."""
    return version("torch"), version("transformers")


@lru_cache(maxsize=1)
def cpu() -> str:
    """Model and flags of the CPU, of all kinds of its cores; what the system tells elsewhere."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = {line for line in lines if line.partition(":")[0].strip() in _CPU_LINES}
    return "\n".join([platform.machine(), platform.processor(), *sorted(known)])


def processor() -> str:
    """The name of the CPU, as well as it can be found out."""
    named = (line for line in cpu().splitlines() if line.startswith("model name"))
    found = next(named, "").partition(":")[2].strip()
    return found or platform.processor() or platform.machine()
