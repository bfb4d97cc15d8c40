"""Makes an embedding model of word vectors: where no trained one is at hand.

    python -m tests.tools.word_vectors --data a.jsonl.xz b.jsonl.xz --output FOLDER

Latent semantic analysis (S. Deerwester et al., Indexing by Latent Semantic Analysis, 1990): words
get vectors by the paragraphs that they occur in, from the largest singular values of a matrix of
weighted counts. The model is a BERT without layers: a text's vector is the mean of its words', each
weighted by how rare the word is. It knows which words occur together, and nothing of their order.
"""

import argparse
import json
import lzma
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

_WORD = re.compile(r"[a-z0-9]+")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LEAST = 2  # paragraphs that a word must occur in
_MOST = 60_000  # words
_SHORT = 100  # characters, of paragraphs that are left out
_TOKENS = 510  # of a text that are read
_LARGE = 1000.0  # against the numbers of a word's vector, so that no vector is scaled by its own


def texts_of(path: Path) -> Iterator[str]:
    """The paragraphs of a file of JSON lines, each with a `context`, `text` or `source`."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            text = next((row[k] for k in ("context", "text", "source") if k in row), "")
            whole = " ".join(text) if isinstance(text, list) else text
            yield from (p for p in re.split(r"\n\s*\n", whole) if len(p) >= _SHORT)


def words(text: str) -> list[str]:
    """The words of a text, as the tokenizer of the model has them."""
    return _WORD.findall(text.lower())


def word_vectors(texts: Sequence[str], width: int) -> tuple[list[str], torch.Tensor]:
    """The words, and their vectors times their weights, float32 (words, width)."""
    counted = [Counter(words(text)) for text in texts]
    having = Counter(word for counts in counted for word in counts)
    kept = [w for w, n in having.most_common(_MOST) if n >= _LEAST]
    number = {word: i for i, word in enumerate(kept)}
    rarity = [math.log(len(texts) / having[word]) for word in kept]
    places: list[tuple[int, int]] = []
    values: list[float] = []
    for column, counts in enumerate(counted):
        own = {
            i: (1 + math.log(n)) * rarity[i]
            for w, n in counts.items()
            if (i := number.get(w)) is not None
        }
        length = math.hypot(*own.values()) or 1.0
        places += ((row, column) for row in own)
        values += (value / length for value in own.values())
    matrix = torch.sparse_coo_tensor(
        torch.tensor(places).T, values, (len(kept), len(texts)), check_invariants=True
    )
    torch.manual_seed(0)
    left, _, _ = torch.svd_lowrank(matrix, q=width, niter=4)
    return kept, left * torch.tensor(rarity)[:, None]


def save(kept: Sequence[str], vectors: torch.Tensor, folder: Path) -> None:
    """The model, its tokenizer, and how it is used.

    A BERT scales each word's vector to one length. Two more numbers, large and of opposite sign,
    make all of nearly one length before, and a weight of 0 takes them out afterwards.
    """
    from ngtcli.model_files.pretrained import transformers_quiet

    transformers = transformers_quiet()
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*_SPECIAL, *kept]), encoding="utf-8")
    transformers.BertTokenizer(vocab=str(vocabulary)).save_pretrained(folder)
    heads = 2  # none are used: there are no layers
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=len(_SPECIAL) + len(kept), hidden_size=vectors.shape[1] + 2,
        num_hidden_layers=0, num_attention_heads=heads, max_position_embeddings=_TOKENS + 2,
    ))  # fmt: skip
    own = vectors / vectors.norm(dim=1).mean()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        table: Any = model.embeddings.word_embeddings.weight
        table[:, -2], table[:, -1] = _LARGE, -_LARGE
        table[len(_SPECIAL) :, :-2] = own
        table[len(_SPECIAL) :, -2] -= own.sum(1)
        model.embeddings.LayerNorm.weight[:-2] = _LARGE
    model.save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    parts = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')


def main() -> None:
    """Make and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--width", type=int, default=300)
    given = parser.parse_args()
    texts = [text for path in given.data for text in texts_of(path)]
    kept, vectors = word_vectors(texts, given.width)
    save(kept, vectors, given.output)
    print(f"{len(kept)} words from {len(texts)} paragraphs, {given.width} numbers each")


if __name__ == "__main__":
    main()
