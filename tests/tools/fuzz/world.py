"""What all cases share (undamaged answers, caches of each kind, recordings, loaded libraries), and
cases that damage the caches: the answer stays the undamaged one.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from ngtcli.config import Settings
from ngtcli.documents.load import load
from ngtcli.measure.prompts import EXAMPLES
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.prompt.preset import load_preset
from ngtcli.system.storage import read_json, write_json
from tests.tools.fuzz.case import (
    ANSWERED,
    INPUT,
    PASSAGES,
    USAGE,
    Case,
    Command,
    Place,
    World,
    case,
    command,
)
from tests.tools.fuzz.odd import damaged, nested, odd_json, replace_by_odd
from tests.tools.fuzz.run import run

TOKENS = "24"  # of an answer: enough for accepted drafts and refused ones
HARBOUR = str(EXAMPLES / "harbour.txt")
# The undamaged answers, by name: what the damaged runs must give as well.
ASKED: Mapping[str, tuple[str, ...]] = {
    "summary": ("summarize", HARBOUR, "--max-tokens", TOKENS),
    "question": ("ask", "Who noticed the oysters?", "-d", HARBOUR, "--max-tokens", TOKENS),
    "sampled": ("summarize", HARBOUR, "--max-tokens", TOKENS, "--temperature=1", "--seed=7"),
}


def warm_up() -> None:
    """Load in this process what a fork would load, on one thread, which a fork can take over."""
    import torch  # here: after the variables of `ONE_THREAD` are set

    import ngtcli.cli.app  # noqa: F401  (here: the command line stands above this room)
    from ngtcli.decode.load import load_model
    from ngtcli.session.answer import AnswerOptions
    from ngtcli.session.local import LocalSession

    torch.set_num_threads(1)

    session = LocalSession(Settings(max_tokens=24), persist=False)
    prompt = session.prompt(load_preset("summarize"), load([HARBOUR]).documents)
    for method in ("none", "trie", "auto", "prompt-lookup", "lookahead", "recycling"):
        session.answer(prompt, AnswerOptions(method)).finish()
    load_model("builtin")


def make_world(folder: Path) -> World:
    """Run ngt undamaged, in `folder`, for all that cases damage or compare with."""
    home = folder / "home"
    work = folder / "work"
    for path in (home, work):
        path.mkdir(parents=True)
    special = _special_tokens()
    world = World(folder, home, folder / "recording", folder / "spec-bench", special, {})
    place = Place(work, home, world)
    texts = {name: _answer(place, asked) for name, asked in ASKED.items()}
    for arguments in (
        (*ASKED["summary"], "--method", "trie"),
        (*ASKED["summary"],),
        ("trie", "build", "--rest", str(EXAMPLES)),
        ("bench", "--record", str(world.recording), "--limit", "2", "--max-tokens", TOKENS),
        ("tune", "--replay", str(world.recording), "--sweep", "n=5,8", "lp=2", "--rounds", "1"),
    ):
        _must(place, arguments)
    _write_spec_bench(world.spec_bench)
    for file in (home / "cache" / "costs").glob("*.json"):  # a busy machine would measure again
        write_json(file, {**read_json(file, 1 << 20), "tries": 0})
    return World(folder, home, world.recording, world.spec_bench, special, texts)


def _answer(place: Place, asked: tuple[str, ...]) -> str:
    return str(json.loads(_must(place, (*asked, "--method", "none", "--json")))["text"])


def _must(place: Place, arguments: tuple[str, ...]) -> str:
    """stdout of a run that must succeed. Raises RuntimeError."""
    result = run(command(arguments, [0], seconds=300), place)
    if result.code != 0:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {result.code}\n{result.err}")
    return result.out


def _special_tokens() -> tuple[str, ...]:
    """The built-in model's special tokens, and those of well-known other models."""
    own = json.loads((BUILTIN_PATH / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    others = ("<s>", "</s>", "<|im_end|>", "<|im_start|>system", "[INST]", "<|endoftext|>", "<pad>")
    return (*(token["content"] for token in own), *others)


def _write_spec_bench(folder: Path) -> None:
    """A recording of Spec-Bench's kind: two questions, their answers, a tokenizer."""
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(BUILTIN_PATH / name, folder / "tokenizer")
    text = Path(HARBOUR).read_text(encoding="utf-8")
    choice = {"turns": [text[:200]], "decoding_steps": [40], "new_tokens": [40], "wall_time": [1]}
    for name, line in (
        ("question", {"category": "summarization", "turns": [text]}),
        ("vanilla", {"model_id": "plain", "choices": [choice]}),
    ):
        lines = [json.dumps({"question_id": number, **line}) + "\n" for number in (1, 2)]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def new_home(place: Place, caches: bool) -> None:
    """An NGT_HOME for one case: with a copy of all caches, or with the costs of passes alone."""
    source = place.world.home / "cache"
    if caches:
        shutil.copytree(source, place.home / "cache")
    elif (source / "costs").is_dir():  # or each case would measure them again
        shutil.copytree(source / "costs", place.home / "cache" / "costs")
    (place.home / "config" / "presets").mkdir(parents=True, exist_ok=True)
    os.chmod(place.home, 0o777)


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
