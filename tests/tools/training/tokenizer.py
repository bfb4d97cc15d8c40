"""The built-in model's byte-level BPE and chat template.

One rule of pre-tokenisation is new here: the space after a sentence is a token by itself. A
sentence thus has the same ids everywhere, and its start is marked for the model.
"""

from collections.abc import Iterable
from typing import Any

VOCABULARY = 8192  # tokens; guess
USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
SPECIAL = (PAD, END, USER, ASSISTANT)

# The space after a sentence; else a line break, a word, up to four digits, or other signs.
PATTERN = (
    r"(?<=[.!?])[ ]+(?=\S)|(?<=[.!?][\"”’')\]])[ ]+(?=\S)"
    r"|\s*\n\s*|['’](?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?\p{N}{1,4}| ?[^\s\p{L}\p{N}]+|\s+"
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}"
    "{{- message['content'] | trim -}}{{ '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """A `tokenizers.Tokenizer` with `vocabulary` tokens, trained on `texts`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def as_pretrained(tokenizer: Any, positions: int) -> Any:
    """The tokenizer as a `PreTrainedTokenizerFast` for `positions` tokens, with chat template."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
