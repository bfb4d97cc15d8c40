"""Find a model, by folder or hub id, and check it before anything large is imported.

A hub id whose files are all in the local cache stands for their folder, without network. For any
other the hub is asked once, for a few seconds, so that what is wrong is told before documents are
read. What is downloaded is a folder before anything loads it.
"""

import difflib
import json
import os
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from ngtcli.errors import ModelError, UsageError
from ngtcli.model_files import hub
from ngtcli.system.files import read_bounded

Notify = hub.Notify
BUILTIN = "builtin"
NEEDS = ("config", "weights", "tokenizer")
BUILTIN_PATH = Path(__file__).parent.parent / "builtin" / "model"
ADAPTER = "adapter_config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt *.vocab *.tiktoken spiece.model"
    " sentencepiece*.model spm*.model tekken.json tokenizer_config.json merges.txt"
).split()
_PROJECTOR = "mmproj"  # begins the name of a GGUF file with a multimodal model's other part
TEMPLATE_HINT = "Mend the chat template in the model's folder, or name another model (-m)."
_TEMPLATE_BYTES = 10_000_000  # of the file that holds a template; guess, most have some thousand
HINT = "Give a folder with a transformers model, a GGUF file, a hub id, or -m builtin."


def find(name: str, needs: Collection[str] = NEEDS, plain: bool = False) -> str:
    """The folder of the model `name`: a folder, "builtin", or ID[@REVISION] in the hub's cache.

    For what must be downloaded, which `fetch` does, it is `name`; for an adapter, a GGUF file, or
    a folder with one, it is a folder of ngt's cache. `needs`, a subset of NEEDS, is what a folder
    must contain; `plain` refuses adapters and GGUF files. Raises ModelError if there is no such
    folder, if it lacks a part, or if the hub cannot be reached or does not have the model;
    UsageError for "".
    """
    if not name:  # a path that is empty is the current folder
        raise UsageError("the model's name is empty", HINT)
    if name == BUILTIN:
        return str(BUILTIN_PATH)
    path = Path(os.path.expanduser(name))
    file = _gguf_file(name, path)
    is_adapter = os.path.isfile(path / ADAPTER) and not os.path.isfile(path / "config.json")
    if plain and (file or is_adapter):
        what = f"{name}: {'a GGUF file' if file else 'an adapter'}, where a whole folder is needed"
        raise ModelError(what, "Give a folder with a transformers model, or a hub id.")
    if file:
        from ngtcli.model_files.gguf import unpacked  # here: for those files alone

        return unpacked(name, file)
    if is_adapter:
        from ngtcli.model_files.adapters import adapted  # here: it imports this file

        return adapted(name, path.resolve())
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        _check_folder(name, path, needs)
        return os.path.realpath(path)  # what is found out of a model is stored by it
    if name.lower() == BUILTIN:
        raise ModelError(f"{name}: no such model", f"Did you mean {BUILTIN}?")
    what = "no such file" if path.suffix.lower() == ".gguf" else ""
    what = "a file, not a folder with a model" if os.path.exists(path) else what
    if what or not hub.split_id(name)[0]:
        raise ModelError(f"{name}: {what or 'no such folder'}", _near(path) or HINT)
    return _from_hub(name, needs)


def fetch(
    name: str,
    needs: Collection[str] = NEEDS,
    progress: Notify = lambda _: None,
    plain: bool = False,
) -> str:
    """The folder of the model `name`; what it `needs` is downloaded where only the hub has it.

    `progress` gets passing lines. Raises as `find`, and ModelError for a download that breaks off.
    """
    found = find(name, needs, plain)
    return found if os.path.isdir(found) else hub.download(name, "weights" in needs, progress)


def pull(name: str, progress: Notify) -> str:
    """The folder of the hub's model `name` as it is there now, downloaded. Raises as `fetch`."""
    _check_remote(name, NEEDS)
    return hub.download(name, True, progress)


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
        if "'generation'" not in str(error.message):  # a tag of transformers' own
            what = f"the chat template fails: {error.message} (line {error.lineno})"
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
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file()]
    except OSError:
        names = []
    _check_names(name, names, needs)
    if "weights" in needs:
        if lacking := sorted({*hub.weight_files(folder, names)} - {*names}):
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            what = f"{name}: the folder has no {lacking[0]}{more}, which its index of weights names"
            raise ModelError(what, "Download them as well.")


def _check_names(
    name: str, names: Collection[str], needs: Collection[str], place: str = "the folder"
) -> None:
    """Raise ModelError if no file of a part in `needs` is among the `names` of a place's files."""
    in_folder = place == "the folder"
    weights = WEIGHTS if in_folder else hub.PREFERRED
    for part, files, what, hint in (
        ("config", ["config.json"], "config.json", HINT),
        ("weights", weights, "weights (model.safetensors)", "Download them as well."),
        ("tokenizer", _TOKENIZERS, "tokenizer (tokenizer.json)", "Download it as well."),
    ):
        if part in needs and not any(fnmatchcase(own, one) for one in files for own in names):
            if part == "config" and ADAPTER in names:
                what += " (it holds an adapter)"
            if not in_folder:
                has_gguf = any(own.endswith(".gguf") for own in names)
                hint = "Download a GGUF file (hf download ID FILE), give its path." * has_gguf
            raise ModelError(f"{name}: {place} has no {what}", hint or HINT)


def _from_hub(name: str, needs: Collection[str]) -> str:
    """The folder of a hub id in the local cache, or else the id, if the hub has what is needed."""
    folder, is_whole = hub.cached_folder(name)
    if folder:
        try:
            _check_folder(name, Path(folder), needs)
        except ModelError:
            folder = ""
    if folder and is_whole:
        return folder
    if folder and isinstance(hub.ask(name), ModelError):
        return folder  # another program has read it without some file, which cannot be had
    _check_remote(name, needs)
    return name


def _check_remote(name: str, needs: Collection[str]) -> None:
    """Raise ModelError where the hub has no such model, or one that lacks a part in `needs`."""
    remote = hub.ask(name)
    if isinstance(remote, ModelError):
        raise ModelError(str(remote), remote.hint or _near_model(name) or HINT)
    _check_names(name, remote.sizes, needs, "its repository on the hub")


def _near_model(name: str) -> str:
    """A hint with the most similar name of a model that is here; "" if there is none."""
    known = [BUILTIN, *hub.cached_ids()]
    by_name = {one.rpartition("/")[2].lower(): one for one in reversed(known)}
    by_name |= {one.lower(): one for one in known}
    close = difflib.get_close_matches(hub.split_id(name)[0].lower(), by_name, n=1, cutoff=0.7)
    return f"Did you mean {by_name[close[0]]}?" if close else _near(Path(name))
