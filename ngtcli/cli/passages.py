"""The passages that a question is answered from, on stderr."""

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.prompt.build import Selection


def tell_passages(request: AnswerRequest, selection: Selection | None, notes: Notes) -> None:
    """With -v a line for each passage, and with --show-passages its text below it."""
    if request.show_passages and selection is None:
        notes.say("Everything fits: the documents are read whole.")
    if selection is None or not (request.verbose or request.show_passages):
        return
    for passage in selection.passages:
        document = request.documents[passage.document]
        where = f"page {passage.page}" if passage.page else passage.heading
        named = f"{document.name}, {where}" if where else document.name
        notes.say(f"{named}: characters {passage.start}–{passage.end}, score {passage.score:.2f}")
        if request.show_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.say(f"  {line}", dim=True)
