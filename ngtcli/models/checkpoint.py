"""Find a model, by folder or hub id, and check it before anything large is imported.

A hub id whose files are in the local cache resolves to their folder, without network access. For
any other id the hub is asked once, for a few seconds, so that problems are reported before
documents are read. Downloads are finished before anything loads them.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ngtcli.errors import HubUnreachableError, ModelError, UsageError
from ngtcli.models import hub
from ngtcli.system.files import key_of, read_bounded

BUILTIN = "builtin"
NEEDS = ("config", "weights", "tokenizer")
BUILTIN_PATH = Path(__file__).parent.parent / "builtin" / "model"
ADAPTER = "adapter_config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = (
    "tokenizer.json tokenizer.model vocab.json vocab.txt *.vocab *.tiktoken spiece.model"
    " sentencepiece*.model spm*.model tekken.json tokenizer_config.json merges.txt"
).split()
_PROJECTOR = "mmproj"  # prefix of GGUF files with the vision part of a multimodal model
TEMPLATE_HINT = "Correct the chat template in the model's folder, or name another model (-m)."
# Maximum bytes of one file of a tokenizer (guess: the largest known has 35 MB).
LARGEST_JSON = 256_000_000
HINT = "Give a folder with a transformers model, a GGUF file, a Hugging Face id, or -m builtin."


def find(name: str, needs: Collection[str] = NEEDS, only_folders: bool = False) -> str:
    """Find the folder of a model.

    Args:
        name: A folder, a GGUF file, "builtin", or ID[@REVISION] on the hub.
        needs: The parts, of NEEDS, that the folder must have.
        only_folders: Whether to refuse adapters and GGUF files.

    Returns:
        The folder; for an adapter or a GGUF file, a folder in ngt's cache. If the model must be
        downloaded, which `fetch` does, `name` itself.

    Raises:
        UsageError: The name is empty.
        ModelError: There is no such folder or it lacks a part, or the hub does not have the model
            or cannot be reached.
    """
    if not name:  # an empty path would be the current folder
        raise UsageError("the model's name is empty", hint=HINT)
    if name == BUILTIN:
        return str(BUILTIN_PATH)
    path = Path(os.path.expanduser(name))
    gguf_file = _gguf_file(name, path)
    is_adapter = os.path.isfile(path / ADAPTER) and not os.path.isfile(path / "config.json")
    if only_folders and (gguf_file or is_adapter):
        kind = "a GGUF file" if gguf_file else "an adapter"
        raise ModelError(
            f"{name}: {kind}, where a whole folder is needed",
            hint="Give a folder with a transformers model, or a Hugging Face id.",
        )
    if gguf_file:
        from ngtcli.models.gguf import unpack  # here: for those files alone

        return unpack(name, gguf_file)
    if is_adapter:
        from ngtcli.models.adapters import merged_folder  # imported here: it imports this file

        return merged_folder(name, path.resolve())
    if os.path.isdir(path):  # for a name that is too long it is False, where Path.is_dir raises
        missing, hint = _missing_part(_file_names(path), needs, path)
        if missing:
            raise ModelError(f"{name}: the folder has no {missing}", hint=hint)
        return os.path.realpath(path)  # results of trials are cached under this path
    if name.lower() == BUILTIN:
        raise ModelError(f"{name}: no such model", hint=f"Did you mean {BUILTIN}?")

    problem = ""
    if os.path.exists(path):
        problem = "a file, not a folder with a model"
    elif path.suffix.lower() == ".gguf":
        problem = "no such file"
    elif not hub.split_id(name)[0]:
        problem = "no such folder"
    if problem:
        raise ModelError(f"{name}: {problem}", hint=_nearest_path(path) or HINT)

    folder = hub.cached_folder(name)
    if folder and not _missing_part(_file_names(Path(folder)), needs, Path(folder))[0]:
        return folder
    _check_hub(name, needs)
    return name


def fetch(name: str, needs: Collection[str] = NEEDS, only_folders: bool = False) -> str:
    """Find the folder of a model, and download it if only the hub has it.

    Args:
        name: As for `find`.
        needs: As for `find`.
        only_folders: As for `find`.

    Raises:
        ModelError: As `find`, or the download broke off.
        UsageError: As `find`.
    """
    folder = find(name, needs, only_folders)
    if os.path.isdir(folder):
        return folder
    return hub.download(name, "weights" in needs)


def pull(name: str) -> str:
    """Download the current version of a model on the hub; return its folder. Raises as `fetch`."""
    _check_hub(name, NEEDS)
    return hub.download(name, True)


def tokenizer_key(name: str) -> str:
    """Hash all files of a model's tokenizer, without loading it.

    Raises ModelError as `fetch`, OSError for a file that is too large.
    """
    folder = Path(fetch(name, ["tokenizer"]))
    patterns = (*_TOKENIZERS, "config.json", "special_tokens_map.json", "added_tokens.json")
    names = sorted(
        file_name
        for file_name in _file_names(folder)
        if any(fnmatchcase(file_name, pattern) for pattern in patterns)
    )
    digests = []
    for file_name in names:
        content = read_bounded(folder / file_name, LARGEST_JSON)
        digests.append(hashlib.sha256(content).hexdigest())
    return key_of(*names, *digests)


def lacks_files(folder: Path) -> bool:
    """Return whether a folder lacks a part of a model, as after a download that broke off."""
    missing, _ = _missing_part(_file_names(folder), NEEDS, folder)
    return bool(missing)


def check_models(model: str, draft_model: str = "", needs: Collection[str] = NEEDS) -> None:
    """Raise ModelError as `find`, or for an invalid chat template of `model`."""
    _check_template(Path(find(model, needs)))
    if draft_model:
        find(draft_model)


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; {} if it is missing, unreadable or holds another value."""
    try:
        values = json.loads(read_bounded(path, LARGEST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _check_template(folder: Path) -> None:
    """Raise ModelError if the chat template in a folder cannot be parsed; it is not rendered."""
    template = read_object(folder / "tokenizer_config.json").get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        with suppress(OSError, ValueError):  # loading the model reports it
            template = read_bounded(file, LARGEST_JSON).decode()
    if not isinstance(template, str):
        return
    # Imported here, because commands without a model do not need it.
    from jinja2 import Environment, TemplateSyntaxError

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateSyntaxError as error:
        if "'generation'" not in str(error.message):  # a tag that only transformers knows
            raise ModelError(
                f"the chat template fails: {error.message} (line {error.lineno})",
                hint=TEMPLATE_HINT,
            ) from None
    except RecursionError:
        raise ModelError("the chat template fails: nested too deeply", hint=TEMPLATE_HINT) from None


def _nearest_path(path: Path) -> str:
    """Return a hint: the folder or GGUF file beside `path` with the most similar name, or ""."""
    try:
        neighbors = [
            entry.name
            for entry in path.absolute().parent.iterdir()
            if entry.is_dir() or entry.suffix.lower() == ".gguf"
        ]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, neighbors, n=1)
    return f"Did you mean {path.parent / close[0]}?" if close else ""


def _gguf_file(name: str, path: Path) -> Path | None:
    """Return the GGUF file at `path`, or the one that has all weights of the folder; else None.

    Raises ModelError for a folder with several GGUF files.
    """
    if os.path.isfile(path):
        return path if path.suffix.lower() == ".gguf" else None
    if not os.path.isdir(path) or any(any(path.glob(pattern)) for pattern in WEIGHTS):
        return None
    files = sorted(p for p in path.glob("*.gguf") if not p.name.startswith(_PROJECTOR))
    if not files:
        return None
    first = files[0]
    are_parts_of_one = "-00001-of-" in first.name
    if len(files) > 1 and not are_parts_of_one:
        names = ", ".join(file.name for file in files)
        raise ModelError(
            f"{name}: the folder has {len(files)} GGUF files: {names}",
            hint=f"Name one of them: -m {path / first.name}",
        )
    return first


def _file_names(folder: Path) -> list[str]:
    """Return the names of a folder's files; [] if they cannot be listed."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file()]
    return []


def _missing_part(
    names: Collection[str], needs: Collection[str], folder: Path | None = None
) -> tuple[str, str]:
    """Find the first part of a model that is missing.

    Args:
        names: The names of the files in the folder or repository.
        needs: The parts, of NEEDS, that must be there.
        folder: Their folder, whose index of weights is read. None: a repository on the hub, of
            which only those weights count that would be downloaded.

    Returns:
        The missing part and a hint; ("", "") if nothing is missing.
    """
    parts = (
        ("config", ["config.json"], "config.json", HINT),
        (
            "weights",
            hub.PREFERRED if folder is None else WEIGHTS,
            "weights (model.safetensors)",
            "Download them as well.",
        ),
        ("tokenizer", _TOKENIZERS, "tokenizer (tokenizer.json)", "Download it as well."),
    )
    for part, patterns, description, hint in parts:
        if part not in needs:
            continue
        if any(fnmatchcase(name, pattern) for pattern in patterns for name in names):
            continue
        if folder is None:
            hint = HINT
            if any(name.endswith(".gguf") for name in names):
                hint = "Download a GGUF file (hf download ID FILE), give its path."
        if part == "config" and ADAPTER in names:
            description += " (it holds an adapter)"
        return description, hint

    if folder is not None and "weights" in needs:
        shards = sorted({*hub.weight_files(folder, names)} - {*names})
        if shards:
            return f"{some(shards)}, which its index of weights names", "Download them as well."
    return "", ""


def some(names: Sequence[str], shown: int = 1) -> str:
    """Return the first of some names, and the number of the others."""
    text = ", ".join(name[:100] for name in names[:shown])
    if len(names) > shown:
        text += f" and {len(names) - shown} more"
    return text


def _check_hub(name: str, needs: Collection[str]) -> None:
    """Raise ModelError if the hub has no such model, or the model lacks a part in `needs`."""
    try:
        remote = hub.ask(name)
    except HubUnreachableError as error:
        once_online = f"Once online: ngt models pull {name}. ngt models list shows what is here."
        hint = error.hint or _nearest_model(name) or once_online
        raise HubUnreachableError(str(error), hint=hint) from None
    except ModelError as error:
        raise ModelError(str(error), hint=error.hint or _nearest_model(name) or HINT) from None
    missing, hint = _missing_part(remote.sizes, needs)
    if missing:
        raise ModelError(f"{name}: its repository on the hub has no {missing}", hint=hint)


def _nearest_model(name: str) -> str:
    """Return a hint: the model on this machine with the most similar name; "" for none."""
    model_ids = [BUILTIN, *hub.cached_ids()]
    # Names without their owner count as well; the first of equal ones is offered.
    by_name = {model_id.rpartition("/")[2].lower(): model_id for model_id in reversed(model_ids)}
    by_name |= {model_id.lower(): model_id for model_id in model_ids}
    close = difflib.get_close_matches(hub.split_id(name)[0].lower(), by_name, n=1, cutoff=0.7)
    return f"Did you mean {by_name[close[0]]}?" if close else _nearest_path(Path(name))
