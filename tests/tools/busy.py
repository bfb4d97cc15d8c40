"""Compares two methods beside busy processes: python -m tests.tools.busy FILE [ROUNDS]

For 0, 2, 4 and 8 processes that only compute, `ngt summarize FILE` runs with `auto` and with
`prompt-lookup` in turns. Prints the medians of the seconds of decoding, and their ratio, which a
machine's speed does not change. The first run of each method is not counted: it may measure costs.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

METHODS = ("auto", "prompt-lookup")
BUSY = (0, 2, 4, 8)
ROUNDS = 5


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Have so many processes compute, each with one thread, until the block ends."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def decoding_s(file: str, method: str) -> float:
    """Return the seconds of decoding of one summary.

    Raises SystemExit where another method has drafted, as `auto` is still being compiled.
    """
    command = [sys.executable, "-m", "ngtcli", "summarize", file, "--json", "--no-serve"]
    done = subprocess.run([*command, "--method", method], capture_output=True, check=True)
    answer = json.loads(done.stdout)
    if answer["drafted_by"] != method:
        sys.exit(f"{answer['drafted_by']} drafted for {method}: try again when it is compiled")
    return float(answer["statistics"]["decode_s"])


def main(file: str, rounds: int = ROUNDS) -> None:
    for method in METHODS:
        decoding_s(file, method)
    print("busy  " + "  ".join(f"{method:>13}" for method in METHODS) + "  ratio")
    for count in BUSY:
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        with busy_processes(count):
            for _ in range(rounds):
                for method in METHODS:
                    seconds[method].append(decoding_s(file, method))
        medians = [statistics.median(seconds[method]) for method in METHODS]
        shown = "  ".join(f"{median:>11.2f} s" for median in medians)
        print(f"{count:>4}  {shown}  {medians[0] / medians[1]:.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:3]))
