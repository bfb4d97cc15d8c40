"""How often exact drafts change tokens: `python -m tests.tools.exactness`.

Each model answers prompts plainly, and again by drafts of `auto`, of a trie, and of random trees in
which the plain answer often goes on; every other prompt is sampled. A model is loaded once a form,
and all drafts of one size are held against one plain answer. Then the prompts are answered
together, drafted and not exactly, and held against plain answers of their own. The models are the
built-in one, checkpoints that are named, and small random ones of several families, saved here as
checkpoints, whose scores are nearly tied everywhere.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

import ngtcli
from ngtcli.config import Settings
from ngtcli.documents.load import Document, load
from ngtcli.errors import NgtError
from ngtcli.measure.live import build_prompts
from ngtcli.measure.prompts import file_items, passages
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.prompt.build import Prompt
from ngtcli.session.local import LocalSession
from ngtcli.session.session import AnswerOptions
from tests.support.rounding import Guessing
from tests.support.together import together

_COMMON = {
    "vocab_size": 8192, "max_position_embeddings": 2048, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
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
    "float32": ("float32", "none"), "bfloat16": ("bfloat16", "none"),
    "float16": ("float16", "none"), "int8": ("float32", "int8"),
    "int8-bfloat16": ("bfloat16", "int8"),
}  # fmt: skip
TEXTS = Path(ngtcli.__file__).parent / "examples" / "*.txt"  # their passages are summarized
DRAFTS = 16, 48  # nodes
GUESSING = 2  # drafters that know the plain answer; all but these where it is sampled
TOGETHER, IN_ALL = 4, 8  # texts in a pass, and one after another


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


@dataclass(slots=True)
class Count:
    """What was compared of one way to draft: runs, their tokens and passes."""

    runs: int = 0
    different: int = 0
    tokens: int = 0
    steps: int = 0

    def add(self, truth: Sequence[int], output: Sequence[int], steps: int) -> None:
        """One more run, whose ids are to be those of plain decoding."""
        self.runs, self.different = self.runs + 1, self.different + (list(output) != list(truth))
        self.tokens, self.steps = self.tokens + len(output), self.steps + steps


def settings_of(path: str, weights: str, threads: int, answer: int) -> Settings:
    """Those of a model whose weights are in a form, exact."""
    dtype, quantize = WEIGHTS[weights]
    return Settings(
        model=path, dtype=dtype, quantize=quantize, exact="on", max_tokens=answer,
        threads=threads, learn_output=True,  # random models quote no document
    )  # fmt: skip


def prompts_of(session: LocalSession) -> list[Prompt]:
    """Summaries of passages."""
    texts = load([str(TEXTS)]).documents
    parts = [Document(text.name, part) for text in texts for part in passages(text)]
    return build_prompts(session, file_items(parts[:IN_ALL], ()), None)


def compare(session: LocalSession, prompts: Sequence[Prompt]) -> dict[str, Count]:
    """Answers with drafts beside plain ones in passes of the same shape, by how they are drafted.

    Raises ModelError where the model cannot be exact.
    """
    found = {name: Count() for name in ("auto", "trie", "guesses")}
    sampled = session.with_settings(replace(session.settings, temperature=1.0))
    for at, prompt in enumerate(prompts):
        own = sampled if at % 2 else session
        for most in DRAFTS:

            def run(method: str, drafter: Any = None, own: Any = own, most: int = most) -> Any:
                options = AnswerOptions(method, most, drafter=drafter, to_the_end=True)
                return own.generate(prompt, options).finish()  # noqa: B023

            truth = run("none").output
            for method in () if at % 2 else ("auto", "trie"):
                drafted = run(method)
                found[method].add(truth, drafted.output, drafted.statistics.steps)
            for seed in range(GUESSING + 2 * (at % 2)):
                drafted = run("lookahead", Guessing(truth, seed))
                found["guesses"].add(truth, drafted.output, drafted.statistics.steps)
    return found


def compare_together(session: LocalSession, prompts: Sequence[Prompt]) -> Count:
    """Answers of several texts in a pass beside the plain one of each, none of them exact."""
    found, own = Count(), session.with_settings(replace(session.settings, exact="off"))
    begun = [own.start(prompt, AnswerOptions(to_the_end=True)) for prompt in prompts]
    texts, drafters = [prompt.ids for prompt in prompts], own.drafters()
    done = together(own.model, texts, drafters, TOGETHER, own.settings, lambda i: begun[i].limits)
    for prompt, member in zip(prompts, done, strict=True):
        truth = own.generate(prompt, AnswerOptions("none", to_the_end=True)).finish().output
        found.add(truth, member.text.output, member.text.statistics.steps)
    return found


def check(settings: Settings, count: int) -> Iterator[tuple[str, Count | str]]:
    """What is found of a model by how it is drafted, or why it cannot be exact."""
    try:
        session = LocalSession(settings, persist=False)
        prompts = prompts_of(session)
        yield from compare(session, prompts[:count]).items()
    except NgtError as error:
        yield "any", str(error)
        return
    yield f"{TOGETHER} together", compare_together(session, prompts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Check each model in each form; print a table in Markdown, and the sums of each form."""
    parser = argparse.ArgumentParser(description="Count the tokens that exact drafts change.")
    parser.add_argument(
        "--models", nargs="+", default=["builtin", *FAMILIES],
        help=f"folders of checkpoints, builtin, or families: {', '.join(FAMILIES)}",
    )  # fmt: skip
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    parser.add_argument("--answer", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--prompts", type=int, default=2, help=f"{IN_ALL} at most")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sums: dict[tuple[str, bool], Count] = {}
    print("| model | weights | drafts | tokens | runs that differ | acceptance | seconds |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = save_random(name, Path(folder) / name) if name in FAMILIES else name
            for weights in args.weights:
                began = time.process_time()
                settings = settings_of(path, weights, args.threads, args.answer)
                for drafts, found in check(settings, args.prompts):
                    cells = [found] if isinstance(found, str) else cells_of(found)
                    seconds = f"{time.process_time() - began:.1f}"
                    print(
                        "|", " | ".join([name, weights, drafts, *cells, seconds]), "|", flush=True
                    )
                    if isinstance(found, Count):
                        total = sums.setdefault((weights, drafts[0].isdigit()), Count())
                        for part in ("runs", "different", "tokens", "steps"):
                            setattr(total, part, getattr(total, part) + getattr(found, part))
    for (weights, is_together), total in sums.items():
        drafts = "together" if is_together else "exact"
        print("|", " | ".join(["all", weights, drafts, *cells_of(total), ""]), "|")


def cells_of(count: Count) -> list[str]:
    """The cells of a row."""
    length = count.tokens / max(1, count.steps)
    return [str(count.tokens), f"{count.different} of {count.runs}", f"{length:.2f}"]


if __name__ == "__main__":
    main()
