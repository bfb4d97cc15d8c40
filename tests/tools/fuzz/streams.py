"""Runs that are killed or interrupted, odd terminals, missing and full streams, odd starts."""

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
    ASKED,
    HARBOUR,
    INPUT,
    INTERRUPTED,
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
    """A run is killed, often while a file is half written; the next one knows nothing of it."""
    method = rng.choice(["auto", "trie"])
    partial = rng.random() < 0.6
    stop = Stop(signal.SIGKILL, 0.02 if partial else rng.uniform(0.02, 0.5), partial)
    if rng.random() < 0.5:
        shutil.rmtree(place.home / "cache" / "tries")  # tries and pools are made, and written
    codes = [ANSWERED, -signal.SIGKILL]
    killed = place.asked(rng, "--method", method, stops=[stop], codes=codes)
    if rng.random() < 0.3:
        killed = Command(["trie", "build", "--rest", str(EXAMPLES)], codes, stops=[stop])
    after = place.asked(rng, "--method", method, most_lines=PASSAGES)
    return Case(f"killed after {stop.after:.2f} s{', writing' * partial}", [killed, after])


def _presses(rng: Random, first: float, pause: float) -> tuple[str, list[Stop]]:
    """Ctrl-C once or twice."""
    times = [first, first + rng.uniform(0.001, pause)][: rng.choice([1, 1, 2])]
    what = f"Ctrl-C after {', '.join(f'{t:.2f} s' for t in times)}"
    return what, [Stop(signal.SIGINT, t) for t in times]


def interrupts(rng: Random, place: Place) -> Case:
    """Ctrl-C once or twice in a run of any command, and the run after it."""
    what, stops = _presses(rng, rng.uniform(0.02, 0.9), 0.3)
    codes = [ANSWERED, INTERRUPTED]
    flags = rng.choice([[], ["--json"], ["--method", "trie"], ["-v"], ["--dry-run"]])
    stopped = place.asked(rng, *flags, stops=stops, codes=codes)
    if "--dry-run" in flags:
        stopped = replace(stopped, text=None)
    if rng.random() < 0.3:
        tune = "tune --sweep n=5..40 --rounds 2 --limit 1 --max-tokens 4".split()
        bench = "bench --limit 1 --methods none,trie --rounds 2 --max-tokens 4".split()
        stopped = Command(rng.choice([tune, bench]), codes, stops=stops, seconds=60)
    return Case(what, [stopped, place.asked(rng, most_lines=PASSAGES)])


_TERMS = ("xterm-256color", "dumb", "", "vt100", "linux", "screen", "no-such-terminal", "x\x1b[31m")
_COLUMNS = ("0", "1", "-5", "x", "", "99999999999999999999", "1.5", "80")
_TABLES = (
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
    """An answer or a table on a terminal of an odd size and kind."""
    size = rng.choice([0, 1, 24, 65535]), rng.choice([0, 0, 1, 2, 3, 10, 80, 200, 65535])
    environ = {"TERM": rng.choice(_TERMS)}
    if rng.random() < 0.4:
        environ["COLUMNS"] = rng.choice(_COLUMNS)
    if rng.random() < 0.2:
        environ["NO_COLOR"] = "1"
    flags = rng.choice([[], ["-v"], ["--json"]])
    what = f"{size[1]} columns, {environ}"
    way = rng.random()
    if way < 0.5:
        shown = place.asked(rng, *flags, terminal=size, environ=environ, stdin=b"\x04")
        if "--json" in flags:  # other lines are between or before
            shown = replace(shown, text=None)
        return Case(what, [shown])
    arguments = rng.choice(_TABLES).split()
    if way < 0.6:
        (place.work / "odd.txt").write_text(control_soup(rng) + "\nThe harbour was dug in 1871.")
        arguments = ["summarize", "odd.txt", "--max-tokens", "9", *flags]
        arguments += rng.choice([[], ["--dry-run"]])
    return case(what, arguments, [ANSWERED, INPUT, USAGE], terminal=size, environ=environ)


def streams(rng: Random, place: Place) -> Case:
    """Standard streams closed, full, or read by nobody."""
    number = rng.choice([0, 1, 2])
    way = rng.choice(["closed", "full", "gone"]) if number else "closed"
    made = {number: way} if rng.random() < 0.85 else dict.fromkeys((0, 1, 2), "closed")
    more = {"streams": made, "real": rng.random() < 0.1, "seconds": 90}
    codes = [1] if made.get(1) == "full" else [ANSWERED]
    if rng.random() < 0.3:
        # The code of the error stays, wherever its words can go.
        return case(str(made), ["summarize", "nowhere.txt"], [INPUT], **more)
    if rng.random() < 0.3:
        return case(str(made), ["presets", "list"], codes, **more)
    text = None if 1 in made else place.texts["summary"]
    return case(str(made), ASKED["summary"], codes, text=text, **more)


def starts(rng: Random, place: Place) -> Case:
    """New processes: Ctrl-C while they start, no place to write."""
    return rng.choice([_early, _early, _read_only])(rng, place)


def _early(rng: Random, place: Place) -> Case:
    """Ctrl-C from a twentieth of a second on; Python itself starts in that time."""
    what, stops = _presses(rng, rng.uniform(0.05, 2.5), 0.5)
    arguments = rng.choice([ASKED["summary"], ("--help",), ("presets", "list"), ("env",)])
    codes = [ANSWERED, INTERRUPTED]
    return case(f"{what} of a start", arguments, codes, stops=stops, real=True, seconds=90)


def _read_only(rng: Random, place: Place) -> Case:
    """A package and a home in which nothing can be made, not even by root: files are in the way."""
    package = place.work / "site" / "ngtcli"
    source = Path(ngtcli.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    if (source.parent / "presets").is_dir():
        shutil.copytree(source.parent / "presets", package / "presets", dirs_exist_ok=True)
    for folder in [package, *(p for p in package.rglob("*") if p.is_dir())]:
        (folder / "__pycache__").write_text("")
    nowhere = str(package / "__pycache__" / "home")

    def check(result: Result) -> Iterable[str]:
        if len(result.err.splitlines()) > 4:  # trie, pool, costs and compiled functions
            yield "more than four lines of what cannot be stored"

    environ = {"PYTHONPATH": str(place.work / "site")}
    if rng.random() < 0.7:
        environ |= {"HOME": nowhere, "NGT_HOME": nowhere}
    method = rng.choice(["auto", "trie"])  # whose functions are all compiled, and some
    return case(
        f"a package and a home that cannot be written, with {method}",
        [*ASKED["summary"], "--method", method],
        [ANSWERED],
        text=place.texts["summary"],
        real=True,
        check=check,
        environ=environ,
        seconds=240,
    )
