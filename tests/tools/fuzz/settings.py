"""Hostile settings: flags, variables, files, presets, sweeps, methods, flags that contradict."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.draft.registry import method_names
from tests.tools.fuzz.case import ANSWERED, INPUT, MODEL, USAGE, Case, Place, Result, case
from tests.tools.fuzz.odd import damaged, nested, odd_value, odd_word
from tests.tools.fuzz.world import ASKED, HARBOUR

_NUMBERS = (
    "0", "1", "2", "-1", "3.5", "1e-9", "1e400", "nan", "inf", "-inf", "0x10", "1_000", "１２",
    "9" * 20, "9" * 5000, "", " ", "1 ", "+5", "true", "None", "[1]", "é", "1,5", ".5", "1e5",
)  # fmt: skip
_WORDS = (
    "auto", "none", "trie", "cpu", "cuda", "mps", "float32", "bfloat16", "error", "truncate",
    "always", "never", "tri", "AUTO", "yes", "off", "x",
)  # fmt: skip
_SHOW = ("config", "show", "--json")
_ANSWER = ("summarize", HARBOUR, "--max-tokens", "2", "--json")
_PRESET = {"description": "x", "template": "{documents}\n\nSummarize it.", "num_draft": 16}
_YAML = (
    "seed: 2026-13-45", "seed: 2026-01-02", "n: " + "9" * 6000, "stop: " + nested(500),
    "stop: &a [*a]", "a: &a [x]\nstop: *a", "? [1]\n: x", "n: !!python/object/apply:os.abort []",
    "<<: {n: 5}", "n: 5\nn: 6", "\tn: 5", "n: 5\n---\nn: 6", "n", "- n", "n: 0o17", "n: 1e1",
    "stop: {", "%YAML 9.9\n---\nn: 5", "n: !!int x", "\ufeffn: 5", "1: 2", "null: 1", "&a : *a",
    "stop: 2026-01-02", "temperature: .nan", "temperature: .inf", "top_p: -.inf", "n: 5\x00",
    "stop: !!binary aGVs", "stop: !!set {a}", "!!omap [a: 1]", "stop: [" + "x, " * 50_000 + "]",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nstop: [*e,*e,*e,*e,*e,*e]",
)  # fmt: skip


def settings(rng: Random, place: Place) -> Case:
    """One layer of settings with something odd in it."""
    make = rng.choice([_flag, _variable, _variable, _file, _file, _preset, _presets, _unknown])
    return make(rng, place)


def _codes(name: str) -> set[int]:
    """A value of setting `name` may be right, or refused; a model or device may not be there."""
    return {ANSWERED, USAGE, *([MODEL] if name in ("model", "draft_model", "device") else [])}


def _text_of(rng: Random, name: str) -> str:
    kind = type(getattr(Settings(), name))
    words = (*_WORDS, "true", "0", odd_word(rng))
    pool: tuple[str, ...] = _NUMBERS if kind in (int, float) else words
    return rng.choice([*pool, odd_word(rng)])


def _flag(rng: Random, place: Place) -> Case:
    name = rng.choice(list(SETTINGS))
    if isinstance(getattr(Settings(), name), bool):
        name = "n"
    value = _text_of(rng, name)
    flag = f"--{name.replace('_', '-')}={value}"
    return case(f"the flag {flag[:50]!r}", [*rng.choice([_SHOW, _ANSWER]), flag], _codes(name))


def _variable(rng: Random, place: Place) -> Case:
    name = rng.choice(list(SETTINGS))
    value = rng.choice([_text_of(rng, name), rng.choice(_YAML), ""]).replace("\0", "")
    codes = {ANSWERED} if not value else _codes(name)  # an empty variable is an unset one
    variable = f"NGT_{name.upper()}"
    head = rng.choice([_SHOW, _SHOW, _ANSWER])
    if "\udcff" in value or len(value) > 100_000:
        value = value[:90_000].replace("\udcff", "")
    return case(f"{variable}={value[:40]!r}", head, codes, environ={variable: value})


def _unknown(rng: Random, place: Place) -> Case:
    """A variable that is no setting: a warning names it."""
    variable = rng.choice(["NGT_NUM_DRAFTS", "NGT_TEMPRATURE", "NGT_METHODS", "NGT_X"])

    def check(result: Result) -> Iterable[str]:
        if variable not in result.err:
            yield f"{variable} is ignored without a word"

    return case(f"the unknown {variable}", _SHOW, [ANSWERED, USAGE], environ={variable: "16"},
                check=check)  # fmt: skip


def _yaml(rng: Random, good: dict[str, Any]) -> tuple[str, bytes]:
    """(what it is, a settings file that is wrong or odd)."""
    way = rng.random()
    if way < 0.4:
        text = rng.choice(_YAML)
        return f"YAML {text[:30]!r}", text.encode()
    if way < 0.7:
        name, value = rng.choice([*good, rng.choice(list(SETTINGS))]), odd_value(rng)
        return f"{name} of another kind", json.dumps({**good, name: value}, default=str).encode()
    if way < 0.75:
        depth = rng.choice([100, 5000, 100_000])
        return f"nesting of {depth}", f"n: {nested(depth)}".encode()
    how, data = damaged(rng, json.dumps(good, indent=1).encode())
    return how, data


def _file(rng: Random, place: Place) -> Case:
    """ngt.yaml or config.yaml: odd contents, or no file at all."""
    path = rng.choice([place.work / "ngt.yaml", place.home / "config" / "config.yaml"])
    path.parent.mkdir(parents=True, exist_ok=True)
    way = rng.random()
    if way < 0.15:
        what = _odd_place(rng, path)
    else:
        good = {k: v for k, v in asdict(Settings()).items() if k not in ("model", "draft_model")}
        what, data = _yaml(rng, good)
        path.write_bytes(data)
    head = rng.choice([_SHOW, _SHOW, _ANSWER])
    return case(f"{path.name}: {what}", head, [ANSWERED, USAGE, INPUT])


def _odd_place(rng: Random, path: Path) -> str:
    what = rng.choice(["folder", "pipe", "/dev/zero", "/nowhere", "latin-1", "5 MB"])
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "latin-1":
        path.write_bytes("stop: größer\n".encode("latin-1"))
    elif what == "5 MB":
        path.write_bytes(b"# filler\n" * 600_000)
    else:
        path.symlink_to(what)
    return what


def _preset(rng: Random, place: Place) -> Case:
    """A preset of one's own that is wrong, used or shown."""
    what, data = _yaml(rng, _PRESET)
    path = place.home / "config" / "presets" / "mine.yaml"
    path.write_bytes(data)
    show = ["presets", "show", "mine"]
    head = rng.choice([[*_SHOW, "-p", "mine"], [*_ANSWER, "-p", "mine"], show, [*show, "--json"]])
    return case(f"preset: {what}", head, [ANSWERED, USAGE, INPUT])


