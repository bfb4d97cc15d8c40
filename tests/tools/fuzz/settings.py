"""Hostile settings: flags, variables, files, presets, sweeps, methods, flags that contradict."""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.drafting.registry import method_names
from tests.tools.fuzz.case import (
    ANSWERED,
    ASKED,
    HARBOUR,
    INPUT,
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
_GOOD = {k: v for k, v in Settings().values().items() if k not in ("model", "draft_model")}
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
    """One layer of settings with something odd in it."""
    make = rng.choice([_flag, _variable, _variable, _file, _file, _preset, _presets, _unknown])
    return make(rng, place)


def _value(rng: Random, name: str) -> tuple[str, set[int]]:
    """A value of setting `name`, which may be right, or refused; a model may not be there."""
    is_number = type(Settings().get(name)) in (int, float)
    value = rng.choice([*(_NUMBERS if is_number else _WORDS), odd_word(rng), odd_word(rng)])
    may_lack = name in ("model", "draft_model", "device")
    return value, {ANSWERED, USAGE, *([MODEL] if may_lack else [])}


def _flag(rng: Random, place: Place) -> Case:
    name = rng.choice([n for n in SETTINGS if not isinstance(Settings().get(n), bool)])
    value, codes = _value(rng, name)
    flag = SETTINGS[name].flag.replace(" ", "=") + f"={value}"
    return case(f"the flag {flag[:50]!r}", [*rng.choice([_SHOW, _ANSWER]), flag], codes)


def _variable(rng: Random, place: Place) -> Case:
    name = rng.choice(list(SETTINGS))
    value, codes = _value(rng, name)
    value = rng.choice([value, rng.choice(_YAML), ""]).replace("\0", "")[:90_000]
    variable, head = f"NGT_{name.upper()}", rng.choice([_SHOW, _SHOW, _ANSWER])
    codes = codes if value else {ANSWERED}  # an empty variable is an unset one
    return case(f"{variable}={value[:40]!r}", head, codes, environ={variable: value})


def _unknown(rng: Random, place: Place) -> Case:
    """A variable that is no setting: a warning names it."""
    variable = rng.choice(["NGT_NUM_DRAFTS", "NGT_TEMPRATURE", "NGT_METHODS", "NGT_X"])

    def check(result: Result) -> Iterable[str]:
        if variable not in result.err:
            yield f"{variable} is ignored without a word"

    return case(
        f"the unknown {variable}", _SHOW, [ANSWERED, USAGE], environ={variable: "16"}, check=check
    )


def _odd_file(rng: Random, path: Path, good: dict[str, Any], special: float) -> str:
    """Make a settings file that is wrong or odd, in a share of `special` no such file at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if rng.random() < special:
        if rng.random() < 2 / 3:
            return make_odd(rng, path, ["folder", "pipe", "/dev/zero", "/nowhere"])
        data = rng.choice(["stop: größer\n".encode("latin-1"), b"# filler\n" * 600_000])
        path.write_bytes(data)
        return f"{len(data)} odd bytes"
    way = rng.random()
    if way < 0.4:
        what, data = "odd YAML", rng.choice(_YAML).encode()
    elif way < 0.7:
        name, value = rng.choice([*good, rng.choice(list(SETTINGS))]), odd_value(rng)
        what = f"{name} of another kind"
        data = json.dumps({**good, name: value}, default=str).encode()
    elif way < 0.75:
        what, data = "nesting", f"n: {nested(rng.choice([100, 5000, 100_000]))}".encode()
    else:
        what, data = damaged(rng, json.dumps(good, indent=1).encode())
    path.write_bytes(data)
    return f"{what}, {data[:30]!r}"


def _file(rng: Random, place: Place) -> Case:
    """ngt.yaml or config.yaml: odd contents, or no file at all."""
    path = rng.choice([place.work / "ngt.yaml", place.home / "config" / "config.yaml"])
    what = _odd_file(rng, path, _GOOD, 0.15)
    head = rng.choice([_SHOW, _SHOW, _ANSWER])
    return case(f"{path.name}: {what}", head, [ANSWERED, USAGE, INPUT])


def _preset(rng: Random, place: Place) -> Case:
    """A preset of one's own that is wrong, used or shown."""
    what = _odd_file(rng, place.home / "config" / "presets" / "mine.yaml", _PRESET, 0)
    show = ["presets", "show", "mine"]
    head = rng.choice([[*_SHOW, "-p", "mine"], [*_ANSWER, "-p", "mine"], show, [*show, "--json"]])
    return case(f"preset: {what}", head, [ANSWERED, USAGE, INPUT])


def _presets(rng: Random, place: Place) -> Case:
    """One broken preset among good ones: the list shows the good ones."""
    what = _odd_file(rng, place.home / "config" / "presets" / "mine.yaml", _PRESET, 0.3)

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED and "chat" not in result.out:
            yield "the good presets are not listed"

    arguments = ["presets", "list", *rng.choice([[], ["--json"]])]
    return case(f"presets list: {what}", arguments, [ANSWERED], check=check)


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
# Options of methods, as the README names them.
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
_VALUES = ("0", "1", "3", "-1", "1000000", "9" * 30, "nan", "inf", "true", "", "../../x", "1e9")


def sweeps(rng: Random, place: Place) -> Case:
    """Sweeps, or specs of methods."""
    return rng.choice([_sweep, _method])(rng, place)


def _sweep(rng: Random, place: Place) -> Case:
    axes = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        body = ",".join(rng.choices([*_PARTS, odd_word(rng)], k=rng.choice([1, 1, 2, 4])))
        axes.append(f"{rng.choice(_AXES)}={body}")
    if rng.random() < 0.1:
        axes = [odd_word(rng)]
    return case(
        f"the sweep {' '.join(axes)[:60]!r}",
        [
            "tune",
            *(f"--sweep={a}" for a in axes),
            "--rounds",
            "1",
            "--limit",
            "1",
            "--max-tokens",
            "2",
            "--json",
        ],
        [ANSWERED, USAGE],
        seconds=300,  # up to a thousand cells
    )


def _method(rng: Random, place: Place) -> Case:
    """A method with options; where it is taken, the answer must be the plain one."""
    name = rng.choice([*_OPTIONS, *_OPTIONS, odd_word(rng), *method_names()])
    keys = [*_OPTIONS.get(name, "n").split(), "x"]
    options = [
        f":{rng.choice(keys)}={rng.choice([*_VALUES, odd_word(rng)])}"
        for _ in range(rng.randint(0, 3))
    ]
    method = name + "".join(options)
    # rest needs a datastore, suffix a library, draft-model a second model.
    return case(
        f"the method {method[:60]!r}",
        [*ASKED["summary"], f"--method={method}", "--json"],
        [ANSWERED, USAGE, INPUT],
        text=place.texts["summary"],
    )
