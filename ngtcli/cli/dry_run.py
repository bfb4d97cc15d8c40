"""`--dry-run`: the prompt as the model would get it, fitted and counted; no weights are loaded."""

from ngtcli.cli.answer_report import dry_run_object, tell_passages
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import print_json, print_line
from ngtcli.config import IN_PARTS
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.model_files.card import script_words
from ngtcli.model_files.context import context_limit
from ngtcli.model_files.pretrained import load_config, load_tokenizer
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.fitting import Task
from ngtcli.prompt.selecting import prompt_for
from ngtcli.prompt.splitting import fits, split, split_to_refine
from ngtcli.render.terminal import visible


def dry_run(request: AnswerRequest, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    s = request.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    context = context_limit(config, tokenizer).tokens
    task = Task(
        request.preset, request.documents, request.question, tokenizer, context, s.max_tokens,
        config.vocab_size, notes.status,
    )  # fmt: skip
    try:
        if s.overflow in IN_PARTS:
            prompt = _first_part(task, s.overflow, notes)
        else:
            prompt = prompt_for(task, s, notes.warn)
    except ContextOverflowError:
        notes.clear()
        if request.json:
            print_json(dry_run_object(request, None, context))
        raise
    notes.clear()
    if words := script_words(s.model, prompt.documents, request.question):
        notes.warn(words)
    tell_passages(request, prompt.selection, notes)
    remark_look_alikes(request, tokenizer, notes)
    if request.json:
        print_json(dry_run_object(request, prompt, context))
        return
    print_line(visible(prompt.text))
    notes.say(f"{counted(len(prompt.ids), 'token')} of {context}")


def _first_part(task: Task, overflow: str, notes: Notes) -> Prompt:
    """The prompt of everything, or where that does not fit of the first part of the documents."""
    if (whole := fits(task)) is not None:
        return whole
    parts = split(task) if overflow == "split" else split_to_refine(task)
    notes.warn(
        f"not everything fits: split into {counted(len(parts), 'part')}; this is the first one's"
    )
    return parts[0].prompt
