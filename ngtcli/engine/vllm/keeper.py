"""A process that ends the children of another one when that ends, in whatever way (on Linux).

vLLM's processes would wait on for a parent that was killed, the model still loaded. Run as a
script, its first argument is the process it keeps watch over, and standard input a pipe from there.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_LOOK_S = 0.5  # seconds between two looks at which children there are; guess
_PATIENCE_S = 5.0  # for children to end when told to; guess
_ENDS_BY_ITSELF = b"resource_tracker"  # Python's: it cleans up shared memory after all others


def start() -> "subprocess.Popen[bytes]":
    """A keeper of this process; once its input is closed it ends the children, and then itself."""
    return subprocess.Popen(
        [sys.executable, "-IS", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def descendants(process: int) -> set[int]:
    """Return the processes that descend from one, but for this one."""
    children: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children |= {int(child) for child in file.read().split()} - {os.getpid()}
    except OSError:  # it has ended
        return set()
    return children.union(*map(descendants, children))


def runs(process: int) -> bool:
    """Whether a process still runs and does not end by itself."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            command = file.read()  # empty where it has ended and was not waited for
    except OSError:
        return False
    return bool(command) and _ENDS_BY_ITSELF not in command


def main(parent: int) -> None:
    """Look at the children until the pipe is closed, then end them."""
    children: set[int] = set()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        children = descendants(parent)
    children |= descendants(parent)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in filter(runs, children):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(child, number)
        until = time.monotonic() + _PATIENCE_S
        while any(map(runs, children)) and time.monotonic() < until:
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]))
