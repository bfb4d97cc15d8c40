"""Small embedding models and cross-encoders, made for the tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

WIDTH = 32
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "sep", ".", "?", ":"]


def make_meaning_embedder(folder: Path, concepts: Sequence[Sequence[str]]) -> Path:
    """A BERT without layers: words of one concept have one vector, all others none.

    With mean pooling a text's vector has the direction of the sum of its concepts.
    """
    words = [word for concept in concepts for word in concept]
    model = _bert(folder, words, num_hidden_layers=0)
    torch.manual_seed(0)
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


def make_embedder(folder: Path, pooling: str = "mean", seed: int = 0, **config: Any) -> Path:
    """A random BERT over the letters."""
    torch.manual_seed(seed)
    _bert(folder, _letters(), **config).save_pretrained(folder)
    return with_modules(folder, pooling)


def make_reranker(folder: Path, labels: int = 1, seed: int = 0) -> Path:
    """A random cross-encoder over the letters."""
    torch.manual_seed(seed)
    kind = transformers.BertForSequenceClassification
    _bert(folder, _letters(), kind, num_labels=labels).save_pretrained(folder)
    return folder


def with_modules(folder: Path, pooling: str = "mean", **prompts: str) -> Path:
    """Beside the model the files of sentence-transformers."""
    name = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}.get(pooling, pooling)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"),
                                          ("2_Normalize", "Normalize")])
    ]  # fmt: skip
    switches = {f"pooling_mode_{m}": False for m in ("mean_tokens", "cls_token", "max_tokens")}
    switches["word_embedding_dimension"] = WIDTH
    values = {
        "modules.json": modules,
        "1_Pooling/config.json": {**switches, f"pooling_mode_{name}": True},
        "sentence_bert_config.json": {"max_seq_length": 40},
        "config_sentence_transformers.json": {"prompts": prompts},
    }
    for path, value in values.items():
        (folder / path).write_text(json.dumps(value))
    return folder


def _letters() -> list[str]:
    return [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]


def _bert(
    folder: Path, words: Sequence[str], kind: Any = transformers.BertModel, **config: Any
) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*_SPECIAL, *words]))
    tokenizer = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 64,
             "initializer_range": 0.5}  # fmt: skip
    return kind(transformers.BertConfig(vocab_size=len(tokenizer), **{**sizes, **config})).eval()
