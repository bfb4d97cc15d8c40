"""Where a model lies, and loading its tokenizer. Knows nothing of torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ngtcli.checkpoint import BUILTIN as BUILTIN
from ngtcli.checkpoint import BUILTIN_PATH as BUILTIN_PATH
from ngtcli.checkpoint import find, why_not_loaded
from ngtcli.errors import ModelError
from ngtcli.tokens import Tokenizer


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


def local_path(name: str) -> str:
    """The folder of a model, or its hub id where it is not here. Raises ModelError."""
    return find(name)


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
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: cannot be loaded ({why_not_loaded(error)})",
            "Give a folder with a transformers model, a hub id, or -m builtin.",
        ) from error
