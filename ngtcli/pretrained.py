"""Where a model lies, and loading its tokenizer. Knows nothing of torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.tokens import Tokenizer

BUILTIN = "builtin"
BUILTIN_PATH = Path(__file__).parent / "builtin" / "model"


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without the model. Raises ModelError."""
    path = local_path(name)
    with loading(name):
        auto = transformers_quiet().AutoTokenizer
        return Tokenizer(auto.from_pretrained(path, trust_remote_code=False))


def load_config(name: str) -> Any:
    """The configuration of a model's text part, without the model. Raises ModelError."""
    path = local_path(name)
    with loading(name):
        auto = transformers_quiet().AutoConfig
        return auto.from_pretrained(path, trust_remote_code=False).get_text_config()


def context_length(config: Any, tokenizer: Tokenizer) -> int:
    """Positions that a model takes, of its text configuration and its tokenizer."""
    positions = getattr(config, "max_position_embeddings", None) or 1 << 20
    longest = getattr(tokenizer.backend, "model_max_length", None) or positions
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        # Past this length these turn every row anew, kept ones too, which a cache cannot follow.
        original = rope.get("original_max_position_embeddings")
        positions = min(positions, original or positions)
    return int(min(positions, longest))


def local_path(name: str) -> str:
    """The folder of a model given by folder or as "builtin"; a hub id stays as it is."""
    return str(BUILTIN_PATH) if name == BUILTIN else os.path.expanduser(name)


def transformers_quiet() -> Any:
    """The library, imported now, with its log lines and progress bars turned off."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Whatever a hub, a file or a config can raise becomes one ModelError."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{name}: cannot be loaded ({lines[0]})",
            "Give a folder with a transformers model, a hub id, or -m builtin.",
        ) from error
