"""A guard against hostile input: `python -m tests.tools.fuzz`, five minutes by default.

Seeded cases of many kinds run ngt with odd documents, settings, caches, models and streams, and
each is judged: exit code, text, memory, time, and what is shown. A failure is printed with its
kind and seed, and `--case KIND:SEED` runs it again. Exit code 0 where there was none, else 1.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ngtcli.render.terminal import visible
from tests.tools.fuzz.case import Builder, Command, Place, Result
from tests.tools.fuzz.data import models, prompts
from tests.tools.fuzz.documents import documents, folders, names, questions
from tests.tools.fuzz.judge import expected, judge
from tests.tools.fuzz.run import run
from tests.tools.fuzz.settings import settings, sweeps
from tests.tools.fuzz.streams import interrupts, kills, starts, streams, terminals
from tests.tools.fuzz.world import caches, make_world, new_place

MINUTES = 5.0  # by default
# Builders and their shares of the cases. Starts are new processes, of seconds each.
KINDS: Mapping[str, tuple[Builder, int]] = {
    "documents": (documents, 200),
    "folders": (folders, 80),
    "names": (names, 80),
    "questions": (questions, 80),
    "settings": (settings, 200),
    "sweeps": (sweeps, 110),
    "prompts": (prompts, 80),
    "caches": (caches, 120),
    "models": (models, 60),
    "terminals": (terminals, 60),
    "interrupts": (interrupts, 30),
    "kills": (kills, 20),
    "streams": (streams, 25),
    "starts": (starts, 4),
}
_WITH_CACHES = ("caches", "kills", "interrupts", "starts", "terminals")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case went: its last command, which is the first that failed if one did.

    `again` is what runs it again, where that is not the fuzzer.
    """

    kind: str
    seed: int
    what: str
    command: Command
    result: Result
    complaints: Sequence[str]
    again: str = ""

    def __str__(self) -> str:
        """What was made, what was run, what was expected and what came."""
        given = [f"{name}={value}" for name, value in self.command.environ.items()]
        ran = shlex.join([*given, "ngt", *self.command.arguments])  # as one would type it
        said = self.result.err or (self.result.out if self.command.terminal else "")
        lines = [
            f"  python -m tests.tools.{self.again or f'fuzz --case {self.kind}:{self.seed}'}",
            f"    made: {self.what[:300]}",
            f"    ran: {ran if len(ran) < 300 else ran[:300] + '…'}",
            f"    expected: exit code {expected(self.command)}; came: {self.result.code},"
            f" {'; '.join(self.complaints)}",
            *(f"    | {line[:200]}" for line in said.splitlines()[-4:]),
        ]
        return "\n".join(visible(x.encode("utf-8", "replace").decode()) for x in lines)


def cases(seed: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Kinds and seeds of cases without end; the same for the same seed and kinds."""
    rng, shares = Random(seed), [KINDS[kind][1] for kind in kinds]
    while True:
        yield rng.choices(kinds, shares)[0], rng.getrandbits(32)


def run_case(world: Place, kind: str, seed: int, keep: bool = False) -> Verdict:
    """Make the case, run its commands until one fails, and judge them. `keep` leaves its files."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-", dir=world.shared))
    try:
        place = new_place(folder, world, kind in _WITH_CACHES)
        case = KINDS[kind][0](Random(seed), place)
        for command in case.commands:
            result = run(command, place)
            if complaints := judge(command, result):
                break
        return Verdict(kind, seed, case.what, command, result, complaints)
    finally:
        if not keep:  # it may be nested deeper than Python recurses
            subprocess.run(["rm", "-rf", folder], check=False)


def run_cases(args: argparse.Namespace, world: Place) -> Iterator[Verdict]:
    """Verdicts as they come, `jobs` at a time, until all cases are begun or the time is up."""
    end = time.monotonic() + 60 * (args.minutes or float("inf"))
    left, chosen = args.cases or float("inf"), cases(args.seed, args.kinds)
    with ThreadPoolExecutor(args.jobs) as pool:
        running: set[Future[Verdict]] = set()
        while True:
            while len(running) < args.jobs and left > 0 and time.monotonic() < end:
                running.add(pool.submit(run_case, world, *next(chosen)))
                left -= 1
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def report(verdicts: Sequence[Verdict], seed: int, seconds: float) -> Iterator[str]:
    """Lines: by kind cases, failures, the most memory that a run took, and exit codes; then every
    failure."""
    yield "kind         cases failed    MB  exit codes"
    for kind in sorted({v.kind for v in verdicts}):
        own = [v for v in verdicts if v.kind == kind]
        failed = sum(bool(v.complaints) for v in own)
        memory = max(v.result.memory for v in own) / 1e6
        codes = sorted(Counter(v.result.code for v in own).items())
        told = ", ".join(f"{code}: {count}" for code, count in codes)
        yield f"{kind:<12}{len(own):>6}{failed:>7}{memory:>6.0f}  {told}"
    wrong = [v for v in verdicts if v.complaints]
    yield f"{len(verdicts)} cases of seed {seed} in {seconds:.0f} s: {len(wrong)} failures"
    yield from map(str, sorted(wrong, key=lambda v: (v.complaints, v.kind, v.seed)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Ends the process with exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help=f"default {MINUTES:g}, or none with --cases")
    parser.add_argument("--cases", type=int, help="run so many cases")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--case", metavar="KIND:SEED", help="run this one, and keep its files")
    args = parser.parse_args(arguments)
    args.kinds = [kind for kind in args.kinds.split(",") if kind]
    kind, _, number = (args.case or "documents:0").partition(":")
    unknown = [name for name in (*args.kinds, kind) if name not in KINDS]
    if unknown or not args.kinds or not number.isdecimal():
        parser.error(f"{', '.join(unknown) or args.case}: known kinds are {', '.join(KINDS)}")
    if args.minutes is None and args.cases is None:
        args.minutes = MINUTES
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases and print the report; the exit code."""
    args = parse(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` gets a report
    folder = Path(tempfile.mkdtemp(prefix="ngt-fuzz-"))
    folder.chmod(0o755)
    try:
        world = make_world(folder)
        if not args.case:
            return _run_all(args, world)
        kind, _, seed = args.case.partition(":")
        verdict = run_case(world, kind, int(seed), keep=True)
        print(f"{verdict}\n    files: {folder}")
        return int(bool(verdict.complaints))
    finally:
        signal.signal(signal.SIGTERM, before)
        if not args.case:
            shutil.rmtree(folder, ignore_errors=True)


def _run_all(args: argparse.Namespace, world: Place) -> int:
    clock, verdicts = time.monotonic(), list[Verdict]()
    try:
        for verdict in run_cases(args, world):
            verdicts.append(verdict)
            if verdict.complaints:
                print(verdict, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what there is", file=sys.stderr)
    print("\n".join(report(verdicts, args.seed, time.monotonic() - clock)))
    return int(any(v.complaints for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
