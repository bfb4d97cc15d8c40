"""What all cases share (undamaged answers, caches of each kind), and cases that damage
the caches: the answer stays the undamaged one.
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
    ASKED,
    INPUT,
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
    """Run ngt undamaged, in `folder`, for all that cases damage or compare with."""
    place = Place(folder / "work", folder / "home", folder, {})
    place.work.mkdir(parents=True)
    place.home.mkdir()

    def must(*arguments: str) -> str:
        result = run(Command(arguments, [0], seconds=300), place)
        if result.code != 0:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {result.code}\n{result.err}")
        return result.out

    texts = {
        name: json.loads(must(*asked, "--method", "none", "--json"))["text"]
        for name, asked in ASKED.items()
    }
    for method in ("auto", "trie", "prompt-lookup", "lookahead", "recycling"):  # compiles
        must(*ASKED["summary"], "--method", method)
    must("trie", "build", "--rest", str(EXAMPLES))
    must(*TUNE)
    return replace(place, texts=texts)


def new_place(folder: Path, world: Place, caches: bool) -> Place:
    """The folders of one case, those of `caches` with a copy of all caches."""
    place = replace(world, work=folder / "work", home=folder / "home")
    place.work.mkdir()
    if caches:
        shutil.copytree(world.home / "cache", place.home / "cache")
    (place.home / "config" / "presets").mkdir(parents=True)
    for path in (folder, place.home):
        os.chmod(path, 0o777)
    return place


_SHOWN = (
    "trie list",
    "trie list --json",
    "cache clear tries",
    "cache show pools --json",
    "cache clear pools",
)


def caches(rng: Random, place: Place) -> Case:
    """One or two files of the cache damaged: the same answer; a second run says nothing of it."""
    files = sorted(p for p in (place.home / "cache").rglob("*") if p.is_file())
    families = sorted({p.name.split(".", 1)[-1] for p in files})
    made = []
    for _ in range(rng.choice([1, 1, 2])):
        family = rng.choice(families)  # not by files: most of them are compiled functions
        path = rng.choice([p for p in files if p.name.endswith(family)])
        if path.is_file():
            how = replace_by_odd(rng, path, files) if rng.random() < 0.2 else damage(rng, path)
            made.append(f"{path.name[:12]}…{family}: {how}")
    what = "; ".join(made)
    if rng.random() < 0.1:
        return case(what, [*TUNE, "--json"], [ANSWERED, INPUT, USAGE])
    method = rng.choice(["auto", "trie", "rest"])
    if rng.random() < 0.15:
        return case(what, rng.choice(_SHOWN).split(), [ANSWERED])
    codes = [ANSWERED, INPUT, USAGE] if method == "rest" else [ANSWERED]  # it is not built again
    first = place.asked(rng, "--method", method, codes=codes, most_lines=3 + PASSAGES)
    return Case(what, [first, replace(first, most_lines=1 + PASSAGES)])
