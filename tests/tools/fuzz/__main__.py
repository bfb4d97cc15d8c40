"""A guard against hostile input: `python -m tests.tools.fuzz`, five minutes by default.

Seeded cases of many kinds run ngt with odd documents, settings, caches, models and streams, and
each is judged: exit code, text, memory, time, and what is shown. A failure is printed with its
kind and seed, and `--case KIND:SEED` runs it again. Exit code 0 where there was none, else 1.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from random import Random

from ngtcli.system.json_form import dump_json
from ngtcli.system.storage import home
from tests.tools.fuzz.case import Verdict, World
from tests.tools.fuzz.judge import as_json, failure, report
from tests.tools.fuzz.run import ONE_THREAD
from tests.tools.fuzz.worker import KINDS, adopt, run_case
from tests.tools.fuzz.world import make_world, warm_up

MINUTES = 5.0  # by default
Asked = tuple[str, int]  # kind and seed of a case


def cases(seed: int, kinds: Sequence[str]) -> Iterator[Asked]:
    """Kinds and seeds of cases without end; the same for the same seed and kinds."""
    rng, shares = Random(seed), [KINDS[kind][1] for kind in kinds]
    while True:
        yield rng.choices(kinds, shares)[0], rng.getrandbits(32)


def run_cases(
    asked: Iterator[Asked], world: World, jobs: int, most: int | None, seconds: float | None
) -> Iterator[Verdict]:
    """Verdicts as they come, `jobs` at a time, until `most` cases were begun or time is up."""
    clock, left = time.monotonic(), most
    context = multiprocessing.get_context("fork")  # what is loaded here is loaded there
    with ProcessPoolExecutor(jobs, context, adopt, (world,)) as pool:
        running: set[Future[Verdict]] = set()
        while True:
            while len(running) < 2 * jobs and (left is None or left > 0):
                if seconds is not None and time.monotonic() - clock > seconds:
                    left = 0
                    break
                running.add(pool.submit(run_case, *next(asked)))
                left = None if left is None else left - 1
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Ends the process with exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help=f"default {MINUTES:g}, or none with --cases")
    parser.add_argument("--cases", type=int, help="run so many cases")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--case", metavar="KIND:SEED", help="run this one, and keep its files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
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
    os.environ |= ONE_THREAD
    os.environ.setdefault("NUMBA_CACHE_DIR", str(home("cache") / "compiled"))  # of the user
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` gets a report
    folder = Path(tempfile.mkdtemp(prefix="ngt-fuzz-"))
    folder.chmod(0o755)
    os.environ["NGT_HOME"] = str(folder / "warm")
    try:
        warm_up()
        world = make_world(folder)
        if args.case:
            return _again(args.case, world)
        return _all(args, world)
    finally:
        signal.signal(signal.SIGTERM, before)
        if not args.case:
            shutil.rmtree(folder, ignore_errors=True)


def _again(name: str, world: World) -> int:
    adopt(world)
    kind, _, seed = name.partition(":")
    verdict = run_case(kind, int(seed), keep=True)
    print("\n".join(failure(verdict)))
    print(f"    files: {world.folder}")
    return int(bool(verdict.complaints))


def _all(args: argparse.Namespace, world: World) -> int:
    clock, verdicts = time.monotonic(), []
    seconds = None if args.minutes is None else args.minutes * 60
    try:
        for verdict in run_cases(
            cases(args.seed, args.kinds), world, args.jobs, args.cases, seconds
        ):
            verdicts.append(verdict)
            if sys.stderr.isatty():
                failed = sum(bool(v.complaints) for v in verdicts)
                print(f"\r{len(verdicts)} cases, {failed} failures", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted; this is what there is", file=sys.stderr)
    taken = time.monotonic() - clock
    verdicts.sort(key=lambda v: (v.kind, v.seed))
    print(dump_json(as_json(verdicts, args.seed, taken)) if args.json
          else report(verdicts, args.seed, taken))  # fmt: skip
    return int(any(v.complaints for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
