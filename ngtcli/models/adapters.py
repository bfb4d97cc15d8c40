"""Adapters (PEFT): folders with weights that are added to those of a base model."""

import shutil
from pathlib import Path

from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import ADAPTER, WEIGHTS, find, read_object
from ngtcli.models.pretrained import loading
from ngtcli.models.requirements import quantization_method, require
from ngtcli.models.stand_in import Source, stand_in
from ngtcli.system.files import stamp_of

_HINT = "Correct base_model_name_or_path in its adapter_config.json."
# Suffixes of configuration and tokenizer files.
_COPIED_SUFFIXES = {".json", ".jinja", ".model", ".txt", ".tiktoken", ".vocab"}


def merged_folder(name: str, folder: Path) -> str:
    """Return the folder of the cache for an adapter.

    It has the small files of the base model, replaced by the adapter's where both have them. The
    adapter names its base as -m names models.

    Raises:
        ModelError: The base model is not on this machine or is quantized, or the package peft is
            not installed.
    """
    require(f"{name}: reading an adapter", ["peft"], "'ngtcli[peft]'")
    adapter_config = read_object(folder / ADAPTER)
    base = adapter_config.get("base_model_name_or_path")
    revision = adapter_config.get("revision")
    if not isinstance(base, str):
        raise ModelError(f"{name}: the adapter names no base model", hint=_HINT)
    if revision:
        base += f"@{revision}"
    try:
        base_folder = Path(find(base, only_folders=True))
    except (ModelError, UsageError) as error:
        raise ModelError(f"{name}: its base model: {error}", hint=_HINT) from None
    if not base_folder.is_absolute():
        raise ModelError(
            f"{name}: its base model {base} is not on this machine",
            hint=f"Download it: ngt models pull {base}",
        )
    if quantization_method(base_folder):
        raise ModelError(
            f"{name}: its base model {base} is quantized, so the adapter cannot be merged",
            hint=_HINT,
        )
    files: list[Path] = []
    for source_folder in (base_folder, folder):  # in this order: the adapter's files win
        files += [path for path in sorted(source_folder.iterdir()) if path.is_file()]

    def copy_files(destination: Path) -> Source:
        for path in files:
            is_index = any(map(path.match, WEIGHTS))
            if path.suffix in _COPIED_SUFFIXES and path.name != ADAPTER and not is_index:
                shutil.copyfile(path, destination / path.name)
        description = f"an adapter ({adapter_config.get('peft_type')}) merged into {base}"
        return Source(str(folder), description, str(base_folder))

    with loading(name):
        return stand_in([(str(path), stamp_of(path)) for path in files], copy_files)
