"""Small tokenizers of the kinds that models have, trained here; and real ones where they are."""

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
    """BPE over ▁ words with a byte for every character it does not know, untrained by spaces."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    marks = ["<unk>", "<s>", "</s>", *bytes_]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=marks, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    import json

    state = json.loads(trained.to_str())["model"]
    merges = [tuple(m) for m in state["merges"]]
    model = models.BPE(state["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=fuse)
    made = Tokenizer(model)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def _starts_with_bos(made: Tokenizer, mark: str) -> None:
    pairs = [(mark, made.token_to_id(mark))]
    made.post_processor = processors.TemplateProcessing(f"{mark} $A", special_tokens=pairs)


def _wrap(made: Tokenizer, template: str, **marks: str) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=made, chat_template=template, **marks)


def llama_prepend() -> Any:
    """As Llama 2: ▁ before each piece, spaces become ▁, one word is the whole text."""
    made = _bpe()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    _starts_with_bos(made, "<s>")
    return _wrap(made, LLAMA, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def llama_metaspace() -> Any:
    """As newer conversions: ▁ before the first piece only."""
    made = _bpe()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    _starts_with_bos(made, "<s>")
    return _wrap(made, LLAMA, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma() -> Any:
    """As Gemma: no ▁ in front, runs of line ends and HTML tags are added, not special."""
    made = _bpe()
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    ordinary = ["\n", "\n\n", "▁▁", "<h1>", "</h1>", "<b>"]
    made.add_tokens([AddedToken(t, normalized=False) for t in ordinary])
    made.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    template = (
        "<s><start_of_turn>user\n{{ messages[0].content | trim }}<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    return _wrap(made, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _byte_level(split: str | None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    made.pre_tokenizer = level
    if split:
        by = pre_tokenizers.Split(Regex(split), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([by, level])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return made


def qwen() -> Any:
    """As Qwen: NFC, its split, tool marks that are added without being special."""
    made = _byte_level(QWEN_SPLIT)
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<|fim_pad|>")])
    return _wrap(made, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def gpt2() -> Any:
    """As GPT-2, and a template whose pieces want to join with the text."""
    return _wrap(_byte_level(None), BORDERS, eos_token="<|endoftext|>", unk_token="<|endoftext|>")


def phi() -> Any:
    """As Phi-3: control tokens that take the white space after them along."""
    made = _byte_level(QWEN_SPLIT)
    marks = [AddedToken(t, rstrip=True, special=True) for t in ("<|user|>", "<|assistant|>")]
    made.add_special_tokens(marks)
    made.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    template = "<|user|>\n{{ messages[0].content }}<|im_end|>\n<|assistant|>\n"
    return _wrap(made, template, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def unigram() -> Any:
    """As T5 and XLM-R: `</s>` is in the Unigram vocabulary itself, full-width text is folded."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    marks = ["<s>", "</s>", "<unk>", "<extra_id_0>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=marks, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
    )
    template = "<s>user: {{ messages[0].content }}</s>assistant:"
    return _wrap(
        made,
        template,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=["<extra_id_0>"],
    )


def wordpiece() -> Any:
    """As BERT: lower case, words that it does not know are one [UNK]."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=marks, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    ids = [(m, made.token_to_id(m)) for m in ("[SEP]", "[CLS]")]
    made.post_processor = processors.BertProcessing(*ids)
    return _wrap(
        made,
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
    f.__name__: f
    for f in (
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
# Their ids spell exactly the text that was encoded.
EXACT = {"qwen", "gpt2", "builtin"}


@cache
def backend(kind: str) -> Any:
    """The `transformers` tokenizer of that kind."""
    return KINDS[kind]()
