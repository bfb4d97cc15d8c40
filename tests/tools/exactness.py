"""How often exact drafts change tokens: `python -m tests.tools.exactness`.

Each model goes through `ngt check --exact` by the methods `auto` and `trie`, in half precision and
with 8-bit weights. The models are the built-in one, checkpoints that are named, and small random
ones of several families, saved here as checkpoints, whose scores are nearly tied everywhere.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import ngtcli
from ngtcli.model_files.checkpoint import BUILTIN_PATH

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
WEIGHTS = {  # --dtype and --quantize
    "bfloat16": ("bfloat16", "none"), "float16": ("float16", "none"), "int8": ("float32", "int8"),
    "int8-bfloat16": ("bfloat16", "int8"),
}  # fmt: skip
TEXT = Path(ngtcli.__file__).parent / "examples" / "harbour.txt"  # summarised by `ngt check`


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


def check(path: str, name: str, weights: str, threads: int, answer: int) -> list[list[str]]:
    """`ngt check --exact` of a checkpoint by both methods: the cells of their rows."""
    (dtype, quantize), found = WEIGHTS[weights], []
    for method in ("auto", "trie"):
        flags = ["--method", method, "--dtype", dtype, "--quantize", quantize, "--exact"]
        # Random models quote no document.
        flags += ["--set", "learn_output=yes"] * (method == "trie")
        flags += ["--drafts", "4,16,48", "--max-tokens", str(answer), "--set", f"threads={threads}"]
        done = subprocess.run(
            [sys.executable, "-m", "ngtcli", "check", str(TEXT), "-m", path, *flags, "--json"],
            capture_output=True, text=True,
        )  # fmt: skip
        cells = [name, weights, method]
        if done.stdout:
            body = json.loads(done.stdout)
            tokens = sum(one["new_tokens"] for one in body["results"])
            length = sum(one["mean_acceptance_length"] for one in body["results"]) / body["runs"]
            different = body["runs"] - body["identical"]
            cells += [str(tokens), f"{different} of {body['runs']}", f"{length:.2f}"]
        else:
            cells.append(" ".join(done.stderr.splitlines()[-2:]))
        found.append(cells)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Check each model with each kind of weights; print a table in Markdown."""
    parser = argparse.ArgumentParser(description="Count the tokens that exact drafts change.")
    parser.add_argument(
        "--models", nargs="+", default=["builtin", *FAMILIES],
        help=f"folders of checkpoints, builtin, or families: {', '.join(FAMILIES)}",
    )  # fmt: skip
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    parser.add_argument("--answer", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| model | weights | method | tokens | runs that differ | acceptance |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = save_random(name, Path(folder) / name) if name in FAMILIES else name
            for weights in args.weights:
                for cells in check(path, name, weights, args.threads, args.answer):
                    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
