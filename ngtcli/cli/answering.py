"""How `ngt summarize` and `ngt ask` answer: one prompt, one answer, shown as it comes.

Also the list of an answer's sources, its page and its picture, and `--dry-run`, which loads no
weights.
"""

import sys
from functools import partial
from typing import TYPE_CHECKING

import typer

from ngtcli.cli.answer_report import (
    copied,
    dry_run_object,
    explanation,
    remarks,
    summary_facts,
    tell_passages,
)
from ngtcli.cli.answer_request import AnswerRequest, remark_look_alikes
from ngtcli.cli.notes import REPEATS, Notes, ReadingBar, lines_of
from ngtcli.cli.options import command_line
from ngtcli.cli.output import print_json, print_line, write_page, write_result
from ngtcli.cli.sessions import open_session
from ngtcli.cli.streams import terminal_width
from ngtcli.config import IN_PARTS
from ngtcli.errors import INTERRUPTED, ContextOverflowError, counted
from ngtcli.grounding.sources import Sources
from ngtcli.model_files.card import script_words
from ngtcli.model_files.pretrained import context_limit, load_config, load_tokenizer
from ngtcli.prompt.build import Task
from ngtcli.prompt.chat import Chat
from ngtcli.prompt.selecting import prompt_for
from ngtcli.prompt.splitting import fits, split, split_to_refine
from ngtcli.prompt.thinking import thinking_of
from ngtcli.render import answer_view
from ngtcli.render.answer_view import copied_fact, listed, terminal_list, with_marks
from ngtcli.render.sinks import PlainSink, Run, TerminalSink, runs_of
from ngtcli.render.terminal import DIM, THOUGHT, paint, reveal, visible, wants_color
from ngtcli.system import process
from ngtcli.system.json_form import dump_json

if TYPE_CHECKING:
    from ngtcli.session.parts import Splitting
    from ngtcli.session.session import Answer, FinishedAnswer, Session

_WORDS = 400  # characters of a thought, of which a status line shows the last; guess
_LONG = 5_000_000  # characters of documents that take longer to compare than is waited; guess


def run(request: AnswerRequest) -> None:
    """Load, prompt, decode, show. Raises NgtError; exits 130 when interrupted."""
    notes = Notes(request.verbose)
    parts = None
    try:
        if request.dry_run:
            dry_run(request, notes)
            return
        session = _session(request, notes)
        parts = _parts(request, session, notes)
        if parts:
            prompt = parts.prompt()
        else:
            prompt = session.prompt(request.preset, request.documents, request.question)
        remark_look_alikes(request, session.model.tokenizer, notes)
        tell_passages(request, prompt.selection, notes)
        answer = parts.answer(prompt) if parts else session.answer(prompt)
    except KeyboardInterrupt:
        notes.warn(f"interrupted{parts.kept_words() if parts else ''}")
        raise typer.Exit(INTERRUPTED) from None
    _Showing(request, answer, notes).run(parts)
    if parts is not None:
        parts.forget()
    session.store_documents()


def _session(request: AnswerRequest, notes: Notes) -> "Session":
    """The session for what is asked, with the model loaded."""
    if request.settings.model == "builtin" and notes.terminal:
        notes.remark(
            "The built-in model is a small demonstration that quotes sentences;"
            " name a real one with -m FOLDER."
        )
    return open_session(request.settings, notes.status, notes.warn, reading=ReadingBar(notes))


def _parts(request: AnswerRequest, session: "Session", notes: Notes) -> "Splitting | None":
    """What makes a summary part by part, where that is asked for."""
    if request.settings.overflow not in IN_PARTS:
        return None
    from ngtcli.session.parts import Splitting  # here: it loads torch

    return Splitting(session, request.preset, request.documents, notes.begin_part)


