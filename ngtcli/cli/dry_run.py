"""`--dry-run`: the prompt as the model would get it, fitted and counted; no weights are loaded."""

from ngtcli.cli.answer_report import dry_run_json
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import print_line
from ngtcli.errors import ContextOverflowError
from ngtcli.model_files.context import context_limit
from ngtcli.model_files.pretrained import load_config, load_tokenizer
from ngtcli.prompt.fitting import cut_words, fit_prompt
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible


def dry_run(request: AnswerRequest, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    s = request.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    context = context_limit(config, tokenizer).tokens
    try:
        prompt = fit_prompt(
            request.preset,
            request.documents,
            request.question,
            tokenizer,
            context=context,
            answer=s.max_tokens,
            overflow=s.overflow,
            vocabulary=config.vocab_size,
            status=notes.status,
        )
    except ContextOverflowError:
        notes.clear()
        if request.json:
            print_line(dump_json(dry_run_json(request, None, context)))
        raise
    notes.clear()
    remark_look_alikes(request, tokenizer, notes)
    for words in cut_words(prompt.cuts):
        notes.warn(words)
    if request.json:
        print_line(dump_json(dry_run_json(request, prompt, context)))
        return
    print_line(visible(prompt.text))
    notes.say(f"{len(prompt.ids)} tokens of {context}")
