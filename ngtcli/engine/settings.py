"""The settings that hold for a model: what its card says is below all that its user says."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

from ngtcli.config import (
    OF_FORM,
    SETTINGS,
    Layer,
    Resolved,
    Settings,
    merge,
    schema_file,
)
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text, utf8
from ngtcli.errors import InputError
from ngtcli.models.card import load_card
from ngtcli.system.cache import cache_limit


def settings_of(layers: Sequence[Layer]) -> Resolved:
    """The settings of all layers, the card of their model being the lowest. Raises UsageError.

    The system text is that of the file behind an @, and a schema that of its file.
    """
    resolved = merge([*layers, load_card(merge(layers).settings.model.model).settings])
    s = resolved.settings
    s = s.replace(system=text_of(s.answer.system, s.reading.max_mb)) if s.answer.system else s
    one, multi = (
        _schema(s.answer.schema, s.reading.max_mb),
        _schema(s.answer.schema_multi, s.reading.max_mb),
    )
    s = s.replace(schema=one, schema_multi=multi, regex=utf8(s.answer.regex))
    s = with_room(s, resolved.origins["max_tokens"].partition(" ")[0] not in ("default", "preset"))
    return replace(resolved, settings=s)


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
    """With more tokens for an answer in a form, unless how many `is_given`: it ends by itself."""
    is_default = not is_given and settings.answer.max_tokens == SETTINGS["max_tokens"].default
    return (
        settings.replace(max_tokens=OF_FORM)
        if settings.answer.has_form and is_default
        else settings
    )


def _schema(given: str, max_mb: int) -> str:
    """A schema as it is given, or that of its file: see `schema_file`. Raises InputError."""
    name = schema_file(given)
    return read_text(name, max_mb, f"schema {given.strip()}").strip() if name else utf8(given)


def text_of(given: str, max_mb: int, of: str = "--system") -> str:
    """A text as it is given, or that of the file behind an @. Raises InputError."""
    if not given.startswith("@"):
        return utf8(given)
    return read_text(os.path.expanduser(given[1:]), max_mb, f"{of} {given}")


def read_text(source: str | BinaryIO, max_mb: int, named: str) -> str:
    """The text of a file or a stream. Raises InputError."""
    try:
        return decode_text(Reader(max_mb).read(source))
    except Unreadable as error:
        at = "Name a file of text." if isinstance(source, str) else "Give a text there."
        raise InputError(f"{named}: {error}", hint=at) from None
