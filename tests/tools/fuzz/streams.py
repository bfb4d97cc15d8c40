"""Runs that are killed or interrupted, odd terminals, missing and full streams, odd starts."""

import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import ngtcli
from ngtcli.measure.prompts import EXAMPLES
from tests.tools.fuzz.case import (
    ANSWERED,
    INPUT,
    INTERRUPTED,
    PASSAGES,
    USAGE,
    Case,
    Place,
    Result,
    Stop,
    Streams,
    case,
    command,
)
from tests.tools.fuzz.odd import control_soup
from tests.tools.fuzz.run import run
from tests.tools.fuzz.world import ASKED, HARBOUR, asked, damage


def kills(rng: Random, place: Place) -> Case:
    """A run is killed, often while a file is half written; the next one knows nothing of it."""
    method = rng.choice(["auto", "trie"])
    partial = rng.random() < 0.6
    stop = Stop(signal.SIGKILL, 0.02 if partial else rng.uniform(0.02, 0.5), partial)
    if rng.random() < 0.5:
        shutil.rmtree(place.home / "cache" / "tries")  # tries and pools are made, and written
    killed = asked(rng, place, "--method", method, stops=(stop,),
                    codes=frozenset({ANSWERED, -signal.SIGKILL}))  # fmt: skip
    if rng.random() < 0.3:
        killed = command(["trie", "build", "--rest", str(EXAMPLES)], [ANSWERED, -signal.SIGKILL],
                         stops=(stop,))  # fmt: skip
    after = asked(rng, place, "--method", method, most_lines=PASSAGES)
    return Case(f"killed after {stop.after:.2f} s{', writing' * stop.partial}", (killed, after))


def interrupts(rng: Random, place: Place) -> Case:
    """Ctrl-C once or twice in a run of any command, and the run after it."""
    first = rng.uniform(0.02, 0.9)
    times = [first, first + rng.uniform(0.001, 0.3)][: rng.choice([1, 1, 2])]
    stops = tuple(Stop(signal.SIGINT, t) for t in times)
    codes = frozenset({ANSWERED, INTERRUPTED})
    flags = rng.choice([[], ["--json"], ["--method", "trie"], ["-v"], ["--dry-run"]])
    stopped = asked(rng, place, *flags, stops=stops, codes=codes)
    if "--dry-run" in flags:
        stopped = replace(stopped, text=None)
    if rng.random() < 0.3:
        tune = ["tune", "--replay", str(place.world.recording), "--sweep=n=5..40", "--rounds", "2"]
        bench = "bench --limit 1 --methods none,trie --rounds 2 --max-tokens 4".split()
        stopped = command(rng.choice([tune, bench]), codes, stops=stops, seconds=60)
    after = asked(rng, place, most_lines=PASSAGES)
    return Case(f"Ctrl-C after {', '.join(f'{t:.2f} s' for t in times)}", (stopped, after))


_TERMS = ("xterm-256color", "dumb", "", "vt100", "linux", "screen", "no-such-terminal", "x\x1b[31m")


def terminals(rng: Random, place: Place) -> Case:
    """An answer or a table on a terminal of an odd size and kind."""
    rows, columns = rng.choice([0, 1, 24, 65535]), rng.choice([0, 0, 1, 2, 3, 10, 80, 200, 65535])
    environ = {"TERM": rng.choice(_TERMS)}
    if rng.random() < 0.4:
        environ["COLUMNS"] = rng.choice(
            ["0", "1", "-5", "x", "", "99999999999999999999", "1.5", "80"]
        )
    if rng.random() < 0.2:
        environ |= {"NO_COLOR": "1"}
    streams = Streams(terminal=(rows, columns))
    flags = rng.choice([[], ["-v"], ["--explain"], ["--json"]])
    what = f"{columns} columns, {environ}"
    way = rng.random()
    if way < 0.5:
        shown = asked(rng, place, *flags, streams=streams, environ=environ, stdin=b"\x04")
        if {"--explain", "--json"} & set(flags):  # other lines stand between or before
            shown = replace(shown, text=None)
        return Case(what, (shown,))
    if way < 0.6:
        (place.work / "odd.txt").write_text(control_soup(rng) + "\nThe harbour was dug in 1871.")
        arguments = ["summarize", "odd.txt", "--max-tokens", "9", *flags]
        arguments += rng.choice([[], ["--dry-run"]])
        return case(what, arguments, [ANSWERED, INPUT, USAGE], streams=streams, environ=environ)
    replayed = ["--replay", str(place.world.recording)]
    tables = [
        ["presets", "list"], ["config", "show"], ["trie", "list"], ["trie", "pool", "show"],
        ["models", "list"], ["summarize", "nowhere.txt"], ["--help"], ["summarize", "--help"],
        ["summarize", HARBOUR, "--dry-run"], ["bench", *replayed, "--methods", "trie"],
        ["tune", *replayed, "--sweep=n=5,8", "--rounds", "1"], ["tune", "--sweep", "n=5..x"],
    ]  # fmt: skip
    return case(
        what, rng.choice(tables), [ANSWERED, INPUT, USAGE], streams=streams, environ=environ
    )