def _presets(rng: Random, place: Place) -> Case:
    """One broken preset among good ones: the list shows the good ones."""
    path = place.home / "config" / "presets" / "mine.yaml"
    if rng.random() < 0.3:
        what = _odd_place(rng, path)
    else:
        what, data = _yaml(rng, _PRESET)
        path.write_bytes(data)

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED and "chat" not in result.out:
            yield "the good presets are not listed"

    flags = rng.choice([[], ["--json"]])
    return case(f"presets list: {what}", ["presets", "list", *flags], [ANSWERED], check=check)


_AXES = ("n", "lp", "num_draft", "method", "learn_output", "temperature", "stop", "x", "", "N")
_PARTS = ("5", "8", "5..8", "2..1", "1..9+3", "2..64*2", "..", "5..", "..5", "*", "+", "1e3", "-1",
          "0.5", "trie", "auto", "none", "trie:n=5", "true", "9" * 400, "1..1000", "é", " ", "٣",
          "0..0", "5..5", "2..9*1", "2..9+0", "1..9*0.5", "trtllm:max_draft_len=8")  # fmt: skip


def sweeps(rng: Random, place: Place) -> Case:
    """Sweeps of a recording, specs of methods, and flags that contradict each other."""
    make = rng.choice([_sweep, _sweep, _spec, _spec, _contradiction])
    return make(rng, place)


