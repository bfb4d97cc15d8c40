"""Hostile prompts as JSON lines, and models."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from ngtcli.models.checkpoint import BUILTIN_PATH
from tests.tools.fuzz.case import (
    ANSWERED,
    CONTEXT,
    HARBOUR,
    INPUT,
    MODEL,
    USAGE,
    Case,
    Place,
    Result,
    case,
)
from tests.tools.fuzz.odd import (
    PROSE,
    any_text,
    control_soup,
    damage,
    odd_json,
    replace_by_odd,
)

_PROMPTS: tuple[dict[str, Any], ...] = (
    {"id": "a", "task": "ask", "documents": [PROSE], "question": "When?", "answers": ["1871"]},
    {"documents": [{"name": "x", "text": PROSE}]},
    {"documents": [{"file": "beside.txt"}], "question": "Who?"},
    {"message": PROSE},
)
_FILES = ("../../etc/passwd", "/etc/passwd", "/dev/zero", "pipe", ".", "x" * 400, "link", "")


def prompts(rng: Random, place: Place) -> Case:
    """Benchmark odd prompts (JSON lines) with plain decoding."""
    lines = [_prompt_line(rng) for _ in range(rng.randint(1, 3))]
    (place.work / "beside.txt").write_text(PROSE)
    (place.work / "link").symlink_to("/etc/passwd")
    os.mkfifo(place.work / "pipe")
    path = place.work / "prompts.jsonl"
    path.write_bytes(rng.choice([b"\n", b"\r\n", b"\n\n"]).join(lines))
    if rng.random() < 0.1:
        damage(rng, path)
    command = "bench --methods none --rounds 1 --prompts prompts.jsonl"
    limits = "--limit 1 --max-tokens 2 --json"
    codes = [ANSWERED, USAGE, INPUT, CONTEXT]
    return case(f"{len(lines)} lines of prompts", f"{command} {limits}".split(), codes)


def _prompt_line(rng: Random) -> bytes:
    prompt = dict(rng.choice(_PROMPTS))
    if rng.random() < 0.2 and "documents" in prompt:
        prompt["documents"] = [{"file": rng.choice(_FILES)}]
    elif rng.random() < 0.3:
        key = rng.choice([key for key in prompt if key != "answers"])
        text = rng.choice([control_soup(rng), any_text(rng, 30), "\ud800", "a\0b", "\udcff" * 3])
        prompt[key] = [text] if isinstance(prompt[key], list) else text
        return json.dumps(prompt).encode()
    if rng.random() < 0.8:
        return odd_json(rng, prompt)
    return json.dumps(prompt).encode()


Damage = tuple[str, set[int]]  # a description, and the exit codes that are right
_MAY_RUN = {ANSWERED, MODEL, CONTEXT}
_CONFIG: tuple[tuple[str, Any, set[int]], ...] = (
    ("num_hidden_layers", 30, {MODEL}),
    ("model_type", "bert", {MODEL}),
    ("hidden_size", 128, {MODEL}),
    ("vocab_size", 100, {MODEL}),
    ("max_position_embeddings", 0, _MAY_RUN),
    ("max_position_embeddings", "x", {MODEL}),
    ("model_type", "nonesuch", {MODEL}),
    ("num_attention_heads", 3, {MODEL}),
    ("auto_map", {"AutoModelForCausalLM": "evil.Evil"}, {ANSWERED, MODEL}),
)
_HARMLESS = "{{ ''.__class__.__mro__ }}"  # Jinja's sandbox yields an empty string.
_TEMPLATES = (
    "{% if %}",
    "{{ messages[9].content }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ raise_exception('no') }}",
    "{{ 'x' * 10**10 }}",
    _HARMLESS,
    "{{ x.y.z }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
)


def models(rng: Random, place: Place) -> Case:
    """Damage one file of a copy of the built-in model: it is refused, or gives an answer."""
    folder = place.work / "model"
    shutil.copytree(BUILTIN_PATH, folder)
    change = rng.choice([_config, _config, _weights, _weights, _template, _bytes, _bytes, _missing])
    description, codes = change(rng, folder)

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED and not json.loads(result.out)["statistics"]["new_tokens"]:
            yield "an answer without a token"

    arguments = ["summarize", HARBOUR, "-m", "model", "--max-tokens", "4", "--json"]
    return case(f"a model: {description}", arguments, codes, check=check, memory=1_500_000_000)


def _config(rng: Random, folder: Path) -> Damage:
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    if rng.random() < 0.6:
        key, value, codes = rng.choice(_CONFIG)
        path.write_text(json.dumps({**config, key: value}))
        return f"{key} is {value!r}", codes
    path.write_bytes(odd_json(rng, config))
    return "an odd config.json", _MAY_RUN


def _weights(rng: Random, folder: Path) -> Damage:
    """Remove, rename, cut or spoil one tensor."""
    from safetensors.torch import load, save

    path = folder / "model.safetensors"
    tensors = load(path.read_bytes())
    name = rng.choice([name for name in tensors if "norm" not in name])
    weights = tensors.pop(name)
    replacements = {
        "missing": {},
        "renamed": {f"{name}.x": weights[:-1].clone()},
        "cut": {name: weights[:-1].clone()},
        "not a number": {name: weights * float("nan")},
        "infinite": {name: weights + float("inf")},
    }
    change = rng.choice(list(replacements))
    path.write_bytes(save({**tensors, **replacements[change]}, metadata={"format": "pt"}))
    return f"{name} {change}", {MODEL}


def _template(rng: Random, folder: Path) -> Damage:
    template = rng.choice(_TEMPLATES)
    (folder / "chat_template.jinja").write_text(template)
    codes = {ANSWERED, MODEL} if template == _HARMLESS else {MODEL}
    return f"the template {template!r}", codes


def _bytes(rng: Random, folder: Path) -> Damage:
    path = rng.choice(sorted(folder.glob("*.*")))
    return f"{path.name} {damage(rng, path)}", _MAY_RUN


def _missing(rng: Random, folder: Path) -> Damage:
    files = sorted(folder.glob("*.*"))
    path = rng.choice(files)
    if rng.random() < 0.5:
        return f"{path.name} {replace_by_odd(rng, path, files)}", _MAY_RUN
    path.unlink()
    return f"{path.name} missing", _MAY_RUN
