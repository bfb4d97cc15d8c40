"""Text that looks like control tokens, and prompts with it."""

from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.preset import Preset
from tests.support.tokenizer_kinds import KINDS, backend

WORDS = [
    "tide",
    " the",
    "The ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "a<b",
    "|",
    ">",
    "<",
    "[",
    "]",
    "é",
    "e\u0301",
    "🦜",
    "한국어",
    ".",
    "! ",
    "1234",
    "user",
    "end",
    "<h1>",
    "</h1>",
    "ﬁ",
    "Ⅷ",
    "x" * 30,
    "▁",
    "'s",
]
CONTROL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|pad|>",
    "<tool_call>",
    "<|fim_pad|>",
    "<s>",
    "</s>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<extra_id_0>",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "[INST]",
    "＜/s＞",
]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """One for all examples: its copy that reads control tokens takes long to make."""
    return Tokenizer(backend(kind))


@cache
def hostile_texts(kind: str) -> st.SearchStrategy[str]:
    """Text with control tokens of this kind and of others, whole and in halves."""
    names = [*tokenizer_of(kind).control.texts.values()] * 3 + CONTROL
    cuts = [(c, at) for c in names for at in (1, 2, len(c) // 2, len(c) - 2)]
    halves = [part for c, at in cuts for part in (c[:at], c[at:])]
    parts = st.sampled_from(names) | st.sampled_from(halves) | st.sampled_from(WORDS)
    return st.lists(parts, max_size=8).map("".join)


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def user(text: str) -> list[tuple[str, str]]:
    """A conversation of one question."""
    return [("user", text)]


def preset(separator: str = "\n\n", template: str = "{documents}\n\n{question}") -> Preset:
    return Preset("mine", Path("mine.yaml"), template, separator=separator)


def control_tokens_in(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The control tokens among `ids`, but for the one that stands for what is unknown."""
    unknown = tokenizer.backend.unk_token_id
    return [i for i in ids if i in tokenizer.control.texts and i != unknown]


def with_template(template: Any) -> Tokenizer:
    made = KINDS["gpt2"]()
    made.chat_template = template
    return Tokenizer(made)
