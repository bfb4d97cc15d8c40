"""Small embedding models and cross-encoders, made for the tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

WIDTH = 32
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "sep", ".", "?", ":"]
_LETTERS = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


def make_meaning_embedder(folder: Path, concepts: Sequence[Sequence[str]]) -> Path:
    """A BERT without layers: words of one concept have one vector, all others none.

    With mean pooling a text's vector has the direction of the sum of its concepts.
    """
    words = [word for concept in concepts for word in concept]
    model = _bert(folder, words, num_hidden_layers=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embeddings.LayerNorm.weight.fill_(1.0)
        for concept in concepts:
            direction = torch.randn(WIDTH)
            for word in concept:
                at = len(_SPECIAL) + words.index(word)
                model.embeddings.word_embeddings.weight[at] = direction
    model.save_pretrained(folder)
    return with_modules(folder)


def make_embedder(folder: Path, pooling: str = "mean_tokens") -> Path:
    """A random BERT over the letters."""
    _bert(folder, _LETTERS).save_pretrained(folder)
    return with_modules(folder, pooling)


def make_reranker(folder: Path, labels: int = 1) -> Path:
    """A random cross-encoder over the letters."""
    kind = transformers.BertForSequenceClassification
    _bert(folder, _LETTERS, kind, num_labels=labels).save_pretrained(folder)
    return folder


def with_modules(folder: Path, pooling: str = "mean_tokens", **prompts: str) -> Path:
    """Beside the model the files of sentence-transformers, as they are on the hub."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    parts = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    values = {
        "modules.json": [
            {"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for kind, path in parts.items()
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_mean_tokens": False,  # what is not named is its default
            f"pooling_mode_{pooling}": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 40},
        "config_sentence_transformers.json": {"prompts": prompts},
    }
    for path, value in values.items():
        (folder / path).write_text(json.dumps(value))
    return folder


def _bert(
    folder: Path, words: Sequence[str], kind: Any = transformers.BertModel, **config: Any
) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*_SPECIAL, *words]))
    tokenizer = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = transformers.BertConfig(vocab_size=len(tokenizer), **{**_SIZES, **config})
    return kind(sizes).eval()