class _Showing:
    """An answer as it comes, and then whole: on standard output, below it, and in files."""

    def __init__(self, request: AnswerRequest, answer: "Answer", notes: Notes) -> None:
        self._request, self._answer, self._notes = request, answer, notes

    def run(self, parts: "Splitting | None") -> None:
        """Show the answer; on Ctrl-C what came of it, with exit code 130. Raises NgtError."""
        request, answer, notes = self._request, self._answer, self._notes
        sink: PlainSink | None = None
        if request.whole:
            process.unwind_on_interrupt()  # even an empty answer is delivered
        else:
            sink = self._sink()
        try:
            self._decode(sink)
        except KeyboardInterrupt:
            answer.interrupted = True
        except Exception:
            if not process.interrupted():  # else a library made this of the Ctrl-C
                raise
            answer.interrupted = True
        notes.clear()
        if sink is not None:
            sink.close()
        finished = answer.finished(parts=parts.reports if parts else ())
        if not finished.prompt.selection and sum(len(d.text) for d in request.documents) > _LONG:
            notes.status("Comparing the answer with the documents …")
        sources = copied(finished, request.documents)
        notes.clear()
        with process.unbroken():
            if request.cite and not request.output:
                self._print_cited(finished, sources)
            elif request.whole:
                hint = "The answer went to standard output; choose another file with -o."
                write_result(body_of(request, finished, sources), request.output, hint)
            facts = [copied_fact(sources), *summary_facts(request.settings, answer)]
            if request.html:
                write_page(self._page(finished, sources, facts), request.html)
            if request.svg:
                write_page(self._picture(finished, sources, facts), request.svg)
        if finished.thought and not finished.text.strip():
            notes.warn("it ended within its thought: there is no answer")
        self._conclude(facts)

    def _sink(self) -> PlainSink:
        """Where the text goes as it comes."""
        request = self._request
        color = wants_color(sys.stdout, request.settings.color)
        if color and request.verbose and request.settings.method != "none":
            self._notes.legend(self._answer.run.drafter.origins)
        if sys.stdout.isatty():
            return TerminalSink(sys.stdout, partial(terminal_width, sys.stdout), color)
        return PlainSink(sys.stdout, color)

    def _decode(self, sink: PlainSink | None) -> None:
        """Show steps as they come."""
        notes, tokens, begun, words = self._notes, 0, False, ""
        for step in self._answer:
            if sink is not None and not tokens:
                process.unwind_on_interrupt()
            own = [token.thought for token in step.tokens if token.thought is not None]
            words = (words + "".join(own))[-_WORDS:]
            hidden = sink is None or not self._request.show_thinking
            if own and hidden and not any(token.text for token in step.tokens):
                thought = self._answer.run.statistics.thought_tokens or 0
                notes.status(f"Thinking, {counted(thought, 'token')} … ", words)
            elif sink is None:
                notes.status(f"Writing the answer: {counted(tokens, 'token')} …")
            else:
                (notes.clear if begun else notes.begin_answer)()
                begun = True
                sink.step(runs_of(step.tokens, self._request.show_thinking))
            tokens += len(step.tokens)
            if self._request.explain:
                notes.say(explanation(self._answer, step), dim=True)

    def _print_cited(self, answer: "FinishedAnswer", sources: Sources) -> None:
        """The answer with marks, and its sources below it; on a terminal they link to the files."""
        sink = self._sink()
        sink.step(_thought(self._request, answer))
        sink.step(with_marks(runs_of(answer.tokens), sources))
        sink.close()
        if sys.stdout.isatty():
            styled = wants_color(sys.stdout, self._request.settings.color)
            places = terminal_list(sources, terminal_width(sys.stdout), styled)
        else:
            places = "".join(f"{listed(source)}\n" for source in sources.places())
        sys.stdout.write(f"\n{places}" if places else "")
        sys.stdout.flush()

    def _conclude(self, facts: list[str]) -> None:
        """What is said below an answer; exit code 130 where it was interrupted."""
        answer, notes = self._answer, self._notes
        if notes.terminal or notes.verbose:
            notes.facts(facts)
        if notes.verbose:
            for words in remarks(answer, self._request.settings.quantize):
                notes.remark(words)
        if answer.finish_reason == "context":
            notes.warn("the answer is cut off: the context is full")
        if answer.finish_reason == "repetition":
            notes.warn(f"the answer is cut off: {REPEATS}; --max-repeats 0 lets it go on")
        if answer.interrupted:
            notes.warn("interrupted; the answer is incomplete")
            raise typer.Exit(INTERRUPTED)

    def _page(self, answer: "FinishedAnswer", sources: Sources, facts: list[str]) -> str:
        """The answer next to its documents, as HTML."""
        from ngtcli.render.answer_page import answer_page  # here: few runs need it

        documents = self._request.documents
        names = ", ".join(d.name for d in documents[:3])
        if selection := answer.prompt.selection:  # what nothing was read of is left out
            read = sorted({excerpt.document for excerpt in selection.excerpts})
            documents, sources = [documents[i] for i in read], sources.among(read)
        title = self._request.question or f"Summary of {names}"
        return answer_page(title, command_line(), answer.steps, sources, documents, facts)

    def _picture(self, answer: "FinishedAnswer", sources: Sources, facts: list[str]) -> str:
        """The command and the answer as a terminal shows them, as SVG; with marks if it cites."""
        width, tokens, cite = terminal_width(sys.stdout), answer.tokens, self._request.cite
        origins = sorted({token.origin for token in tokens if token.drafted})
        shown = with_marks(runs_of(tokens), sources) if cite else runs_of(tokens)
        shown = [*_thought(self._request, answer), *shown]
        parts = [
            f"$ {reveal(visible(command_line()))}\n",
            answer_view.legend(origins) + "\n" if origins else "",
            answer_view.terminal_view(shown, width, True),
            terminal_list(sources, width, True) if cite else "",
            "\n".join(paint(" · ".join(line), DIM) for line in lines_of(facts, width)),
        ]
        return answer_view.svg("\n".join(filter(None, parts)), answer.text, width)


def _thought(request: AnswerRequest, answer: "FinishedAnswer") -> list[Run]:
    """What stands before an answer that is shown whole: its thought, where that is wanted."""
    return [(f"{answer.thought}\n\n", THOUGHT)] if request.show_thinking and answer.thought else []


def body_of(request: AnswerRequest, answer: "FinishedAnswer", sources: Sources) -> str:
    """What a file gets, without its last newline: the JSON object, or the answer."""
    if request.json or request.json_tokens:
        from ngtcli.cli.answer_object import answer_object  # here: it loads torch

        return dump_json(answer_object(request, answer, sources, request.json_tokens))
    thought = _thought(request, answer)
    if not request.cite:
        return visible("".join(shown for shown, _ in thought) + answer.text.rstrip("\n"))
    marked = [*thought, *with_marks(runs_of(answer.tokens), sources)]
    text = visible("".join(shown for shown, _ in marked))
    return "\n".join([text, *([""] * bool(sources.found)), *map(listed, sources.places())])


def dry_run(request: AnswerRequest, notes: Notes) -> None:
    """The prompt that would be sent on stdout, its token count on stderr; no weights are loaded."""
    s = request.settings
    notes.status(f"Loading the tokenizer of {s.model} …")
    tokenizer, config = load_tokenizer(s.model), load_config(s.model)
    context = context_limit(config, tokenizer).tokens
    thinking = thinking_of(s, tokenizer)
    most, own = s.max_tokens, (request.preset, request.documents, request.question)
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
