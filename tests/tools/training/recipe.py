"""The parts of a training run: sizes, learning rates, tokenizer, initial model, optimizer.

The tokenizer is a byte-level BPE with one new rule: the space after a sentence is a token. A
sentence thus has the same ids everywhere, and its start is marked for the model.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch

from tests.tools.training.corpus import Article
from tests.tools.training.initial import (
    HEADS,
    LAYERS,
    ROPE_THETA,
    WIDTH,
    Lexicon,
    Marks,
    count_words,
    plant_circuit,
)
from tests.tools.training.tasks import ASK, SUMMARIZE

# How often a source's text is repeated for the tokenizer, to weigh prose above specifications;
# guess.
_REPEAT = {"newwiki-qa": 5, "sherlock": 4, "scitldr": 2}


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


def as_pretrained(tokenizer: Any, positions: int) -> Any:
    """The tokenizer as a `PreTrainedTokenizerFast` for `positions` tokens, with chat template."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=positions,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes, highest learning rates per step, and loss weights; saved beside the model.

    `lengths` are (share of the time, tokens): until that share, a row has at most that many tokens.
    All values are guesses; `width`, `heads` and `layers` are those of the circuit.
    """

    layers: int = LAYERS
    width: int = WIDTH
    heads: int = HEADS
    inner: int = 704
    positions: int = 4096
    learning_rate: float = 4e-4
    table_rate: float = 1.5e-4  # of the embeddings: a higher rate moves them away from the circuit
    batch_tokens: int = 4096
    hard_weight: float = 2.0  # in the loss, of the tokens that determine the sentence quoted
    decay: float = 0.6  # last share of the time, in which the rates fall linearly to zero
    lengths: tuple[tuple[float, int], ...] = ((0.3, 512), (0.94, 896), (0.98, 1536), (1.1, 4096))
    seed: int = 0


def make_tokenizer(articles: list[Article], seed: int) -> Any:
    """A `tokenizers.Tokenizer` for the training articles and for the presets' wording."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(seed)
    texts = [SUMMARIZE] * 3000
    for article in articles:
        text = "\n\n".join(" ".join(p.sentences) for p in article.paragraphs)
        if article.source != "qmsum" or rng.random() < 0.4:
            texts += [text] * _REPEAT.get(article.source, 1)
    texts += [ASK.format(question=question) for question in questions_of(articles)] * 5
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def questions_of(articles: list[Article]) -> list[str]:
    """The real questions about them."""
    return [q for a in articles for p in a.paragraphs for q, _ in p.questions]


def make_lexicon(tokenizer: Any, articles: list[Article], seed: int) -> Lexicon:
    """Word rarities over paragraphs and questions; the words of the instructions have weight 0."""
    rng = random.Random(seed)
    texts = [" ".join(p.sentences) for a in articles for p in a.paragraphs]
    questions = questions_of(articles)
    grouped = ["\n".join(questions[i : i + 5]) for i in range(0, len(questions), 5)]
    lexicon = count_words(tokenizer, rng.sample(texts, min(len(texts), 12000)) + grouped * 3)
    instructions = set(tokenizer.encode(f"{SUMMARIZE} {ASK}").ids)
    return Lexicon(
        lexicon.stems, tuple(0.0 if i in instructions else w for i, w in enumerate(lexicon.weights))
    )


def mark_tokens(tokenizer: Any) -> Marks:
    """The token ids that the circuit uses."""
    user, assistant = (tokenizer.token_to_id(t) for t in (USER, ASSISTANT))
    breaks = tuple(tokenizer.encode(f"a{gap}b").ids[1 + len(gap) // 3] for gap in ("\n", "\n\n"))
    space = tokenizer.encode("a. b").ids[2]
    opened = ("Question: ", "Answer the", "Summarize the")
    starts = tuple(tokenizer.encode(text).ids[0] for text in opened)
    return Marks((space, *breaks, user, assistant), user, assistant, starts)


def make_model(recipe: Recipe, vocabulary: int, marks: Marks, lexicon: Lexicon) -> Any:
    """A LlamaForCausalLM, float32, with tied embeddings and the circuit of `initial.py`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.positions,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    plant_circuit(model, marks, lexicon, recipe.seed)
    return model


def make_optimizers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, AdamW for the rest.

    `initial_lr` of their groups is the highest rate.
    """
    named = list(model.named_parameters())
    inside = [p for name, p in named if p.ndim == 2 and "layers" in name]
    others = [p for name, p in named if not (p.ndim == 2 and "layers" in name)]
    matrices = [{"params": inside, "initial_lr": recipe.learning_rate}]
    rest = [{"params": others, "initial_lr": recipe.table_rate}]
    return [
        torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
