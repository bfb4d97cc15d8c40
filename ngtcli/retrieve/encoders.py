"""Models that give vectors of texts, and models that score a passage for a question.

Embedding models are loaded as `transformers` loads them and give vectors of length 1. How they are
used stands in their folder, in the form of sentence-transformers: `modules.json` lists the model's
parts, `1_Pooling/config.json` says how token vectors become one, `sentence_bert_config.json` how
many tokens are read, and `config_sentence_transformers.json` what is put before questions and
passages. Rerankers are cross-encoders: one pass over question and passage, one label. torch is
imported where a model is loaded.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import HINT, fetch, find
from ngtcli.model_files.pretrained import check_weights, load_tokenizer, loading, transformers_quiet
from ngtcli.system.files import DamagedFileError, key_of, parse_json, read_bounded
from ngtcli.system.machine import pick_device

BATCH = 32  # texts a pass; guess
_FORMAT = 1  # of how vectors are made
_UNLIMITED = 1 << 20  # tokens, where nothing says how many a model takes; guess
# Positions that some encoders do not give to tokens: theirs begin behind the padding's.
_SPARE = 2
_NOT_NEEDED = "pooler."  # weights of a part that is not used
_EMBEDDER = "Give the folder or hub id of an embedding model (--embedder)."
_RERANKER = "Give the folder or hub id of a cross-encoder with one label (--reranker)."

# The files of sentence-transformers that say how an embedding model is used.
_MOST = 1_000_000  # bytes of one of them; guess, they have hundreds
MEAN, FIRST, LAST, HIGHEST = "mean", "cls", "lasttoken", "max"
_POOLINGS = {  # the older form has a switch for each
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": FIRST,
    "pooling_mode_lasttoken": LAST,
    "pooling_mode_max_tokens": HIGHEST,
}
_PARTS = ("Transformer", "Pooling", "Normalize")
# Without a `modules.json`: what a model that gives vectors of tokens is made for.
_ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")
_OTHER = "Name another embedding model: its vectors would not be as its makers meant them."
_OTHER_KIND = "Give the folder or hub id of an embedding model, as of sentence-transformers."

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Use:
    """How vectors are made: pooling, most tokens of a text (0: not said), and what precedes it."""

    pooling: str = MEAN
    tokens: int = 0
    question: str = ""
    passage: str = ""


def use_of(name: str, folder: Path) -> Use:
    """How the embedding model `name` is used. Raises ModelError for another kind of model."""
    most = (_read(name, folder / "sentence_bert_config.json", dict) or {}).get("max_seq_length")
    tokens = most if isinstance(most, int) and most > 0 else 0
    parts = _read(name, folder / "modules.json", list)
    if parts is None:
        if kind := _other_kind(name, folder, *_ENCODERS):
            what = f"{name} is not an embedding model: it is a {kind} without a modules.json"
            raise ModelError(what, _OTHER_KIND)
        return Use(tokens=tokens)
    parts = [part for part in parts if isinstance(part, dict)]
    kinds = [str(part.get("type", "")).rsplit(".", 1)[-1] for part in parts]
    if unknown := [kind for kind in kinds if kind not in _PARTS]:
        raise ModelError(f"{name}: its part {unknown[0]} is not known", _OTHER)
    if kinds[:2] != ["Transformer", "Pooling"] or parts[0].get("path"):
        raise ModelError(f"{name}: modules.json has other parts than are known", _OTHER)
    pooling = _read(name, folder / str(parts[1].get("path")) / "config.json", dict) or {}
    config = _read(name, folder / "config_sentence_transformers.json", dict) or {}
    prompts = config.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}

    def prompt(*names: str) -> str:
        """The prompt of the first of these names, or the one that is the model's default."""
        wanted = [*names, str(config.get("default_prompt_name"))]
        return next((str(prompts[name]) for name in wanted if prompts.get(name)), "")

    passage = prompt("document", "passage", "corpus")
    return Use(_pooling(name, pooling), tokens, prompt("query"), passage)


