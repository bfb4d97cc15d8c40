"""Find a model, by folder or hub id, and check it before anything large is imported.

A hub id whose files are all in the local cache stands for their folder, without network. For any
other the hub is queried once, for a few seconds, so that no download starts that must fail.
"""

import difflib
import json
import os
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from ngtcli.errors import ModelError, UsageError
from ngtcli.system.reading import read_bounded

BUILTIN = "builtin"
NEEDS = ("config", "weights", "tokenizer")
BUILTIN_PATH = Path(__file__).parent.parent / "builtin" / "model"
_HUB_WAIT_S = 5.0  # for the hub's answer; guess
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt *.vocab *.tiktoken spiece.model"
    " sentencepiece*.model spm*.model tekken.json tokenizer_config.json merges.txt"
).split()
_PROJECTOR = "mmproj"  # begins the name of a GGUF file with a multimodal model's other part
TEMPLATE_HINT = "Mend the chat template in the model's folder, or name another model (-m)."
_TEMPLATE_BYTES = 10_000_000  # of the file that holds a template; guess, most have some thousand
HINT = "Give a folder with a transformers model, a GGUF file, a hub id, or -m builtin."


def find(name: str, needs: Collection[str] = NEEDS, gguf: bool = True) -> str:
    """The folder of the model `name`: a folder, "builtin", or a hub id in the local cache.

    For a hub id that must be downloaded it is the id; for a GGUF file, or a folder with one, it is
    a folder of the cache. `needs`, a subset of NEEDS, is what a folder must contain; without `gguf`
    such files are refused. Raises ModelError if there is no such folder, if it lacks a part, or if
    the hub cannot be reached or does not have the model; UsageError for "".
    """
    if not name:  # a path that is empty is the current folder
        raise UsageError("the model's name is empty", HINT)
    if name == BUILTIN:
        return str(BUILTIN_PATH)
    path = Path(os.path.expanduser(name))
    if file := _gguf_file(name, path):
        if not gguf:
            hint = "Give a folder with a transformers model, or a hub id."
            raise ModelError(f"{name}: a GGUF file, which ngt's own engine alone reads", hint)
        from ngtcli.model_files.gguf import unpacked  # here: for those files alone

        return unpacked(name, file)
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        _check_folder(name, path, needs)
        return os.path.realpath(path)  # what is found out of a model is stored by it
    if os.path.exists(path):
        raise ModelError(f"{name}: a file, not a folder with a model", _near(path) or HINT)
    if path.suffix.lower() == ".gguf":
        raise ModelError(f"{name}: no such file", _near(path) or HINT)
    if name.lower() == BUILTIN:
        raise ModelError(f"{name}: no such model", f"Did you mean {BUILTIN}?")
    is_path = name.startswith((".", "~", os.sep)) or name.count("/") > 1 or os.sep * 2 in name
    if is_path or not _HUB_ID.fullmatch(name):
        raise ModelError(f"{name}: no such folder", _near(path) or HINT)
    return _from_hub(name)


def check_models(model: str, draft_model: str = "", needs: Collection[str] = NEEDS) -> None:
    """Raise ModelError as `find`, also for a chat template of `model` that is not valid."""
    _check_template(Path(find(model, needs)))
    if draft_model:
        find(draft_model)


def _check_template(folder: Path) -> None:
    """Raise ModelError for a template in the folder that cannot be parsed; it is not rendered."""
    try:
        file, about = folder / "chat_template.jinja", folder / "tokenizer_config.json"
        if file.is_file():
            found = read_bounded(file, _TEMPLATE_BYTES).decode()
        else:
            found = json.loads(read_bounded(about, _TEMPLATE_BYTES)).get("chat_template")
    except (OSError, ValueError, RecursionError, AttributeError):
        return  # there is none, or loading it says what is wrong
    if not isinstance(found, str):
        return
    from jinja2 import Environment, TemplateSyntaxError  # here: commands without a model

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(found)
    except TemplateSyntaxError as error:
        told = str(error.message)
        if "'generation'" in told:  # a tag of transformers' own
            return
        what = f"the chat template fails: {told} (line {error.lineno})"
        raise ModelError(what, TEMPLATE_HINT) from None
    except RecursionError:
        raise ModelError("the chat template fails: nested too deeply", TEMPLATE_HINT) from None


def _near(path: Path) -> str:
    """A hint with the folder, or GGUF file, next to `path` with the most similar name; or ""."""
    try:
        beside = path.absolute().parent.iterdir()
        others = [p.name for p in beside if p.is_dir() or p.suffix.lower() == ".gguf"]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, others, n=1)
    return f"Did you mean {path.parent / close[0]}?" if close else ""


def _gguf_file(name: str, path: Path) -> Path | None:
    """The GGUF file that `path` is, or that a folder without other weights has; else None.

    Raises ModelError for a folder with several.
    """
    if os.path.isfile(path):
        return path if path.suffix.lower() == ".gguf" else None
    if not os.path.isdir(path) or any(any(path.glob(one)) for one in WEIGHTS):
        return None
    found = sorted(p for p in path.glob("*.gguf") if not p.name.startswith(_PROJECTOR))
    if len(found) > 1 and "-00001-of-" not in found[0].name:
        names = ", ".join(file.name for file in found)
        hint = f"Name one of them: -m {path / found[0].name}"
        raise ModelError(f"{name}: the folder has {len(found)} GGUF files: {names}", hint)
    return found[0] if found else None


def _check_folder(name: str, folder: Path, needs: Collection[str] = NEEDS) -> None:
    """Raise ModelError if a part in `needs` is lacking."""
    for part, files, what, hint in (
        ("config", ["config.json"], "config.json", HINT),
        ("weights", WEIGHTS, "weights (model.safetensors)", "Download them as well."),
        ("tokenizer", _TOKENIZERS, "tokenizer (tokenizer.json)", "Download it as well."),
    ):
        if part in needs and not any(p.is_file() for one in files for p in folder.glob(one)):
            if part == "config" and (folder / "adapter_config.json").is_file():
                what += " (it holds an adapter)"
            raise ModelError(f"{name}: the folder has no {what}", hint)


def downloaded(name: str) -> str:
    """The folder of a hub id in the local cache, "" if it is not there or not complete."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = Path(huggingface_hub.snapshot_download(name, local_files_only=True))
        _check_folder(name, folder)
    except (OSError, ValueError, ModelError, errors.HfHubHTTPError):
        return ""
    return str(folder)


@lru_cache(maxsize=8)
def _from_hub(name: str) -> str:
    """The folder of a hub id in the local cache, or else the id, if the hub has it."""
    import huggingface_hub
    from huggingface_hub import errors

    if folder := downloaded(name):
        return folder
    close = difflib.get_close_matches(name.lower(), [BUILTIN], cutoff=0.7)
    hint = f"Did you mean {BUILTIN}?" if close else _near(Path(name)) or HINT
    here = " is not in the local cache, and"
    try:
        huggingface_hub.model_info(name, timeout=_HUB_WAIT_S)
    except errors.OfflineModeIsEnabled:
        raise ModelError(f"{name}{here} HF_HUB_OFFLINE is set", hint) from None
    except errors.GatedRepoError:
        hint = "Give it there, then log in: hf auth login"
        raise ModelError(f"{name} asks for consent on the hub", hint) from None
    except errors.RepositoryNotFoundError:
        what = f"{name}: no such folder, and no such model on the hub"
        raise ModelError(what, hint) from None
    except Exception as error:  # networks fail in many ways
        what = f"{name}: no such folder; it{here} the hub cannot be reached"
        raise ModelError(f"{what} ({type(error).__name__})", hint) from None
    return name
