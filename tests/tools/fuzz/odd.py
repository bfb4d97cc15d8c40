"""Odd texts, names and values, and ways to damage bytes: the material of all kinds of cases."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

PROSE = (
    "The harbour at Wrenmouth was dug between 1871 and 1878 by four hundred men with spades. "
    "The slate was shipped to the south, and the boats came back with lime and coal.\n"
)
_SCRIPTS = (
    (0x20, 0x7E),
    (0xA1, 0x17F),
    (0x370, 0x5F4),
    (0x600, 0x6FF),
    (0x900, 0xDFF),
    (0x1100, 0x11FF),
    (0x300, 0x36F),
    (0x2000, 0x206F),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xFE00, 0xFEFF),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF),
    (0xE0000, 0xE007F),
    (0x10FF00, 0x10FFFF),
)
_CONTROLS = (
    "\x1b[31m",
    "\x1b]52;c;aGVsbG8=\x07",
    "\x1b]8;;http://x\x1b\\",
    "\x1b[2J",
    "\x1bP",
    "\x9b31m",
    "\x07",
    "\x08",
    "\r",
    "\x0b",
    "\x0c",
    "\x7f",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\u200f",
    "\U000e0041",
    "\x1b[6n",
    "\x18",
    "\x9d0;t\x9c",
)
_WORDS = (
    "",
    " ",
    "-",
    "--",
    ".",
    "..",
    "/",
    "~",
    "~nouser/x",
    "*",
    "[",
    "**/*",
    "\\",
    "'",
    '"',
    "$HOME",
    "%s",
    "{question}",
    "[red]x[/red]",
    ":",
    "=",
)
_PATHS = (
    "../../etc/passwd",
    "/etc/passwd",
    "/dev/null",
    "C:\\x",
    "a/b/c",
    "builtin/",
    "Builtin",
    "model.gguf",
    "https://x.y/z",
    "no/such-model",
)
# Values of all types that JSON and YAML have.
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    " ",
    "x",
    "1",
    "1e5",
    "true",
    "null",
    "\x1b[31m",
    "\udcff",
    "9" * 500,
    [],
    [[]],
    ["x"],
    [1, "x", None],
    {},
    {"x": 1},
    {"": {}},
    "2026-13-45",
    "☃" * 40,
)


def any_text(rng: Random, length: int) -> str:
    """Return `length` random characters, in short runs of one script each."""
    characters: list[str] = []
    while len(characters) < length:
        low, high = rng.choice(_SCRIPTS)
        characters += [chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12))]
    return "".join(characters[:length])


def control_soup(rng: Random) -> str:
    """Mix control characters, escape sequences and invisible characters with words."""
    return "".join(rng.choices([*_CONTROLS, "word", " ", "1871"], k=rng.randint(1, 80)))


def odd_word(rng: Random) -> str:
    """Return a word for the command line. It has no null character, which none can have."""
    make: Callable[[], str] = rng.choice(
        [
            lambda: rng.choice(_WORDS),
            lambda: any_text(rng, rng.randint(1, 30)),
            lambda: control_soup(rng)[:60],
            lambda: os.fsdecode(bytes(rng.choices(range(128, 256), k=rng.randint(1, 9)))),
            lambda: "x" * int(2 ** rng.uniform(4, 16)),
            lambda: rng.choice(_PATHS),
            lambda: str(odd_value(rng)),
        ]
    )
    return make().replace("\0", "")


def odd_file_name(rng: Random) -> str:
    """Return a name that a file can have, of at most 255 bytes."""
    name = os.fsencode(odd_word(rng).replace("/", "\u2215"))[:240]
    return os.fsdecode(name) if name.strip(b".") else "-"


def odd_value(rng: Random) -> Any:
    """Return a value of any type that JSON or YAML has."""
    return rng.choice(_VALUES)


def nested(depth: int) -> str:
    """Return lists nested to `depth`, as JSON that is also YAML."""
    return "[" * depth + "]" * depth


def mutated(rng: Random, value: Any) -> Any:
    """Return `value` with one of its parts replaced, removed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        share = rng.random()
        if share < 0.5:
            return {**value, key: mutated(rng, value[key])}
        if share < 0.7:
            return {name: part for name, part in value.items() if name != key}
        if share >= 0.85:
            key = str(odd_value(rng))
        return {**value, key: odd_value(rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        item = mutated(rng, value[index])
        next_index = index + rng.randint(0, 1)  # the old item stays in half of the cases
        return [*value[:index], item, *value[next_index:]]
    return odd_value(rng)


def odd_json(rng: Random, value: Any) -> bytes:
    """Return `value` as JSON, mutated before or damaged after; it may escape lone surrogates."""
    if rng.random() < 0.7:
        return json.dumps(mutated(rng, value)).encode()
    if rng.random() < 0.2:
        return nested(rng.choice([10, 1000, 200_000])).encode()
    return damaged(rng, json.dumps(value).encode())[1]


def damaged(rng: Random, data: bytes) -> tuple[str, bytes]:
    """Return a description of the damage and the damaged bytes.

    Bits are flipped, or the data is cut, zeroed in part, replaced, lengthened or emptied.
    """
    size = max(1, len(data))
    # The head of a file holds lengths and types: damage there has the most effects.
    offset = rng.randrange(min(size, 600)) if rng.random() < 0.5 else rng.randrange(size)
    length = rng.randint(1, 4000)
    flipped = bytearray(data or b"\0")
    for _ in range(rng.choice([1, 1, 3, 40])):
        index = min(offset + rng.randint(0, 99), len(flipped) - 1)
        flipped[index] ^= 1 << rng.randrange(8)
    variants = {
        "flipped": flipped,
        "cut": data[:offset],
        "empty": b"",
        "doubled": data + data,
        "zeroed": data[:offset] + bytes(length) + data[offset + length :],
        "garbage": rng.randbytes(length),
        "longer": data + rng.randbytes(length),
    }
    kind = rng.choice([*variants, "flipped"])
    return f"{kind} at {offset}", bytes(variants[kind])


def damage(rng: Random, path: Path) -> str:
    """Damage the bytes of a file; return a description."""
    description, data = damaged(rng, path.read_bytes())
    path.write_bytes(data)
    return description


def make_odd(rng: Random, path: Path, kinds: Iterable[str]) -> str:
    """Create something that is no regular file at `path`; return its kind.

    A kind is "folder", "pipe", "itself" (a link to itself) or the target of a link.
    """
    kind = rng.choice(list(kinds))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "itself" else kind)
    return kind


def replace_by_odd(rng: Random, path: Path, others: Sequence[Path]) -> str:
    """Replace a file by something else, or by the bytes of another; return a description."""
    # An earlier replacement may be a link to an endless device, which is_file() excludes.
    sources = [other for other in others if other.is_file() and other.stat().st_size]
    data = rng.choice(sources).read_bytes()
    path.unlink()
    if rng.random() < 1 / 7:
        path.write_bytes(data)
        return "another file in its place"
    kinds = ("folder", "pipe", "/nowhere/x", "/dev/zero", "/dev/full", "itself")
    return f"{make_odd(rng, path, kinds)} in its place"
