"""How `ngt summarize` and `ngt ask` answer: one prompt, one answer, shown as it comes.

Also what comes with an answer: the list of its sources, its page and its picture.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from ngtcli.cli.answer_report import (
    answer_object,
    copied,
    explanation,
    remarks,
    summary_facts,
    tell_passages,
)
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.dry_run import dry_run
from ngtcli.cli.notes import REPEATS, Notes, ReadingBar, lines_of
from ngtcli.cli.options import command_line
from ngtcli.cli.output import write_page, write_result
from ngtcli.cli.sessions import open_session
from ngtcli.cli.streams import terminal_width
from ngtcli.config import IN_PARTS
from ngtcli.errors import INTERRUPTED, counted
from ngtcli.grounding.sources import Sources
from ngtcli.render.answer_view import (
    copied_fact,
    legend,
    listed,
    svg,
    terminal_list,
    terminal_view,
    with_marks,
)
from ngtcli.render.sinks import ColourSink, PlainSink, ShownToken, TerminalSink, dump_json
from ngtcli.render.terminal import DIM, paint, reveal, visible, wants_color
from ngtcli.system import process
from ngtcli.system.json_form import to_json

if TYPE_CHECKING:
    from ngtcli.decode.steps import Step
    from ngtcli.prompt.splitting import PartReport
    from ngtcli.session.answer import Answer, FinishedAnswer
    from ngtcli.session.parts import Splitting
    from ngtcli.session.session import Session

_LONG = 5_000_000  # characters of documents that take longer to compare than is waited; guess


def run(request: AnswerRequest) -> None:
    """Load, prompt, decode, show. Raises NgtError; exits 130 when interrupted."""
    notes = Notes(request.verbose)
    try:
        if request.dry_run:
            dry_run(request, notes)
            return
        session = _session(request, notes)
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


def _session(request: AnswerRequest, notes: Notes) -> "Session":
    """The session for what is asked, with the model loaded."""
    if request.settings.model == "builtin" and notes.terminal:
        notes.remark(
            "The built-in model is a small demonstration that quotes sentences;"
            " name a real one with -m FOLDER."
        )
    return open_session(request.settings, notes.status, notes.warn, reading=ReadingBar(notes))


def _show(
    request: AnswerRequest, answer: "Answer", notes: Notes, parts: Sequence["PartReport"]
) -> None:
    """Show the answer as it comes, then deliver it; on Ctrl-C what came of it."""
    steps: list[Step] = []
    sink: PlainSink | None = None
    if request.whole:
        process.unwind_on_interrupt()  # even an empty answer is delivered
    else:
        sink = _sink(request, answer, notes)
    try:
        for step in answer:
            _show_step(request, answer, step, steps, sink, notes)
    except KeyboardInterrupt:
        answer.interrupted = True
    except Exception:
        if not process.interrupted():  # else a library made this of the Ctrl-C
            raise
        answer.interrupted = True
    notes.clear()
    if sink is not None:
        sink.close()
    if answer.prompt.selection is None and sum(len(d.text) for d in request.documents) > _LONG:
        notes.status("Comparing the answer with the documents …")
    finished = answer.finished(steps=steps)
    sources = copied(finished, request.documents)
    notes.clear()
    facts = [copied_fact(sources), *summary_facts(request.settings, answer)]
    with process.unbroken():
        _deliver(request, answer, finished, sources, parts, notes)
        if request.html:
            write_page(_page(request, finished, sources, facts), request.html)
        if request.svg:
            write_page(_picture(request, finished, sources, facts), request.svg)
    _conclude(request, answer, facts, notes)


def _show_step(
    request: AnswerRequest,
    answer: "Answer",
    step: "Step",
    steps: list["Step"],
    sink: PlainSink | None,
    notes: Notes,
) -> None:
    """Show a step, and add it to the `steps`."""
    if sink is None:
        written = counted(sum(len(earlier.tokens) for earlier in steps), "token")
        notes.status(f"Writing the answer: {written} …")
    elif any(earlier.tokens for earlier in steps):
        notes.clear()
    else:
        process.unwind_on_interrupt()
        notes.begin_answer()
    steps.append(step)
    if sink is not None:
        sink.step(step.tokens)
    if request.explain:
        notes.say(explanation(answer, step), dim=True)


def _conclude(request: AnswerRequest, answer: "Answer", facts: list[str], notes: Notes) -> None:
    """What is said below an answer; exit code 130 where it was interrupted."""
    if notes.terminal or request.verbose:
        notes.facts(facts)
    if request.verbose:
        for words in remarks(answer):
            notes.remark(words)
    if answer.finish_reason == "context":
        notes.warn("the answer is cut off: the context is full")
    if answer.finish_reason == "repetition":
        notes.warn(f"the answer is cut off: {REPEATS}; --max-repeats 0 lets it go on")
    if answer.interrupted:
        notes.warn("interrupted; the answer is incomplete")
        raise typer.Exit(INTERRUPTED)


def _sink(request: AnswerRequest, answer: "Answer", notes: Notes) -> PlainSink:
    """Where the text goes as it comes."""
    color = wants_color(sys.stdout, request.settings.color)
    if color and request.verbose and request.settings.method != "none":
        notes.legend(answer.run.drafter.origins)
    if sys.stdout.isatty():
        return TerminalSink(sys.stdout, partial(terminal_width, sys.stdout), color)
    return ColourSink(sys.stdout) if color else PlainSink(sys.stdout)


def _deliver(
    request: AnswerRequest,
    answer: "Answer",
    finished: "FinishedAnswer",
    sources: Sources,
    parts: Sequence["PartReport"],
    notes: Notes,
) -> None:
    """The JSON object, or the answer with its sources, to stdout; or what was asked to the file."""
    if request.cite and not request.output:
        marked = with_marks(finished.tokens, sources)
        _print_cited(marked, sources, _sink(request, answer, notes), request.settings.color)
    elif request.whole:
        hint = "The answer went to standard output; choose another file with -o."
        write_result(body_of(request, finished, sources, parts), request.output, hint)


def body_of(
    request: AnswerRequest,
    answer: "FinishedAnswer",
    sources: Sources,
    parts: Sequence["PartReport"],
) -> str:
    """What a file gets, without its last newline: the JSON object, or the answer."""
    if request.json or request.json_tokens:
        return dump_json(to_json(answer_object(request, answer, sources, parts)))
    if not request.cite:
        return visible(answer.text.rstrip("\n"))
    text = visible("".join(words.text for words in with_marks(answer.tokens, sources)))
    return "\n".join([text, *([""] * bool(sources.found)), *map(listed, sources.places())])


def _print_cited(
    marked: Sequence[ShownToken], sources: Sources, sink: PlainSink, color: str
) -> None:
    """The answer with marks into `sink`, which writes to stdout, and its sources below it.

    On a terminal the places link to the files; `color` is that setting.
    """
    sink.step(marked)
    sink.close()
    if sys.stdout.isatty():
        styled = wants_color(sys.stdout, color)
        places = terminal_list(sources, terminal_width(sys.stdout), styled)
    else:
        places = "".join(f"{listed(source)}\n" for source in sources.places())
    sys.stdout.write(f"\n{places}" if places else "")
    sys.stdout.flush()


def _page(
    request: AnswerRequest, answer: "FinishedAnswer", sources: Sources, facts: list[str]
) -> str:
    """The answer with its documents, as HTML."""
    from ngtcli.render.answer_page import answer_page  # here: few runs need it

    title = request.question or f"Summary of {', '.join(d.name for d in request.documents[:3])}"
    documents = request.documents
    if selection := answer.prompt.selection:  # those of which nothing was read are left out
        read = sorted({excerpt.document for excerpt in selection.excerpts})
        documents, sources = [documents[i] for i in read], sources.among(read)
    return answer_page(title, command_line(), answer.steps, sources, documents, facts)


def _picture(
    request: AnswerRequest, answer: "FinishedAnswer", sources: Sources, facts: list[str]
) -> str:
    """The command and the answer as a terminal shows them, as SVG; with marks if it is to cite."""
    width, tokens = terminal_width(sys.stdout), answer.tokens
    origins = sorted({token.origin for token in tokens if token.drafted})
    parts = [
        f"$ {reveal(visible(command_line()))}\n",
        legend(origins) + "\n" if origins else "",
        terminal_view(with_marks(tokens, sources) if request.cite else tokens, width, True),
        terminal_list(sources, width, True) if request.cite else "",
        "\n".join(paint(" · ".join(line), DIM) for line in lines_of(facts, width)),
    ]
    return svg("\n".join(filter(None, parts)), answer.text, width)
