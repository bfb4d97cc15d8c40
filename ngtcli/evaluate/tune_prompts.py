"""The prompts that a sweep is measured on when a model runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ngtcli.documents.load import Document, load
from ngtcli.errors import InputError
from ngtcli.evaluate.datasets import builtin_items, file_items, read_jsonl
from ngtcli.presets import Preset

Work = Sequence[tuple[str, tuple[Document, ...], str]]  # name, documents, question


def prompts(
    paths: Sequence[str],
    stdin: BinaryIO | None,
    preset: Preset,
    limit: int | None,
    lines: Path | None = None,
) -> Work:
    """Prompts for a preset: those with a question if it asks for one, else those without.

    They come from the JSON lines of `lines`, else from the texts in `paths` (of each a summary, or
    a few questions), else from the built-in examples. Raises InputError.
    """
    asks = "{question}" in preset.template
    if lines is not None:
        items = read_jsonl(lines)
    elif paths:
        texts = load(list(paths), stdin)
        items = file_items([], texts) if asks else file_items(texts, [])
    else:
        items = builtin_items()
    work = [(i.id, i.documents, i.question) for i in items if bool(i.question) == asks]
    if not work:
        kind = "with" if asks else "without"
        raise InputError(
            f"{lines}: no prompt {kind} a question", f"Preset {preset.name} wants one; see -p."
        )
    return work[:limit]
