"""Prompts of the passages that match the question best, where not all documents fit.

In a conversation the oldest turns are left out where not all of them fit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from ngtcli.config import Settings
from ngtcli.documents.passages import Cutting, place
from ngtcli.documents.selection import Coverage, Excerpt, Scores
from ngtcli.errors import ContextOverflowError, UsageError
from ngtcli.prompts.build import Prompt, Task, code, named
from ngtcli.prompts.fitting import cut_words, fit_prompt, frame_tokens
from ngtcli.prompts.reports import Chosen, Selection
from ngtcli.prompts.splitting import BETWEEN, fits, joined
from ngtcli.prompts.turns import earlier_questions, first_kept
from ngtcli.retrieval.ranking import RankedPassage, Ranker, Ranking
from ngtcli.retrieval.search import Search
from ngtcli.system import reporting
from ngtcli.words import counted

if TYPE_CHECKING:
    from ngtcli.retrieval.index import Index

T = TypeVar("T")
_PASSED_OVER = 20  # passages too long for the room left before the search for shorter ones ends
# What passages take where their number is left open: a share of the room, so that more is read with
# a longer context, but no more tokens than a small model on a CPU reads in some 20 seconds, and no
# fewer passages than these. Guesses: 90% of questions have their paragraph among the best five of
# 1,581, 94% among the best ten (measured), and passages beside the point mislead small models.
_SHARE = 0.25
_MAX_TOKENS = 4000
_MIN_PASSAGES = 5


@dataclass(frozen=True, slots=True)
class _Bound:
    """How much is read.

    Attributes:
        max_passages: The maximum number of passages.
        min_passages: So many are read, whatever their tokens.
        max_tokens: The maximum of the tokens of all passages where more are read.
    """

    max_passages: int
    min_passages: int = 0
    max_tokens: int = 0

    @classmethod
    def of(cls, settings: Settings, room: int, queries: int, ranked: int) -> "_Bound":
        """Return the bound that the settings set.

        Args:
            settings: The settings.
            room: The tokens that the prompt may have.
            queries: How many questions passages are searched for.
            ranked: How many passages there are.
        """
        if settings.retrieval.passages > 0:
            wanted = max(settings.retrieval.passages, queries)
            return cls(wanted, wanted)
        if settings.retrieval.passages == 0:
            return cls(ranked, ranked)
        return cls(ranked, max(_MIN_PASSAGES, queries), _default_tokens(settings, room))

    def is_exceeded(self, passages: int, tokens: int) -> bool:
        """Return whether so many passages, of so many tokens, are too many."""
        if passages > self.max_passages:
            return True
        return passages > self.min_passages and tokens > self.max_tokens


def _default_tokens(settings: Settings, room: int) -> int:
    """Return the tokens of passages where their number is left open, in a prompt of `room`."""
    max_tokens = min(_MAX_TOKENS, settings.retrieval.whole_tokens or _MAX_TOKENS)
    return min(max_tokens, int(_SHARE * room))


def prompt_for(task: Task, settings: Settings) -> Prompt:
    """Return the prompt that fits the task's context, and report what is left out.

    Raises ContextOverflowError and ModelError as `fit_prompt`; UsageError for passages without a
    question.
    """
    task = replace(task, turns=[turn for turn in task.turns if turn.text.strip()])
    overflow = settings.retrieval.overflow if task.documents else "error"
    if overflow == "retrieve":
        prompt = _retrieve(task, settings)
    else:
        without_turns = replace(task, turns=())
        whole = fits(without_turns) if task.turns else None
        prompt = _with_turns(task, whole) if whole else fit_prompt(without_turns, overflow)
    if task.compares and prompt.coverage is None:
        prompt = replace(prompt, coverage=_compared(task, settings))
    for words in cut_words(prompt.cuts):
        reporting.warn(words)
    if prompt.left_out:
        questions = counted(prompt.left_out, "question")
        reporting.warn(f"the context is full: the first {questions} and their answers are left out")
    selection = prompt.selection
    if selection is not None and (selection.read or not selection.earlier):
        reporting.warn(_selection_words(selection, settings))
    return prompt


def _selection_words(selection: Selection, settings: Settings) -> str:
    """Return a warning that only passages are read, how many, and how to read more."""
    why = "not everything fits"
    if selection.fits:
        why = f"the documents have more than {settings.retrieval.whole_tokens} tokens"
    read = f"{selection.read} more" if selection.earlier else f"the best {selection.read}"
    advice = ""
    if selection.read_next:
        advice = f"; --passages {selection.read_next} reads more"
    origin = ""
    if selection.of_documents > 1:
        origin = f", from {selection.documents} of {selection.of_documents} documents"
    return f"{why}: read {read} of {counted(selection.of_passages, 'passage')}{origin}{advice}"


def _with_turns(task: Task, without_turns: Prompt) -> Prompt:
    """Return the prompt of all documents and the turns that fit, made of the one without turns."""
    if task.turns:
        whole = fits(task)
        if whole is not None:
            return whole

    def make(shorter: Task) -> Prompt | None:
        return fits(shorter) if shorter.turns else without_turns

    room = task.room - len(without_turns.ids) + _tokens(task, task.question)
    prompt, left_out = _with_fewer(task, room, make)
    return replace(prompt, left_out=left_out)


def _with_fewer(
    task: Task, room: int, make: Callable[[Task], T | None], passages: int = 0
) -> tuple[T, int]:
    """Leave out the oldest turns, until something can be made of the task.

    Args:
        task: The task.
        room: The tokens that turns and question may have. Turns that do not fit are left out first.
        make: Makes something of a task with fewer turns; None where they are still too many.
        passages: The tokens of passages beside the question.

    Returns:
        What was made, and how many questions are left out.
    """
    starts: list[int] = []  # the turn that each question is, and at last the end
    question_tokens: list[int] = []  # of each question, the last included, with its passages
    exchange_tokens: list[int] = []  # of each question with its passages and its answer
    for number, turn in enumerate(task.turns):
        turn_tokens = _tokens(task, turn.text)
        if turn.role == "user" or number == 0:
            of_passages = sum(_tokens(task, document.text) for document in task.passages_of(turn))
            starts.append(number)
            question_tokens.append(turn_tokens + passages)
            exchange_tokens.append(turn_tokens + of_passages)
        else:
            exchange_tokens[-1] += turn_tokens
    question_tokens.append(_tokens(task, task.question) + passages)
    starts.append(len(task.turns))

    for left_out in range(first_kept(question_tokens, exchange_tokens, room), len(starts)):
        made = make(replace(task, turns=task.turns[starts[left_out] :]))
        if made is not None:
            return made, left_out
    raise AssertionError("nothing can be made of a task without turns")


def _tokens(task: Task, text: str) -> int:
    """Return the tokens of a text, with what separates it from the next one."""
    return len(task.tokenizer.encode(text)) + BETWEEN


def _retrieve(task: Task, s: Settings) -> Prompt:
    """Return a prompt of everything if it fits and is not more than `whole_tokens`.

    Else it is one of the best passages.
    """
    if not task.question.strip():
        raise UsageError(
            "passages are chosen by a question, and there is none",
            hint="Use --overflow truncate to cut the documents.",
        )
    without_turns = replace(task, turns=())
    whole = fits(without_turns)
    frame = frame_tokens(replace(without_turns, documents=()))
    if whole is not None and len(whole.ids) - frame <= (s.retrieval.whole_tokens or task.room):
        return _with_turns(task, whole)

    whole_room = task.room - frame
    room = whole_room
    left_out = 0
    if task.turns:
        task, room, left_out = _beside_turns(task, s, room)
    began = time.perf_counter()
    ranking = _ranked(task, s, room)
    seconds = time.perf_counter() - began
    reporting.status("Choosing passages …")
    bound = _Bound.of(s, whole_room, len(task.queries), len(ranking.passages))
    built = _built(task, ranking, room, bound)
    if built is None:
        raise ContextOverflowError(
            f"no passage fits: question and answer leave {room} of {task.context} tokens",
            hint="Give a smaller --set passage_tokens, or name a model with a longer context (-m).",
        )
    prompt, excerpts, passages = built
    index = ranking.index
    selection = Selection(
        passages=passages,
        excerpts=excerpts,
        of_passages=len(index),
        of_documents=len(task.documents),
        index=index.status,
        seconds=seconds,
        dense=ranking.dense,
        embedded=ranking.embedded,
        fits=whole is not None,
        earlier=len(task.earlier),
    )
    return replace(
        prompt, selection=selection, left_out=left_out, coverage=_compared(task, s, index)
    )


def _compared(task: Task, s: Settings, index: "Index | None" = None) -> Coverage | None:
    """Return how much of the question the documents have; None where words cannot tell.

    A question that follows others may leave out what it is about, and an embedding model and a
    reranker find passages in other words than the question's.
    """
    if (
        not task.compares
        or task.turns
        or s.retrieval.embedder
        or s.retrieval.reranker
        or not task.documents
    ):
        return None
    from ngtcli.retrieval.coverage import coverage  # here: they load numpy
    from ngtcli.retrieval.index import index_of

    if index is None:
        cutting = Cutting(s.retrieval.passage_tokens, s.retrieval.passage_overlap)
        index = index_of(task.documents, cutting, task.keep)
    return coverage(index, task.question)


def _beside_turns(task: Task, s: Settings, room: int) -> tuple[Task, int, int]:
    """Leave out the turns that leave too little room for passages.

    Args:
        task: The task.
        s: The settings.
        room: The tokens that passages may have without turns. They may need half of it.

    Returns:
        The task with the other turns, the room for passages, and how many questions are left out.
    """
    room += _tokens(task, task.question)
    passage_tokens = s.retrieval.passage_tokens + BETWEEN
    if s.retrieval.passages >= 0:
        wanted = s.retrieval.passages * passage_tokens or room
    else:
        wanted = max(_MIN_PASSAGES * passage_tokens, _default_tokens(s, room))
    needed = min(wanted, room // 2)

    def make(shorter: Task) -> tuple[Task, int] | None:
        _, ids, _ = code(shorter.message(()), shorter.tokenizer)
        left = shorter.room - len(ids)
        if left < needed and shorter.turns:
            return None
        return shorter, left

    (shorter, left), left_out = _with_fewer(replace(task, in_turns=True), room, make, needed)
    return shorter, left, left_out


def _ranked(task: Task, s: Settings, room: int) -> Ranking:
    """Rank the passages, the best first.

    They are in their own order where none has a word of the question.
    """
    max_read = s.retrieval.passages if s.retrieval.passages > 0 else room
    earlier = earlier_questions(task.turns)
    search = Search(task.documents, s, task.question, max_read + _PASSED_OVER, earlier, task.keep)
    ranker = Ranker(search)
    rankings = [ranker.rank(question) for question in task.queries or (task.question,)]
    ranking = replace(rankings[0], passages=_in_turn([ranking.passages for ranking in rankings]))
    if ranking.passages or task.earlier:
        return ranking
    reporting.warn("no passage has a word of the question; the first ones are read")
    in_order = [RankedPassage(number, Scores(0.0, 0.0)) for number in range(len(ranking.index))]
    return replace(ranking, passages=in_order)


def _in_turn(rankings: Sequence[Sequence[RankedPassage]]) -> list[RankedPassage]:
    """Return the best of each ranking, then the second ones, and so on; each passage once."""
    by_passage: dict[int, RankedPassage] = {}
    for of_one_rank in zip_longest(*rankings):
        for ranked in filter(None, of_one_rank):
            by_passage.setdefault(ranked.passage, ranked)
    return [*by_passage.values()]


def _built(
    task: Task, ranking: Ranking, room: int, bound: _Bound
) -> tuple[Prompt, tuple[Excerpt, ...], tuple[Chosen, ...]] | None:
    """Return the prompt of the best passages, where they stand, and which they are.

    None where none fits. Those of earlier turns are in the prompt already.

    Args:
        task: The task.
        ranking: The passages.
        room: The tokens that they may have.
        bound: How much is read.
    """
    index = ranking.index
    ranked = ranking.passages
    earlier = [excerpt for turn in task.turns for excerpt in turn.passages]
    fitting = _fitting(task, ranking, room, bound, earlier)
    while fitting or earlier:
        ranks = sorted((rank for rank, _ in fitting), key=lambda rank: ranked[rank].passage)
        excerpts = joined(task.documents, [index.place(ranked[rank].passage) for rank in ranks])
        prompt = task.build([named(task.documents, excerpt) for excerpt in excerpts])
        excess = len(prompt.ids) - task.room
        if excess <= 0:
            passages = tuple(_chosen(task, index, rank + 1, ranked[rank]) for rank in ranks)
            return prompt, (*earlier, *excerpts), passages
        if not fitting:
            break
        while fitting and excess > 0:  # the counts were too low: leave the last ones out
            _, tokens = fitting.pop()
            excess -= tokens
    return None


def _fitting(
    task: Task, ranking: Ranking, room: int, bound: _Bound, earlier: Sequence[Excerpt]
) -> list[tuple[int, int]]:
    """Return the best passages that fit, each by its rank from 0, with its tokens.

    Longer ones are passed over.

    Args:
        task: The task.
        ranking: The passages.
        room: The tokens that they may have.
        bound: How much is read.
        earlier: The passages of earlier turns. They count, and are not read again.
    """
    fitting: list[tuple[int, int]] = []
    passed_over = 0
    repeated = 0  # passages that stand in earlier turns
    used = 0  # tokens of all that count
    for rank, ranked in enumerate(ranking.passages):
        read = len(fitting) + repeated
        if read == bound.max_passages or passed_over == _PASSED_OVER:
            break
        excerpt = ranking.index.place(ranked.passage)
        document = named(task.documents, excerpt)
        tokens = _tokens(task, f"{document.name}\n{document.text}")
        if bound.is_exceeded(read + 1, used + tokens):
            break
        if any(
            other.document == excerpt.document and other.start <= excerpt.start < other.end
            for other in earlier
        ):
            repeated += 1
            used += tokens
        elif tokens > room:
            passed_over += 1
        else:
            room -= tokens
            used += tokens
            fitting.append((rank, tokens))
    return fitting


def _chosen(task: Task, index: "Index", rank: int, ranked: RankedPassage) -> Chosen:
    """Return what is reported of a passage; the best has rank 1."""
    excerpt = index.place(ranked.passage)
    section = place(task.documents[excerpt.document], excerpt.start)
    return Chosen(
        scores=ranked.scores,
        document=excerpt.document,
        start=excerpt.start,
        end=excerpt.end,
        page=section.page or None,
        heading=section.heading or None,
        rank=rank,
    )
