"""Test ngt on hostile input: `python -m tests.tools.fuzz`, for five minutes by default.

Seeded cases of many kinds run ngt with odd documents, settings, caches, models and streams. Each
is judged by its exit code, answer, memory, time and output. A failure is printed with its kind
and seed, and `--case KIND:SEED` runs it again. The exit code is 1 if a case failed, otherwise 0.
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
from tests.tools.fuzz.judge import expected_codes, judge
from tests.tools.fuzz.run import run
from tests.tools.fuzz.settings import settings, sweeps
from tests.tools.fuzz.streams import interrupts, kills, starts, streams, terminals
from tests.tools.fuzz.world import caches, make_world, new_place

DEFAULT_MINUTES = 5.0
# Builders and their shares of the cases. Each start is a new process and takes seconds.
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
    """The outcome of a case: its first command that failed, or else its last.

    `repeat` is the tool with the arguments that run the case again, if that is not the fuzzer.
    """

    kind: str
    seed: int
    description: str
    command: Command
    result: Result
    complaints: Sequence[str]
    repeat: str = ""

    def __str__(self) -> str:
        """Several lines: how to repeat the case, the command, what was expected, the result."""
        repeat = self.repeat or f"fuzz --case {self.kind}:{self.seed}"
        variables = [f"{name}={value}" for name, value in self.command.environ.items()]
        command_line = shlex.join([*variables, "ngt", *self.command.arguments])
        if len(command_line) >= 300:
            command_line = command_line[:300] + "…"
        output = self.result.err
        if not output and self.command.terminal:
            output = self.result.out
        lines = [
            f"  python -m tests.tools.{repeat}",
            f"    made: {self.description[:300]}",
            f"    ran: {command_line}",
            f"    expected: exit code {expected_codes(self.command)}; got: {self.result.code},"
            f" {'; '.join(self.complaints)}",
        ]
        lines += [f"    | {line[:200]}" for line in output.splitlines()[-4:]]
        return "\n".join(visible(line.encode("utf-8", "replace").decode()) for line in lines)


def cases(seed: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield kinds and seeds of cases without end; the same for the same seed and kinds."""
    rng = Random(seed)
    shares = [KINDS[kind][1] for kind in kinds]
    while True:
        yield rng.choices(kinds, shares)[0], rng.getrandbits(32)


def run_case(world: Place, kind: str, seed: int, keep: bool = False) -> Verdict:
    """Make the case and run its commands until one fails. With `keep` its files stay."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-", dir=world.shared))
    try:
        place = new_place(folder, world, kind in _WITH_CACHES)
        case = KINDS[kind][0](Random(seed), place)
        for command in case.commands:
            result = run(command, place)
            complaints = judge(command, result)
            if complaints:
                break
        return Verdict(kind, seed, case.description, command, result, complaints)
    finally:
        if not keep:
            # Folders may be nested deeper than shutil.rmtree can recurse.
            subprocess.run(["rm", "-rf", folder], check=False)


def run_cases(args: argparse.Namespace, world: Place) -> Iterator[Verdict]:
    """Run `jobs` cases at a time and yield their verdicts as they finish.

    No case is started once `args.cases` were, or the time is up.
    """
    end = time.monotonic() + 60 * (args.minutes or float("inf"))
    cases_left = args.cases or float("inf")
    upcoming = cases(args.seed, args.kinds)
    with ThreadPoolExecutor(args.jobs) as pool:
        running: set[Future[Verdict]] = set()
        while True:
            while len(running) < args.jobs and cases_left > 0 and time.monotonic() < end:
                kind, seed = next(upcoming)
                running.add(pool.submit(run_case, world, kind, seed))
                cases_left -= 1
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def report(verdicts: Sequence[Verdict], seed: int, seconds: float) -> Iterator[str]:
    """Yield the lines of a table by kind (cases, failures, peak memory, exit codes), then each
    failure."""
    yield "kind         cases failed    MB  exit codes"
    for kind in sorted({verdict.kind for verdict in verdicts}):
        group = [verdict for verdict in verdicts if verdict.kind == kind]
        failed = len([verdict for verdict in group if verdict.complaints])
        memory = max(verdict.result.memory for verdict in group) / 1e6
        counts = sorted(Counter(verdict.result.code for verdict in group).items())
        codes = ", ".join(f"{code}: {count}" for code, count in counts)
        yield f"{kind:<12}{len(group):>6}{failed:>7}{memory:>6.0f}  {codes}"
    failures = [verdict for verdict in verdicts if verdict.complaints]
    failures.sort(key=lambda verdict: (verdict.complaints, verdict.kind, verdict.seed))
    yield f"{len(verdicts)} cases of seed {seed} in {seconds:.0f} s: {len(failures)} failures"
    yield from map(str, failures)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. A wrong one ends the process with exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    minutes_help = f"stop after this time; default {DEFAULT_MINUTES:g}, with --cases no limit"
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help=minutes_help)
    parser.add_argument("--cases", type=int, help="run this number of cases")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--case", metavar="KIND:SEED", help="run this case and keep its files")
    args = parser.parse_args(arguments)
    args.kinds = [kind for kind in args.kinds.split(",") if kind]

    names = list(args.kinds)
    is_case_valid = True
    if args.case:
        kind, _, seed = args.case.partition(":")
        names.append(kind)
        is_case_valid = seed.isdecimal()
    unknown = [name for name in names if name not in KINDS]
    kinds_hint = f"known kinds are {', '.join(KINDS)}"
    if unknown:
        parser.error(f"unknown kind {', '.join(unknown)}: {kinds_hint}")
    if not args.kinds:
        parser.error(f"--kinds names no kind: {kinds_hint}")
    if not is_case_valid:
        parser.error(f"--case {args.case} has no seed: write KIND:SEED")
    if args.minutes is None and args.cases is None:
        args.minutes = DEFAULT_MINUTES
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases, print the report and return the exit code."""
    args = parse(arguments)
    # Treat SIGTERM as Ctrl-C, so that a run under `timeout` prints its report.
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
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
        signal.signal(signal.SIGTERM, previous_handler)
        if not args.case:
            shutil.rmtree(folder, ignore_errors=True)


def _run_all(args: argparse.Namespace, world: Place) -> int:
    started = time.monotonic()
    verdicts: list[Verdict] = []
    try:
        for verdict in run_cases(args, world):
            verdicts.append(verdict)
            if verdict.complaints:
                print(verdict, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted: the report covers the cases that finished", file=sys.stderr)
    print("\n".join(report(verdicts, args.seed, time.monotonic() - started)))
    return int(any(verdict.complaints for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
