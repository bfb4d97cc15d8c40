"""Damaged caches of all kinds: the answer stays the undamaged one."""

from dataclasses import replace
from pathlib import Path
from random import Random

from tests.tools.fuzz.case import (
    ANSWERED,
    INPUT,
    PASSAGES,
    USAGE,
    Case,
    Command,
    Place,
    case,
    command,
)
from tests.tools.fuzz.odd import damaged, nested, odd_json, replace_by_odd
from tests.tools.fuzz.world import ASKED

_CURVE = {"1": 0.001, "64": 0.004}
_COSTS = {"found": {"1024": {"seconds": _CURVE, "measured": _CURVE}}, "tries": 0}
_BAD_COSTS = (
    nested(200_000), "[]", "null", '{"found": null, "tries": 0}', '{"found": {}, "tries": NaN}',
    *(f'{{"found": {curves}, "tries": 0}}' for curves in (
        '{"1024": {"seconds": {"1": 1' + "0" * 400 + '}, "measured": {}}}',
        '{"1024": {"seconds": {"1": true}, "measured": {"1": "0.5"}}}',
        '{"-1": {"seconds": {"0": 0}, "measured": {"0": -1}}}', '{"1024": {"seconds": {}}}',
        '{"1024": {"seconds": {"1": Infinity, "2": 0}, "measured": {"1": 1e308}}}',
    )),
)  # fmt: skip


def asked(rng: Random, place: Place, *more: str, **fields: object) -> Command:
    """One of the questions whose undamaged answer is known; it must give that answer."""
    name = rng.choice(list(ASKED))
    fields = {"codes": [ANSWERED], "text": place.world.texts[name], **fields}
    return command([*ASKED[name], *more], **fields)  # type: ignore[arg-type]


def caches(rng: Random, place: Place) -> Case:
    """One or two files of the cache damaged: the same answer; a second run says nothing of it."""
    files = sorted(p for p in (place.home / "cache").rglob("*") if p.is_file())
    families = sorted({p.name.split(".", 1)[-1] for p in files})
    made = []
    for _ in range(rng.choice([1, 1, 2])):
        family = rng.choice(families)  # not by files: most of them are compiled functions
        path = rng.choice([p for p in files if p.name.endswith(family)])
        if path.is_file():
            made.append(f"{path.name[:12]}…{family}: {damage(rng, path, files)}")
    what = "; ".join(made)
    if any("tune" in str(p.parent) for p in files) and rng.random() < 0.15:
        tune = ["tune", "--replay", str(place.world.recording), "--sweep=n=5,8", "lp=2",
                "--rounds", "1", "--json"]  # fmt: skip
        return case(what, tune, [ANSWERED, INPUT, USAGE])
    method = "auto" if "json:" in what else rng.choice(["auto", "trie", "rest"])
    if rng.random() < 0.15:
        show = rng.choice([
            ["trie", "list"], ["trie", "list", "--json"], ["trie", "clear"],
            ["trie", "pool", "show"], ["trie", "pool", "show", "--json"], ["trie", "pool", "clear"],
        ])  # fmt: skip
        return case(what, show, [ANSWERED])
    codes = [ANSWERED, INPUT, USAGE] if method == "rest" else [ANSWERED]  # it is not built again
    first = asked(rng, place, "--method", method, codes=frozenset(codes), most_lines=3 + PASSAGES)
    return Case(what, (first, replace(first, most_lines=1 + PASSAGES)))


def damage(rng: Random, path: Path, files: list[Path]) -> str:
    if "costs" in str(path.parent) and rng.random() < 0.8:
        data = rng.choice(_BAD_COSTS).encode() if rng.random() < 0.8 else odd_json(rng, _COSTS)
        path.write_bytes(data)
        return f"{data[:30]!r}"
    if rng.random() < 0.2:
        return replace_by_odd(rng, path, files)
    how, data = damaged(rng, path.read_bytes())
    path.write_bytes(data)
    return how