def _sweep(rng: Random, place: Place) -> Case:
    axes = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        body = ",".join(rng.choices([*_PARTS, odd_word(rng)], k=rng.choice([1, 1, 2, 4])))
        axes.append(f"{rng.choice(_AXES)}={body}")
    if rng.random() < 0.1:
        axes = [odd_word(rng)]
    return case(
        f"the sweep {' '.join(axes)[:60]!r}",
        ["tune", "--replay", str(place.world.recording), *(f"--sweep={a}" for a in axes),
         "--rounds", "1", "--limit", "1", "--json"],
        [ANSWERED, USAGE], seconds=60, memory=600_000_000,  # a thousand cells
    )  # fmt: skip


def _options() -> dict[str, tuple[str, ...]]:
    """Options of methods, as the README names them."""
    return {
        "auto": ("trust",), "prompt-lookup": ("max_matching_ngram_size", "num_output_tokens"),
        "llma": ("trigger_n", "block_k", "max_n"), "trie": ("n", "lp", "learn_output", "num_draft"),
        "akunu": ("max_order", "draft_count", "max_history"), "recycling": ("output_id_topk",),
        "trtllm": ("max_draft_len", "max_matching_ngram_size", "is_keep_all", "is_use_oldest"),
        "rest": ("datastore", "max_token_span", "k", "long", "choices", "cut"),
        "lookahead": ("level", "window_size", "guess_set_size", "pool_from_prompt"),
    }  # fmt: skip


def _spec(rng: Random, place: Place) -> Case:
    """A method's spec; where it is taken, the answer must be the plain one."""
    known = _options()
    name = rng.choice([*known, *known, odd_word(rng), *method_names()])
    keys = (*known.get(name, ("n",)), "x")
    values = ("0", "1", "3", "-1", "1000000", "9" * 30, "nan", "inf", "true", "", "../../x", "1e9")
    pairs = [
        f"{rng.choice(keys)}={rng.choice([*values, odd_word(rng)])}"
        for _ in range(rng.randint(0, 3))
    ]
    spec = ":".join([name, *pairs])
    # rest needs a datastore, suffix a library, draft-model a second model.
    return case(
        f"the method {spec[:60]!r}", [*ASKED["summary"], f"--method={spec}", "--json"],
        [ANSWERED, USAGE, INPUT], text=place.world.texts["summary"],
    )  # fmt: skip


def _contradiction(rng: Random, place: Place) -> Case:
    """Flags that would be ignored: each is refused."""
    replayed = ["bench", "--replay", str(place.world.recording), "--methods", "trie"]
    record, live = ["bench", "--record", "out", "--limit", "1"], ["bench", "--limit", "1"]
    tune = ["tune", "--sweep", "n=5,8", "lp=2"]
    arguments = rng.choice([
        [*record, "--html", "b.html"], [*record, "--methods", "none"], [*record, "--rounds", "3"],
        [*record, "--against", "hf"], [*live, "--methods", ","], [*live, "--methods", ""],
        [*replayed, "--rounds", "3"], [*replayed, "--template", "plain"], 
        [*replayed, "--turns", "all"],
        [*replayed, "--noise", "2"], [*replayed, "--against", "hf"], [*live, "--ids", "odd"],
        [*live, "--turns", "all"], [*live, "--num-draft", "8", "--sweep-num-draft"],
        [*live, "--json", "--markdown"], [*tune, "--ids", "odd"], [*tune, "--costs", "x"],
        [*tune, "--json", "--csv"], [*tune, "--n", "7"], ["trie", "build", HARBOUR, "--name", "x"],
        ["check", "--method", "none"], ["summarize", HARBOUR, "--n", "3", "--lp", "3"],
    ])  # fmt: skip
    return case(f"contradiction: {' '.join(arguments[-3:])[:50]}", arguments, [USAGE], seconds=60)
