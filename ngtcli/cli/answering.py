"""How `ngt summarize` and `ngt ask` answer: one prompt, one answer, shown as it comes."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from ngtcli.cli.answer_files import facts_of, write_beside
from ngtcli.cli.answer_report import (
    Told,
    answer_json,
    eager_words,
    exact_words,
    explanation,
    origins,
    policy_words,
    told,
    unused_words,
)
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.citing import cited, print_cited
from ngtcli.cli.dry_run import dry_run
from ngtcli.cli.notes import REPEATS, Notes
from ngtcli.cli.output import write_result
from ngtcli.cli.passages import tell_passages
from ngtcli.cli.reading_bar import ReadingBar
from ngtcli.cli.streams import terminal_width
from ngtcli.config import IN_PARTS
from ngtcli.errors import INTERRUPTED, counted
from ngtcli.render.sinks import Collector, ColourSink, PlainSink, Sink, TerminalSink, dump_json
from ngtcli.render.sources import Sources, sources_of
from ngtcli.render.terminal import visible, wants_color
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.prompt.splitting import PartReport
    from ngtcli.session.answer import Answer
    from ngtcli.session.local import Session
    from ngtcli.session.parts import Splitting

_LONG = 5_000_000  # characters of documents that take longer to compare than is waited; guess


def run(request: AnswerRequest) -> None:
    """Load, prompt, decode, show. Raises NgtError; exits 130 when interrupted."""
    notes = Notes(request.verbose)
    try:
        if request.dry_run:
            dry_run(request, notes)
            return
        session = open_session(request, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    answer_with(session, request, notes)


def answer_with(session: "Session", request: AnswerRequest, notes: Notes) -> None:
    """Prompt, decode, show. Raises NgtError; exits 130 when interrupted."""
    parts: Splitting | None = None
    try:
        parts = _parts(request, session, notes)
        if parts is None:
            prompt = session.prompt(request.preset, request.documents, request.question)
        else:
            prompt = parts.prompt()
        remark_look_alikes(request, session.model.tokenizer, notes)
        tell_passages(request, prompt.selection, notes)
        answer = parts.answer(prompt) if parts else session.answer(prompt)
    except KeyboardInterrupt:
        notes.clear()
        notes.warn(f"interrupted{parts.kept_words() if parts else ''}")
        raise typer.Exit(INTERRUPTED) from None
    _show(request, answer, notes, parts.reports if parts else [])
    if parts is not None:
        parts.forget()


def _parts(request: AnswerRequest, session: "Session", notes: Notes) -> "Splitting | None":
    """What makes a summary part by part, where that is asked for."""
    if request.settings.overflow not in IN_PARTS:
        return None
    from ngtcli.session.parts import Splitting  # here: it loads torch

    return Splitting(
        session, request.preset, request.documents, notes.status, notes.warn,
        begin_part=notes.begin_part,
    )  # fmt: skip


def open_session(request: AnswerRequest, notes: Notes) -> "Session":
    """The session for what is asked, with the model loaded."""
    if request.settings.model == "builtin" and notes.terminal:
        notes.remark(
            "The built-in model is a small demonstration that quotes sentences;"
            " name a real one with -m FOLDER."
        )
    if request.settings.engine == "vllm":
        from ngtcli.cli.vllm_engine import open_vllm

        return open_vllm(request.settings, 1, notes.status, notes.warn)
    notes.status("Starting …")
    from ngtcli.session.local import Session  # here: it loads torch

    return Session(request.settings, notes.status, notes.warn, reading=ReadingBar(notes))


def _show(
    request: AnswerRequest, answer: "Answer", notes: Notes, parts: Sequence["PartReport"]
) -> None:
    """Run the answer into its sinks; on Ctrl-C keep what came."""
    kept = Collector()
    sinks: list[Sink] = [kept]
    if request.whole:
        process.unwind_on_interrupt()  # even an empty answer is delivered
    else:
        sinks.append(_sink(request, answer, notes))
    try:
        _run_into(sinks, kept, request, answer, notes)
    except KeyboardInterrupt:
        answer.interrupted = True
    except Exception:
        if not process.interrupted():  # else a library made this of the Ctrl-C
            raise
        answer.interrupted = True
    notes.clear()
    for sink in sinks:
        sink.close()
    selection = answer.prompt.selection
    excerpts = selection.excerpts if selection else None
    if excerpts is None and sum(len(d.text) for d in request.documents) > _LONG:
        notes.status("Comparing the answer with the documents …")
    sources = sources_of(kept.text, request.documents, excerpts)
    notes.clear()
    with process.unbroken():
        _deliver(request, answer, kept, sources, parts, notes)
        write_beside(request, answer, kept, sources)
    _conclude(request, answer, sources, notes)


def _run_into(
    sinks: Sequence[Sink], kept: Collector, request: AnswerRequest, answer: "Answer", notes: Notes
) -> None:
    for step in answer:
        if request.whole:
            written = counted(len(kept.tokens), "token")
            notes.status(f"Writing the answer: {written} …")
        elif kept.tokens:
            notes.clear()
        else:
            process.unwind_on_interrupt()
            notes.begin_answer()
        for sink in sinks:
            sink.step(step.tokens)
        if request.explain:
            notes.say(explanation(answer, step), dim=True)


def _conclude(request: AnswerRequest, answer: "Answer", sources: Sources, notes: Notes) -> None:
    """What is said below an answer; exit code 130 where it was interrupted."""
    if notes.terminal or request.verbose:
        notes.facts(facts_of(request, answer, sources))
    if request.verbose:
        notes.remark(" ".join(policy_words(answer)))
        notes.remark(answer.background_words())
        notes.remark(exact_words(answer))
        notes.remark(unused_words(answer))
        notes.remark(eager_words(answer))
    if answer.finish_reason == "context":
        notes.warn("the answer is cut off: the context is full")
    if answer.finish_reason == "repetition":
        notes.warn(f"the answer is cut off: {REPEATS}; --max-repeats 0 lets it go on")
    if answer.interrupted:
        notes.warn("interrupted; the answer is incomplete")
        raise typer.Exit(INTERRUPTED)


def _sink(request: AnswerRequest, answer: "Answer", notes: Notes) -> Sink:
    """Where the text goes as it comes."""
    color = wants_color(sys.stdout, request.settings.color)
    if color and request.verbose and request.settings.method != "none":
        notes.legend(origins(answer))
    if sys.stdout.isatty():
        return TerminalSink(sys.stdout, partial(terminal_width, sys.stdout), color)
    return ColourSink(sys.stdout) if color else PlainSink(sys.stdout)


def _deliver(
    request: AnswerRequest,
    answer: "Answer",
    kept: Collector,
    sources: Sources,
    parts: Sequence["PartReport"],
    notes: Notes,
) -> None:
    """The JSON object, or the answer with its sources, to stdout; or what was asked to the file."""
    if request.cite and not request.output:
        print_cited(kept.tokens, sources, _sink(request, answer, notes), request.settings.color)
    elif request.whole:
        hint = "The answer went to standard output; choose another file with -o."
        write_result(body_of(request, told(answer), kept, sources, parts), request.output, hint)


def body_of(
    request: AnswerRequest,
    answer: Told,
    kept: Collector,
    sources: Sources,
    parts: Sequence["PartReport"],
) -> str:
    """What a file gets, without its last newline: the JSON object, or the answer."""
    if request.json or request.json_tokens:
        return dump_json(answer_json(request, answer, kept, sources, parts))
    return cited(kept.tokens, sources) if request.cite else visible(kept.text.rstrip("\n"))
