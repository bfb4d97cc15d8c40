"""Embedding models, which compute the vector of a text, and rerankers, which score a passage.

`sentence-transformers` loads and runs them: a model's folder says which parts it has, how the
vectors of tokens are pooled, how many tokens are read, and which prompts precede questions and
passages. No code of a folder is run. The library is imported only when a model is loaded, as that
takes some seconds.
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

BATCH = 32  # texts per forward pass (guess)
_FORMAT = 2  # of how vectors are made
_RUN_OPTIONS: dict[str, Any] = {
    "batch_size": BATCH,
    "show_progress_bar": False,
    # Text never becomes a control token.
    "processing_kwargs": {"text": {"split_special_tokens": True}},
}


class _Encoder:
    """A model of `sentence-transformers`, by its folder or Hugging Face id.

    All methods raise ModelError where the model is missing, is of another kind, or does not run.

    Attributes:
        role: The setting that names it.
        kind: Its class in the library.
        description: A noun phrase for messages.
        architectures: The ends of the architectures in `config.json` that may be loaded where the
            folder has no files of the library.
        unused_weights: Weights with this in their names may be missing.
    """

    role = ""
    kind = ""
    description = ""
    architectures: tuple[str, ...] = ()
    unused_weights = " "

    def __init__(self, name: str, device: str = "auto") -> None:
        self.name = name
        with self._usable():
            self.folder = Path(fetch(name, only_folders=True))
            self.check(name, self.folder)
            with (
                loading(name),
                warnings.catch_warnings(),
                _library(name, self.unused_weights) as library,
            ):
                warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
                self._model = getattr(library, self.kind)(
                    str(self.folder),
                    device=pick_device(device),
                    local_files_only=True,
                    model_kwargs={"dtype": "float32", "ignore_mismatched_sizes": True},
                )
            labels = getattr(self._model, "num_labels", 1)
            if labels != 1:
                raise ModelError(
                    f"{name} has {labels} labels, but a reranker must have one", hint=HINT
                )

    @classmethod
    def check(cls, name: str, folder: Path) -> None:
        """Raise ModelError if the folder says that the model is of another kind."""
        kind = ""
        architectures = read_object(folder / "config.json").get("architectures")
        if isinstance(architectures, list) and architectures:
            kind = str(architectures[0])
        if (folder / "modules.json").exists():
            library_config = read_object(folder / "config_sentence_transformers.json")
            kind = str(library_config.get("model_type", Embedder.kind))
        if kind and not kind.endswith((cls.kind, *cls.architectures)):
            raise ModelError(f"{name} is a {kind}, not {cls.description}", hint=HINT)

    @classmethod
    @contextmanager
    def _usable(cls) -> Iterator[None]:
        """Have each ModelError say which model it is about, and what to name instead.

        Raises one if the library is not installed.
        """
        if find_spec("sentence_transformers") is None:
            raise ModelError(
                f"--set {cls.role} needs sentence-transformers, which is not installed",
                hint="Install it: pip install 'ngtcli[dense]'",
            )
        try:
            yield
        except ModelError as error:
            hint = (
                f"Give the folder or Hugging Face id of {cls.description} (--set {cls.role}=NAME)."
            )
            raise ModelError(f"{cls.role} {error}", hint=error.hint.replace(HINT, hint)) from error

    def _run(self, run: Callable[[], Any]) -> Floats:
        """Return the result of `run`. Raises ModelError where it fails or has NaN or infinity."""
        try:
            result: Floats = run()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            line = str(error).strip().split("\n")[0]
            raise ModelError(
                f"{self.name}: the model does not run ({line})", hint="Name another model."
            ) from error
        if not np.isfinite(result).all():
            raise ModelError(
                f"{self.name}: the output has NaN or infinity", hint="Name another model."
            )
        return result


class Embedder(_Encoder):
    """Computes vectors of length 1, float32.

    Attributes:
        tokens: The maximum number of tokens that it reads of a text.
        fingerprint: Differs for other weights or files.
    """

    role = "embedder"
    kind = "SentenceTransformer"
    description = "an embedding model"
    architectures = ("Model", "ForMaskedLM", "ForPreTraining")
    unused_weights = "pooler."

    def __init__(self, name: str, device: str = "auto") -> None:
        super().__init__(name, device)
        self.tokens = self._model.max_seq_length
        paths = sorted([*self.folder.glob("*"), *self.folder.glob("*/*")])
        stamps = [(path.name, stamp_of(path)) for path in paths if path.is_file()]
        self.fingerprint = key_of(_FORMAT, os.path.realpath(self.folder), *stamps)

    def question(self, text: str) -> Floats:
        """Return the vector of a question: (width,)."""
        vector: Floats = self._vectors([text], "query", "query")[0]
        return vector

    def passages(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """Return the vectors of texts, and the number of texts of which only the beginning is read.

        Returns:
            The vectors, (texts, width), and that number.
        """
        vectors = self._vectors([*texts], "document", "document", "passage", "corpus")
        tokenizer = self._model.tokenizer
        if not callable(tokenizer):  # a tokenizer of words, which reads all of a text
            return vectors, 0
        encodings = tokenizer([*texts], truncation=True).encodings or ()
        return vectors, sum(bool(encoding.overflowing) for encoding in encodings)

    def _vectors(self, texts: list[str], task: str, *prompt_names: str) -> Floats:
        """Return vectors, (texts, width).

        Args:
            texts: The texts.
            task: The task, as the library calls it.
            prompt_names: The first that the model has a prompt for is used, else its default one.
        """
        prompts = self._model.prompts
        names = [*prompt_names, self._model.default_prompt_name]
        prompt = next((prompts[name] for name in names if prompts.get(name)), "")
        options = {"prompt": prompt, "task": task, "normalize_embeddings": True, **_RUN_OPTIONS}
        return self._run(lambda: self._model.encode(texts, **options))


class Reranker(_Encoder):
    """Scores passages for a question, reading both together (a cross-encoder)."""

    role = "reranker"
    kind = "CrossEncoder"
    description = "a cross-encoder with one label"
    architectures = ("ForSequenceClassification",)

    def scores(self, question: str, texts: Sequence[str]) -> Floats:
        """Return the model's score of each text, a logit: (texts,)."""
        from torch.nn import Identity

        pairs = [(question, text) for text in texts]
        return self._run(
            lambda: self._model.predict(pairs, activation_fn=Identity(), **_RUN_OPTIONS)
        )


