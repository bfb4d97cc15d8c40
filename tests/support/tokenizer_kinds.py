"""Small tokenizers of the kinds that models have, trained here, and real ones if they are there."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import TokenizersBackend

from ngtcli.models.pretrained import load_tokenizer
from tests.support.helpers import SHARED, STORIES

CORPUS = [
    "The tide came in at noon that day, and the harbour master wrote it on a slate.",
    "Boats lie along the wall; their names are painted in white and blue letters.",
    "user system assistant end start tool call sep cls mask pad unk im s inst h1",
    "for (int i = 0; i < 10; ++i) { a[i] |= b[i] >> 2; }  // <html> | <b> [x] </p>",
    "naïve café, “quoted” — 한국어 문장, 1234 5678.\n\n  Two lines.\n\tAnd a tab.",
] * 4
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
# Its own pieces end and begin in the middle of a control token.
BORDERS = "<|im_start|>user<|{{ messages[0].content }}|><|im_end|><|im_start|>"
LLAMA = "<s>[INST] {{ messages[0].content | trim }} [/INST]"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bpe(*, fuse: bool = True) -> Tokenizer:
    """BPE over words that begin with ▁; an unknown character becomes its bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special_tokens = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*special_tokens, *byte_tokens], show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)

    state = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in state["merges"]]
    tokenizer = Tokenizer(
        models.BPE(state["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=fuse)
    )
    tokenizer.add_special_tokens(special_tokens)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _prepend_bos(tokenizer: Tokenizer, bos: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _wrap(tokenizer: Tokenizer, template: str, **special_tokens: Any) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=tokenizer, chat_template=template, **special_tokens)


def llama_prepend() -> Any:
    """Like Llama 2: ▁ before each piece, spaces become ▁, and the whole text is one word."""
    tokenizer = _bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    _prepend_bos(tokenizer, "<s>")
    return _wrap(tokenizer, LLAMA, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def llama_metaspace() -> Any:
    """Like newer conversions of Llama: ▁ before the first piece only."""
    tokenizer = _bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    _prepend_bos(tokenizer, "<s>")
    return _wrap(tokenizer, LLAMA, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma() -> Any:
    """Like Gemma: no ▁ in front; line breaks and HTML tags are added tokens, not special ones."""
    tokenizer = _bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    ordinary = ["\n", "\n\n", "▁▁", "<h1>", "</h1>", "<b>"]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ordinary])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    template = (
        "<s><start_of_turn>user\n{{ messages[0].content | trim }}<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    return _wrap(tokenizer, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _byte_level(split: str | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = byte_level
    if split:
        splitter = pre_tokenizers.Split(Regex(split), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def qwen() -> Any:
    """Like Qwen: NFC, its pattern for words, and tool tokens that are added, not special."""
    tokenizer = _byte_level(QWEN_SPLIT)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<|fim_pad|>")])
    return _wrap(tokenizer, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def gpt2() -> Any:
    """Like GPT-2, with a template whose pieces would merge with the text."""
    return _wrap(_byte_level(None), BORDERS, eos_token="<|endoftext|>", unk_token="<|endoftext|>")


def phi() -> Any:
    """Like Phi-3: control tokens that also match the white space after them."""
    tokenizer = _byte_level(QWEN_SPLIT)
    roles = ("<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens([AddedToken(role, rstrip=True, special=True) for role in roles])
    tokenizer.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    template = "<|user|>\n{{ messages[0].content }}<|im_end|>\n<|assistant|>\n"
    return _wrap(tokenizer, template, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def unigram() -> Any:
    """Like T5 and XLM-R: `</s>` is in the Unigram vocabulary; full-width text is folded."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<unk>", "<extra_id_0>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    template = "<s>user: {{ messages[0].content }}</s>assistant:"
    return _wrap(
        tokenizer,
        template,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=["<extra_id_0>"],
    )


def wordpiece() -> Any:
    """Like BERT: lower case; an unknown word is one [UNK]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    return _wrap(
        tokenizer,
        "[CLS] {{ messages[0].content }} [SEP]",
        unk_token="[UNK]",
        sep_token="[SEP]",
        cls_token="[CLS]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )


def builtin() -> Any:
    return load_tokenizer("builtin").backend


def _shared(path: Any) -> Any:
    backend = load_tokenizer(str(path)).backend
    backend.chat_template = LLAMA
    return backend


KINDS: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (
        llama_prepend,
        llama_metaspace,
        gemma,
        qwen,
        gpt2,
        phi,
        unigram,
        wordpiece,
        builtin,
    )
}
VICUNA = SHARED / "traces" / "specbench-vicuna7b" / "tokenizer"
if VICUNA.is_dir():
    KINDS["vicuna"] = lambda: _shared(VICUNA)
if STORIES.is_dir():
    KINDS["stories"] = lambda: _shared(STORIES)
# Decoding the ids of a text gives exactly that text.
EXACT = {"qwen", "gpt2", "builtin"}


@cache
def backend(kind: str) -> Any:
    """The `transformers` tokenizer of that kind."""
    return KINDS[kind]()
