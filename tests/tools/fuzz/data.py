"""Hostile recordings, prompts as JSON lines, cost files and models."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from ngtcli.model_files.checkpoint import BUILTIN_PATH
from tests.tools.fuzz.case import ANSWERED, CONTEXT, INPUT, MODEL, USAGE, Case, Place, Result, case
from tests.tools.fuzz.odd import PROSE, any_text, control_soup, damaged, odd_json, replace_by_odd
from tests.tools.fuzz.world import HARBOUR

_KINDS: tuple[dict[str, Any], ...] = (
    {"id": "a", "task": "ask", "documents": [PROSE], "question": "When?", "answers": ["1871"]},
    {"documents": [{"name": "x", "text": PROSE}]},
    {"documents": [{"file": "beside.txt"}], "question": "Who?"},
    {"question_id": 1, "category": "qa", "turns": [PROSE]},
    {"query": "When?", "quotes": [{"text": PROSE}], "answers": [{"answer": "1871"}]},
    {"article": PROSE, "highlights": "A harbour was dug."},
)
_FILES = ("../../etc/passwd", "/etc/passwd", "/dev/zero", "pipe", ".", "x" * 400, "link", "")


def recordings(rng: Random, place: Place) -> Case:
    """A damaged recording, replayed by bench or tune; or a damaged file of costs beside it."""
    if rng.random() < 0.25:
        return _costs(rng, place)
    source = rng.choice([place.world.recording, place.world.recording, place.world.spec_bench])
    folder = place.work / "recording"
    shutil.copytree(source, folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = rng.choice([p for p in files if p.suffix in (".json", ".jsonl")])
    what = _damage_lines(rng, path) if rng.random() < 0.85 else replace_by_odd(rng, path, files)
    extra = ["--template", "plain"] if source == place.world.spec_bench else []
    arguments = rng.choice([
        ["bench", "--replay", "recording", "--methods", "trie,prompt-lookup", "--json", *extra],
        ["bench", "--replay", "recording", "--methods", "auto", *extra],
        *([] if extra else [["tune", "--replay", "recording", "--sweep=n=5,8", "--rounds", "1"]]),
    ])  # fmt: skip
    codes = {ANSWERED, USAGE, INPUT, *([MODEL] if extra else [])}
    return case(f"{path.name} of a recording: {what}", arguments, codes)


def _damage_lines(rng: Random, path: Path) -> str:
    """One line, or one part of the JSON object, made odd."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    at = rng.randrange(len(lines))
    if rng.random() < 0.7:
        lines[at], what = odd_json(rng, json.loads(lines[at])), f"line {at + 1} is odd"
    else:
        how, lines[at] = damaged(rng, lines[at])
        what = f"line {at + 1} {how}"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return what


def _costs(rng: Random, place: Place) -> Case:
    path = place.work / "costs.json"
    path.write_bytes(odd_json(rng, {"seconds": {"1": 0.01, "32": 0.02}, "of": "a test"}))
    what = "odd values"
    if rng.random() < 0.2:
        what = replace_by_odd(rng, path, [Path(HARBOUR)])
    return case(
        f"a file of costs: {what}",
        ["tune", "--replay", str(place.world.recording), "--sweep=n=5,8", "--rounds", "1", "--json",
         "--costs", "costs.json"],
        [ANSWERED, USAGE, INPUT],
    )  # fmt: skip


def prompts(rng: Random, place: Place) -> Case:
    """JSON lines with something odd in them, measured with plain decoding."""
    lines = [_prompt_line(rng) for _ in range(rng.randint(1, 3))]
    (place.work / "beside.txt").write_text(PROSE)
    (place.work / "link").symlink_to("/etc/passwd")
    os.mkfifo(place.work / "pipe")
    path = place.work / "prompts.jsonl"
    path.write_bytes(rng.choice([b"\n", b"\r\n", b"\n\n"]).join(lines))
    if rng.random() < 0.1:
        path.write_bytes(damaged(rng, path.read_bytes())[1])
    command = rng.choice([["bench", "--methods", "none", "--rounds", "1"],
                          ["bench", "--record", "out"]])  # fmt: skip
    return case(
        f"{len(lines)} lines of prompts",
        [*command, "--prompts", "prompts.jsonl", "--limit", "1", "--max-tokens", "2", "--json"],
        [ANSWERED, USAGE, INPUT, CONTEXT],
    )


def _prompt_line(rng: Random) -> bytes:
    line = json.loads(json.dumps(rng.choice(_KINDS)))
    if rng.random() < 0.2 and "documents" in line:
        line["documents"] = [{"file": rng.choice(_FILES)}]
    elif rng.random() < 0.3:
        key = rng.choice([k for k in line if k not in ("answers", "highlights")])
        odd = rng.choice([control_soup(rng), any_text(rng, 30), "\ud800", "a\0b", "\udcff" * 3])
        line[key] = [odd] if isinstance(line[key], list) else odd
        return json.dumps(line).encode()
    return odd_json(rng, line) if rng.random() < 0.8 else json.dumps(line).encode()