def streams(rng: Random, place: Place) -> Case:
    """Standard streams closed, full, or read by nobody."""
    number = rng.choice([0, 1, 2])
    way = rng.choice(["closed", "full", "gone"]) if number else "closed"
    made = replace(Streams(), **{way: frozenset({number})})  # type: ignore[arg-type]
    if rng.random() < 0.15:
        made, way = Streams(closed=frozenset({0, 1, 2})), "all closed"
    what, real = f"stream {number} {way}", rng.random() < 0.1
    failing = number == 1 and way == "full"
    if rng.random() < 0.3:
        # The code of the error stays, wherever its words can go.
        return case(
            what, ["summarize", "nowhere.txt"], [INPUT], streams=made, real=real, seconds=90
        )
    if rng.random() < 0.3:
        codes = [1] if failing else [ANSWERED]
        return case(what, ["presets", "list"], codes, streams=made, real=real, seconds=90)
    text = None if number == 1 or way == "all closed" else place.world.texts["summary"]
    return case(what, ASKED["summary"], [1] if failing else [ANSWERED], streams=made, text=text,
                real=real, seconds=90)  # fmt: skip


def starts(rng: Random, place: Place) -> Case:
    """New processes: Ctrl-C while they start, no place to write, a damaged compile cache."""
    return rng.choice([_early, _early, _compiled, _compiled, _read_only])(rng, place)


def _early(rng: Random, place: Place) -> Case:
    """Ctrl-C from a hundredth of a second on; Python itself starts in that time."""
    first = rng.uniform(0.05, 2.5)
    times = [first, first + rng.uniform(0.01, 0.5)][: rng.choice([1, 2])]
    stops = tuple(Stop(signal.SIGINT, t) for t in times)
    arguments = rng.choice([ASKED["summary"], ("--help",), ("presets", "list"), ("env",)])
    return case(f"Ctrl-C {', '.join(f'{t:.2f}' for t in times)} s after the start", arguments,
                [ANSWERED, INTERRUPTED], stops=stops, real=True, seconds=90)  # fmt: skip


def _compiled(rng: Random, place: Place) -> Case:
    """Damaged files of compiled functions: compiled again, the same answer."""
    shutil.copytree(_compile(place), place.home / "cache", dirs_exist_ok=True)
    files = sorted((place.home / "cache").rglob("*.nb[ic]"))
    chosen = rng.sample(files, k=min(len(files), rng.choice([1, 20])))
    made = [damage(rng, path, files) for path in chosen]
    answer = command(ASKED["summary"], [ANSWERED], text=place.world.texts["summary"], real=True,
                     seconds=240)  # fmt: skip
    return Case(f"compiled functions: {'; '.join(made[:3])}", (answer,))


def _compile(place: Place) -> Path:
    """The cache folder of an undamaged new process, made once for all cases."""
    kept = place.world.folder / "compiled"
    if not kept.is_dir():
        own = place.world.folder / f"compiled.{os.getpid()}"
        environ = {"NGT_HOME": str(own)}
        run(command(ASKED["summary"], [0], real=True, environ=environ, seconds=300), place)
        with suppress(OSError):  # another worker was first
            own.rename(kept)
    return kept / "cache"


def _read_only(rng: Random, place: Place) -> Case:
    """A package and a home in which nothing can be made, not even by root: files are in the way."""
    package = place.work / "site" / "ngtcli"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(ngtcli.__file__).parent, package, ignore=ignored)
    presets = Path(ngtcli.__file__).parents[1] / "presets"
    if presets.is_dir():
        shutil.copytree(presets, package / "presets", dirs_exist_ok=True)
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
    answer = command(
        (*ASKED["summary"], "--method", method), [ANSWERED], text=place.world.texts["summary"],
        real=True, check=check, environ=environ, seconds=240,
    )  # fmt: skip
    return Case(f"a package and a home that cannot be written, with {method}", (answer,))
