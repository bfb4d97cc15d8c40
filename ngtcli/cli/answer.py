"""`ngt summarize` and `ngt ask`: one prompt, one answer."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli import process
from ngtcli.checkpoint import check_models
from ngtcli.cli.facts import (
    answer_json,
    dry_run_json,
    explanation,
    origins,
    policy_words,
    summary_facts,
    unused_words,
)
from ngtcli.cli.ignored import refuse_beside, refuse_colour, refuse_ignored
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, resolve, with_settings
from ngtcli.cli.output import check_output_file, print_line, write_result
from ngtcli.cli.reading import read_documents, standard_input
from ngtcli.cli.streams import terminal_width
from ngtcli.config import Settings
from ngtcli.documents.load import STDIN, Document, Loaded
from ngtcli.documents.names import utf8
from ngtcli.errors import INTERRUPTED, ContextOverflowError, InputError, UsageError
from ngtcli.presets import Preset
from ngtcli.prompts import look_alikes
from ngtcli.render.sinks import Collector, ColourSink, PlainSink, Sink, TerminalSink, dump_json
from ngtcli.render.terminal import visible, wants_color

if TYPE_CHECKING:
    from ngtcli.session import Answer, Session
    from ngtcli.tokens import Tokenizer

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the answer to this file, whole.")
]
TokensOption = Annotated[
    bool, typer.Option("--json-tokens", help="Like --json, with every token and its origin.")
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the prompt and its token count; run no model.")
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Say on stderr what each step drafted, and why.")
]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, of what, and how the answer is to be shown."""

    task: str
    loaded: Loaded
    question: str
    settings: Settings
    preset: Preset
    json: bool = False
    json_tokens: bool = False
    output: Path | None = None
    dry_run: bool = False
    verbose: bool = False
    explain: bool = False

    @property
    def documents(self) -> Sequence[Document]:
        return self.loaded.documents


@with_settings
def summarize(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    preset: PresetOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
    json_tokens: TokensOption = False,
    dry_run: DryOption = False,
    explain: ExplainOption = False,
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags or {}, preset, "summarize")
    request = Request(
        "summarize", Loaded(()), "", resolved.settings, chosen,
        json, json_tokens, output, dry_run, verbose, explain,
    )  # fmt: skip
    _check(request, flags or {})
    loaded = _documents(files or [], request, "Name a file or a folder, or pipe a text in.")
    run(replace(request, loaded=loaded))


