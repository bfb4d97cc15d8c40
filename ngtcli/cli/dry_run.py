"""`--dry-run` of `ngt summarize` and `ngt ask`: the prompt, without the model's weights."""

from ngtcli.cli.answer_object import dry_run_object
from ngtcli.cli.answer_request import AnswerRequest, tell_passages
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import print_line
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.grammar.form import form_of
from ngtcli.model_files.card import script_words
from ngtcli.model_files.pretrained import context_limit, load_config, load_tokenizer
from ngtcli.prompt.build import Prompt, Task, look_alikes
from ngtcli.prompt.chat import Chat
from ngtcli.prompt.selecting import prompt_for
from ngtcli.prompt.splitting import fits, split
from ngtcli.prompt.thinking import thinking_of
from ngtcli.render.terminal import visible
from ngtcli.session.question import Question
from ngtcli.system.json_form import dump_json


def dry_run(request: AnswerRequest, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    s, task = request.settings, task_of(request, notes)
    tokenizer, context, form = task.tokenizer, task.context, form_of(s)
    schema = form.schema if form else None
    try:
        prompt = _prompt(task, request, notes)
    except ContextOverflowError:
        notes.clear()
        if request.json:
            print_line(dump_json(dry_run_object(request, None, context, schema)))
        raise
    notes.clear()
    if words := script_words(s.model, prompt.documents, request.question):
        notes.warn(words)
    tell_passages(request, prompt.selection, notes)
    if request.verbose:
        for words in look_alikes(request.documents, request.question, tokenizer, s.system):
            notes.remark(words)
    if request.json:
        print_line(dump_json(dry_run_object(request, prompt, context, schema)))
        return
    print_line(visible(prompt.text))
    if schema is not None:
        for line in ("The answer obeys this JSON Schema:", *dump_json(schema).splitlines()):
            notes.say(line)
    notes.say(f"{counted(len(prompt.ids), 'token')} of {context}")


def task_of(question: Question, notes: Notes) -> Task:
    """The parts of a prompt as an engine would have them; no weights are loaded."""
    s = question.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    thinking = thinking_of(s, tokenizer)
    notes.clear()
    return Task(
        question.wording,
        question.documents,
        question.question,
        tokenizer,
        context_limit(config, tokenizer).tokens,
        s.max_tokens + (thinking.room if thinking else 0),
        config.vocab_size,
        notes.status,
        chat=Chat.of(s),
        queries=question.queries,
    )


def _prompt(task: Task, request: AnswerRequest, notes: Notes) -> Prompt:
    """The prompt, of a long text that of its first part. Raises ContextOverflowError."""
    if request.settings.overflow != "split":
        return prompt_for(task, request.settings, notes.warn)
    if (whole := fits(task)) is not None:
        return whole
    parts = split(task)
    of = counted(len(parts), "part")
    notes.warn(f"not everything fits: split into {of}; this is the first one's")
    return parts[0].build()
