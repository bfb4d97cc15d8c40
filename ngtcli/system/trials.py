"""What is found out by trying, stored in the cache under all that it depends on.

That is the device and the number of threads, the versions of ngt, torch and transformers, the CPU
with its flags, the switches of instruction sets, and what the caller adds. Times that were measured
on a busy machine are not final: the next uses measure again, until one finds the machine idle or
`_MOST_TRIES` have been made.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from ngtcli import __version__
from ngtcli.system import cpu
from ngtcli.system.files import key_of
from ngtcli.system.machine import busy
from ngtcli.system.store import Kind

Result = TypeVar("Result")
_MOST_TRIES = 3  # measurements on a machine that is always busy; guess
# In what precision CUDA computes, and with which workspaces.
_GPU_SWITCHES = (
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"
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
    of_gpu = (f"{name}={os.environ[name]}" for name in _GPU_SWITCHES if name in os.environ)
    return __version__, *_libraries(), cpu.description(), *cpu.switches(), *of_gpu


@lru_cache(maxsize=1)
def _libraries() -> tuple[str, str]:
    """The versions of torch and transformers; to read them takes milliseconds."""
    return version("torch"), version("transformers")
