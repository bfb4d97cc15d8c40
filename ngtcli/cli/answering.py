"""How `ngt summarize` and `ngt ask` answer: one prompt, one answer, shown as it comes.

Also what comes with an answer: the list of its sources, its page and its picture.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from ngtcli.cli.answer_report import (
    answer_json,
    eager_words,
    exact_words,
    explanation,
    origins,
    policy_words,
    summary_facts,
    tell_passages,
    unused_words,
)
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.dry_run import dry_run
from ngtcli.cli.notes import REPEATS, Notes, ReadingBar, lines_of
from ngtcli.cli.options import command_line
from ngtcli.cli.output import write_page, write_result
from ngtcli.cli.sessions import open_session
from ngtcli.cli.streams import terminal_width
from ngtcli.config import IN_PARTS
from ngtcli.documents.load import Document
from ngtcli.errors import INTERRUPTED, counted
from ngtcli.grounding.sources import Sources, sources_of
from ngtcli.render.answer_view import copied_fact, listed, terminal_list, with_marks
from ngtcli.render.sinks import (
    ColourSink,
    PlainSink,
    ShownToken,
    Sink,
    TerminalSink,
    dump_json,
)
from ngtcli.render.terminal import DIM, paint, reveal, visible, wants_color
from ngtcli.system import process

if TYPE_CHECKING:
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
    """Run the answer into its sink; on Ctrl-C keep what came."""
    sink: Sink | None = None
    if request.whole:
        process.unwind_on_interrupt()  # even an empty answer is delivered
    else:
        sink = _sink(request, answer, notes)
    try:
        _run_into(sink, request, answer, notes)
    except KeyboardInterrupt:
        answer.interrupted = True
    except Exception:
        if not process.interrupted():  # else a library made this of the Ctrl-C
            raise
        answer.interrupted = True
    notes.clear()
    if sink:
        sink.close()
    if not answer.prompt.selection and sum(len(d.text) for d in request.documents) > _LONG:
        notes.status("Comparing the answer with the documents …")
    finished = answer.finished(parts=parts)
    sources = sources_for(finished, request.documents)
    notes.clear()
    with process.unbroken():
        _deliver(request, answer, finished, sources, notes)
        write_beside(request, answer, finished, sources)
    _conclude(request, answer, sources, notes)


def sources_for(answer: "FinishedAnswer", documents: Sequence[Document]) -> Sources:
    """What of the answer stands word for word in the documents, or in the excerpts it was given."""
    selection = answer.prompt.selection
    return sources_of(answer.text, documents, selection.excerpts if selection else None)


def _run_into(sink: Sink | None, request: AnswerRequest, answer: "Answer", notes: Notes) -> None:
    tokens = 0
    for step in answer:
        if request.whole:
            notes.status(f"Writing the answer: {counted(tokens, 'token')} …")
        elif tokens:
            notes.clear()
        else:
            process.unwind_on_interrupt()
            notes.begin_answer()
        tokens += len(step.tokens)
        if sink:
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
    finished: "FinishedAnswer",
    sources: Sources,
    notes: Notes,
) -> None:
    """The JSON object, or the answer with its sources, to stdout; or what was asked to the file."""
    if request.cite and not request.output:
        sink = _sink(request, answer, notes)
        print_cited(finished.tokens, sources, sink, request.settings.color)
    elif request.whole:
        hint = "The answer went to standard output; choose another file with -o."
        write_result(body_of(request, finished, sources), request.output, hint)


def body_of(request: AnswerRequest, answer: "FinishedAnswer", sources: Sources) -> str:
    """What a file gets, without its last newline: the JSON object, or the answer."""
    if request.json or request.json_tokens:
        return dump_json(answer_json(request, answer, sources))
    return cited(answer.tokens, sources) if request.cite else visible(answer.text.rstrip("\n"))


def cited(tokens: Sequence[ShownToken], sources: Sources) -> str:
    """The answer with marks, and the list of its sources, without a last newline."""
    text = visible("".join(words.text for words in with_marks(tokens, sources)))
    return "\n".join([text, *([""] * bool(sources.found)), *_lines(sources)])


def print_cited(tokens: Sequence[ShownToken], sources: Sources, sink: Sink, color: str) -> None:
    """The answer with marks into `sink`, which writes to stdout, and its sources below it.

    On a terminal the places link to the files; `color` is that setting.
    """
    sink.step(with_marks(tokens, sources))
    sink.close()
    if sys.stdout.isatty():
        styled = wants_color(sys.stdout, color)
        places = terminal_list(sources, terminal_width(sys.stdout), styled)
    else:
        places = "".join(line + "\n" for line in _lines(sources))
    sys.stdout.write(f"\n{places}" if places else "")
    sys.stdout.flush()


def _lines(sources: Sources) -> list[str]:
    return [listed(source) for source in sources.places()]


def facts_of(request: AnswerRequest, answer: "Answer", sources: Sources) -> list[str]:
    """What is said below an answer."""
    return [copied_fact(sources), *summary_facts(request.settings, answer)]


def write_beside(
    request: AnswerRequest, answer: "Answer", finished: "FinishedAnswer", sources: Sources
) -> None:
    """Write the page and the picture, where they are asked for. Raises NgtError."""
    if request.html:
        write_page(_page(request, answer, finished, sources), request.html)
    if request.svg:
        write_page(_picture(request, answer, finished, sources), request.svg)


def _page(
    request: AnswerRequest, answer: "Answer", finished: "FinishedAnswer", sources: Sources
) -> str:
    """The answer beside its documents, as HTML."""
    from ngtcli.render.answer_page import Written, answer_page  # here: few runs need it

    written = [
        Written(token.text, token.drafted, number)
        for number, step in enumerate(finished.steps, 1)
        for token in step.tokens
    ]
    title = request.question or f"Summary of {', '.join(d.name for d in request.documents[:3])}"
    facts = facts_of(request, answer, sources)
    documents = request.documents
    if selection := answer.prompt.selection:  # those of which nothing was read are left out
        read = sorted({excerpt.document for excerpt in selection.excerpts})
        documents, sources = [documents[i] for i in read], sources.among(read)
    return answer_page(title, command_line(), written, sources, documents, facts)


def _picture(
    request: AnswerRequest, answer: "Answer", finished: "FinishedAnswer", sources: Sources
) -> str:
    """The command and the answer as a terminal shows them, as SVG; with marks if it is to cite."""
    from ngtcli.render import answer_view

    width = terminal_width(sys.stdout)
    places = answer_view.terminal_list(sources, width, True) if request.cite else ""
    shown = answer_view.with_marks(finished.tokens, sources) if request.cite else finished.tokens
    facts = lines_of(facts_of(request, answer, sources), width)
    origins = sorted({token.origin for token in finished.tokens if token.drafted})
    parts = [
        f"$ {reveal(visible(command_line()))}\n",
        answer_view.legend(origins) + "\n" if origins else "",
        answer_view.terminal_view(shown, width, True),
        places,
        "\n".join(paint(" · ".join(line), DIM) for line in facts),
    ]
    return answer_view.svg("\n".join(filter(None, parts)), finished.text, width)
