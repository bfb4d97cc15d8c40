"""`--dry-run` of `ngt summarize` and `ngt ask`: the prompt, without the model's weights."""

from ngtcli.cli.answer_flags import Output, report_passages
from ngtcli.cli.answer_object import dry_run_object
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import json_of_answer, print_line
from ngtcli.config import Settings
from ngtcli.decoding.grammar.form import form_of
from ngtcli.engine.request import Request
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.errors import ContextOverflowError
from ngtcli.models.pretrained import context_limit, load_config, load_tokenizer
from ngtcli.prompts.build import Prompt, look_alikes
from ngtcli.prompts.splitting import whole_or_parts
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import dump_json
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted


class UnloadedSession(Session):
    """Makes the prompts that an engine would have, without weights.

    Args:
        settings: The settings.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.status(f"Loading the tokenizer of {settings.model.model} …")
        tokenizer = load_tokenizer(settings.model.model)
        config = load_config(settings.model.model)
        limit = context_limit(config, tokenizer)
        self._facts = ModelFacts(
            tokenizer=tokenizer,
            context=limit.tokens,
            vocabulary=config.vocab_size,
            dtype=settings.model.dtype,
            context_why=limit.reason,
        )

    @property
    def facts(self) -> ModelFacts:
        return self._facts


def dry_run(request: Request, output: Output, notes: Notes, *, reports_schema: bool = True) -> None:
    """Print the prompt that would be sent, and report its token count; no weights are loaded.

    Args:
        request: What would be asked.
        output: How that is shown.
        notes: Where the token count goes.
        reports_schema: Whether the JSON Schema of the answer goes there, too.
    """
    with reporting_to(notes):
        session = UnloadedSession(request.settings)
    notes.clear()
    context = session.facts.context
    form = form_of(request.settings)
    schema = form.schema if form else None
    try:
        with reporting_to(session):
            prompt = _prompt(session, request)
    except ContextOverflowError:
        notes.clear()
        if output.is_json:
            print_line(json_of_answer(dry_run_object(request, None, context, schema)))
        raise
    notes.clear()
    report_passages(request, output, prompt.selection, notes)
    if output.verbose:
        remarks = look_alikes(
            request.documents,
            request.question,
            session.facts.tokenizer,
            request.settings.answer.system,
        )
        for remark in remarks:
            notes.remark(remark)
    if output.is_json:
        print_line(json_of_answer(dry_run_object(request, prompt, context, schema)))
        return
    print_line(visible(prompt.text))
    if schema is not None and reports_schema:
        for line in ("The answer obeys this JSON Schema:", *dump_json(schema).splitlines()):
            notes.say(line)
    notes.say(f"{counted(len(prompt.ids), 'token')} of {context}")


def _prompt(session: Session, request: Request) -> Prompt:
    """Return the prompt, of a long text that of its first part. Raises ContextOverflowError."""
    if request.settings.retrieval.overflow != "split":
        return session.prompt(
            request.wording, request.documents, request.question, request.turns, request.queries
        )
    parts = whole_or_parts(session.task(request.wording, request.documents, request.question))
    if isinstance(parts, Prompt):
        return parts
    count = counted(len(parts), "part")
    session.warn(f"not everything fits: split into {count}; this is the prompt of the first")
    return parts[0].build()
