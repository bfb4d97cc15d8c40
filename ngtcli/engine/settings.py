"""The settings that apply to a model: those of its card are overridden by the user's."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

from ngtcli.config import (
    FORM_TOKENS,
    SETTINGS,
    Layer,
    Resolved,
    Settings,
    merge,
    schema_file,
)
from ngtcli.documents.read import BoundedReader
from ngtcli.documents.text import Unreadable, decode_text, utf8
from ngtcli.errors import InputError
from ngtcli.models.card import load_card
from ngtcli.system.cache import cache_limit


def settings_of(layers: Sequence[Layer]) -> Resolved:
    """Return the settings of all layers, the card of their model being the lowest.

    The system text is that of the file after an @, and a schema that of its file.

    Raises:
        UsageError: A setting is wrong, or a file cannot be read.
    """
    card = load_card(merge(layers).settings.model.model)
    resolved = merge([*layers, card.settings])
    settings = resolved.settings
    max_mb = settings.reading.max_mb
    if settings.answer.system:
        settings = settings.replace(system=text_of(settings.answer.system, max_mb))
    settings = settings.replace(
        schema=_schema(settings.answer.schema, max_mb),
        schema_multi=_schema(settings.answer.schema_multi, max_mb),
        regex=utf8(settings.answer.regex),
    )
    origin, _, _ = resolved.origins["max_tokens"].partition(" ")
    settings = with_room(settings, is_given=origin not in ("default", "preset"))
    return replace(resolved, settings=settings)


def apply_to_process(settings: Settings) -> None:
    """Limit the cache, and do not ask the hub where all models are on this machine.

    A command does this once, before transformers is imported; nothing else that reads settings
    changes the process.
    """
    cache_limit.hold_to(settings.cache.cache_mb * 1_000_000)
    model, retrieval = settings.model, settings.retrieval
    names = [model.model, model.draft_model, *model.heads, retrieval.embedder, retrieval.reranker]
    others = [name for name in names if name not in ("", "builtin")]
    if all(os.path.isdir(os.path.expanduser(name)) for name in others):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def with_room(settings: Settings, is_given: bool) -> Settings:
    """Return settings with more tokens for structured output, which ends by itself.

    Args:
        settings: The settings.
        is_given: Whether the user said how many tokens an answer may have.
    """
    is_default = not is_given and settings.answer.max_tokens == SETTINGS["max_tokens"].default
    if settings.answer.has_form and is_default:
        return settings.replace(max_tokens=FORM_TOKENS)
    return settings


def _schema(value: str, max_mb: int) -> str:
    """Return a schema, read from its file if it names one: see `schema_file`. Raises InputError."""
    name = schema_file(value)
    if not name:
        return utf8(value)
    return read_text(name, max_mb, f"schema {value.strip()}").strip()


def text_of(value: str, max_mb: int, option: str = "--system") -> str:
    """Return a text, read from a file if it is an @ and a path. Raises InputError."""
    if not value.startswith("@"):
        return utf8(value)
    return read_text(os.path.expanduser(value[1:]), max_mb, f"{option} {value}")


def read_text(source: str | BinaryIO, max_mb: int, described: str) -> str:
    """Return the text of a file or a stream. Raises InputError."""
    try:
        return decode_text(BoundedReader(max_mb).read(source))
    except Unreadable as error:
        hint = (
            "Name a file of text."
            if isinstance(source, str)
            else "Give one: as a word in quotes, @FILE, or by a pipe."
        )
        raise InputError(f"{described}: {error}", hint=hint) from None
