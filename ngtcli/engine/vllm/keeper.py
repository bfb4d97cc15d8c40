"""A watchdog process that ends the children of its parent when the parent ends (Linux only).

vLLM's processes would otherwise outlive a parent that was killed, with the model still loaded. As a
script this file takes the parent's process id; its standard input is a pipe from the parent, whose
end is the parent's end.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_POLL_INTERVAL_S = 0.5  # between two listings of the children (guess)
_GRACE_S = 5.0  # for children to end after a signal (guess)
# Python's resource tracker cleans up shared memory after all others and then ends on its own.
_RESOURCE_TRACKER = b"resource_tracker"


def start() -> "subprocess.Popen[bytes]":
    """Start the watchdog of this process; once its input is closed it ends the children."""
    return subprocess.Popen(
        [sys.executable, "-IS", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def descendants(process: int) -> set[int]:
    """Return the ids of all descendants of a process, except for this process."""
    children: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children |= {int(child) for child in file.read().split()} - {os.getpid()}
    except OSError:  # The process has ended.
        return set()
    return children.union(*map(descendants, children))


def runs(process: int) -> bool:
    """Return whether a process still runs and has to be ended."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            command = file.read()  # It is empty for a zombie.
    except OSError:
        return False
    return bool(command) and _RESOURCE_TRACKER not in command


def main(parent: int) -> None:
    """List the children of a process until the pipe is closed, then end them."""
    children: set[int] = set()
    while not select.select([sys.stdin], [], [], _POLL_INTERVAL_S)[0]:
        children = descendants(parent)
    children |= descendants(parent)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in filter(runs, children):
            with suppress(ProcessLookupError):  # It has just ended.
                os.kill(child, number)
        deadline = time.monotonic() + _GRACE_S
        while any(map(runs, children)) and time.monotonic() < deadline:
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]))