@with_settings
def ask(
    words: Annotated[list[str], typer.Argument(help="The question.", metavar="QUESTION")],
    docs: Annotated[
        list[str] | None,
        typer.Option("--docs", "-d", help="File, folder, glob or -; may be given again."),
    ] = None,
    preset: PresetOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
    json_tokens: TokensOption = False,
    dry_run: DryOption = False,
    explain: ExplainOption = False,
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Answer a question from documents: ngt ask --docs ./notes "When is high tide?" """
    question = _question(words)
    if not question.strip():
        raise UsageError("the question is empty", 'Give one, as in ngt ask -d notes "When?"')
    resolved, chosen = resolve(flags or {}, preset, "ask")
    if "{question}" not in chosen.template:
        raise UsageError(
            f"preset {chosen.name} has no place for a question", "Put {question} in its template."
        )
    request = Request(
        "ask", Loaded(()), utf8(question.strip()), resolved.settings, chosen,
        json, json_tokens, output, dry_run, verbose, explain,
    )  # fmt: skip
    _check(request, flags or {})
    loaded = _documents(docs or [], request, "Give --docs FILE or FOLDER, or pipe a text in.")
    run(replace(request, loaded=loaded))


def _question(words: Sequence[str]) -> str:
    """The question, which must be one word of the command line."""
    if len(words) == 1:
        return words[0]
    if file := next((w for w in words if os.path.exists(w)), None):
        raise UsageError(f"{file} stands where the question does", "Give -d before each document.")
    joined = shlex.quote(" ".join(words))
    shown = joined if len(joined) < 200 else "'…'"
    what = f"the question is {len(words)} words without quotes"
    raise UsageError(what, f"Put it in quotes: ngt ask {shown}")


def _documents(paths: list[str], request: Request, hint: str) -> Loaded:
    """The documents named, or what is piped in. Raises InputError."""
    stdin = standard_input(paths)
    if not paths and stdin is None:
        raise InputError("no documents given", hint)
    try:
        notes = Notes(request.verbose)
        return read_documents(paths or [STDIN], stdin, request.settings, notes)
    except InputError as error:
        if paths:
            raise
        raise InputError(str(error), f"No document was named. {hint}") from None


def _check(request: Request, flags: dict[str, Any]) -> None:
    """Raise UsageError for what was asked for by a flag and would not happen."""
    check_output_file(request.output)
    refuse_ignored(flags, request.settings)
    forms = {"--json": request.json, "--json-tokens": request.json_tokens, "-o": request.output}
    for form in (f for f, given in {**forms, "--dry-run": request.dry_run}.items() if given):
        refuse_colour(form, flags)
    if request.dry_run:
        refuse_beside("--dry-run", {"--explain": request.explain}, "It makes no step.")
        tokens = {"--json-tokens": request.json_tokens}
        refuse_beside("--dry-run", tokens, "Give --dry-run --json.")
        refuse_beside("--dry-run", {"-o": request.output}, "Redirect it: ngt … --dry-run > FILE")


def run(request: Request) -> None:
    """Load, prompt, decode, show. Raises NgtError; exits 130 when interrupted."""
    notes = Notes(request.verbose)
    try:
        if request.dry_run:
            _dry_run(request, notes)
            return
        session = _session(request, notes)
        prompt = session.prompt(request.preset, request.documents, request.question)
        _remark_look_alikes(request, session.model.tokenizer, notes)
        answer = session.answer(prompt)
    except KeyboardInterrupt:
        notes.warn("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    _show(request, answer, notes)


def _session(request: Request, notes: Notes) -> "Session":
    if request.settings.model == "builtin" and notes.terminal:
        notes.remark(
            "The built-in model is a small demonstration that quotes sentences;"
            " name a real one with -m FOLDER."
        )
    check_models(request.settings.model, request.settings.draft_model)
    notes.status("Starting …")
    from ngtcli.session import Session  # here: it loads torch

    return Session(request.settings, notes.status, notes.warn)


def _dry_run(request: Request, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    from ngtcli.context import context_limit
    from ngtcli.fitting import cut_words, fit_prompt
    from ngtcli.pretrained import load_config, load_tokenizer

    s = request.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    context = context_limit(config, tokenizer).tokens
    try:
        prompt = fit_prompt(
            request.preset, request.documents, request.question, tokenizer, context=context,
            answer=s.max_tokens, overflow=s.overflow, vocabulary=config.vocab_size,
            status=notes.status,
        )  # fmt: skip
    except ContextOverflowError:
        notes.clear()
        if request.json:
            print_line(dump_json(dry_run_json(request, None, context)))
        raise
    notes.clear()
    _remark_look_alikes(request, tokenizer, notes)
    for words in cut_words(prompt.cuts):
        notes.warn(words)
    if request.json:
        print_line(dump_json(dry_run_json(request, prompt, context)))
        return
    print_line(visible(prompt.text))
    notes.say(f"{len(prompt.ids)} tokens of {context}")


def _remark_look_alikes(request: Request, tokenizer: "Tokenizer", notes: Notes) -> None:
    """With -v: which texts hold what looks like a control token."""
    if request.verbose:
        for words in look_alikes(request.documents, request.question, tokenizer):
            notes.remark(words)


def _show(request: Request, answer: "Answer", notes: Notes) -> None:
    """Run the answer into its sinks; on Ctrl-C keep what came."""
    kept = Collector()
    sinks: list[Sink] = [kept]
    if request.json or request.json_tokens or request.output:
        process.unwind_on_interrupt()  # even an empty answer is delivered
    else:
        sinks.append(_sink(request, answer, notes))
    try:
        for step in answer:
            if kept.tokens:
                notes.clear()
            else:
                process.unwind_on_interrupt()
                notes.begin_answer()
            for sink in sinks:
                sink.step(step.tokens)
            if request.explain:
                notes.say(explanation(answer, step), dim=True)
    except KeyboardInterrupt:
        answer.interrupted = True
    except Exception:
        if not process.interrupted():  # else a library made this of the Ctrl-C
            raise
        answer.interrupted = True
    notes.clear()
    for sink in sinks:
        sink.close()
    with process.unbroken():
        _deliver(request, answer, kept)
    if notes.terminal or request.verbose:
        notes.facts(summary_facts(request.settings, answer))
    if request.verbose:
        notes.remark(" ".join(policy_words(answer)))
        notes.remark(unused_words(answer))
    if answer.finish_reason == "context":
        notes.warn("the answer is cut off: the context is full")
    if answer.interrupted:
        notes.warn("interrupted; the answer is incomplete")
        raise typer.Exit(INTERRUPTED)


def _sink(request: Request, answer: "Answer", notes: Notes) -> Sink:
    """Where the text goes as it comes."""
    color = wants_color(sys.stdout, request.settings.color)
    if color and request.verbose and request.settings.method != "none":
        notes.legend(origins(answer))
    if sys.stdout.isatty():
        return TerminalSink(sys.stdout, partial(terminal_width, sys.stdout), color)
    return ColourSink(sys.stdout) if color else PlainSink(sys.stdout)


def _deliver(request: Request, answer: "Answer", kept: Collector) -> None:
    """The JSON object to stdout, or the file, where one was asked for."""
    if request.json or request.json_tokens:
        body = dump_json(answer_json(request, answer, kept))
    elif request.output:
        body = visible(kept.text.rstrip("\n"))
    else:
        return
    hint = "The answer went to standard output; choose another file with -o."
    write_result(body, request.output, hint)
