"""`ngt` as a process, also `python -m ngtcli`: handlers first, then the command, then the end."""

import os
import sys

if sys.platform == "win32":
    sys.exit("ngt: Windows is not supported\nUse Linux or macOS, or on Windows WSL.")

# It is below the check because it imports modules that Windows does not have.
from ngtcli.system import process  # noqa: E402

TYPE_CHECKING = False  # importing it from typing takes time; see system/process.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command line and leave with its exit code."""
    process.guard()
    # OpenMP's threads spin while they wait for work, and take up to twice the processor time beside
    # other busy processes. So they sleep. The variable is read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with process.without_garbage_collection():
        from ngtcli.cli.app import run  # here: what it loads takes time

    process.leave(run())


if __name__ == "__main__":
    main()
