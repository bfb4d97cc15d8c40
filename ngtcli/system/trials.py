"""Trials: experiments whose results are cached under everything that they depend on.

A result depends on the device and the number of threads, the versions of ngt, torch and
transformers, the CPU with its flags, the variables that choose instructions, and whatever the
caller adds. Times measured on a busy machine are not final: later uses measure again, until the
machine was idle or `_MAX_TRIES` is reached.
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
_MAX_TRIES = 3  # measurements on a machine that is always busy (guess)
# Variables that set the precision of CUDA and its workspaces.
_GPU_SWITCHES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
)


@dataclass(frozen=True, slots=True)
class Trial(Generic[Result]):
    """An experiment.

    Attributes:
        kind: Its name.
        device: The torch.device that it runs on.
        depends_on: Everything else that its result depends on.
        result: The type of its result. A stored value that it refuses by a ValueError is not read.
        timed: Whether it measures time.
    """

    kind: str
    device: Any
    depends_on: tuple[object, ...]
    result: type[Result]
    timed: bool = False

    @property
    def key(self) -> str:
        """Return the kind, and a hash of everything that the result depends on."""
        machine = (*device_and_threads(self.device), *versions_and_cpu())
        return f"{self.kind} {key_of(*machine, *self.depends_on)}"

    def find(self, make: Callable[[], Result]) -> Result:
        """Return the stored result; if there is none, or it is not final, run and store `make`."""
        result, tries_left = self._stored() or (None, _MAX_TRIES)
        if result is not None and not tries_left:
            return result
        threads = device_and_threads(self.device)[2]
        was_busy = self.timed and busy(threads)
        new_result = make()
        was_busy = was_busy or (self.timed and busy(threads))
        self._entries.put(self.key, (new_result, tries_left - 1 if was_busy else 0))
        return new_result

    def load(self) -> Result | None:
        """Return the stored result, even if it is not final; None if there is none."""
        stored = self._stored()
        return None if stored is None else stored[0]

    def save(self, result: Result) -> None:
        """Replace the stored result by one learned since; it is final only if the old one was."""
        stored = self._stored()
        tries_left = 0 if stored is None else stored[1]
        self._entries.put(self.key, (result, tries_left))

    def _stored(self) -> tuple[Result, int] | None:
        return self._entries.get(self.key)

    @property
    def _entries(self) -> Kind[tuple[Result, int]]:
        """Return the cached results, each with the number of tries left; 0 if it is final."""
        form: Any = tuple.__class_getitem__((self.result, int))
        return Kind("trials", form)


def device_and_threads(device: Any) -> tuple[str, str, int]:
    """Return a torch.device's type, the GPU's name or "", and the threads that compute for it.

    The precision of float32 matmuls is added to the name if it is reduced.
    """
    import torch  # imported here: light commands do not need it

    precision = float32_precision().removeprefix("highest")
    if device.type == "cuda":
        return "cuda", torch.cuda.get_device_name(device) + precision, 1
    return str(device.type), precision, torch.get_num_threads()


def float32_precision() -> str:
    """Return torch's precision of float32 matmuls.

    "highest" is float32; "mixed" stands for settings that differ between devices.
    """
    import torch  # imported here: light commands do not need it

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for a single device
        return "mixed"


def versions_and_cpu() -> tuple[str, ...]:
    """Return versions, CPU, and variables that choose instructions; results may depend on them."""
    gpu_switches = [f"{name}={os.environ[name]}" for name in _GPU_SWITCHES if name in os.environ]
    return __version__, *_libraries(), cpu.description(), *cpu.switches(), *gpu_switches


@lru_cache(maxsize=1)
def _libraries() -> tuple[str, str]:
    """Return the versions of torch and transformers, which takes milliseconds to read."""
    return version("torch"), version("transformers")