def _pooling(name: str, config: dict[str, Any]) -> str:
    said = config.get("pooling_mode")
    chosen = [said] if isinstance(said, str) else [p for k, p in _POOLINGS.items() if config.get(k)]
    others = [k for k, v in config.items() if k.startswith("pooling_mode_") and v is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS.values() or len(others) > 1:
        raise ModelError(f"{name}: how it pools its tokens is not known", _OTHER)
    if config.get("include_prompt") is False:
        raise ModelError(f"{name}: it pools its tokens without the prompt's", _OTHER)
    return str(chosen[0])


def _other_kind(name: str, folder: Path, *ends: str) -> str:
    """As what config.json says the model was made, if that has none of these `ends`; else ""."""
    found = (_read(name, folder / "config.json", dict) or {}).get("architectures")
    kinds = map(str, found if isinstance(found, list) else ())
    return next((kind for kind in kinds if not kind.endswith(ends)), "")


def _read(name: str, path: Path, kind: Any) -> Any:
    """The JSON in a file, None without one. Raises ModelError."""
    try:
        return parse_json(read_bounded(path, _MOST), kind)
    except FileNotFoundError:
        return None
    except (OSError, DamagedFileError) as error:
        raise ModelError(f"{name}: {path.name} cannot be read ({error})", _OTHER) from None


class _Encoder:
    """A model in evaluation mode, its tokenizer, and the most `tokens` of a text that it reads."""

    gives, kind, hint = "", "", ""

    def __init__(self, name: str, folder: Path, device: str, tokens: int = 0) -> None:
        import torch

        self.name, self._device = name, pick_device(device)
        self.tokenizer = load_tokenizer(str(folder)).backend
        with loading(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
            auto = getattr(transformers_quiet(), self.kind)
            model, info = auto.from_pretrained(
                str(folder), dtype=torch.float32, trust_remote_code=False,
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
            every = "ForSeq" in self.kind
            needed = {k for k in info["missing_keys"] if every or _NOT_NEEDED not in k}
            check_weights(name, {**info, "missing_keys": needed}, lambda _: None)
            if getattr(model.config, "is_encoder_decoder", False):
                model = model.get_encoder()
            if self.tokenizer.pad_token is None:
                self.tokenizer.pad_token = self.tokenizer.eos_token
        self._model = model.to(self._device).eval()
        positions = getattr(model.config, "max_position_embeddings", None) or _UNLIMITED
        longest = min(positions - _SPARE, self.tokenizer.model_max_length, _UNLIMITED)
        self.tokens = tokens or max(_SPARE + 2, int(longest))

    def encode(self, *texts: list[str]) -> tuple[Any, int]:
        """Padded tensors of texts or pairs of them, and how many were cut."""
        coded = self.tokenizer(
            *texts, padding=True, truncation="longest_first", max_length=self.tokens,
            return_tensors="pt", split_special_tokens=True,
        )  # fmt: skip
        longer = sum(bool(e.overflowing) for e in coded.encodings or ())
        return coded.to(self._device), longer

    def _run(self, *texts: list[str], read: Callable[[Any, Any], Any]) -> tuple[Floats, int]:
        """What `read` makes of the model's output and the mask of tokens; how many texts were cut.

        Raises ModelError where the model fails, or gives no finite numbers.
        """
        import torch

        try:
            with torch.inference_mode():
                coded, longer = self.encode(*texts)
                numbers = read(self._model(**coded), coded["attention_mask"])
                found: Floats = numbers.float().cpu().numpy()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            line = str(error).strip().split("\n")[0]
            what = f"{self.name}: it does not run ({line})"
            raise ModelError(what, "Name another model.") from error
        if not np.isfinite(found).all():
            raise ModelError(f"{self.name}: its {self.gives} are not numbers", self.hint)
        return found, longer


class Embedder(_Encoder):
    """Gives vectors of length 1, float32; `fingerprint` is another for other weights or files."""

    gives, kind, hint = "vectors", "AutoModel", _EMBEDDER

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self._use = use_of(name, folder)
        super().__init__(name, folder, device, self._use.tokens)
        files = sorted(p for p in (*folder.glob("*"), *folder.glob("*/*")) if p.is_file())
        states = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
        self.fingerprint = key_of(_FORMAT, os.path.realpath(folder), *states)

    def question(self, text: str) -> Floats:
        """The vector of a question (width,). Raises ModelError as `passages`."""
        vector: Floats = self._embed([self._use.question + text])[0][0]
        return vector

    def passages(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """The vectors (texts, width), made in one pass; and how many texts were cut.

        Raises ModelError where the model fails, or gives no finite numbers.
        """
        return self._embed([self._use.passage + text for text in texts])

    def _embed(self, texts: list[str]) -> tuple[Floats, int]:
        from torch.nn.functional import normalize

        def read(output: Any, mask: Any) -> Any:
            hidden = output.last_hidden_state.float()
            return normalize(_pooled(hidden, mask, self._use.pooling), dim=1)

        return self._run(texts, read=read)


def _pooled(hidden: Any, mask: Any, pooling: str) -> Any:
    """One vector of each text's tokens: (texts, tokens, width) to (texts, width)."""
    rows = list(range(len(hidden)))
    if pooling == FIRST:
        return hidden[rows, mask.argmax(1)]
    if pooling == LAST:
        return hidden[rows, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    inside = mask.unsqueeze(-1).to(hidden.dtype)
    if pooling == HIGHEST:
        return hidden.masked_fill(inside == 0, float("-inf")).amax(1)
    return (hidden * inside).sum(1) / inside.sum(1).clamp(min=1)


class Reranker(_Encoder):
    """Scores passages for a question, each in a pass with it."""

    gives, kind, hint = "scores", "AutoModelForSequenceClassification", _RERANKER

    def __init__(self, name: str, folder: Path, device: str) -> None:
        _check_cross_encoder(name, folder)
        super().__init__(name, folder, device)
        if (labels := self._model.config.num_labels) != 1:
            raise ModelError(f"{name} has {labels} labels, a cross-encoder has one", _RERANKER)

    def scores(self, question: str, texts: Sequence[str]) -> Floats:
        """The model's score of each text (texts,), a logit; made in one pass. Raises ModelError."""
        questions = [question] * len(texts)
        return self._run(questions, list(texts), read=lambda output, _: output.logits[:, 0])[0]


@lru_cache(maxsize=1)  # the questions of one run share it
def load_embedder(name: str, device: str = "auto") -> Embedder:
    """An embedding model, by folder or hub id. Raises ModelError."""
    with _said_of("embedder", _EMBEDDER):
        return Embedder(name, Path(fetch(name, plain=True)), device)


@lru_cache(maxsize=1)
def load_reranker(name: str, device: str = "auto") -> Reranker:
    """A cross-encoder, by folder or hub id. Raises ModelError."""
    with _said_of("reranker", _RERANKER):
        return Reranker(name, Path(fetch(name, plain=True)), device)


def check_encoders(embedder: str, reranker: str) -> None:
    """Raise ModelError if a model that is named is not there, if its folder says that it is
    another kind of model, or if FAISS is not installed; an empty name stands for no model.
    """
    if embedder:
        check_installed()
    for kind, name, hint, check in (
        ("embedder", embedder, _EMBEDDER, use_of),
        ("reranker", reranker, _RERANKER, _check_cross_encoder),
    ):
        with _said_of(kind, hint):
            if name and os.path.isdir(folder := find(name, plain=True)):
                check(name, Path(folder))


def check_installed() -> None:
    """Raise ModelError without FAISS."""
    if find_spec("faiss") is None:
        what = "--embedder needs faiss-cpu, which is not installed"
        raise ModelError(what, "Install it: pip install 'ngtcli[dense]'")


def _check_cross_encoder(name: str, folder: Path) -> None:
    if kind := _other_kind(name, folder, "ForSequenceClassification"):
        raise ModelError(f"{name} is a {kind}, which scores no pairs", _RERANKER)


@contextmanager
def _said_of(kind: str, hint: str) -> Iterator[None]:
    """Make a ModelError say which model it is about, and what to give in its place."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{kind} {error}", error.hint.replace(HINT, hint)) from error
