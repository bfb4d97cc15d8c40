"""What is found out by trying, stored in the cache under all that it depends on.

The name of a result's file is a hash of the versions of ngt, torch and transformers, of the device
and the CPU with its flags, of the switches of instruction sets, of the number of threads, and of
what the caller adds. Times that were measured on a busy machine are not final: the next
uses measure again, until one finds the machine idle or `_MOST_TRIES` have been made.

The number of threads is that of idle cores, where no one gives it. What is only chosen by times and
takes long is not tried again for fewer threads, as on a busier machine, if it is known for more.
"""

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

from ngtcli import __version__
from ngtcli.system.files import DamagedFileError, home, key_of, read_json, write_json
from ngtcli.system.json_form import from_json, to_json
from ngtcli.system.machine import busy, numbers_of_threads

Found = TypeVar("Found")
_FORMAT = 1
_MOST_BYTES = 4096
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


class Remembered(Generic[Found]):
    """One result of a `kind`, for a device (a torch.device).

    `found` is a dataclass, whose making raises ValueError for what cannot be; or else a function
    that makes the result of what `write` gave, JSON-ready, and raises it for anything else. Where
    the number of threads does not matter to it, `threads` is False; with `of_more` one for more
    threads than now, up to the number of cores, serves where there is none for as many.
    """

    def __init__(
        self,
        kind: str,
        device: Any,
        parts: tuple[object, ...],
        found: type[Found] | Callable[[Any], Found],
        write: Callable[[Found], Any] = to_json,
        *,
        threads: bool = True,
        of_more: bool = False,
        most: int = _MOST_BYTES,
    ) -> None:
        on, gpu, self._threads = device_and_threads(device)

        def path(number: object) -> Path:
            key = key_of(_FORMAT, on, gpu, number, *versions_and_cpu(), *parts)
            return home("cache") / kind / f"{key}.json"

        self.path = path(self._threads if threads else "any number")
        more = [] if on == "cuda" or not of_more else numbers_of_threads()
        self._of_more = [path(number) for number in more if number > self._threads]
        self._read: Callable[[Any], Found] = found
        if is_dataclass(found):
            self._read = partial(from_json, found)
        self._write, self._most = write, most
        self._tries = 0  # on a busy machine; 0 where the result is for good

    def load(self) -> Found | None:
        """The stored result, a busy machine's too; None where there is none.

        Raises DamagedFileError.
        """
        found = self._load(self.path)
        for path in self._of_more if found is None else ():
            with suppress(DamagedFileError):  # it is made again when there are as many threads
                found = found or self._load(path)
        if found is None:
            return None
        self._tries = found[1]
        return found[0]

    def _load(self, path: Path) -> tuple[Found, int] | None:
        """A stored result, and how often a busy machine was measured."""
        try:
            stored = read_json(path, self._most)
            tries = stored.get("tries")
            if stored.keys() != {"found", "tries"} or type(tries) is not int:
                raise ValueError("another form")
            return self._read(stored["found"]), min(max(tries, 0), _MOST_TRIES)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFileError(str(error)) from None

    def find(
        self,
        make: Callable[[], Found],
        *,
        timed: bool = False,
        damaged: Callable[[str], None] = lambda _: None,
    ) -> Found:
        """The stored result, or else what `make` finds, which is stored.

        `timed`: it is a measurement of time. `damaged` gets what is wrong with a file that is
        made again.
        """
        try:
            found = self.load()
        except DamagedFileError as error:
            found = None
            damaged(str(error))
        if found is not None and self._tries in (0, _MOST_TRIES):
            return found
        disturbed = timed and busy(self._threads)
        found = make()
        disturbed = disturbed or (timed and busy(self._threads))
        self._tries = self._tries + 1 if disturbed else 0
        self.save(found)
        return found

    def save(self, found: Found) -> None:
        """Store a result in the place of the last one. Ignores a folder that cannot be written."""
        with suppress(OSError):
            write_json(self.path, {"found": self._write(found), "tries": self._tries})


def device_and_threads(device: Any) -> tuple[str, str, int]:
    """The kind of a torch.device, the GPU's name or "", and how many threads compute for it."""
    import torch  # here: light commands do without

    if device.type == "cuda":
        return "cuda", torch.cuda.get_device_name(device), 1
    return str(device.type), "", torch.get_num_threads()


def versions_and_cpu() -> tuple[str, ...]:
    """The versions, the CPU, and the switches, of which each result may depend on all."""
    versions = (__version__, version("torch"), version("transformers"))
    switches = (f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ)
    return *versions, cpu(), *switches


def here() -> str:
    """A name for the versions, the CPU and the switches as they are."""
    return key_of(*versions_and_cpu())


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
