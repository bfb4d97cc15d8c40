"""Find how a chat template separates reasoning from answers, and switch reasoning on or off.

A template contains the marks of its format (decoding/reasoning.py).
"""

from dataclasses import replace
from functools import lru_cache

from ngtcli.config import Settings, template_variables
from ngtcli.decoding.reasoning import FORMATS, Format, StreamPart, Thinking, part_of
from ngtcli.errors import UsageError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.chat import Chat, short_chat, template_of

# Arguments of templates: Qwen's and many others', DeepSeek's and Granite's.
_SWITCHES = ("enable_thinking", "thinking")


@lru_cache(16)
def switched(tokenizer: Tokenizer, chat: Chat) -> Chat:
    """Return the chat with reasoning switched as `chat.think` says.

    The template's own switch is used if it has one. Otherwise an opening mark follows what the
    template writes, or an empty reasoning that is closed at once.

    Raises:
        UsageError: The model does not reason, or an argument of the template is the switch.
        TemplateError: As `render`.
    """
    think = chat.think
    plain = replace(chat, think="auto")
    if think == "auto":
        return plain
    reasoning_format = _format(tokenizer, chat)
    if reasoning_format is None:
        raise UsageError(
            f"--think {think}: the model's chat template does not support reasoning",
            hint="Leave --think out.",
        )
    for name in _SWITCHES:
        if name in template_variables(chat.arguments):
            raise UsageError(
                f"--think and --set template_arg={name} are mutually exclusive",
                hint="Give one of them.",
            )
        off = replace(plain, arguments=(*chat.arguments, f"{name}=false"))
        on = replace(plain, arguments=(*chat.arguments, f"{name}=true"))
        if short_chat(tokenizer, off) != short_chat(tokenizer, on):
            return on if think == "on" else off
    part = _part_after(short_chat(tokenizer, plain), reasoning_format)
    if part == StreamPart.ANSWER and think == "on":
        raise UsageError(
            "--think on: the chat template ends the reasoning at once", hint="Leave it out."
        )
    ending = ""
    if part not in (StreamPart.REASONING, StreamPart.ANSWER):
        ending += reasoning_format.opening
    if think == "off" and part != StreamPart.ANSWER:
        ending += reasoning_format.closing
    return replace(plain, ending=ending)


@lru_cache(16)
def thinking_of(settings: Settings, tokenizer: Tokenizer) -> Thinking | None:
    """Return how the model reasons, by its chat template; None if it does not.

    Raises as `switched`.
    """
    chat = switched(tokenizer, Chat.of(settings))
    reasoning_format = _format(tokenizer, chat)
    if reasoning_format is None:
        return None
    part = _part_after(short_chat(tokenizer, chat), reasoning_format)
    token_ids = {name: token_id for token_id, name in tokenizer.control.texts.items()}
    marks = reasoning_format.marks
    closing = reasoning_format.closing
    closing_ids = tokenizer.locate(closing, template=[(0, len(closing))]).ids
    return Thinking(
        {token_ids[mark]: following for mark, following in marks.items() if mark in token_ids},
        {mark: following for mark, following in marks.items() if mark not in token_ids},
        tuple(closing_ids),
        part or StreamPart.ANSWER,
        part == StreamPart.ANSWER or settings.answer.think == "off",
        settings.answer.max_thinking,
    )


def _format(tokenizer: Tokenizer, chat: Chat) -> Format | None:
    """Return the format whose marks the chat template contains.

    The marks of a format with channels must be control tokens of the model.
    """
    template = template_of(tokenizer.backend, chat.template)
    names = set(tokenizer.control.texts.values()) if template else set()
    for candidate in FORMATS:
        ending = [mark for mark in candidate.marks if mark in candidate.closing][-1]
        has_channels = StreamPart.HEADER in candidate.marks.values()
        if ending in template and (not has_channels or names >= set(candidate.marks)):
            return candidate
    return None


def _part_after(text: str, reasoning_format: Format) -> StreamPart | None:
    """Return the part that follows a rendered chat; None if its end does not tell.

    It is the answer only if reasoning has ended.
    """
    text = text.rstrip()
    marks = reasoning_format.marks
    part = next((following for mark, following in marks.items() if text.endswith(mark)), None)
    if part == StreamPart.CHANNEL:
        return part_of(text.removesuffix("<|message|>").rpartition("<|channel|>")[2])
    return StreamPart.HEADER if StreamPart.HEADER in marks.values() else part
