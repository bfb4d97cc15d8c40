"""The files that are written beside an answer: its page and its picture."""

import sys
from typing import TYPE_CHECKING

from ngtcli.cli.answer_report import summary_facts
from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import lines_of
from ngtcli.cli.options import command_line
from ngtcli.cli.output import write_page
from ngtcli.cli.streams import terminal_width
from ngtcli.grounding.sources import Sources
from ngtcli.render.answer_view import copied_fact
from ngtcli.render.sinks import Collector
from ngtcli.render.terminal import DIM, paint, reveal, visible

if TYPE_CHECKING:
    from ngtcli.session.answer import Answer


def facts_of(request: AnswerRequest, answer: "Answer", sources: Sources) -> list[str]:
    """What is said below an answer."""
    return [copied_fact(sources), *summary_facts(request.settings, answer)]


def write_beside(
    request: AnswerRequest, answer: "Answer", kept: Collector, sources: Sources
) -> None:
    """Write the page and the picture, where they are asked for. Raises NgtError."""
    if request.html:
        write_page(_page(request, answer, kept, sources), request.html)
    if request.svg:
        write_page(_picture(request, answer, kept, sources), request.svg)


def _page(request: AnswerRequest, answer: "Answer", kept: Collector, sources: Sources) -> str:
    """The answer beside its documents, as HTML."""
    from ngtcli.render.answer_page import Written, answer_page  # here: few runs need it

    written = [
        Written(token.text, token.drafted, step)
        for token, step in zip(kept.tokens, kept.steps, strict=True)
    ]
    title = request.question or f"Summary of {', '.join(d.name for d in request.documents[:3])}"
    facts = facts_of(request, answer, sources)
    documents = request.documents
    if selection := answer.prompt.selection:  # those of which nothing was read are left out
        read = sorted({excerpt.document for excerpt in selection.excerpts})
        documents, sources = [documents[i] for i in read], sources.among(read)
    return answer_page(title, command_line(), written, sources, documents, facts)


def _picture(request: AnswerRequest, answer: "Answer", kept: Collector, sources: Sources) -> str:
    """The command and the answer as a terminal shows them, as SVG; with marks if it is to cite."""
    from ngtcli.render import answer_view

    width = terminal_width(sys.stdout)
    places = answer_view.terminal_list(sources, width, True) if request.cite else ""
    shown = answer_view.with_marks(kept.tokens, sources) if request.cite else kept.tokens
    facts = lines_of(facts_of(request, answer, sources), width)
    origins = sorted({token.origin for token in kept.tokens if token.drafted})
    parts = [
        f"$ {reveal(visible(command_line()))}\n",
        answer_view.legend(origins) + "\n" if origins else "",
        answer_view.terminal_view(shown, width, True),
        places,
        "\n".join(paint(" · ".join(line), DIM) for line in facts),
    ]
    return answer_view.svg("\n".join(filter(None, parts)), kept.text, width)
