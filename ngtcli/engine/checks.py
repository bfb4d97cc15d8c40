"""Checks of the settings of a session, before anything large is read or loaded."""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.heads.places import OWN, find_head
from ngtcli.models.checkpoint import NEEDS, check_models, fetch
from ngtcli.models.pretrained import load_config, load_tokenizer, mask_tokens
from ngtcli.models.requirements import require_for_weights
from ngtcli.prompts.chat import Chat, try_chat
from ngtcli.prompts.thinking import switched
from ngtcli.system import reporting
from ngtcli.system.machine import pick_device

if TYPE_CHECKING:  # it loads numpy
    from ngtcli.drafting.registry import MethodSpec

_MAX_TRIED_CHATS = 64  # chat settings with their system texts (guess)


def check_session(settings: Settings, *, dry: bool = False) -> None:
    """Raise the errors that a session with these settings would raise. No weights are read.

    A setting without an effect is only a warning.

    Args:
        settings: The settings.
        dry: Whether no model is to run.

    Raises:
        UsageError: Settings do not fit together.
        ModelError: A model cannot be found or used.
    """
    needs = [part for part in NEEDS if part != "weights"] if dry else NEEDS
    check_models(settings.model.model, "" if dry else settings.model.draft_model, needs)
    for warning in _try_chat(settings.model.model, Chat.of(settings)):
        reporting.warn(warning)
    if dry or settings.engine.engine == "vllm":
        return
    if settings.model.device not in ("auto", "cpu"):
        pick_device(settings.model.device)
    folder = fetch(settings.model.model, ["config"])
    require_for_weights(
        settings.model.model, folder, settings.model.device, settings.model.device_map
    )
    check_drafting(settings)


def check_drafting(settings: Settings) -> None:
    """Raise UsageError or ModelError if the method or something it drafts from cannot be used."""
    neutral = Settings()
    if (settings.drafting.method, settings.model.heads) == (
        neutral.drafting.method,
        neutral.model.heads,
    ):
        return
    from ngtcli.drafting.drafter import draft_settings  # imported here: it loads numpy
    from ngtcli.drafting.registry import parse_method

    method = parse_method(settings.drafting.method, draft_settings(settings))
    if method.name != "draft-model" or not settings.model.draft_model:
        with_masks(method, settings.model.model).check()
    check_heads(method, settings)


def check_heads(method: "MethodSpec", settings: Settings) -> None:
    """Raise UsageError if a method lacks a head, and ModelError if a head is not found."""
    from ngtcli.drafting.auto.config import CONFIG  # here: check_session comes before numpy

    if method.entry.heads and not settings.model.heads:
        raise UsageError(f"method {method.name}: there is no head", hint="Name one with --heads.")
    if len(settings.model.heads) > CONFIG.heads:
        raise UsageError(
            f"{len(settings.model.heads)} heads, and {CONFIG.heads} are the most",
            hint="Name fewer with --heads.",
        )
    for name in settings.model.heads:
        if name != OWN:
            find_head(name)


def with_masks(method: "MethodSpec", model: str) -> "MethodSpec":
    """Return a method with the mask tokens of a model that is not loaded, if it reads them."""
    if not method.entry.masks:
        return method
    masks = mask_tokens(load_config(model))
    return replace(method, settings=replace(method.settings, masks=masks))


@lru_cache(_MAX_TRIED_CHATS)
def _try_chat(model: str, chat: Chat) -> tuple[str, ...]:
    """Return the arguments that do not change the chat template's output.

    Raises the errors that a prompt would raise.
    """
    if chat == Chat():
        return ()
    tokenizer = load_tokenizer(model)
    warnings = tuple(try_chat(tokenizer, chat))
    switched(tokenizer, chat)
    return warnings
