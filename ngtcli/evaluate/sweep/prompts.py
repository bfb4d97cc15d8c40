"""The prompts that a sweep is measured on when a model runs."""

from collections.abc import Sequence
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import InputError
from ngtcli.evaluate.prompts import Item, builtin_items, file_items, read_jsonl
from ngtcli.prompt.preset import Preset


def prompts(
    texts: Sequence[Document],
    preset: Preset,
    limit: int | None,
    lines: Path | None = None,
    settings: Settings | None = None,
) -> list[Item]:
    """Prompts for a preset: those with a question if it asks for one, else those without.

    They come from the JSON lines of `lines`, which are read up to the bound of `settings`, else
    from `texts` (of each a summary, or a few questions), else from the built-in examples. Raises
    InputError.
    """
    asks = "{question}" in preset.template
    if lines is not None:
        items = read_jsonl(lines, settings)
    elif texts:
        items = file_items([], texts) if asks else file_items(texts, [])
    else:
        items = builtin_items()
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        kind = "with" if asks else "without"
        raise InputError(
            f"{lines}: no prompt {kind} a question", f"Preset {preset.name} wants one; see -p."
        )
    return chosen[:limit]
