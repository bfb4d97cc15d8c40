"""The parts of a training run: sizes, learning rates, tokenizer, initial model, optimizers.

The tokenizer is a byte-level BPE with one additional rule: the space after a sentence is a token.
Thus a sentence has the same ids everywhere, and its start is marked for the model.
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

# How often the texts of a source are repeated for the tokenizer, so that prose counts more than
# specifications. Guess.
_REPETITIONS = {"newwiki-qa": 5, "sherlock": 4, "scitldr": 2}

VOCABULARY = 8192  # Tokens. Guess.
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
PAD = "<|pad|>"
SPECIAL = (PAD, END, USER, ASSISTANT)

# The space after a sentence, or else a line break, a word, up to four digits, or other characters.
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
    """Wrap the tokenizer in a `PreTrainedTokenizerFast` for `positions` tokens, with a template."""
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
    """Sizes, learning rates and loss weights. They are saved with the model.

    All values are guesses, except `width`, `heads` and `layers`, which the circuit needs.

    Attributes:
        layers: The layers of the model.
        width: Its hidden size.
        heads: Its attention heads.
        inner: The inner size of its MLPs.
        positions: Its context, in tokens.
        learning_rate: The highest learning rate of the matrices.
        table_rate: That of the embeddings. A higher one moves them away from the circuit.
        batch_tokens: The tokens of a batch, with its padding.
        hard_weight: The weight in the loss of the tokens that determine the sentence quoted.
        decay: The last share of the time, in which the learning rates fall linearly.
        lengths: (share of the time, tokens): until that share a row has at most that many tokens.
        seed: The seed of all random numbers.
    """

    layers: int = LAYERS
    width: int = WIDTH
    heads: int = HEADS
    inner: int = 704
    positions: int = 4096
    learning_rate: float = 4e-4
    table_rate: float = 1.5e-4
    batch_tokens: int = 4096
    hard_weight: float = 2.0
    decay: float = 0.6
    lengths: tuple[tuple[float, int], ...] = ((0.3, 512), (0.94, 896), (0.98, 1536), (1.1, 4096))
    seed: int = 0


def make_tokenizer(articles: list[Article], seed: int) -> Any:
    """Train a `tokenizers.Tokenizer` on the articles and on the wording of the presets."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(seed)
    texts = [SUMMARIZE] * 3000
    for article in articles:
        text = "\n\n".join(" ".join(paragraph.sentences) for paragraph in article.paragraphs)
        if article.source != "qmsum" or rng.random() < 0.4:
            texts += [text] * _REPETITIONS.get(article.source, 1)
    texts += [ASK.format(question=question) for question in questions_of(articles)] * 5

    split_pieces = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    map_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_pieces, map_bytes])
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
    """Return the real questions about the articles."""
    questions = []
    for article in articles:
        for paragraph in article.paragraphs:
            questions += [question for question, _ in paragraph.questions]
    return questions


def make_lexicon(tokenizer: Any, articles: list[Article], seed: int) -> Lexicon:
    """Make the lexicon, with rarities counted over paragraphs and groups of questions.

    The words of the instructions have weight 0.
    """
    rng = random.Random(seed)
    paragraphs = []
    for article in articles:
        paragraphs += [" ".join(paragraph.sentences) for paragraph in article.paragraphs]
    sample = rng.sample(paragraphs, min(len(paragraphs), 12000))
    questions = questions_of(articles)
    groups = ["\n".join(questions[start : start + 5]) for start in range(0, len(questions), 5)]
    lexicon = count_words(tokenizer, sample + groups * 3)
    instruction_tokens = set(tokenizer.encode(f"{SUMMARIZE} {ASK}").ids)
    weights = tuple(
        0.0 if token in instruction_tokens else weight
        for token, weight in enumerate(lexicon.weights)
    )
    return Lexicon(lexicon.stems, weights)


def mark_tokens(tokenizer: Any) -> Marks:
    """Return the token ids that the circuit uses."""
    user = tokenizer.token_to_id(USER)
    assistant = tokenizer.token_to_id(ASSISTANT)
    space = tokenizer.encode("a. b").ids[2]
    line_break = tokenizer.encode("a\nb").ids[1]
    paragraph_break = tokenizer.encode("a\n\nb").ids[1]
    instruction_starts = ("Question: ", "Answer the", "Summarize the")
    return Marks(
        before_sentence=(space, line_break, paragraph_break, user, assistant),
        user=user,
        assistant=assistant,
        instructions=tuple(tokenizer.encode(text).ids[0] for text in instruction_starts),
    )


def make_model(recipe: Recipe, vocabulary: int, marks: Marks, lexicon: Lexicon) -> Any:
    """Make a LlamaForCausalLM, float32, with tied embeddings and the circuit of `initial.py`."""
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
    """Make Muon (Jordan et al. 2024) for the matrices of the layers, and AdamW for the rest.

    `initial_lr` of their groups is the highest learning rate.
    """
    matrices = []
    others = []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "layers" in name:
            matrices.append(parameter)
        else:
            others.append(parameter)
    matrix_groups = [{"params": matrices, "initial_lr": recipe.learning_rate}]
    other_groups = [{"params": others, "initial_lr": recipe.table_rate}]
    return [
        torch.optim.Muon(matrix_groups, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other_groups, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
