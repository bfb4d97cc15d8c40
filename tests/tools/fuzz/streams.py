"""Killed and interrupted runs, odd terminals, missing and full streams, odd starts."""

import shutil
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import ngtcli
from ngtcli.bench.prompts import EXAMPLES
from tests.tools.fuzz.case import (
    ANSWERED,
    HARBOUR,
    INPUT,
    INTERRUPTED,
    KNOWN_COMMANDS,
    PASSAGES,
    USAGE,
    Case,
    Command,
    Place,
    Result,
    Stop,
    case,
)
from tests.tools.fuzz.odd import control_soup


def kills(rng: Random, place: Place) -> Case:
    """Kill a run, often while a file is half written; the next run is not affected."""
    method = rng.choice(["auto", "trie"])
    partial = rng.random() < 0.6
    after = 0.02 if partial else rng.uniform(0.02, 0.5)
    stop = Stop(signal.SIGKILL, after, partial)
    if rng.random() < 0.5:
        shutil.rmtree(place.home / "cache" / "tries")  # so that tries and pools are written again
    codes = [ANSWERED, -signal.SIGKILL]
    killed = place.known_command(rng, "--method", method, stops=[stop], codes=codes)
    if rng.random() < 0.3:
        killed = Command(["trie", "build", "--rest", str(EXAMPLES)], codes, stops=[stop])
    following = place.known_command(rng, "--method", method, max_lines=PASSAGES)
    description = f"killed after {after:.2f} s"
    if partial:
        description += ", writing"
    return Case(description, [killed, following])


def _presses(rng: Random, first: float, pause: float) -> tuple[str, list[Stop]]:
    """Press Ctrl-C once or twice; return a description and the signals."""
    times = [first, first + rng.uniform(0.001, pause)]
    times = times[: rng.choice([1, 1, 2])]
    description = f"Ctrl-C after {', '.join(f'{seconds:.2f} s' for seconds in times)}"
    return description, [Stop(signal.SIGINT, seconds) for seconds in times]


def interrupts(rng: Random, place: Place) -> Case:
    """Press Ctrl-C once or twice in a run of any command, then run another."""
    description, stops = _presses(rng, rng.uniform(0.02, 0.9), 0.3)
    codes = [ANSWERED, INTERRUPTED]
    flags = rng.choice([[], ["--json"], ["--method", "trie"], ["-v"], ["--dry-run"]])
    interrupted = place.known_command(rng, *flags, stops=stops, codes=codes)
    if "--dry-run" in flags:
        interrupted = replace(interrupted, answer=None)
    if rng.random() < 0.3:
        tune = "tune --sweep n=5..40 --rounds 2 --limit 1 --max-tokens 4".split()
        bench = "bench --limit 1 --methods none,trie --rounds 2 --max-tokens 4".split()
        interrupted = Command(rng.choice([tune, bench]), codes, stops=stops, seconds=60)
    following = place.known_command(rng, max_lines=PASSAGES)
    return Case(description, [interrupted, following])


_TERMS = ("xterm-256color", "dumb", "", "vt100", "linux", "screen", "no-such-terminal", "x\x1b[31m")
_ROWS = (0, 1, 24, 65535)
_COLUMNS = (0, 0, 1, 2, 3, 10, 80, 200, 65535)
_COLUMNS_VARIABLE = ("0", "1", "-5", "x", "", "99999999999999999999", "1.5", "80")
_TABLE_COMMANDS = (
    "presets list",
    "config show",
    "trie list",
    "cache show pools",
    "models list",
    "summarize nowhere.txt",
    "--help",
    "summarize --help",
    f"summarize {HARBOUR} --dry-run",
    "bench --methods trie --limit 1 --rounds 1 --max-tokens 2",
    "tune --sweep n=5,8 --rounds 1 --limit 1 --max-tokens 2",
    "tune --sweep n=5..x",
)


