"""The passages that a question is answered from, on stderr."""

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.prompt.build import Chosen, Selection


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
        notes.say(f"{named}: characters {passage.start}–{passage.end}, {_scores(passage)}")
        if request.show_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.say(f"  {line}", dim=True)


def _scores(passage: Chosen) -> str:
    """Its score by each ranker; with more than one also its rank by all of them.

    >>> place = {"document": 0, "start": 0, "end": 9, "page": 0, "heading": ""}
    >>> _scores(Chosen(0.03, 4.5, 0.71, 0.03, rank=2, **place))
    'rank 2 (BM25 4.50, dense 0.710, fused 0.0300)'
    """
    if passage.dense is None and passage.reranked is None:
        return f"score {passage.bm25:.2f}"
    scores = {
        f"BM25 {passage.bm25:.2f}": True,
        f"dense {passage.dense or 0:.3f}": passage.dense is not None,
        f"fused {passage.fused or 0:.4f}": passage.fused is not None,
        f"reranked {passage.reranked or 0:.2f}": passage.reranked is not None,
    }
    return f"rank {passage.rank} ({', '.join(words for words, given in scores.items() if given)})"
