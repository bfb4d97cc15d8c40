"""How `ngt summarize`, `ngt ask` and `ngt generate` answer one request and show the answer.

This module also prints the list of an answer's sources, and writes its page.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TextIO

import typer

from ngtcli.cli.answer_flags import Output, OutputFormat, report_passages
from ngtcli.cli.notes import CUT_OFF, Notes
from ngtcli.cli.options import command_line
from ngtcli.cli.output import check_written, json_of_answer, write_page, write_result
from ngtcli.cli.streams import terminal_width
from ngtcli.cli.suggestions import suggest_keeping_warm
from ngtcli.config import Settings, seconds_of
from ngtcli.documents.quotes.sources import Source, SourceFinder
from ngtcli.documents.selection import Excerpt
from ngtcli.engine.events import (
    NO_SOURCES,
    Answer,
    Ended,
    Event,
    Prompted,
    Started,
    Stepped,
    report_to,
)
from ngtcli.engine.no_answer import NOT_IN_DOCUMENTS, no_answer
from ngtcli.engine.request import Request, Want, builtin_limit
from ngtcli.errors import INTERRUPTED, NgtError, StoppedError
from ngtcli.render.answer_view import listed, terminal_list, with_marks
from ngtcli.render.live_marks import LiveMarks
from ngtcli.render.sinks import PlainSink, Run, TerminalSink, runs_of
from ngtcli.render.terminal import THOUGHT, visible, wants_color
from ngtcli.server.answerer import Answerer
from ngtcli.server.client import start
from ngtcli.system import process, reporting
from ngtcli.words import counted

_CUT_OFF = CUT_OFF | {
    "interrupted": "interrupted; the answer is incomplete",
}
_OTHER_WORDS = "Use words from the documents, or choose another model with -m."
_REASONING_KEPT = 400  # last characters of the reasoning, for the status line (guess)


def answerer_of(request: Request, *, dry_run: bool = False) -> Answerer:
    """Check the settings of a request; return what answers it. Raises UsageError, ModelError."""
    answerer = Answerer()
    if dry_run:
        from ngtcli.engine.checks import check_session  # here, because it imports much

        check_session(request.settings, dry=True)
    else:
        answerer.check(request.settings)
    return answerer


def run(request: Request, output: Output, answerer: Answerer, notes: Notes) -> None:
    """Answer a request and show the answer. Raises NgtError; exits with 130 if interrupted."""
    check_written((output.path, output.html), output.force)
    request = replace(request, wants=wanted(output, notes))
    display = AnswerDisplay(request, output, notes)
    began = time.monotonic()
    answer = display.show(answerer.ask(request))
    if answer is None or answer.finish_reason == "interrupted":
        raise typer.Exit(INTERRUPTED)
    keep_warm(answerer, request.settings)
    if answerer.loaded and not seconds_of(request.settings.engine.keep_warm) and display.started:
        suggest_keeping_warm(display.started - began, notes)


def keep_warm(answerer: Answerer, settings: Settings) -> None:
    """Start a process that keeps the model loaded, if the settings ask for it and none does."""
    if answerer.loaded and seconds_of(settings.engine.keep_warm):
        start(settings)


def wanted(output: Output, notes: Notes) -> frozenset[Want]:
    """Return which parts of an answer besides its text are shown."""
    wants = set()
    if output.verbose:
        wants.add(Want.REMARKS)
    if output.cites or output.html or output.is_json or notes.terminal or notes.verbose:
        wants.add(Want.SOURCES)
    return frozenset(wants)


class AnswerDisplay:
    """Shows the events of a request: the answer as it is generated, then the complete answer.

    The complete answer may go to files.
    """

    def __init__(self, request: Request, output: Output, notes: Notes) -> None:
        self._request = request
        self._output = output
        self._notes = notes
        self._report = report_to(reporting.current())
        self._origins: Sequence[str] = ()
        self._sink: PlainSink | None = None  # shows the text as it is generated
        self._marks: LiveMarks | None = None  # marks the sources of that text
        self._excerpts: Sequence[Excerpt] | None = None  # what the model read, if not everything
        self._tokens = 0  # number of tokens of the answer so far
        self._has_begun = False  # whether text of the answer has been shown
        self._reasoning = ""  # the end of the reasoning so far
        self.started = 0.0  # when the answer began, by time.monotonic; 0.0 before

    def show(self, answer: Answer) -> Ended | None:
        """Show all events; after Ctrl-C, show the answer so far. Raises NgtError.

        Returns:
            The complete or interrupted answer; None if there is none.
        """
        last: Event | None = None
        try:
            with closing(answer) as events:
                while True:
                    try:
                        event = next(events, None)
                        if event is None:
                            break
                        last = event
                        self._show(event)
                    except KeyboardInterrupt:  # the last event has the answer so far
                        events.interrupt()
        except StoppedError as error:
            self._notes.warn(str(error))
            return None
        except NgtError:
            self._close_sink()  # the answer so far is shown completely
            raise
        return last if isinstance(last, Ended) else None

    def _show(self, event: Event) -> None:
        match event:
            case Prompted():
                if self._request.task != "chat":  # a conversation showed it at its start
                    model, limit = self._request.settings.model.model, builtin_limit(self._request)
                    self._notes.demonstration(model, limit)
                self._excerpts = event.selection.excerpts if event.selection else None
                report_passages(self._request, self._output, event.selection, self._notes)
            case Started():
                self.started = time.monotonic()
                self._notes.clear()
                self._origins = event.origins
                if self._output.waits_for_end(self._request):
                    process.unwind_on_interrupt()  # so that even an empty answer is delivered
                else:
                    self._legend()
                    self._sink = _new_sink(self._request.settings, sys.stdout)
                    if self._output.cites:
                        finder = SourceFinder(self._request.documents, self._excerpts)
                        self._marks = LiveMarks(finder)
            case Stepped():
                self._step(event)
            case Ended():
                self._end(event)
            case _:
                self._report(event)

    def _legend(self) -> None:
        settings = self._request.settings
        painted = wants_color(sys.stdout, settings.output.color)
        if painted and self._output.verbose and settings.drafting.method != "none":
            self._notes.legend(self._origins)

    def _step(self, event: Stepped) -> None:
        """Show the tokens of a step as text, or their number in the status line."""
        tokens = event.step.tokens
        if self._sink is not None and not self._tokens:
            process.unwind_on_interrupt()
        reasoning = [token.thought for token in tokens if token.thought is not None]
        self._reasoning = (self._reasoning + "".join(reasoning))[-_REASONING_KEPT:]

        runs = self._runs(event)
        hides_reasoning = self._sink is None or not self._output.shows_thinking
        if reasoning and hides_reasoning and not any(token.text for token in tokens):
            count = counted(event.thought_tokens, "token")
            self._notes.status(f"Thinking, {count} … ", self._reasoning)
        elif self._sink is None or not (runs or self._has_begun):
            self._notes.status(f"Writing the answer: {counted(self._tokens, 'token')} …")
        else:
            if self._has_begun:
                self._notes.clear()
            else:
                self._notes.begin_answer()
            self._has_begun = True
            self._sink.step(runs)

        self._tokens += len(tokens)
        if event.step.finish_reason:
            self._close_sink()

    def _runs(self, event: Stepped) -> list[Run]:
        """Return the text of a step that can be shown: answer text only with its final marks."""
        runs = runs_of(event.step.tokens, self._output.shows_thinking)
        if self._marks is None:
            return runs
        reasoning = [run for run in runs if run[1] == THOUGHT]
        answer = [run for run in runs if run[1] != THOUGHT]
        return [*reasoning, *self._marks.feed(answer)]

    def _close_sink(self) -> None:
        self._notes.clear()
        if self._sink is not None:
            unmarked = self._marks.flush() if self._marks is not None else []
            if unmarked:
                if not self._has_begun:
                    self._notes.begin_answer()
                self._sink.step(unmarked)
            self._sink.close()
        self._sink = None

    def _end(self, answer: Ended) -> None:
        """Deliver the complete answer, or the interrupted one. Raises NgtError."""
        self._close_sink()
        error = self._request.incomplete_error(answer.finish_reason)
        with process.unbroken():
            self._write(answer, error)
        self._report_facts(answer)

        if error and answer.finish_reason != "interrupted":
            raise error
        if answer.finish_reason == NOT_IN_DOCUMENTS and self._request.task == "ask":
            raise NgtError("the documents do not have the answer", hint=_OTHER_WORDS)
        failure = no_answer(answer.finish_reason)
        if failure is not None:
            raise failure
        warning = _CUT_OFF.get(answer.finish_reason)
        if warning:
            self._notes.warn(warning)

    def _write(self, answer: Ended, error: NgtError | None) -> None:
        """Write what has not been shown of the answer; with `error`, its form is incomplete."""
        request, output = self._request, self._output
        if error and not output.is_json:
            pass  # incomplete structured output is useless
        elif self._marks is not None:
            print_sources(self._marks.places, request.settings, sys.stdout)
        elif output.cites and not output.path:
            self._legend()
            self._notes.begin_answer()
            print_answer(request, output, answer, sys.stdout)
        elif output.waits_for_end(request):
            write_result(body_of(request, output, answer), output.path, output.force)
        if output.html and not error:
            write_page(self._page(answer), output.html, force=output.force)

    def _report_facts(self, answer: Ended) -> None:
        notes = self._notes
        if answer.thought and not answer.text.strip():
            notes.warn("the model was still reasoning when it ended: there is no answer")
        if notes.terminal or notes.verbose:
            notes.facts([*answer.facts])
        if answer.details:
            notes.facts([*answer.details])
        for remark in answer.remarks:
            notes.remark(remark)

    def _page(self, answer: Ended) -> str:
        """Return the answer next to its documents, as HTML."""
        from ngtcli.render.answer_page import answer_page  # here, because few runs need it

        documents = self._request.documents
        sources = answer.sources
        if answer.selection:  # leave out documents that were not read
            read = sorted({excerpt.document for excerpt in answer.selection.excerpts})
            documents = [self._request.documents[number] for number in read]
            sources = sources.among(read)
        names = ", ".join(document.name for document in self._request.documents[:3])
        return answer_page(
            self._request.question or f"Summary of {names}",
            command_line(),
            answer.steps,
            sources,
            documents,
            answer.facts,
            model=self._request.settings.model.model,
        )


def _new_sink(settings: Settings, out: TextIO) -> PlainSink:
    color = wants_color(sys.stdout, settings.output.color)
    if sys.stdout.isatty():
        return TerminalSink(out, partial(terminal_width, sys.stdout), color)
    return PlainSink(out, color)


def print_answer(request: Request, output: Output, answer: Ended, out: TextIO) -> None:
    """Print a complete answer; with --cite also its marks and sources, which link to the files.

    It is written to `out`, in the form that suits standard output.
    """
    sink = _new_sink(request.settings, out)
    sources = answer.sources if output.cites else NO_SOURCES
    sink.step(_marked(replace(output, cites=True), replace(answer, sources=sources)))
    sink.close()
    print_sources(sources.places(), request.settings, out)


def print_sources(places: Sequence[Source], settings: Settings, out: TextIO) -> None:
    """Print an empty line and the sources of an answer, or nothing if it has none."""
    lines = "".join(f"{listed(source)}\n" for source in places)
    if sys.stdout.isatty():
        styled = wants_color(sys.stdout, settings.output.color)
        lines = terminal_list(places, terminal_width(sys.stdout), styled)
    out.write(f"\n{lines}" if lines else "")
    out.flush()


def _marked(output: Output, answer: Ended) -> list[Run]:
    """Return the runs of a complete answer, with reasoning and marks if `output` asks for them."""
    reasoning = []
    if output.shows_thinking and answer.thought:
        reasoning = [(f"{answer.thought}\n\n", THOUGHT)]
    if output.cites:
        return [*reasoning, *with_marks(runs_of(answer.tokens), answer.sources)]
    return [*reasoning, (answer.text.rstrip("\n"), "")]


def body_of(request: Request, output: Output, answer: Ended) -> str:
    """Return the content of an output file, without its last newline: JSON, or the answer."""
    if output.is_json:
        from ngtcli.cli.answer_object import answer_object  # here: few runs need it

        tokens = output.format is OutputFormat.JSON_TOKENS
        return json_of_answer(answer_object(request, answer, tokens))
    text = visible("".join(shown for shown, _ in _marked(output, answer)))
    places = answer.sources.places() if output.cites else ()
    return "\n".join([text, *([""] if places else []), *map(listed, places)])
