"""Hostile settings: flags, variables, files, presets, sweeps and methods."""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.drafting.registry import method_names
from tests.tools.fuzz.case import (
    ANSWERED,
    HARBOUR,
    INPUT,
    KNOWN_COMMANDS,
    MODEL,
    USAGE,
    Case,
    Place,
    Result,
    case,
)
from tests.tools.fuzz.odd import damaged, make_odd, nested, odd_value, odd_word

_NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "3.5",
    "1e-9",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "１２",
    "9" * 20,
    "9" * 5000,
    "",
    " ",
    "1 ",
    "+5",
    "true",
    "None",
    "[1]",
    "é",
    "1,5",
    ".5",
    "1e5",
)
_WORDS = (
    "auto",
    "none",
    "trie",
    "cpu",
    "cuda",
    "mps",
    "float32",
    "bfloat16",
    "error",
    "truncate",
    "always",
    "never",
    "tri",
    "AUTO",
    "yes",
    "off",
    "x",
    "true",
    "0",
)
_SHOW = ["config", "show", "--json"]
_ANSWER = ["summarize", HARBOUR, "--max-tokens", "2", "--json"]
_PRESET = {"description": "x", "template": "{documents}\n\nSummarize it.", "num_draft": 16}
_VALID_SETTINGS = {
    name: value
    for name, value in Settings().values().items()
    if name not in ("model", "draft_model")
}
_YAML = (
    "seed: 2026-13-45",
    "seed: 2026-01-02",
    "n: " + "9" * 6000,
    "stop: " + nested(500),
    "stop: &a [*a]",
    "a: &a [x]\nstop: *a",
    "? [1]\n: x",
    "n: !!python/object/apply:os.abort []",
    "<<: {n: 5}",
    "n: 5\nn: 6",
    "\tn: 5",
    "n: 5\n---\nn: 6",
    "n",
    "- n",
    "n: 0o17",
    "n: 1e1",
    "stop: {",
    "%YAML 9.9\n---\nn: 5",
    "n: !!int x",
    "\ufeffn: 5",
    "1: 2",
    "null: 1",
    "&a : *a",
    "stop: 2026-01-02",
    "temperature: .nan",
    "temperature: .inf",
    "top_p: -.inf",
    "n: 5\x00",
    "stop: !!binary aGVs",
    "stop: !!set {a}",
    "!!omap [a: 1]",
    "stop: [" + "x, " * 50_000 + "]",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nstop: [*e,*e,*e,*e,*e,*e]",
)


def settings(rng: Random, place: Place) -> Case:
    """Put something odd into one source of settings."""
    build = rng.choice([_flag, _variable, _variable, _file, _file, _preset, _presets, _unknown])
    return build(rng, place)


def _value(rng: Random, name: str) -> tuple[str, set[int]]:
    """Return a value for the setting `name`, valid or not, and the exit codes that are right."""
    is_number = type(Settings().get(name)) in (int, float)
    values = _NUMBERS if is_number else _WORDS
    value = rng.choice([*values, odd_word(rng), odd_word(rng)])
    codes = {ANSWERED, USAGE}
    if name in ("model", "draft_model", "device"):  # a valid name, of something that is not there
        codes.add(MODEL)
    return value, codes


def _flag(rng: Random, place: Place) -> Case:
    default = Settings()
    name = rng.choice([name for name in SETTINGS if not isinstance(default.get(name), bool)])
    value, codes = _value(rng, name)
    flag = SETTINGS[name].flag.replace(" ", "=") + f"={value}"
    return case(f"the flag {flag[:50]!r}", [*rng.choice([_SHOW, _ANSWER]), flag], codes)


def _variable(rng: Random, place: Place) -> Case:
    name = rng.choice(list(SETTINGS))
    value, codes = _value(rng, name)
    value = rng.choice([value, rng.choice(_YAML), ""]).replace("\0", "")[:90_000]
    variable = f"NGT_{name.upper()}"
    arguments = rng.choice([_SHOW, _SHOW, _ANSWER])
    if not value:  # an empty variable counts as unset
        codes = {ANSWERED}
    return case(f"{variable}={value[:40]!r}", arguments, codes, environ={variable: value})


def _unknown(rng: Random, place: Place) -> Case:
    """Set a variable that is no setting: a warning must name it."""
    variable = rng.choice(["NGT_NUM_DRAFTS", "NGT_TEMPRATURE", "NGT_METHODS", "NGT_X"])

    def check(result: Result) -> Iterable[str]:
        if variable not in result.err:
            yield f"{variable} is ignored without a warning"

    return case(
        f"the unknown {variable}", _SHOW, [ANSWERED, USAGE], environ={variable: "16"}, check=check
    )


