"""How often drafts change tokens: `python -m tests.tools.exactness`.

Decodes with drafts and without, as usual and exactly, in half precision and with 8-bit weights, and
counts the answers and tokens that differ. Exact passes have as many rows as they need where a row's
bits do not show how many, and one number of rows where that holds. The models are the built-in one,
checkpoints that are named, and small random ones of several families, saved here as checkpoints,
whose scores are nearly tied everywhere. Drafts are those of `auto`, and trees that hold the text
which follows among wrong siblings, so that most are accepted in side branches. With `--check` each
model goes through `ngt check --exact` by the methods `auto` and `trie` instead.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import ngtcli
from ngtcli.config import Settings
from ngtcli.decode.exactness import gives_equal_bits
from ngtcli.decode.layout import LEAST, capacity_for
from ngtcli.decode.load import Wanted, load_model
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, PassRows
from ngtcli.draft.registry import parse_method
from ngtcli.draft.steps import Limits
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.measure.check import first_difference
from ngtcli.measure.prompts import example_texts
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.render.tables import Column, Table, to_markdown
from ngtcli.system.json_form import dump_json

PROMPT = 100  # tokens
DEPTH = 8  # of trees with forks, two nodes a level
_COMMON = {
    "vocab_size": 8192, "max_position_embeddings": 2048, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {},
    "gemma2": {"sliding_window": 64, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 64, "query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": 64}, "phi3": {"sliding_window": None}, "olmo2": {},
    "mixtral": {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "gpt_oss": {"sliding_window": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    "stablelm": {"num_key_value_heads": 4}, "granite": {}, "gpt_neox": {}, "gpt2": {},
}  # fmt: skip
WEIGHTS = {  # settings of each kind of weights
    "bfloat16": Settings(dtype="bfloat16"),
    "float16": Settings(dtype="float16"),
    "int8": Settings(dtype="float32", quantize="int8"),
    "int8-bfloat16": Settings(dtype="bfloat16", quantize="int8"),
}
TEXT = Path(ngtcli.__file__).parent / "examples" / "harbour.txt"  # summarised by `ngt check`


class Forks(Drafter):
    """Knows what follows, and hides it: at each level a wrong sibling comes first or second."""

    def __init__(self, future: Sequence[int], vocabulary: int, seed: int) -> None:
        self._future, self._vocabulary = future, vocabulary
        self._random = random.Random(seed)
        self._start = 0

    def reset(self, context: Context) -> None:
        self._start = len(context.ids)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        at = len(ids) - self._start
        tokens: list[int] = []
        parents: list[int] = []
        tip = ROOT
        for token in self._future[at : at + min(DEPTH, budget // 2)]:
            pair = [token, (token + self._random.randrange(1, self._vocabulary)) % self._vocabulary]
            if self._random.random() < 0.5:
                pair.reverse()
            tokens += pair
            parents += [tip, tip]
            tip = len(tokens) - 2 + pair.index(token)
        return DraftTree(tuple(tokens), tuple(parents))

    def observe(self, tokens: Sequence[int]) -> None:
        pass


@dataclass(slots=True)
class Row:
    """One model of one kind of weights and of drafts, as usual (`rows` 0) or exactly.

    Exact passes have `rows` rows, or from `least` to as many.

    `different` answers, and `changed` tokens behind the first difference; passes and seconds of
    decoding with drafts and without.
    """

    model: str
    weights: str
    drafts: str
    rows: int
    least: int
    answers: int = 0
    tokens: int = 0
    different: int = 0
    changed: int = 0
    passes: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0

    @property
    def acceptance(self) -> float:
        """Tokens a pass."""
        return self.tokens / self.passes if self.passes else 0.0


def save_random(family: str, folder: Path) -> str:
    """A small model of a family with its usual random weights, as a checkpoint in bfloat16."""
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family]
    torch.manual_seed(0)
    config = kind(**{**_COMMON, **FAMILIES[family]})
    hf = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    hf.generation_config = transformers.GenerationConfig()
    hf.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((BUILTIN_PATH / name).read_bytes())
    return str(folder)


def open_model(path: str, device: str, weights: str) -> TargetModel:
    """A checkpoint with one kind of weights. It never ends an answer."""
    how = WEIGHTS[weights]
    model = load_model(Wanted(path, device, how.dtype, quantize=how.quantize))
    model.end_ids = frozenset()
    model.passes.switch_on(model.device, print)
    return model


def prompts(model: TargetModel, at_random: bool, seed: int = 0) -> Iterator[list[int]]:
    """Without end: windows of the example texts, or random ids with repeats."""
    rng = random.Random(seed)
    texts = [model.tokenizer.encode(d.text) for d in example_texts().documents]
    while True:
        size = rng.randrange(2, PROMPT)
        if at_random:
            part = [rng.randrange(model.vocabulary) for _ in range(size // 2 + 1)]
            yield (part * 2)[:size]
        else:
            ids = rng.choice(texts)
            at = rng.randrange(max(1, len(ids) - size))
            yield ids[at : at + size]


def exact_shapes(model: TargetModel, most: int, places: int) -> list[PassRows]:
    """Rows with which the model decodes exactly: from as few as may be to `most`, and `most`."""
    free = (PassRows(most, least) for least in (1, LEAST))
    first = next((rows for rows in free if gives_equal_bits(model, rows, places)), None)
    fixed = PassRows.fixed(most) if gives_equal_bits(model, PassRows.fixed(most), places) else None
    return [rows for rows in (first, fixed) if rows]


def measure(
    model: TargetModel, name: str, weights: str, shapes: Sequence[PassRows], tokens: int,
    answer: int,
) -> list[Row]:  # fmt: skip
    """At least `tokens` tokens for each kind of drafts, as usual and exactly in each of `shapes`.

    Answers have `answer` tokens.
    """
    usual = PassRows.fixed(0)
    table = [
        Row(name, weights, drafts, shape.most, shape.least)
        for drafts in ("forks", "auto")
        for shape in (usual, *shapes)
    ]
    none, auto = (parse_method(m, DraftSettings()).build() for m in ("none", "auto"))
    source = prompts(model, name in FAMILIES)
    while min(row.tokens for row in table) < tokens:
        prompt = next(source)
        for shape in (usual, *shapes):
            most = max(s.most for s in shapes) - 1
            limits = Limits(min(answer, model.context - len(prompt)), most)
            plain = _decode(model, none, prompt, shape, limits)
            forks = Forks(plain.output, model.vocabulary, len(prompt))
            for row in (r for r in table if (r.rows, r.least) == (shape.most, shape.least)):
                drafter = forks if row.drafts == "forks" else auto
                _count(row, _decode(model, drafter, prompt, shape, limits), plain)
    return table


def _decode(
    model: TargetModel, drafter: Drafter, prompt: list[int], shape: PassRows, limits: Limits
) -> Run:
    rows = shape if shape.most else None
    context = Context(
        prompt, None, (prompt,), (), model.tokenizer.fingerprint, model.vocabulary, rows
    )
    return Run(model, drafter, context, Settings(), limits).finish()


def _count(row: Row, drafted: Run, plain: Run) -> None:
    place = first_difference(plain.output, drafted.output)
    row.answers += 1
    row.tokens += len(drafted.output)
    row.different += place is not None
    row.changed += 0 if place is None else len(plain.output) - place
    row.passes += drafted.statistics.steps
    row.seconds += drafted.statistics.decode_s
    row.plain_seconds += plain.statistics.decode_s


_SUMMED = ("answers", "tokens", "different", "changed", "passes", "seconds", "plain_seconds")
_COLUMNS: list[tuple[str, Callable[[Row], str]]] = [
    ("model", lambda r: r.model), ("weights", lambda r: r.weights), ("drafts", lambda r: r.drafts),
    ("passes", lambda r: _shape(r.rows, r.least)), ("tokens", lambda r: f"{r.tokens:,}"),
    ("answers that differ", lambda r: f"{r.different} of {r.answers}"),
    ("tokens behind a difference", lambda r: f"{r.changed:,}"),
    ("acceptance length", lambda r: f"{r.acceptance:.2f}"),
    ("ms a token", lambda r: f"{1e3 * r.seconds / max(1, r.tokens):.2f}"),
    ("plain, ms a token", lambda r: f"{1e3 * r.plain_seconds / max(1, r.tokens):.2f}"),
]  # fmt: skip


def _shape(most: int, least: int) -> str:
    if not most:
        return "as needed"
    if least < 0:
        return "exact"
    return f"exact, {most} rows" if least == most else f"exact, {least} to {most} rows"


def table_of(rows: Sequence[Row]) -> Table:
    """The rows, and their sums as usual and exactly."""
    cells = [[make(row) for _, make in _COLUMNS] for row in rows]
    for exact in (False, True):
        part = [r for r in rows if bool(r.rows) == exact]
        sums = {name: sum(getattr(row, name) for row in part) for name in _SUMMED}
        total = Row("all", "", "", int(exact), -1, **sums)
        cells.append([make(total) for _, make in _COLUMNS])
    return Table("Drafted against plain decoding", [Column(t) for t, _ in _COLUMNS], cells)


def check(path: str, name: str, weights: str, threads: int, answer: int) -> list[list[str]]:
    """`ngt check --exact` of a checkpoint by both methods: the cells of their rows."""
    how, found = WEIGHTS[weights], []
    for method in ("auto", "trie"):
        flags = ["--method", method, "--dtype", how.dtype, "--quantize", how.quantize, "--exact"]
        flags += ["--learn-output"] * (method == "trie")  # random models quote no document
        flags += ["--drafts", "4,16,48", "--max-tokens", str(answer), "--threads", str(threads)]
        done = subprocess.run(
            [sys.executable, "-m", "ngtcli", "check", str(TEXT), "-m", path, *flags, "--json"],
            capture_output=True, text=True,
        )  # fmt: skip
        cells = [name, weights, method]
        if done.stdout:
            body = json.loads(done.stdout)
            tokens = sum(one["new_tokens"] for one in body["results"])
            length = sum(one["mean_acceptance_length"] for one in body["results"]) / body["runs"]
            generate = [f"{one['identical']}/{one['prompts']}" for one in body["generate"]]
            different = body["runs"] - body["identical"]
            cells += [str(tokens), f"{different} of {body['runs']}", f"{length:.2f}", *generate[:1]]
        else:
            cells.append(" ".join(done.stderr.splitlines()[-2:]))
        found.append(cells)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; print a table in Markdown, or JSON."""
    parser = argparse.ArgumentParser(description="Count the tokens that drafts change.")
    parser.add_argument(
        "--models", nargs="+", default=["builtin", *FAMILIES],
        help=f"folders of checkpoints, builtin, or families: {', '.join(FAMILIES)}",
    )  # fmt: skip
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    parser.add_argument("--check", action="store_true", help="by `ngt check`, for each row")
    parser.add_argument("--tokens", type=int, default=1500, help="for each row of the table")
    parser.add_argument("--answer", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--rows", type=int, default=32, help="rows of an exact pass")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found, clock = list[Row](), time.perf_counter()
    if args.check:
        print("| model | weights | method | tokens | runs that differ | acceptance | as generate |")
        print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = save_random(name, Path(folder) / name) if name in FAMILIES else name
            for weights in args.weights:
                if args.check:
                    for cells in check(path, name, weights, args.threads, args.answer):
                        print("|", " | ".join(cells), "|", flush=True)
                    continue
                model = open_model(path, args.device, weights)
                places = capacity_for(PROMPT + args.answer + args.rows)
                shapes = [] if model.tree_reason else exact_shapes(model, args.rows, places)
                if not shapes:
                    reason = model.tree_reason or "no equal bits"
                    print(f"{name}, {weights}: {reason}; left out")
                    continue
                found += measure(model, name, weights, shapes, args.tokens, args.answer)
    if args.json:
        print(dump_json([asdict(row) for row in found]))
    elif not args.check:
        print(to_markdown([table_of(found)]))
        print(f"\n{time.perf_counter() - clock:.0f} s on {args.device}, {args.threads} threads")


if __name__ == "__main__":
    main()