# One run may ask several questions.
load_embedder = lru_cache(maxsize=1)(Embedder)
load_reranker = lru_cache(maxsize=1)(Reranker)


def check_encoders(embedder: str, reranker: str) -> None:
    """Raise ModelError if a named model is missing or of another kind; "" names none."""
    for encoder, name in ((Embedder, embedder), (Reranker, reranker)):
        if not name:
            continue
        with encoder._usable():
            folder = find(name, only_folders=True)
            if os.path.isdir(folder):
                encoder.check(name, Path(folder))


@contextmanager
def _library(name: str, unused_weights: str) -> Iterator[Any]:
    """Yield the library, without its messages, to load a model in this block.

    Raises ModelError where the files of the model lack weights, except for unused ones: the library
    would fill them with random values.
    """
    transformers_quiet()
    import sentence_transformers  # here, as it is an extra

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    module: Any = sentence_transformers.base.modules.Transformer
    load = module._load_model

    def load_and_check(*positional: Any, **options: Any) -> Any:
        model, loading_info = load(*positional, output_loading_info=True, **options)
        missing = {key for key in loading_info["missing_keys"] if unused_weights not in key}
        check_weights(name, {**loading_info, "missing_keys": missing})
        return model

    module._load_model = load_and_check
    try:
        yield sentence_transformers
    finally:
        module._load_model = load
