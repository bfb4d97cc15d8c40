"""Build prompts of the passages that match the question best, if not all documents fit.

In a conversation the oldest turns are left out if not all of them fit.
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
from ngtcli.models.recommended import is_demonstration
from ngtcli.prompts.build import Prompt, Task, encode_message, named
from ngtcli.prompts.fitting import cut_words, fit_prompt, frame_tokens
from ngtcli.prompts.reports import Chosen, Selection
from ngtcli.prompts.splitting import BETWEEN, complete_prompt, joined
from ngtcli.prompts.turns import earlier_questions, first_kept
from ngtcli.retrieval.ranking import RankedPassage, Ranker, Ranking
from ngtcli.retrieval.search import Search
from ngtcli.system import reporting
from ngtcli.words import counted

if TYPE_CHECKING:
    from ngtcli.retrieval.index import Index

T = TypeVar("T")
_MAX_TOO_LONG = 20  # passages that are skipped because they do not fit, before the search ends
# The default length of all passages: a share of the room, so that more is read with a longer
# context, but no more tokens than a small model on a CPU reads in about 20 seconds, and no fewer
# passages than _MIN_PASSAGES. The three numbers are guesses. Measured on 1,581 paragraphs: for
# 90% of questions theirs is among the best five passages, for 94% among the best ten. More passages
# mislead small models.
_SHARE = 0.25
_MAX_TOKENS = 4000
_MIN_PASSAGES = 5
_UNRANKED = Scores(0.0, 0.0)  # of passages where none has a word of the question


@dataclass(frozen=True, slots=True)
class _Limit:
    """How many passages are read.

    Attributes:
        max_passages: The maximum number of passages.
        min_passages: This many are read whatever their length.
        max_tokens: The maximum length of all passages, if there are more than `min_passages`.
    """

    max_passages: int
    min_passages: int = 0
    max_tokens: int = 0

    @classmethod
    def of(cls, settings: Settings, room: int, queries: int, ranked: int) -> "_Limit":
        """Return the limit that the settings set.

        Args:
            settings: The settings.
            room: The tokens that the prompt may have.
            queries: How many questions passages are searched for.
            ranked: How many passages there are.
        """
        if settings.retrieval.passages > 0:
            passages = max(settings.retrieval.passages, queries)
            return cls(passages, passages)
        if settings.retrieval.passages == 0:
            return cls(ranked, ranked)
        return cls(ranked, max(_MIN_PASSAGES, queries), _default_tokens(settings, room))

    def is_exceeded(self, passages: int, tokens: int) -> bool:
        """Return whether this number of passages, with this number of tokens, is too large."""
        if passages > self.max_passages:
            return True
        return passages > self.min_passages and tokens > self.max_tokens


def _default_tokens(settings: Settings, room: int) -> int:
    """Return the default length of all passages in tokens, for a prompt of `room` tokens."""
    max_tokens = min(_MAX_TOKENS, settings.retrieval.whole_tokens or _MAX_TOKENS)
    return min(max_tokens, int(_SHARE * room))


def prompt_for(task: Task, settings: Settings) -> Prompt:
    """Return a prompt that fits the task's context, and report what is left out.

    Raises:
        ContextOverflowError: As `fit_prompt`.
        ModelError: As `fit_prompt`.
        UsageError: Passages are chosen by a question, and there is none.
    """
    task = replace(task, turns=[turn for turn in task.turns if turn.text.strip()])
    overflow = settings.retrieval.overflow if task.documents else "error"
    if overflow == "retrieve":
        prompt = _retrieve(task, settings)
    else:
        without_turns = replace(task, turns=())
        complete = complete_prompt(without_turns) if task.turns else None
        if complete is None:
            prompt = fit_prompt(without_turns, overflow)
        else:
            prompt = _with_turns(task, complete)
    if task.with_coverage and prompt.coverage is None:
        prompt = replace(prompt, coverage=_coverage(task, settings))
    for sentence in cut_words(prompt.cuts):
        reporting.warn(sentence)
    if prompt.left_out:
        questions = counted(prompt.left_out, "question")
        reporting.warn(f"the context is full: the first {questions} and their answers are left out")
    if not skips_model(prompt, settings):
        _warn_of_selection(prompt.selection, settings)
    return prompt


def skips_model(prompt: Prompt, settings: Settings) -> bool:
    """Return whether a question is not put to the model: no passage has enough of its words.

    The built-in model quotes a sentence for any question. Other models can say that a text has no
    answer, and know synonyms of the question's words: they are asked.
    """
    if prompt.coverage is None or prompt.coverage.enough:
        return False
    return is_demonstration(settings.model.model) and not settings.answer.has_form


def _warn_of_selection(selection: Selection | None, settings: Settings) -> None:
    """Warn that only some passages are read, if so."""
    if selection is None or (selection.earlier and not selection.read):
        return
    if selection.read and all(passage.scores == _UNRANKED for passage in selection.passages):
        reporting.warn("no passage has a word of the question; the first ones are read")
    reporting.warn(_selection_words(selection, settings))


def _selection_words(selection: Selection, settings: Settings) -> str:
    """Return the warning that only passages are read, and how to read more."""
    why = "not everything fits"
    if selection.fits:
        why = f"documents of more than {settings.retrieval.whole_tokens} tokens are not read whole"
    read = f"{selection.read} more" if selection.earlier else f"only {selection.read}"
    verb = "is" if selection.read == 1 else "are"
    advice = ""
    if selection.read_next:
        advice = f"; --passages {selection.read_next} reads more"
    origin = ""
    if selection.of_documents > 1:
        origin = f", from {selection.documents} of {selection.of_documents} documents"
    passages = counted(selection.of_passages, "passage")
    return f"{why}: {read} of {passages} {verb} read{origin}{advice}"


def _with_turns(task: Task, prompt_without_turns: Prompt) -> Prompt:
    """Return the prompt of all documents and of the turns that fit.

    Args:
        task: The task.
        prompt_without_turns: The prompt without turns.
    """
    if task.turns:
        complete = complete_prompt(task)
        if complete is not None:
            return complete

    def make(shorter: Task) -> Prompt | None:
        return complete_prompt(shorter) if shorter.turns else prompt_without_turns

    room = task.room - len(prompt_without_turns.ids) + _tokens(task, task.question)
    prompt, left_out = _with_fewer(task, room, make)
    return replace(prompt, left_out=left_out)


def _with_fewer(
    task: Task, room: int, make: Callable[[Task], T | None], passage_tokens: int = 0
) -> tuple[T, int]:
    """Leave out the oldest turns until the task fits.

    Args:
        task: The task.
        room: The tokens that turns and question may have. Turns that exceed it are left out before
            `make` is called.
        make: Makes the result from a task with fewer turns; returns None if there are too many.
        passage_tokens: The expected tokens of the passages of a question.

    Returns:
        The result, and how many questions are left out.
    """
    starts: list[int] = []  # the index in the turns of each question, and at last len(turns)
    question_tokens: list[int] = []  # of each question with its passages, the current one included
    exchange_tokens: list[int] = []  # of each earlier question with its passages and its answer
    for number, turn in enumerate(task.turns):
        turn_tokens = _tokens(task, turn.text)
        if turn.role == "user" or number == 0:
            read = sum(_tokens(task, document.text) for document in task.passages_of(turn))
            starts.append(number)
            question_tokens.append(turn_tokens + passage_tokens)
            exchange_tokens.append(turn_tokens + read)
        else:
            exchange_tokens[-1] += turn_tokens
    question_tokens.append(_tokens(task, task.question) + passage_tokens)
    starts.append(len(task.turns))

    for left_out in range(first_kept(question_tokens, exchange_tokens, room), len(starts)):
        result = make(replace(task, turns=task.turns[starts[left_out] :]))
        if result is not None:
            return result, left_out
    raise AssertionError("a task without turns must fit")


def _tokens(task: Task, text: str) -> int:
    """Return the tokens of a text and of the separator after it."""
    return len(task.tokenizer.encode(text)) + BETWEEN


def _retrieve(task: Task, settings: Settings) -> Prompt:
    """Return a prompt of the best passages.

    It has the complete documents if they fit and have at most `whole_tokens` tokens.
    """
    if not task.question.strip():
        raise UsageError(
            "passages are chosen by a question, and there is none",
            hint="Use --overflow truncate to cut the documents.",
        )
    without_turns = replace(task, turns=())
    complete = complete_prompt(without_turns)
    frame = frame_tokens(replace(without_turns, documents=()))
    max_complete = settings.retrieval.whole_tokens or task.room
    if complete is not None and len(complete.ids) - frame <= max_complete:
        return _with_turns(task, complete)

    room_without_turns = task.room - frame
    room = room_without_turns
    left_out = 0
    if task.turns:
        task, room, left_out = _leave_room(task, settings, room)
    started = time.perf_counter()
    ranking = _rank(task, settings, room)
    seconds = time.perf_counter() - started
    reporting.status("Choosing passages …")
    limit = _Limit.of(settings, room_without_turns, len(task.queries), len(ranking.passages))
    built = _build(task, ranking, room, limit)
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
        fits=complete is not None,
        earlier=len(task.earlier),
    )
    coverage = _coverage(task, settings, index)
    return replace(prompt, selection=selection, left_out=left_out, coverage=coverage)


def _coverage(task: Task, settings: Settings, index: "Index | None" = None) -> Coverage | None:
    """Return how much of the question the documents cover; None if words do not show that.

    A question that follows others may not say what it is about, and an embedding model or a
    reranker finds passages in other words than those of the question.
    """
    retrieval = settings.retrieval
    if not (task.with_coverage and task.documents):
        return None
    if task.turns or retrieval.embedder or retrieval.reranker:
        return None
    from ngtcli.retrieval.coverage import coverage  # these load numpy
    from ngtcli.retrieval.index import index_of

    if index is None:
        cutting = Cutting(retrieval.passage_tokens, retrieval.passage_overlap)
        index = index_of(task.documents, cutting, task.keep)
    return coverage(index, task.question)


def _leave_room(task: Task, settings: Settings, room: int) -> tuple[Task, int, int]:
    """Leave out the oldest turns until there is enough room for passages.

    Args:
        task: The task.
        settings: The settings.
        room: The tokens that passages may have without turns. At most half of it is kept free for
            them: turns are left out only while less is free.

    Returns:
        The task with the other turns, the room for passages, and how many questions are left out.
    """
    room += _tokens(task, task.question)
    passage_tokens = settings.retrieval.passage_tokens + BETWEEN
    max_passages = settings.retrieval.passages
    if max_passages > 0:
        desired = max_passages * passage_tokens
    elif max_passages == 0:
        desired = room
    else:
        desired = max(_MIN_PASSAGES * passage_tokens, _default_tokens(settings, room))
    needed = min(desired, room // 2)

    def make(shorter: Task) -> tuple[Task, int] | None:
        _, token_ids, _ = encode_message(shorter.message(()), shorter.tokenizer)
        remaining = shorter.room - len(token_ids)
        if remaining < needed and shorter.turns:
            return None
        return shorter, remaining

    in_turns = replace(task, in_turns=True)
    (shorter, remaining), left_out = _with_fewer(in_turns, room, make, needed)
    return shorter, remaining, left_out


def _rank(task: Task, settings: Settings, room: int) -> Ranking:
    """Rank the passages, the best first.

    If none has a word of the question, they are in the order of the documents.
    """
    max_read = settings.retrieval.passages if settings.retrieval.passages > 0 else room
    ranker = Ranker(
        Search(
            task.documents,
            settings,
            task.question,
            max_read + _MAX_TOO_LONG,
            earlier_questions(task.turns),
            task.keep,
        )
    )
    rankings = [ranker.rank(question) for question in task.queries or (task.question,)]
    ranking = replace(rankings[0], passages=_interleave([r.passages for r in rankings]))
    if ranking.passages or task.earlier:
        return ranking
    in_order = [RankedPassage(number, _UNRANKED) for number in range(len(ranking.index))]
    return replace(ranking, passages=in_order)


def _interleave(rankings: Sequence[Sequence[RankedPassage]]) -> list[RankedPassage]:
    """Return the best passage of each ranking, then the second ones, and so on; each once."""
    by_passage: dict[int, RankedPassage] = {}
    for same_rank in zip_longest(*rankings):
        for ranked in same_rank:
            if ranked is not None:
                by_passage.setdefault(ranked.passage, ranked)
    return [*by_passage.values()]


def _build(
    task: Task, ranking: Ranking, room: int, limit: _Limit
) -> tuple[Prompt, tuple[Excerpt, ...], tuple[Chosen, ...]] | None:
    """Build the prompt of the best passages.

    Args:
        task: The task. The passages of its turns are in the prompt already.
        ranking: The passages.
        room: The tokens that they may have.
        limit: How many are read.

    Returns:
        The prompt, where its passages are in the documents, and the new ones among them; None if
        no passage fits.
    """
    index = ranking.index
    ranked = ranking.passages
    earlier = [excerpt for turn in task.turns for excerpt in turn.passages]
    fitting = _fitting(task, ranking, room, limit, earlier)
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
        while fitting and excess > 0:  # the counts were too low: leave out the last passages
            _, tokens = fitting.pop()
            excess -= tokens
    return None


def _fitting(
    task: Task, ranking: Ranking, room: int, limit: _Limit, earlier: Sequence[Excerpt]
) -> list[tuple[int, int]]:
    """Return the rank (from 0) and the tokens of each of the best passages that fit.

    Passages that are too long are skipped.

    Args:
        task: The task.
        ranking: The passages.
        room: The tokens that they may have.
        limit: How many are read.
        earlier: The passages of earlier turns. They count, and are not read again.
    """
    fitting: list[tuple[int, int]] = []
    too_long = 0
    repeated = 0  # passages that earlier turns have
    used = 0  # tokens of all passages that count
    for rank, ranked in enumerate(ranking.passages):
        read = len(fitting) + repeated
        if read == limit.max_passages or too_long == _MAX_TOO_LONG:
            break
        excerpt = ranking.index.place(ranked.passage)
        document = named(task.documents, excerpt)
        tokens = _tokens(task, f"{document.name}\n{document.text}")
        if limit.is_exceeded(read + 1, used + tokens):
            break
        if any(
            other.document == excerpt.document and other.start <= excerpt.start < other.end
            for other in earlier
        ):
            repeated += 1
            used += tokens
        elif tokens > room:
            too_long += 1
        else:
            room -= tokens
            used += tokens
            fitting.append((rank, tokens))
    return fitting


def _chosen(task: Task, index: "Index", rank: int, ranked: RankedPassage) -> Chosen:
    """Return the report of a passage; the best has rank 1."""
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
