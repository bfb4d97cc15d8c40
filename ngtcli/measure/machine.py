"""What a measurement ran on. Imports nothing heavy."""

import platform
from importlib.metadata import version
from pathlib import Path

from ngtcli import __version__


def processor() -> str:
    """The name of the CPU, as well as it can be found out."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions that decide how fast and what; imports none of them."""
    return {
        "ngt": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