_CONFIG: tuple[tuple[str, Any, frozenset[int]], ...] = (
    ("num_hidden_layers", 30, frozenset({MODEL})),
    ("model_type", "bert", frozenset({MODEL})),
    ("hidden_size", 128, frozenset({MODEL})),
    ("vocab_size", 100, frozenset({MODEL})),
    ("max_position_embeddings", 0, frozenset({ANSWERED, MODEL, CONTEXT})),
    ("max_position_embeddings", "x", frozenset({MODEL})),
    ("model_type", "nonesuch", frozenset({MODEL})),
    ("num_attention_heads", 3, frozenset({MODEL})),
    ("auto_map", {"AutoModelForCausalLM": "evil.Evil"}, frozenset({ANSWERED, MODEL})),
)
_TEMPLATES = (
    "{% if %}", "{{ messages[9].content }}", "{% for i in range(10**9) %}x{% endfor %}",
    "{{ raise_exception('no') }}", "{{ 'x' * 10**10 }}", "{{ ''.__class__.__mro__ }}",
    "{{ x.y.z }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
)  # fmt: skip


def models(rng: Random, place: Place) -> Case:
    """A copy of the built-in model with one file damaged: refused, or an answer, never noise."""
    folder = place.work / "model"
    folder.mkdir()
    for file in BUILTIN_PATH.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    make = rng.choice([_config, _config, _weights, _weights, _template, _bytes, _bytes, _missing])
    what, codes = make(rng, folder)

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED and not json.loads(result.out)["statistics"]["new_tokens"]:
            yield "an answer without a token"

    arguments = ["summarize", HARBOUR, "-m", "model", "--max-tokens", "4", "--json"]
    return case(f"a model: {what}", arguments, codes, check=check, memory=1_500_000_000)


def _own(path: Path) -> bytes:
    """The bytes of a linked file, which is a file of its own from now on."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return data


def _config(rng: Random, folder: Path) -> tuple[str, frozenset[int]]:
    path = folder / "config.json"
    config = json.loads(_own(path))
    if rng.random() < 0.6:
        key, value, codes = rng.choice(_CONFIG)
        path.write_text(json.dumps({**config, key: value}))
        return f"{key} is {value!r}", codes
    path.write_bytes(odd_json(rng, config))
    return "an odd config.json", frozenset({ANSWERED, MODEL, CONTEXT})


def _weights(rng: Random, folder: Path) -> tuple[str, frozenset[int]]:
    """Tensors left out, renamed, cut, or filled with what is no number."""
    from safetensors.torch import load, save

    path = folder / "model.safetensors"
    tensors = load(_own(path))
    name = rng.choice([k for k in tensors if "layernorm" not in k and "norm" not in k])
    way = rng.choice(["missing", "renamed", "cut", "not a number", "infinite"])
    if way == "not a number":
        tensors[name] = tensors[name] * float("nan")
    elif way == "infinite":
        tensors[name] = tensors[name] + float("inf")
    else:
        tensor = tensors.pop(name)
        if way != "missing":
            tensors[name + (".x" if way == "renamed" else "")] = tensor[:-1].clone()
    path.write_bytes(save(tensors, metadata={"format": "pt"}))
    return f"{name} {way}", frozenset({MODEL})


def _template(rng: Random, folder: Path) -> tuple[str, frozenset[int]]:
    path = folder / "chat_template.jinja"
    _own(path)
    text = rng.choice(_TEMPLATES)
    path.write_text(text)
    harmless = text.startswith("{{ ''")  # the sandbox gives nothing for it
    return f"the template {text!r}", frozenset({ANSWERED, MODEL} if harmless else {MODEL})


def _bytes(rng: Random, folder: Path) -> tuple[str, frozenset[int]]:
    path = rng.choice(sorted(folder.glob("*.*")))
    how, data = damaged(rng, _own(path))
    path.write_bytes(data)
    return f"{path.name} {how}", frozenset({ANSWERED, MODEL, CONTEXT})


def _missing(rng: Random, folder: Path) -> tuple[str, frozenset[int]]:
    path = rng.choice(sorted(folder.glob("*.*")))
    files = sorted(folder.glob("*.*"))
    if rng.random() < 0.5:
        _own(path)
        what = replace_by_odd(rng, path, files)
    else:
        path.unlink()
        what = "missing"
    return f"{path.name} {what}", frozenset({ANSWERED, MODEL, CONTEXT})
