"""How often exact drafts change tokens: `python -m tests.tools.exactness`.

Each model answers prompts plainly, every other one sampled, and again by drafts of `auto`, of the
trie, and of random trees in which the plain answer often continues, all held against that one plain
answer. Then prompts are answered together, drafted and not exactly, and held against plain answers
of their own. A model is loaded once a form. The models are the built-in one, checkpoints that are
named, and small random ones of several families, whose scores are nearly tied everywhere.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from ngtcli.bench.live import build_prompts
from ngtcli.bench.prompts import example_texts, file_items, passages
from ngtcli.config import Settings
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.documents.load import Document
from ngtcli.engine.local import LocalSession
from ngtcli.engine.session import AnswerOptions
from ngtcli.errors import NgtError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.prompts.build import Prompt
from tests.support.batches import decode_batch
from tests.support.families import family
from tests.support.rounding import Guessing

# Above the values of tests/support/families.py: sizes at which products are summed in parts.
_SIZES = {
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
    "n_positions": 2048,
    "hidden_size": 128,
    "n_embd": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "sliding_window": 64,
}
FAMILIES = (
    "llama qwen2 qwen3 gemma2 gemma3_text mistral phi3 olmo2 mixtral qwen3_moe gpt_oss stablelm"
    " granite gpt_neox gpt2"
).split()
FORMS = {  # --dtype and --quantize
    "float32": ("float32", "none"),
    "bfloat16": ("bfloat16", "none"),
    "float16": ("float16", "none"),
    "int8": ("float32", "int8"),
    "int8-bfloat16": ("bfloat16", "int8"),
}
DRAFTS = 16, 48  # nodes
TOGETHER, IN_ALL = 4, 8  # texts in a pass, and one after another


def save_random(name: str, folder: Path) -> str:
    """A small model of a family with its usual random weights, as a checkpoint in bfloat16."""
    own, kinds = family(name), transformers.models.auto.configuration_auto.CONFIG_MAPPING
    torch.manual_seed(0)
    values = {key: _SIZES.get(key, value) for key, value in own.values.items()}
    hf = transformers.AutoModelForCausalLM.from_config(
        kinds[own.kind](**values), dtype=torch.bfloat16
    )
    hf.generation_config = transformers.GenerationConfig()
    hf.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((BUILTIN_PATH / file).read_bytes())
    return str(folder)


def counted(truth: Sequence[int], run: DecodedSequence) -> Counter[str]:
    """What one run adds, whose ids are to be those of plain decoding."""
    steps = run.statistics.steps
    return Counter(
        runs=1, different=run.token_ids != list(truth), tokens=len(run.token_ids), steps=steps
    )


def compare(session: LocalSession, prompts: Sequence[Prompt]) -> Iterator[Counter[str]]:
    """Each answer with drafts beside the plain one in passes of the same shape.

    Raises ModelError where the model cannot be exact.
    """
    sampled = session.with_settings(session.settings.replace(temperature=1.0))
    for at, prompt in enumerate(prompts):
        own = sampled if at % 2 else session
        for most in DRAFTS:
            plain = AnswerOptions("none", most, to_the_end=True)
            truth = own.generate(prompt, plain).token_ids
            guessing = [Guessing(truth, seed) for seed in range(2 + at % 2 * 2)]
            ways = [replace(plain, method="trie", drafter=one) for one in guessing]
            # Of what is sampled these two guess next to nothing.
            ways += [replace(plain, method=one) for one in ("auto", "trie") if not at % 2]
            for options in ways:
                run = own.generate(prompt, options)
                yield counted(truth, run)


def compare_together(session: LocalSession, prompts: Sequence[Prompt]) -> Iterator[Counter[str]]:
    """Each answer of several texts in a pass beside its plain one, none of them exact."""
    own = session.with_settings(session.settings.replace(exact="off"))
    limits = [own.start(prompt, AnswerOptions(to_the_end=True)).limits for prompt in prompts]
    texts, drafters = [prompt.ids for prompt in prompts], own.batch_drafting()
    done = decode_batch(own.model, texts, drafters, TOGETHER, own.settings, limits.__getitem__)
    for prompt, sequence in zip(prompts, done, strict=True):
        truth = own.generate(prompt, AnswerOptions("none", to_the_end=True)).token_ids
        yield counted(truth, sequence)


def check(settings: Settings, count: int) -> tuple[Counter[str], Counter[str]]:
    """What is found of a model, exact and together. Raises ModelError where it cannot be exact."""
    parts = [Document(d.name, part) for d in example_texts().documents for part in passages(d)]
    session = LocalSession(settings, persist=False)
    prompts = build_prompts(session, file_items(parts[:IN_ALL], ()), None)
    exact = sum(compare(session, prompts[:count]), Counter())
    return exact, sum(compare_together(session, prompts), Counter())


def row(name: str, weights: str, counts: Sequence[Counter[str]], began: float) -> None:
    """Print a row, with the seconds of the processor since it `began`."""
    cells = [name, weights]
    for one in counts:
        length = one["tokens"] / max(1, one["steps"])
        cells += [str(one["tokens"]), f"{one['different']} of {one['runs']}", f"{length:.2f}"]
    print("|", " | ".join([*cells, f"{time.process_time() - began:.0f}"]), "|", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Check each model in each form; print a table in Markdown, and the sums of each form."""
    parser = argparse.ArgumentParser(description="Count the tokens that exact drafts change.")
    add = parser.add_argument
    add("--models", nargs="+", default=["builtin", *FAMILIES], help="folders, builtin, families")
    add("--weights", nargs="+", default=list(FORMS), choices=list(FORMS))
    add("--answer", type=int, default=100, help="tokens of an answer")
    add("--prompts", type=int, default=2, help=f"{IN_ALL} at most")
    args = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sums = {weights: (Counter[str](), Counter[str]()) for weights in args.weights}
    what = "tokens | runs that differ | acceptance"
    print(f"| model | weights | exact: {what} | together: {what} | s |\n{'|---' * 9}|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = save_random(name, Path(folder) / name) if name in FAMILIES else name
            for weights in args.weights:
                began, (dtype, quantize) = time.process_time(), FORMS[weights]
                settings = Settings.of(
                    model=path,
                    dtype=dtype,
                    quantize=quantize,
                    exact="on",
                    threads=1,
                    max_tokens=args.answer,
                    learn_output=True,  # random models quote no document
                )
                try:
                    counts = check(settings, args.prompts)
                except NgtError as error:
                    print(f"| {name} | {weights} | {error} |", flush=True)
                    continue
                row(name, weights, counts, began)
                for total, one in zip(sums[weights], counts, strict=True):
                    total.update(one)
    for weights, counts in sums.items():
        row("all", weights, counts, 0.0)


if __name__ == "__main__":
    main()
