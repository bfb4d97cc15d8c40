"""Where a model lies, checked before anything large is imported: a folder, or a hub id.

A hub id whose files are all in the local cache stands for their folder: no network is used. Any
other is asked for once, for a few seconds, so that nobody waits for a download that cannot come.
"""

import difflib
import os
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError

BUILTIN = "builtin"
NEEDS = ("config", "weights", "tokenizer")
BUILTIN_PATH = Path(__file__).parent / "builtin" / "model"
_PATIENCE = 5.0  # seconds that the hub has to answer: guessed
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.vocab", "*.tiktoken",
    "spiece.model", "sentencepiece*.model", "spm*.model", "tekken.json", "tokenizer_config.json",
    "merges.txt",
)  # fmt: skip
_HINT = "Give a folder with a transformers model, a hub id, or -m builtin."


def find(name: str, needs: Collection[str] = NEEDS) -> str:
    """The folder of a model given by folder, as "builtin", or by the id of one in the cache.

    `needs` names what a folder must hold, of NEEDS.

    The id itself where it has to be downloaded. Raises ModelError: there is no such folder, it
    lacks something, or the hub cannot be reached or does not know the model.
    """
    if name == BUILTIN:
        return str(BUILTIN_PATH)
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() == ".gguf":
        raise ModelError(
            f"{name}: GGUF files are not read",
            "Give the folder or hub id of the model they were made from.",
        )
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        _check_folder(name, path, needs)
        return str(path)
    if os.path.exists(path):
        raise ModelError(f"{name}: a file, not a folder with a model", _near(path) or _HINT)
    if name.lower() == BUILTIN:
        raise ModelError(f"{name}: no such model", f"Did you mean {BUILTIN}?")
    if _is_path(name):
        raise ModelError(f"{name}: no such folder", _near(path) or _HINT)
    return _from_hub(name)


def check_models(*names: str) -> None:
    """Raise ModelError for a model that cannot be had; empty names are passed over."""
    for name in filter(None, names):
        find(name)


def _is_path(name: str) -> bool:
    """Whether a name can only be meant as a path: the hub has no such id."""
    looks = name.startswith((".", "~", os.sep)) or name.count("/") > 1 or os.sep * 2 in name
    return looks or not _HUB_ID.fullmatch(name)


def _near(path: Path) -> str:
    """A hint that names what lies beside `path` under a similar name; "" where nothing does."""
    try:
        beside = [p.name for p in path.absolute().parent.iterdir() if p.is_dir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"Did you mean {path.parent / close[0]}?" if close else ""


def _check_folder(name: str, folder: Path, needs: Collection[str] = NEEDS) -> None:
    """Raise ModelError where a file is lacking without which no model can be loaded."""
    if "config" in needs and not (folder / "config.json").is_file():
        adapter = (folder / "adapter_config.json").is_file()
        gguf = any(folder.glob("*.gguf"))
        more = " (it holds an adapter)" if adapter else " (GGUF files are not read)" if gguf else ""
        raise ModelError(f"{name}: the folder has no config.json{more}", _HINT)
    if "weights" in needs and not _any(folder, _WEIGHTS):
        raise ModelError(
            f"{name}: the folder has no weights (model.safetensors)", "Download them as well."
        )
    if "tokenizer" in needs and not _any(folder, _TOKENIZERS):
        raise ModelError(
            f"{name}: the folder has no tokenizer (tokenizer.json)", "Download it as well."
        )


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in patterns)


@lru_cache(maxsize=8)
def _from_hub(name: str) -> str:
    """The folder of a hub id that the cache holds, or else the id, when the hub has it."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = Path(huggingface_hub.snapshot_download(name, local_files_only=True))
        _check_folder(name, folder)
        return str(folder)
    except (OSError, ValueError, ModelError, errors.HfHubHTTPError):
        pass  # not there, or not whole
    here = " is not in the local cache, and"
    try:
        huggingface_hub.model_info(name, timeout=_PATIENCE)
    except errors.OfflineModeIsEnabled:
        raise ModelError(f"{name}{here} HF_HUB_OFFLINE is set", _meant(name)) from None
    except errors.GatedRepoError:
        raise ModelError(
            f"{name} asks for consent on the hub", "Give it there, then log in: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{name}: no such folder, and no such model on the hub", _meant(name)
        ) from None
    except Exception as error:  # whatever a network can do
        raise ModelError(
            f"{name}: no such folder; it{here} the hub cannot be reached ({type(error).__name__})",
            _meant(name),
        ) from None
    return name


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), [BUILTIN], cutoff=0.7)
    return f"Did you mean {BUILTIN}?" if close else _near(Path(name)) or _HINT


def why_not_loaded(error: BaseException) -> str:
    """What went wrong in the library's loading, in a line, where its own says too little."""
    lines: list[Any] = str(error).strip().splitlines() or [type(error).__name__]
    text = str(lines[0])
    if "backend tokenizer" in text:
        return "its tokenizer cannot be read"
    if "Unrecognized configuration class" in text:
        kind = re.search(r"\.(\w+)Config'", text)
        return f"{kind[1] if kind else 'it'} is no decoder: it does not generate text"
    if "Weights only load failed" in text:
        return "its weights are a pickle that could run code"
    return text
