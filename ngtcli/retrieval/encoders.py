"""Models that give vectors of texts, and models that score a passage for a question.

`sentence-transformers` loads and runs them: a model's folder says which parts it has, how token
vectors become one, how many tokens are read, and what is put before questions and passages. No code
of a folder is run. The library is imported where a model is loaded, which takes some seconds.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import HINT, fetch, find, read_object
from ngtcli.models.pretrained import check_weights, loading, transformers_quiet
from ngtcli.retrieval.index import Floats
from ngtcli.system.files import key_of, stamp_of
from ngtcli.system.machine import pick_device

BATCH = 32  # texts a pass; guess
_FORMAT = 2  # of how vectors are made
_RUN: dict[str, Any] = {
    "batch_size": BATCH,
    "show_progress_bar": False,
    # Text never becomes a control token.
    "processing_kwargs": {"text": {"split_special_tokens": True}},
}


class _Encoder:
    """A model by folder or hub id. Raises ModelError, as all its methods do.

    `kind` is its class in the library; a folder without that's files has one of `architectures`, by
    the ends of their names. Weights with `spare` in their names may be missing.
    """

    role = kind = what = ""
    architectures: tuple[str, ...] = ()
    spare = " "

    def __init__(self, name: str, device: str = "auto") -> None:
        self.name = name
        with self._usable():
            self.folder = Path(fetch(name, plain=True))
            self.check(name, self.folder)
            with loading(name), warnings.catch_warnings(), _library(name, self.spare) as library:
                warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
                self._model = getattr(library, self.kind)(
                    str(self.folder),
                    device=pick_device(device),
                    local_files_only=True,
                    model_kwargs={"dtype": "float32", "ignore_mismatched_sizes": True},
                )
            if (labels := getattr(self._model, "num_labels", 1)) != 1:
                raise ModelError(f"{name} has {labels} labels, a cross-encoder has one", hint=HINT)

    @classmethod
    def check(cls, name: str, folder: Path) -> None:
        """Raise ModelError if the folder says that the model is of another kind."""
        kinds = read_object(folder / "config.json").get("architectures")
        kind = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
        if (folder / "modules.json").exists():
            about = read_object(folder / "config_sentence_transformers.json")
            kind = str(about.get("model_type", Embedder.kind))
        if kind and not kind.endswith((cls.kind, *cls.architectures)):
            raise ModelError(f"{name} is a {kind}, not {cls.what}", hint=HINT)

    @classmethod
    @contextmanager
    def _usable(cls) -> Iterator[None]:
        """Make a ModelError say which model it is about, and what to give in its place.

        Raises one if the library is not installed.
        """
        if find_spec("sentence_transformers") is None:
            what = f"--set {cls.role} needs sentence-transformers, which is not installed"
            raise ModelError(what, hint="Install it: pip install 'ngtcli[dense]'")
        try:
            yield
        except ModelError as error:
            hint = f"Give the folder or hub id of {cls.what} (--{cls.role})."
            raise ModelError(f"{cls.role} {error}", hint=error.hint.replace(HINT, hint)) from error

    def _run(self, run: Callable[[], Any]) -> Floats:
        """What `run` returns; ModelError where it fails, or gives no finite numbers."""
        try:
            found: Floats = run()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            line = str(error).strip().split("\n")[0]
            what = f"{self.name}: it does not run ({line})"
            raise ModelError(what, hint="Name another model.") from error
        if not np.isfinite(found).all():
            raise ModelError(
                f"{self.name}: what it gives are not numbers", hint="Name another model."
            )
        return found


class Embedder(_Encoder):
    """Gives vectors of length 1, float32, of the first `tokens` of texts.

    `fingerprint` is another for other weights or files.
    """

    role, kind, what = "embedder", "SentenceTransformer", "an embedding model"
    architectures, spare = ("Model", "ForMaskedLM", "ForPreTraining"), "pooler."

    def __init__(self, name: str, device: str = "auto") -> None:
        super().__init__(name, device)
        self.tokens = self._model.max_seq_length
        files = sorted(p for pattern in ("*", "*/*") for p in self.folder.glob(pattern))
        states = [(p.name, stamp_of(p)) for p in files if p.is_file()]
        self.fingerprint = key_of(_FORMAT, os.path.realpath(self.folder), *states)

    def question(self, text: str) -> Floats:
        """The vector of a question (width,)."""
        vector: Floats = self._vectors([text], "query", "query")[0]
        return vector

    def passages(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """The vectors (texts, width), made in one pass; and how many texts were cut."""
        vectors = self._vectors([*texts], "document", "document", "passage", "corpus")
        tokenizer = self._model.tokenizer
        if not callable(tokenizer):  # of words, which reads all of a text
            return vectors, 0
        coded = tokenizer([*texts], truncation=True)
        return vectors, sum(bool(encoding.overflowing) for encoding in coded.encodings or ())

    def _vectors(self, texts: list[str], task: str, *names: str) -> Floats:
        """Vectors with the prompt of the first of these names, or the model's default one."""
        prompts, encode = self._model.prompts, self._model.encode
        wanted = [*names, self._model.default_prompt_name]
        prompt = next((prompts[name] for name in wanted if prompts.get(name)), "")
        how = {"prompt": prompt, "task": task, "normalize_embeddings": True, **_RUN}
        return self._run(lambda: encode(texts, **how))


class Reranker(_Encoder):
    """Scores passages for a question, each in a pass with it."""

    role, kind, what = "reranker", "CrossEncoder", "a cross-encoder with one label"
    architectures = ("ForSequenceClassification",)

    def scores(self, question: str, texts: Sequence[str]) -> Floats:
        """The model's score of each text (texts,), a logit; BATCH texts a pass."""
        from torch.nn import Identity

        pairs, predict = [(question, text) for text in texts], self._model.predict
        return self._run(lambda: predict(pairs, activation_fn=Identity(), **_RUN))


# The questions of one run share them.
load_embedder = lru_cache(maxsize=1)(Embedder)
load_reranker = lru_cache(maxsize=1)(Reranker)


def check_encoders(embedder: str, reranker: str) -> None:
    """Raise ModelError if one that is named is not there or of another kind; "" names none."""
    for encoder, name in ((Embedder, embedder), (Reranker, reranker)):
        if name:
            with encoder._usable():
                if os.path.isdir(folder := find(name, plain=True)):
                    encoder.check(name, Path(folder))


@contextmanager
def _library(name: str, spare: str) -> Iterator[Any]:
    """The library, without its messages. Raises ModelError where weights do not fill a model that
    is loaded in this block, `spare` ones apart: the library would give them random values.
    """
    transformers_quiet()
    import sentence_transformers  # here: it is an extra

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    module: Any = sentence_transformers.base.modules.Transformer
    load = module._load_model

    def checked(*own: Any, **options: Any) -> Any:
        model, told = load(*own, output_loading_info=True, **options)
        needed = {key for key in told["missing_keys"] if spare not in key}
        check_weights(name, {**told, "missing_keys": needed}, lambda _: None)
        return model

    module._load_model = checked
    try:
        yield sentence_transformers
    finally:
        module._load_model = load
