"""`--dry-run` of `ngt summarize` and `ngt ask`: the prompt, without the model's weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ngtcli.cli.answer_report import (
    RETRIEVAL,
    SKIPPED,
    TASKS,
    DocumentObject,
    document_objects,
    tell_passages,
)
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import print_json, print_line
from ngtcli.cli.reading import distinct
from ngtcli.config import IN_PARTS
from ngtcli.documents.find import Skipped
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.model_files.card import script_words
from ngtcli.model_files.pretrained import context_limit, load_config, load_tokenizer
from ngtcli.prompt.build import Prompt, Task, look_alikes
from ngtcli.prompt.chat import Chat
from ngtcli.prompt.reports import Cut, Selection
from ngtcli.prompt.selecting import prompt_for
from ngtcli.prompt.splitting import fits, split, split_to_refine
from ngtcli.prompt.thinking import thinking_of
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import json_key
from ngtcli.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunObject:
    """What --dry-run prints; the prompt's parts are null if it does not fit."""

    task: str = field(metadata=json_key(choices=TASKS))
    question: str | None
    model: str
    preset: str
    fits: bool
    context: int
    prompt_tokens: int | None
    documents: Sequence[DocumentObject]
    skipped: Sequence[Skipped] = field(metadata=json_key(about=SKIPPED))
    truncated: Sequence[Cut]
    retrieval: Selection | None = field(metadata=json_key(about=RETRIEVAL))
    prompt: str | None
    ids: Sequence[int] | None


def _object(request: AnswerRequest, prompt: Prompt | None, context: int) -> DryRunObject:
    """The object that --dry-run --json prints; a prompt that does not fit is None."""
    return DryRunObject(
        task=request.task,
        question=request.question or None,
        model=request.settings.model,
        preset=request.preset.name,
        fits=prompt is not None,
        context=context,
        documents=document_objects(request),
        skipped=distinct(request.loaded.skipped),
        prompt_tokens=len(prompt.ids) if prompt else None,
        truncated=prompt.cuts if prompt else (),
        retrieval=prompt.selection if prompt else None,
        prompt=prompt.text if prompt else None,
        ids=prompt.ids if prompt else None,
    )


def dry_run(request: AnswerRequest, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    s = request.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    context = context_limit(config, tokenizer).tokens
    thinking = thinking_of(s, tokenizer)
    most, own = s.max_tokens, (request.wording, request.documents, request.question)
    most += thinking.room if thinking else 0
    task = Task(*own, tokenizer, context, most, config.vocab_size, notes.status, chat=Chat.of(s))
    try:
        if s.overflow not in IN_PARTS:
            prompt = prompt_for(task, s, notes.warn)
        elif (whole := fits(task)) is not None:
            prompt = whole
        else:
            parts = split(task) if s.overflow == "split" else split_to_refine(task)
            of = counted(len(parts), "part")
            notes.warn(f"not everything fits: split into {of}; this is the first one's")
            prompt = parts[0].build()
    except ContextOverflowError:
        notes.clear()
        if request.json:
            print_json(_object(request, None, context))
        raise
    notes.clear()
    if words := script_words(s.model, prompt.documents, request.question):
        notes.warn(words)
    tell_passages(request, prompt.selection, notes)
    _remark_look_alikes(request, tokenizer, notes)
    if request.json:
        print_json(_object(request, prompt, context))
        return
    print_line(visible(prompt.text))
    notes.say(f"{counted(len(prompt.ids), 'token')} of {context}")


def _remark_look_alikes(request: AnswerRequest, tokenizer: Tokenizer, notes: Notes) -> None:
    """With -v: which texts hold what looks like a control token."""
    if request.verbose:
        for words in look_alikes(
            request.documents, request.question, tokenizer, request.settings.system
        ):
            notes.remark(words)
