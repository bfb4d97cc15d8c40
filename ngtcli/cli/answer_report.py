"""What is told of the passages that an answer is made from."""

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.documents.content import placed
from ngtcli.prompt.reports import Chosen, Selection


def tell_passages(request: AnswerRequest, selection: Selection | None, notes: Notes) -> None:
    """With -v a line for each passage, and with --show-passages its text below it."""
    if request.show_passages and selection is None:
        notes.say("Everything fits: the documents are read whole.")
    if selection is None or not (request.verbose or request.show_passages):
        return
    for passage in selection.passages:
        document = request.documents[passage.document]
        named = placed(document.name, passage.page, passage.heading)
        notes.say(f"{named}: characters {passage.start}–{passage.end}, {_scores(passage)}")
        if request.show_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.say(f"  {line}", dim=True)


def _scores(passage: Chosen) -> str:
    """Its score by each ranker; with more than one also its rank by all of them.

    >>> from ngtcli.retrieve.selection import Scores
    >>> _scores(Chosen(Scores(0.03, 4.5, 0.71, 0.03), 0, 0, 9, 0, "", rank=2))
    'rank 2 (BM25 4.50, dense 0.710, fused 0.0300)'
    """
    by = passage.scores
    if by.dense is None and by.reranked is None:
        return f"score {by.bm25:.2f}"
    scores = [
        ("BM25", by.bm25, 2),
        ("dense", by.dense, 3),
        ("fused", by.fused, 4),
        ("reranked", by.reranked, 2),
    ]
    words = [f"{name} {value:.{digits}f}" for name, value, digits in scores if value is not None]
    return f"rank {passage.rank} ({', '.join(words)})"
