"""A guard against hostile input: `python -m tests.tools.fuzz`, five minutes by default.

Seeded cases of many kinds run ngt with odd documents, settings, caches, models and streams, and
each is judged: exit code, text, memory, time, and what is shown. A failure is printed with its
kind and seed, and `--case KIND:SEED` runs it again. Exit code 0 where there was none, else 1.
"""

import argparse
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from random import Random

from ngtcli.render.terminal import visible
from ngtcli.system.storage import home
from tests.tools.fuzz.case import Builder, Case, Command, Place, Verdict, World
from tests.tools.fuzz.data import models, prompts, recordings
from tests.tools.fuzz.documents import documents, folders, names, questions
from tests.tools.fuzz.judge import judge
from tests.tools.fuzz.run import ONE_THREAD, run
from tests.tools.fuzz.settings import settings, sweeps
from tests.tools.fuzz.streams import interrupts, kills, starts, streams, terminals
from tests.tools.fuzz.world import caches, make_world, new_home, warm_up

MINUTES = 5.0  # by default
_SHOWN = 600  # characters of stderr that a verdict keeps
# Builders and their shares of the cases. Starts are new processes, of seconds each.
KINDS: Mapping[str, tuple[Builder, int]] = {
    "documents": (documents, 200),
    "folders": (folders, 80),
    "names": (names, 80),
    "questions": (questions, 80),
    "settings": (settings, 200),
    "sweeps": (sweeps, 110),
    "recordings": (recordings, 80),
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
_worlds: list[World] = []


def cases(seed: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Kinds and seeds of cases without end; the same for the same seed and kinds."""
    rng, shares = Random(seed), [KINDS[kind][1] for kind in kinds]
    while True:
        yield rng.choices(kinds, shares)[0], rng.getrandbits(32)


def adopt(world: World) -> None:
    """Called once in each process of the pool: the world of its cases. Ctrl-C is the parent's."""
    _worlds[:] = [world]
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_case(kind: str, seed: int, keep: bool = False) -> Verdict:
    """Make the case, run its commands until one fails, and judge them. `keep` leaves its files."""
    world = _worlds[0]
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-", dir=world.folder))
    folder.chmod(0o777)
    place = Place(folder / "work", folder / "home", world)
    place.work.mkdir()
    try:
        new_home(place, kind in _WITH_CACHES)
        case = KINDS[kind][0](Random(seed), place)
    except Exception as error:
        wrong = f"the case cannot be made: {type(error).__name__}: {error}"
        return Verdict(kind, seed, "", (wrong,))
    else:
        return _run(kind, seed, case, place)
    finally:
        if not keep:
            _remove(folder)


def _run(kind: str, seed: int, case: Case, place: Place) -> Verdict:
    for command in case.commands:
        result = run(command, place)
        if complaints := judge(command, result):
            break
    said = result.err or (result.out if command.streams.terminal else "")
    codes = " or ".join(map(str, sorted(command.codes)))
    facts = (shown(command), codes, result.code, said[-_SHOWN:], result.memory)
    return Verdict(kind, seed, case.what, tuple(complaints), *facts)


def _remove(folder: Path) -> None:
    """Remove a folder that may be nested deeper than Python recurses."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)  # not while ngt runs, which would then recurse as deep
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        sys.setrecursionlimit(limit)


def run_cases(args: argparse.Namespace, world: World) -> Iterator[Verdict]:
    """Verdicts as they come, `jobs` at a time, until all cases are begun or the time is up."""
    end = time.monotonic() + 60 * (args.minutes or float("inf"))
    left, chosen = args.cases or float("inf"), cases(args.seed, args.kinds)
    context = multiprocessing.get_context("fork")  # what is loaded here is loaded there
    with ProcessPoolExecutor(args.jobs, context, adopt, (world,)) as pool:
        running: set[Future[Verdict]] = set()
        while True:
            while len(running) < 2 * args.jobs and left > 0 and time.monotonic() < end:
                running.add(pool.submit(run_case, *next(chosen)))
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
        failed, memory = sum(bool(v.complaints) for v in own), max(v.memory for v in own)
        codes = ", ".join(f"{c}: {n}" for c, n in sorted(Counter(v.code for v in own).items()))
        yield f"{kind:<12}{len(own):>6}{failed:>7}{memory / 1e6:>6.0f}  {codes}"
    wrong = [v for v in verdicts if v.complaints]
    yield f"{len(verdicts)} cases of seed {seed} in {seconds:.0f} s: {len(wrong)} failures"
    for verdict in sorted(wrong, key=lambda v: (v.complaints, v.kind, v.seed)):
        yield from failure(verdict)


def failure(verdict: Verdict) -> list[str]:
    """What was made, what was run, what was expected and what came."""
    lines = [
        f"  python -m tests.tools.fuzz --case {verdict.kind}:{verdict.seed}",
        f"    made: {verdict.what[:300]}",
        f"    ran: {verdict.command}",
        f"    expected: exit code {verdict.expected}; came: {verdict.code},"
        f" {'; '.join(verdict.complaints)}",
        *(f"    | {line[:200]}" for line in verdict.err.splitlines()[-4:]),
    ]
    return [visible(line.encode("utf-8", "replace").decode()) for line in lines]


def shown(command: Command) -> str:
    """The command as one would type it, odd bytes escaped."""
    given = [f"{name}={value}" for name, value in command.environ.items()]
    line = shlex.join([*given, "ngt", *command.arguments])
    return line if len(line) < 300 else line[:300] + "…"


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
    os.environ |= ONE_THREAD
    os.environ.setdefault("NUMBA_CACHE_DIR", str(home("cache") / "compiled"))  # of the user
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` gets a report
    folder = Path(tempfile.mkdtemp(prefix="ngt-fuzz-"))
    folder.chmod(0o755)
    os.environ["NGT_HOME"] = str(folder / "warm")
    try:
        warm_up()
        world = make_world(folder)
        return _again(args.case, world) if args.case else _all(args, world)
    finally:
        signal.signal(signal.SIGTERM, before)
        if not args.case:
            shutil.rmtree(folder, ignore_errors=True)


def _again(name: str, world: World) -> int:
    adopt(world)
    kind, _, seed = name.partition(":")
    verdict = run_case(kind, int(seed), keep=True)
    print("\n".join([*failure(verdict), f"    files: {world.folder}"]))
    return int(bool(verdict.complaints))


def _all(args: argparse.Namespace, world: World) -> int:
    clock, verdicts = time.monotonic(), list[Verdict]()
    try:
        for verdict in run_cases(args, world):
            verdicts.append(verdict)
            if verdict.complaints:
                print("\n".join(failure(verdict)), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what there is", file=sys.stderr)
    print("\n".join(report(verdicts, args.seed, time.monotonic() - clock)))
    return int(any(v.complaints for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