def terminals(rng: Random, place: Place) -> Case:
    """Show an answer or a table on a terminal of an odd size and type."""
    rows = rng.choice(_ROWS)
    columns = rng.choice(_COLUMNS)
    environ = {"TERM": rng.choice(_TERMS)}
    if rng.random() < 0.4:
        environ["COLUMNS"] = rng.choice(_COLUMNS_VARIABLE)
    if rng.random() < 0.2:
        environ["NO_COLOR"] = "1"
    flags = rng.choice([[], ["-v"], ["--json"]])
    description = f"{columns} columns, {environ}"
    share = rng.random()
    if share < 0.5:
        command = place.known_command(
            rng, *flags, terminal=(rows, columns), environ=environ, stdin=b"\x04"
        )
        if "--json" in flags:  # other lines come before and between
            command = replace(command, answer=None)
        return Case(description, [command])
    arguments = rng.choice(_TABLE_COMMANDS).split()
    if share < 0.6:
        (place.work / "odd.txt").write_text(control_soup(rng) + "\nThe harbour was dug in 1871.")
        arguments = ["summarize", "odd.txt", "--max-tokens", "9", *flags]
        arguments += rng.choice([[], ["--dry-run"]])
    codes = [ANSWERED, INPUT, USAGE]
    return case(description, arguments, codes, terminal=(rows, columns), environ=environ)


def streams(rng: Random, place: Place) -> Case:
    """Close standard streams, or make them full or read by nobody."""
    number = rng.choice([0, 1, 2])
    state = rng.choice(["closed", "full", "gone"]) if number else "closed"
    states = {number: state}
    if rng.random() >= 0.85:
        states = dict.fromkeys((0, 1, 2), "closed")
    fields = {"streams": states, "new_process": rng.random() < 0.1, "seconds": 90}
    codes = [1] if states.get(1) == "full" else [ANSWERED]
    if rng.random() < 0.3:
        # An error keeps its exit code even if its message cannot be written.
        return case(str(states), ["summarize", "nowhere.txt"], [INPUT], **fields)
    if rng.random() < 0.3:
        return case(str(states), ["presets", "list"], codes, **fields)
    answer = None if 1 in states else place.answers["summary"]
    return case(str(states), KNOWN_COMMANDS["summary"], codes, answer=answer, **fields)


def starts(rng: Random, place: Place) -> Case:
    """Start new processes: with Ctrl-C meanwhile, or where nothing can be written."""
    return rng.choice([_early, _early, _read_only])(rng, place)


def _early(rng: Random, place: Place) -> Case:
    """Press Ctrl-C while ngt starts, at the earliest when Python itself has started."""
    description, stops = _presses(rng, rng.uniform(0.05, 2.5), 0.5)
    arguments = rng.choice([KNOWN_COMMANDS["summary"], ("--help",), ("presets", "list"), ("env",)])
    codes = [ANSWERED, INTERRUPTED]
    return case(
        f"{description} of a start",
        arguments,
        codes,
        stops=stops,
        new_process=True,
        seconds=90,
    )


def _read_only(rng: Random, place: Place) -> Case:
    """Use a package and a home in which nothing can be created.

    Files stand where folders would have to be, because root ignores permissions.
    """
    package = place.work / "site" / "ngtcli"
    source = Path(ngtcli.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    if (source.parent / "presets").is_dir():
        shutil.copytree(source.parent / "presets", package / "presets", dirs_exist_ok=True)
    for folder in [package, *(p for p in package.rglob("*") if p.is_dir())]:
        (folder / "__pycache__").write_text("")
    nowhere = str(package / "__pycache__" / "home")

    def check(result: Result) -> Iterable[str]:
        # One line each for the trie, the pool, the costs and the compiled functions.
        if len(result.err.splitlines()) > 4:
            yield "more than four lines of what cannot be stored"

    environ = {"PYTHONPATH": str(place.work / "site")}
    if rng.random() < 0.7:
        environ |= {"HOME": nowhere, "NGT_HOME": nowhere}
    method = rng.choice(["auto", "trie"])
    return case(
        f"a package and a home that cannot be written, with {method}",
        [*KNOWN_COMMANDS["summary"], "--method", method],
        [ANSWERED],
        answer=place.answers["summary"],
        new_process=True,
        check=check,
        environ=environ,
        seconds=240,
    )
