"""Adapters (PEFT): folders with what was trained beside a base model, which they name."""

import shutil
from pathlib import Path

from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import ADAPTER, WEIGHTS, find, read_object
from ngtcli.models.pretrained import loading
from ngtcli.models.requirements import quantization_method, require
from ngtcli.models.stand_in import Source, stand_in
from ngtcli.system.files import stamp_of

_MENDED = "Mend base_model_name_or_path in its adapter_config.json."
_COPIED = {".json", ".jinja", ".model", ".txt", ".tiktoken", ".vocab"}  # kinds of small files


def adapted(name: str, folder: Path) -> str:
    """The folder of the cache for an adapter: its files over the configuration of its base model.

    The base is named as -m names models. Raises ModelError where it is not there or quantised, and
    without the package peft.
    """
    require(f"{name}: reading an adapter", ["peft"], "'ngtcli[peft]'")
    about = read_object(folder / ADAPTER)
    base, revision = about.get("base_model_name_or_path"), about.get("revision")
    if not isinstance(base, str):
        raise ModelError(f"{name}: the adapter names no base model", hint=_MENDED)
    base += f"@{revision}" if revision else ""
    try:
        found = Path(find(base, plain=True))
    except (ModelError, UsageError) as error:
        raise ModelError(f"{name}: its base model: {error}", hint=_MENDED) from None
    if not found.is_absolute():
        raise ModelError(
            f"{name}: its base model {base} is not here", hint=f"ngt models pull {base}"
        )
    if quantization_method(found):
        message = f"{name}: its base model {base} is quantized, so the adapter cannot be merged"
        raise ModelError(message, hint=_MENDED)
    files = [one for place in (found, folder) for one in sorted(place.iterdir()) if one.is_file()]

    def make(place: Path) -> Source:
        for path in files:
            is_index = any(map(path.match, WEIGHTS))
            if path.suffix in _COPIED and path.name != ADAPTER and not is_index:
                shutil.copyfile(path, place / path.name)
        words = f"an adapter ({about.get('peft_type')}) merged into {base}"
        return Source(str(folder), words, str(found))

    with loading(name):
        return stand_in([(str(path), stamp_of(path)) for path in files], make)
