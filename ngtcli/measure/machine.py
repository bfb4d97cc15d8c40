"""What a measurement ran on, and the most memory that a run takes. Imports nothing heavy."""

import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli import __version__

if TYPE_CHECKING:
    import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def versions() -> dict[str, str]:
    """Versions that decide how fast and what; imports none of them."""
    return {
        "ngt": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


class PeakMemory:
    """Call `start` before a run and `peak` after it; `kind` says what is counted.

    "device": bytes of tensors on the GPU at most, weights included. "process": how far the
    process's resident memory rose above where it stood. "process-high": how far it rose above its
    highest so far, which understates all runs but the first (no way to set the mark back here).
    """

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self.kind = "device" if device.type == "cuda" else "process"
        if self.kind == "process" and not _set_mark_back():
            self.kind = "process-high"
        self._before = 0

    def start(self) -> None:
        """Begin a run."""
        if self.kind == "device":
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
        elif self.kind == "process":
            _set_mark_back()
            self._before = _status_bytes("VmRSS")
        else:
            self._before = _highest()

    def peak(self) -> int:
        """Bytes, since `start`."""
        if self.kind == "device":
            import torch

            return int(torch.cuda.max_memory_allocated(self._device))
        now = _status_bytes("VmHWM") if self.kind == "process" else _highest()
        return max(0, now - self._before)


def _set_mark_back() -> bool:
    """Let the kernel forget the process's highest resident memory; False where it cannot."""
    try:
        _RESET.write_text("5")
        return bool(_status_bytes("VmHWM"))
    except OSError:
        return False


def _status_bytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _highest() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
