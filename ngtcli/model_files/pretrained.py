"""Where a model lies, and loading its tokenizer. Knows nothing of torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import find, why_not_loaded
from ngtcli.system.importing import without_collection
from ngtcli.system.reading import read_bounded
from ngtcli.tokens.tokenizer import Tokenizer

LARGEST_JSON = 256_000_000  # bytes of a tokenizer's files; the largest known have 35 MB

# AutoTokenizer imports torch to choose a class; for these kinds of model, and the class that their
# tokenizer_config.json names, the tests prove which one it chooses in this version. `Fast` at the
# end of a name says nothing there.
_CHOSEN_IN = "5.23."
_CHOICES = {
    ("llama", "TokenizersBackend"): "TokenizersBackend",
    ("llama", "PreTrainedTokenizer"): "TokenizersBackend",
    ("llama", "LlamaTokenizer"): "LlamaTokenizer",
    ("qwen2", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("qwen3", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("gemma", "GemmaTokenizer"): "GemmaTokenizer",
    ("gemma2", "GemmaTokenizer"): "GemmaTokenizer",
    ("gemma3_text", "GemmaTokenizer"): "GemmaTokenizer",
    ("gpt2", "GPT2Tokenizer"): "GPT2Tokenizer",
    ("gpt_neox", "GPTNeoXTokenizer"): "GPTNeoXTokenizer",
}


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without the model. Raises ModelError."""
    path = find(name, needs=["tokenizer"])
    with loading(name):
        kind = getattr(transformers_quiet(), tokenizer_class(path) or "AutoTokenizer")
        return Tokenizer(kind.from_pretrained(path, trust_remote_code=False))


def tokenizer_class(path: str) -> str:
    """The class that AutoTokenizer chooses for a folder; "" where only itself can tell."""
    folder = Path(path)
    if not (folder.is_absolute() and metadata.version("transformers").startswith(_CHOSEN_IN)):
        return ""  # AutoTokenizer reads some short relative paths as well-known hub ids
    config, about = _json(folder / "config.json"), _json(folder / "tokenizer_config.json")
    named = about.get("tokenizer_class")
    chosen = _CHOICES.get((str(config.get("model_type")), str(named).removesuffix("Fast")), "")
    foreign = "auto_map" in about or {"auto_map", "tokenizer_class", "model_name"} & set(config)
    if not chosen or foreign:
        return ""
    try:
        vocabulary = read_bounded(folder / "tokenizer.json", LARGEST_JSON)
    except OSError:
        return ""
    # A LlamaTokenizer with a byte-level vocabulary is loaded as another class.
    return "" if chosen == "LlamaTokenizer" and b"ByteLevel" in vocabulary else chosen


def load_config(name: str) -> Any:
    """The configuration of a model's text part, without the model. Raises ModelError.

    Where config.json itself says all that is read of it, its values stand as they are: the class
    of a configuration imports torch.
    """
    path = find(name, needs=["config"])
    values = _json(Path(path) / "config.json")
    if _is_plain(values):
        return SimpleNamespace(**values)
    with loading(name):
        auto = transformers_quiet().AutoConfig
        return auto.from_pretrained(path, trust_remote_code=False).get_text_config()


def _is_plain(values: dict[str, Any]) -> bool:
    """Whether a class of the library would leave sizes and rotary parameters as they are."""
    sizes = [values.get(name) for name in ("vocab_size", "max_position_embeddings")]
    rope = values.get("rope_parameters", {"rope_type": "default"})
    return (
        any(kind == values.get("model_type") for kind, _ in _CHOICES)
        and all(type(size) is int and size > 0 for size in sizes)
        and isinstance(rope, dict)
        and rope.get("rope_type") == "default"
        and not values.get("rope_scaling")
        and "auto_map" not in values
    )


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none, or none that can be read."""
    try:
        values = json.loads(read_bounded(path, LARGEST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def transformers_quiet() -> Any:
    """The library, imported now, with its log lines and progress bars turned off."""
    with without_collection():
        import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Whatever a hub, a file or a config can raise becomes one ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: cannot be loaded ({why_not_loaded(error)})",
            "Give a folder with a transformers model, a hub id, or -m builtin.",
        ) from error
