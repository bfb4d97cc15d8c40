"""The undamaged answers and caches that all cases share, and the cases that damage caches.

A damaged cache run_undamaged not change an answer.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

from ngtcli.bench.prompts import EXAMPLES
from tests.tools.fuzz.case import (
    ANSWERED,
    INPUT,
    KNOWN_COMMANDS,
    PASSAGES,
    USAGE,
    Case,
    Command,
    Place,
    case,
)
from tests.tools.fuzz.odd import damage, replace_by_odd
from tests.tools.fuzz.run import run

TUNE = "tune --sweep n=5,8 lp=2 --rounds 1 --limit 1 --max-tokens 4".split()


def make_world(folder: Path) -> Place:
    """Run ngt undamaged in `folder` and keep its answers and caches.

    Cases compare with the answers, and damage copies of the caches.
    """
    place = Place(folder / "work", folder / "home", folder, {})
    place.work.mkdir(parents=True)
    place.home.mkdir()

    def run_undamaged(*arguments: str) -> str:
        result = run(Command(arguments, [0], seconds=300), place)
        if result.code != 0:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {result.code}\n{result.err}")
        return result.out

    answers = {}
    for name, arguments in KNOWN_COMMANDS.items():
        stdout = run_undamaged(*arguments, "--method", "none", "--json")
        answers[name] = json.loads(stdout)["text"]
    # These methods compile functions, which are cached as well.
    for method in ("auto", "trie", "prompt-lookup", "lookahead", "recycling"):
        run_undamaged(*KNOWN_COMMANDS["summary"], "--method", method)
    run_undamaged("trie", "build", "--rest", str(EXAMPLES))
    run_undamaged(*TUNE)
    return replace(place, answers=answers)


def new_place(folder: Path, world: Place, with_caches: bool) -> Place:
    """Make the folders of one case, with a copy of all caches if it needs them."""
    place = replace(world, work=folder / "work", home=folder / "home")
    place.work.mkdir()
    if with_caches:
        shutil.copytree(world.home / "cache", place.home / "cache")
    (place.home / "config" / "presets").mkdir(parents=True)
    for path in (folder, place.home):
        os.chmod(path, 0o777)
    return place


_CACHE_COMMANDS = (
    "trie list",
    "trie list --json",
    "cache clear tries",
    "cache show pools --json",
    "cache clear pools",
)


def caches(rng: Random, place: Place) -> Case:
    """Damage one or two files of the cache.

    The answer stays the same, and a second run no longer mentions the damage.
    """
    files = sorted(path for path in (place.home / "cache").rglob("*") if path.is_file())
    suffixes = sorted({path.name.split(".", 1)[-1] for path in files})
    damages = []
    for _ in range(rng.choice([1, 1, 2])):
        # Choose the suffix first: most of the files are compiled functions.
        suffix = rng.choice(suffixes)
        path = rng.choice([path for path in files if path.name.endswith(suffix)])
        if path.is_file():  # it may have been replaced in the first round
            if rng.random() < 0.2:
                change = replace_by_odd(rng, path, files)
            else:
                change = damage(rng, path)
            damages.append(f"{path.name[:12]}…{suffix}: {change}")
    description = "; ".join(damages)

    if rng.random() < 0.1:
        return case(description, [*TUNE, "--json"], [ANSWERED, INPUT, USAGE])
    method = rng.choice(["auto", "trie", "rest"])
    if rng.random() < 0.15:
        return case(description, rng.choice(_CACHE_COMMANDS).split(), [ANSWERED])
    codes = [ANSWERED]
    if method == "rest":  # an answer does not build its datastore again
        codes = [ANSWERED, INPUT, USAGE]
    first = place.known_command(rng, "--method", method, codes=codes, max_lines=3 + PASSAGES)
    second = replace(first, max_lines=1 + PASSAGES)
    return Case(description, [first, second])