def _odd_file(rng: Random, path: Path, valid: dict[str, Any], special_share: float) -> str:
    """Create a settings file that is invalid or odd; return a description.

    Args:
        rng: The random numbers of the case.
        path: Where to create it.
        valid: Valid content, to be spoiled.
        special_share: How often it is a folder, a pipe, a device, not UTF-8 or very large.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if rng.random() < special_share:
        if rng.random() < 2 / 3:
            return make_odd(rng, path, ["folder", "pipe", "/dev/zero", "/nowhere"])
        data = rng.choice(["stop: größer\n".encode("latin-1"), b"# filler\n" * 600_000])
        path.write_bytes(data)
        return f"{len(data)} odd bytes"

    share = rng.random()
    if share < 0.4:
        description = "odd YAML"
        data = rng.choice(_YAML).encode()
    elif share < 0.7:
        name = rng.choice([*valid, rng.choice(list(SETTINGS))])
        description = f"{name} of another type"
        data = json.dumps({**valid, name: odd_value(rng)}, default=str).encode()
    elif share < 0.75:
        description = "nesting"
        data = f"n: {nested(rng.choice([100, 5000, 100_000]))}".encode()
    else:
        description, data = damaged(rng, json.dumps(valid, indent=1).encode())
    path.write_bytes(data)
    return f"{description}, {data[:30]!r}"


def _file(rng: Random, place: Place) -> Case:
    """Make ngt.yaml or config.yaml odd."""
    path = rng.choice([place.work / "ngt.yaml", place.home / "config" / "config.yaml"])
    description = _odd_file(rng, path, _VALID_SETTINGS, 0.15)
    arguments = rng.choice([_SHOW, _SHOW, _ANSWER])
    return case(f"{path.name}: {description}", arguments, [ANSWERED, USAGE, INPUT])


def _preset(rng: Random, place: Place) -> Case:
    """Use or show a user's preset that is odd."""
    description = _odd_file(rng, place.home / "config" / "presets" / "mine.yaml", _PRESET, 0)
    arguments = rng.choice(
        [
            [*_SHOW, "-p", "mine"],
            [*_ANSWER, "-p", "mine"],
            ["presets", "show", "mine"],
            ["presets", "show", "mine", "--json"],
        ]
    )
    return case(f"preset: {description}", arguments, [ANSWERED, USAGE, INPUT])


def _presets(rng: Random, place: Place) -> Case:
    """List presets of which one is odd: the good ones must be listed."""
    description = _odd_file(rng, place.home / "config" / "presets" / "mine.yaml", _PRESET, 0.3)

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED and "chat" not in result.out:
            yield "the good presets are not listed"

    arguments = ["presets", "list", *rng.choice([[], ["--json"]])]
    return case(f"presets list: {description}", arguments, [ANSWERED], check=check)


_AXES = ("n", "lp", "num_draft", "method", "learn_output", "temperature", "stop", "x", "", "N")
_PARTS = (
    "5",
    "8",
    "5..8",
    "2..1",
    "1..9+3",
    "2..64*2",
    "..",
    "5..",
    "..5",
    "*",
    "+",
    "1e3",
    "-1",
    "0.5",
    "trie",
    "auto",
    "none",
    "trie:n=5",
    "true",
    "9" * 400,
    "1..1001",
    "é",
    " ",
    "٣",
    "0..0",
    "5..5",
    "2..9*1",
    "2..9+0",
    "1..9*0.5",
    "trtllm:max_draft_len=8",
)
# Methods and their options, as the README names them.
_OPTIONS = {
    "auto": "trust",
    "prompt-lookup": "max_matching_ngram_size num_output_tokens",
    "llma": "trigger_n block_k max_n",
    "trie": "n lp learn_output num_draft",
    "akunu": "max_order draft_count max_history",
    "recycling": "output_id_topk",
    "trtllm": "max_draft_len max_matching_ngram_size is_keep_all is_use_oldest",
    "rest": "datastore max_token_span k long choices cut",
    "lookahead": "level window_size guess_set_size pool_from_prompt",
    "space": "nodes masked",
}
_OPTION_VALUES = (
    "0",
    "1",
    "3",
    "-1",
    "1000000",
    "9" * 30,
    "nan",
    "inf",
    "true",
    "",
    "../../x",
    "1e9",
)


def sweeps(rng: Random, place: Place) -> Case:
    """Use an odd sweep, or an odd method with options."""
    return rng.choice([_sweep, _method])(rng, place)


def _sweep(rng: Random, place: Place) -> Case:
    axes = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        values = ",".join(rng.choices([*_PARTS, odd_word(rng)], k=rng.choice([1, 1, 2, 4])))
        axes.append(f"{rng.choice(_AXES)}={values}")
    if rng.random() < 0.1:
        axes = [odd_word(rng)]
    sweeps = [f"--sweep={axis}" for axis in axes]
    limits = "--rounds 1 --limit 1 --max-tokens 2 --json".split()
    return case(
        f"the sweep {' '.join(axes)[:60]!r}",
        ["tune", *sweeps, *limits],
        [ANSWERED, USAGE],
        seconds=300,  # a sweep may have a thousand cells
    )


def _method(rng: Random, place: Place) -> Case:
    """Use a method with options; if it is accepted, the answer must be that of plain decoding."""
    name = rng.choice([*_OPTIONS, *_OPTIONS, odd_word(rng), *method_names()])
    keys = [*_OPTIONS.get(name, "n").split(), "x"]
    method = name
    for _ in range(rng.randint(0, 3)):
        method += f":{rng.choice(keys)}={rng.choice([*_OPTION_VALUES, odd_word(rng)])}"
    # rest needs a datastore, suffix a library and draft-model a second model: exit code 3.
    return case(
        f"the method {method[:60]!r}",
        [*KNOWN_COMMANDS["summary"], f"--method={method}", "--json"],
        [ANSWERED, USAGE, INPUT],
        answer=place.answers["summary"],
    )
