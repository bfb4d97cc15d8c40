"""Models that think, made here: their output is a given text, in the formats that models have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tests.support.helpers import ngt, template

# What the templates of real models write behind a user's turn.
TEMPLATES = {
    name: template(name) for name in ("qwen", "deepseek", "v3.1", "old r1", "harmony", "granite")
}
QWEN = TEMPLATES["qwen"]
MARKS = ("<think>", "</think>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")
CONTEXT = 512


def tokenizer(template: str, **more: Any) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the marks as tokens; those of thoughts are not special."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = ["The ferry leaves the harbour at nine. So the answer is nine o'clock."] * 3
    bpe.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", chat_template=template, **more
    )
    names = ("<|im_start|>", *MARKS)
    made.add_tokens([AddedToken(t, special="think" not in t, normalized=False) for t in names])
    return made


def write_model(folder: Path, kind: str, says: str, *arguments: str, **more: Any) -> Path:
    """A folder of a model that answers `says` to `ngt ARGUMENTS`, whatever its drafts."""
    made = tokenizer(TEMPLATES[kind], **more)
    made.save_pretrained(folder)
    config = GPT2Config(
        vocab_size=len(made),
        n_positions=CONTEXT,
        n_embd=CONTEXT,
        n_layer=1,
        n_head=1,
        n_inner=8,
        bos_token_id=None,
        eos_token_id=made.convert_tokens_to_ids("<|im_end|>"),
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    dry = ngt(*arguments, "-m", str(folder), "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr.decode()
    import json

    start = len(json.loads(dry.stdout)["ids"])
    ids = [*made.encode(says, add_special_tokens=False), config.eos_token_id]
    save(folder, config, {start + i: token for i, token in enumerate(ids)})
    return folder


def save(folder: Path, config: GPT2Config, script: Mapping[int, int]) -> None:
    """Weights that make the token of each place, and the end token elsewhere."""
    hf = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        hf.transformer.ln_f.weight.fill_(1.0)
        hf.transformer.wpe.weight.copy_(torch.eye(CONTEXT))
        for place in range(CONTEXT):  # the pass at a place gives the token after it
            hf.lm_head.weight[script.get(place + 1, config.eos_token_id), place] = 1.0
    hf.save_pretrained(folder)
