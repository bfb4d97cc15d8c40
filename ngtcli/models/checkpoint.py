"""Find a model, by folder or hub id, and check it before anything large is imported.

A hub id whose files are in the local cache stands for their folder, without network. For any
other the hub is asked once, for a few seconds, so that what is wrong is told before documents are
read. What is downloaded is a folder before anything loads it.
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
LARGEST_JSON = 256_000_000  # bytes of a tokenizer's files; the largest known have 35 MB
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
        raise UsageError("the model's name is empty", hint=HINT)
    if name == BUILTIN:
        return str(BUILTIN_PATH)
    path = Path(os.path.expanduser(name))
    file = _gguf_file(name, path)
    is_adapter = os.path.isfile(path / ADAPTER) and not os.path.isfile(path / "config.json")
    if plain and (file or is_adapter):
        what = f"{name}: {'a GGUF file' if file else 'an adapter'}, where a whole folder is needed"
        raise ModelError(what, hint="Give a folder with a transformers model, or a hub id.")
    if file:
        from ngtcli.models.gguf import unpacked  # here: for those files alone

        return unpacked(name, file)
    if is_adapter:
        from ngtcli.models.adapters import adapted  # here: it imports this file

        return adapted(name, path.resolve())
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        what, hint = _lacking(_names(path), needs, path)
        if what:
            raise ModelError(f"{name}: the folder has no {what}", hint=hint)
        return os.path.realpath(path)  # what is found out of a model is stored by it
    if name.lower() == BUILTIN:
        raise ModelError(f"{name}: no such model", hint=f"Did you mean {BUILTIN}?")
    what = "no such file" if path.suffix.lower() == ".gguf" else ""
    what = "a file, not a folder with a model" if os.path.exists(path) else what
    if what or not hub.split_id(name)[0]:
        raise ModelError(f"{name}: {what or 'no such folder'}", hint=_near(path) or HINT)
    folder = hub.cached_folder(name)
    if folder and not _lacking(_names(Path(folder)), needs, Path(folder))[0]:
        return folder
    _check_hub(name, needs)
    return name


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
    _check_hub(name, NEEDS)
    return hub.download(name, True, progress)


def tokenizer_key(name: str) -> str:
    """What stands for a model's tokenizer without loading it: a hash of all files that make it.

    Raises ModelError as `fetch`, OSError for a file that is too large.
    """
    folder = Path(fetch(name, ["tokenizer"]))
    made_of = (*_TOKENIZERS, "config.json", "special_tokens_map.json", "added_tokens.json")
    own = sorted(one for one in _names(folder) if any(fnmatchcase(one, of) for of in made_of))
    contents = (read_bounded(folder / one, LARGEST_JSON) for one in own)
    return key_of(*own, *(hashlib.sha256(content).hexdigest() for content in contents))


def lacks_files(folder: Path) -> bool:
    """Whether a folder lacks something that a model needs, as after a download that broke off."""
    return bool(_lacking(_names(folder), NEEDS, folder)[0])


def check_models(model: str, draft_model: str = "", needs: Collection[str] = NEEDS) -> None:
    """Raise ModelError as `find`, also for a chat template of `model` that is not valid."""
    _check_template(Path(find(model, needs)))
    if draft_model:
        find(draft_model)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if the file is missing, unreadable or holds another value."""
    try:
        values = json.loads(read_bounded(path, LARGEST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _check_template(folder: Path) -> None:
    """Raise ModelError for a template in the folder that cannot be parsed; it is not rendered."""
    found = read_object(folder / "tokenizer_config.json").get("chat_template")
    if (file := folder / "chat_template.jinja").is_file():
        with suppress(OSError, ValueError):  # loading it says what is wrong
            found = read_bounded(file, LARGEST_JSON).decode()
    if not isinstance(found, str):
        return
    from jinja2 import Environment, TemplateSyntaxError  # here: commands without a model

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(found)
    except TemplateSyntaxError as error:
        if "'generation'" not in str(error.message):  # a tag of transformers' own
            what = f"the chat template fails: {error.message} (line {error.lineno})"
            raise ModelError(what, hint=TEMPLATE_HINT) from None
    except RecursionError:
        raise ModelError("the chat template fails: nested too deeply", hint=TEMPLATE_HINT) from None


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
        raise ModelError(f"{name}: the folder has {len(found)} GGUF files: {names}", hint=hint)
    return found[0] if found else None


def _names(folder: Path) -> list[str]:
    """The names of a folder's files; [] where they cannot be listed."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file()]
    return []


def _lacking(
    names: Collection[str], needs: Collection[str], folder: Path | None = None
) -> tuple[str, str]:
    """What of `needs` is not among files of these names, and a hint; ("", "") where nothing is.

    They are those of a `folder`, whose index of weights is read, or of a repository on the hub, of
    which only the weights count that are downloaded.
    """
    weights = hub.PREFERRED if folder is None else WEIGHTS
    for part, files, what, hint in (
        ("config", ["config.json"], "config.json", HINT),
        ("weights", weights, "weights (model.safetensors)", "Download them as well."),
        ("tokenizer", _TOKENIZERS, "tokenizer (tokenizer.json)", "Download it as well."),
    ):
        if part in needs and not any(fnmatchcase(own, one) for one in files for own in names):
            if folder is None:
                has_gguf = any(own.endswith(".gguf") for own in names)
                hint = "Download a GGUF file (hf download ID FILE), give its path." * has_gguf
            is_adapter = part == "config" and ADAPTER in names
            return f"{what}{' (it holds an adapter)' * is_adapter}", hint or HINT
    if folder is None or "weights" not in needs:
        return "", ""
    shards = sorted({*hub.weight_files(folder, names)} - {*names})
    what = f"{some(shards)}, which its index of weights names" if shards else ""
    return what, "Download them as well." * bool(shards)


def some(names: Sequence[str], shown: int = 1) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(name[:100] for name in names[:shown]) + more


def _check_hub(name: str, needs: Collection[str]) -> None:
    """Raise ModelError where the hub has no such model, or one that lacks a part in `needs`."""
    try:
        remote = hub.ask(name)
    except HubUnreachableError as error:
        once_online = f"Once online: ngt models pull {name}. ngt models list shows what is here."
        hint = error.hint or _near_model(name) or once_online
        raise HubUnreachableError(str(error), hint=hint) from None
    except ModelError as error:
        raise ModelError(str(error), hint=error.hint or _near_model(name) or HINT) from None
    what, hint = _lacking(remote.sizes, needs)
    if what:
        raise ModelError(f"{name}: its repository on the hub has no {what}", hint=hint)


def _near_model(name: str) -> str:
    """A hint with the most similar name of a model that is here; "" if there is none."""
    known = [BUILTIN, *hub.cached_ids()]
    by_name = {one.rpartition("/")[2].lower(): one for one in reversed(known)}
    by_name |= {one.lower(): one for one in known}
    close = difflib.get_close_matches(hub.split_id(name)[0].lower(), by_name, n=1, cutoff=0.7)
    return f"Did you mean {by_name[close[0]]}?" if close else _near(Path(name))
