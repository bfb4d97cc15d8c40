"""How a chat template sets a model's reasoning off from its answers, and whether it is on.

A template names the marks of its format (decoding/reasoning.py).
"""

from dataclasses import replace
from functools import lru_cache

from ngtcli.config import Settings, arguments_of
from ngtcli.decoding.reasoning import FORMATS, Format, Part, Thinking, part_of
from ngtcli.errors import UsageError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.chat import Chat, short_chat, template_of

# Arguments of templates: Qwen's and many others', DeepSeek's and Granite's.
_SWITCHES = ("enable_thinking", "thinking")


@lru_cache(16)
def switched(tokenizer: Tokenizer, chat: Chat) -> Chat:
    """The chat with thoughts as `think` has them: by the template's own switch, or without one by a
    thought that is opened or, empty, closed behind it.

    Raises UsageError where the model has no thoughts, or the template's arguments say it as well;
    ModelError as `render`.
    """
    think, plain = chat.think, replace(chat, think="auto")
    if think == "auto":
        return plain
    if (found := _format(tokenizer, chat)) is None:
        what = f"--think {think}: the model's chat template does not support reasoning"
        raise UsageError(what, hint="Leave --think out.")
    for name in _SWITCHES:
        if name in arguments_of(chat.arguments):
            what = f"--think and --set template_arg={name} are mutually exclusive"
            raise UsageError(what, hint="Give one of them.")
        given = [(*chat.arguments, f"{name}={value}") for value in ("false", "true")]
        off, on = (replace(plain, arguments=arguments) for arguments in given)
        if short_chat(tokenizer, off) != short_chat(tokenizer, on):
            return on if think == "on" else off
    part = _part_after(short_chat(tokenizer, plain), found)
    if part == Part.ANSWER and think == "on":
        raise UsageError(
            "--think on: the chat template ends the reasoning at once", hint="Leave it out."
        )
    opening = "" if part in (Part.REASONING, Part.ANSWER) else found.opening
    closing = found.closing if think == "off" and part != Part.ANSWER else ""
    return replace(plain, ending=opening + closing)


@lru_cache(16)
def thinking_of(settings: Settings, tokenizer: Tokenizer) -> Thinking | None:
    """How the model thinks, by its chat template; None for one that does not.

    Raises as `switched`.
    """
    chat = switched(tokenizer, Chat.of(settings))
    if (found := _format(tokenizer, chat)) is None:
        return None
    part = _part_after(short_chat(tokenizer, chat), found)
    ids = {name: token for token, name in tokenizer.control.texts.items()}
    closing = tokenizer.locate(found.closing, template=[(0, len(found.closing))]).ids
    return Thinking(
        {ids[mark]: to for mark, to in found.marks.items() if mark in ids},
        {mark: to for mark, to in found.marks.items() if mark not in ids},
        tuple(closing),
        part or Part.ANSWER,
        part == Part.ANSWER or settings.answer.think == "off",
        settings.answer.max_thinking,
    )


def _format(tokenizer: Tokenizer, chat: Chat) -> Format | None:
    """The format that the chat template names; channels need tokens of their own."""
    template = template_of(tokenizer.backend, chat.template)
    names = set(tokenizer.control.texts.values()) if template else set()
    for candidate in FORMATS:
        ending = [mark for mark in candidate.marks if mark in candidate.closing][-1]
        has_channels = Part.HEADER in candidate.marks.values()
        if ending in template and (not has_channels or names >= set(candidate.marks)):
            return candidate
    return None


def _part_after(text: str, found: Format) -> Part | None:
    """What follows a rendered chat: the answer only where reasoning has ended; None: not known."""
    text = text.rstrip()
    part = next((to for mark, to in found.marks.items() if text.endswith(mark)), None)
    if part == Part.CHANNEL:
        return part_of(text.removesuffix("<|message|>").rpartition("<|channel|>")[2])
    return Part.HEADER if Part.HEADER in found.marks.values() else part
