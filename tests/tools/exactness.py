"""Count how often exact drafts change tokens: `python -m tests.tools.exactness`.

Each model answers prompts by plain decoding, every second one with sampling. It answers them again
with drafts of `auto`, of the trie, and of random trees that often contain the plain answer; all of
these are compared with the plain answer. Then several prompts are answered in a batch, with drafts
and without exact decoding, and compared with plain answers of their own.

A model is loaded once for each kind of weights. The models are the built-in one, named checkpoints,
and small random ones of several families, whose logits are nearly tied everywhere.
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

# These replace the sizes of tests/support/families.py: matmuls of these sizes sum in parts.
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
WEIGHTS = {  # --dtype and --quantize
    "float32": ("float32", "none"),
    "bfloat16": ("bfloat16", "none"),
    "float16": ("float16", "none"),
    "int8": ("float32", "int8"),
    "int8-bfloat16": ("bfloat16", "int8"),
}
NUM_DRAFTS = (16, 48)  # maximum numbers of draft nodes
BATCH_SIZE = 4
BATCHED_PROMPTS = 8  # prompts that are answered in batches


def save_random(name: str, folder: Path) -> str:
    """Save a small model of a family with random weights in bfloat16; return the folder's path."""
    description = family(name)
    fields = {key: _SIZES.get(key, value) for key, value in description.values.items()}
    config_classes = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    config = config_classes[description.kind](**fields)
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    hf.generation_config = transformers.GenerationConfig()
    hf.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((BUILTIN_PATH / file).read_bytes())
    return str(folder)


def counts_of(run: DecodedSequence, expected: Sequence[int]) -> Counter[str]:
    """The counts of one run, which should have the tokens of plain decoding."""
    return Counter(
        runs=1,
        different=int(run.token_ids != list(expected)),
        tokens=len(run.token_ids),
        steps=run.statistics.steps,
    )


def compare(session: LocalSession, prompts: Sequence[Prompt]) -> Iterator[Counter[str]]:
    """Compare answers with drafts to the plain one in passes of the same shape.

    Raises ModelError if the model cannot be exact.
    """
    sampling_session = session.with_settings(session.settings.replace(temperature=1.0))
    for number, prompt in enumerate(prompts):
        is_sampled = number % 2 == 1
        answering = sampling_session if is_sampled else session
        for num_draft in NUM_DRAFTS:
            plain = AnswerOptions("none", num_draft, to_the_end=True)
            expected = answering.generate(prompt, plain).token_ids
            all_options = []
            for seed in range(4 if is_sampled else 2):
                drafter = Guessing(expected, seed)
                all_options.append(replace(plain, method="trie", drafter=drafter))
            if not is_sampled:  # of a sampled answer these methods guess next to nothing
                all_options.append(replace(plain, method="auto"))
                all_options.append(replace(plain, method="trie"))
            for options in all_options:
                yield counts_of(answering.generate(prompt, options), expected)


def compare_batched(session: LocalSession, prompts: Sequence[Prompt]) -> Iterator[Counter[str]]:
    """Compare answers that are decoded in batches to plain ones; none of them is exact."""
    inexact = session.with_settings(session.settings.replace(exact="off"))
    limits = [inexact.start(prompt, AnswerOptions(to_the_end=True)).limits for prompt in prompts]
    sequences = decode_batch(
        inexact.model,
        [prompt.ids for prompt in prompts],
        inexact.batch_drafting(),
        BATCH_SIZE,
        inexact.settings,
        limits.__getitem__,
    )
    for prompt, sequence in zip(prompts, sequences, strict=True):
        plain = inexact.generate(prompt, AnswerOptions("none", to_the_end=True))
        yield counts_of(sequence, plain.token_ids)


def check(settings: Settings, prompt_count: int) -> tuple[Counter[str], Counter[str]]:
    """The counts of a model: of exact decoding, of `prompt_count` prompts, and of batches.

    Raises ModelError if the model cannot be exact.
    """
    parts = []
    for document in example_texts().documents:
        parts += [Document(document.name, passage) for passage in passages(document)]
    session = LocalSession(settings, persist=False)
    prompts = build_prompts(session, file_items(parts[:BATCHED_PROMPTS], ()), None)
    exact = sum(compare(session, prompts[:prompt_count]), Counter())
    batched = sum(compare_batched(session, prompts), Counter())
    return exact, batched


def print_row(name: str, weights: str, all_counts: Sequence[Counter[str]], seconds: float) -> None:
    """Print a row of the table; `seconds` are processor time."""
    cells = [name, weights]
    for counts in all_counts:
        acceptance_length = counts["tokens"] / max(1, counts["steps"])
        cells.append(str(counts["tokens"]))
        cells.append(f"{counts['different']} of {counts['runs']}")
        cells.append(f"{acceptance_length:.2f}")
    cells.append(f"{seconds:.0f}")
    print("|", " | ".join(cells), "|", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Check each model with each kind of weights; print a table in Markdown, and the sums."""
    parser = argparse.ArgumentParser(description="Count the tokens that exact drafts change.")
    add = parser.add_argument
    add("--models", nargs="+", default=["builtin", *FAMILIES], help="folders, builtin, families")
    add("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    add("--answer", type=int, default=100, help="tokens of an answer")
    add("--prompts", type=int, default=2, help=f"{BATCHED_PROMPTS} at most")
    args = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    headings = "tokens | runs that differ | acceptance"
    print(f"| model | weights | exact: {headings} | together: {headings} | s |")
    print(f"{'|---' * 9}|")
    sums = {weights: (Counter[str](), Counter[str]()) for weights in args.weights}
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = save_random(name, Path(folder) / name) if name in FAMILIES else name
            for weights in args.weights:
                model_started = time.process_time()
                dtype, quantize = WEIGHTS[weights]
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
                    all_counts = check(settings, args.prompts)
                except NgtError as error:
                    print(f"| {name} | {weights} | {error} |", flush=True)
                    continue
                print_row(name, weights, all_counts, time.process_time() - model_started)
                for total, counts in zip(sums[weights], all_counts, strict=True):
                    total.update(counts)
    for weights, totals in sums.items():
        print_row("all", weights, totals, time.process_time() - started)


if __name__ == "__main__":
    main()
