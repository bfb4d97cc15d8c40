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
from ngtcli.retrieval.ranking import Ranked, Ranker, Ranking
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
_SHARE, _MOST_TOKENS, _FEWEST = 0.25, 4000, 5


@dataclass(frozen=True, slots=True)
class _Bound:
    """How much is read: `most` passages, and no further one once there are `least` and `tokens`."""

    most: int
    least: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, settings: Settings, room: int, queries: int, found: int) -> "_Bound":
        """As the settings say, of `found` passages for so many `queries`, in a prompt of `room`."""
        if settings.retrieval.passages > 0:
            most = max(settings.retrieval.passages, queries)
            return cls(most, most)
        if settings.retrieval.passages == 0:
            return cls(found, found)
        return cls(found, max(_FEWEST, queries), _open_tokens(settings, room))

    def is_met(self, passages: int, tokens: int) -> bool:
        """Whether no more is read when so many passages, of so many tokens, would be."""
        return passages > self.most or (passages > self.least and tokens > self.tokens)


def _open_tokens(settings: Settings, room: int) -> int:
    """The tokens of passages where their number is left open, in a prompt of `room` tokens."""
    most = min(_MOST_TOKENS, settings.retrieval.whole_tokens or _MOST_TOKENS)
    return min(most, int(_SHARE * room))


def prompt_for(task: Task, settings: Settings) -> Prompt:
    """The prompt that fits the task's context, as `settings` say; what is left out is reported.

    Raises ContextOverflowError and ModelError as `fit_prompt`; UsageError for passages without a
    question.
    """
    task = replace(task, turns=[turn for turn in task.turns if turn.text.strip()])
    overflow = settings.retrieval.overflow if task.documents else "error"
    if overflow == "retrieve":
        prompt = _retrieve(task, settings)
    else:
        alone = replace(task, turns=())
        fitting = fits(alone) if task.turns else None
        prompt = _with_turns(task, fitting) if fitting else fit_prompt(alone, overflow)
    if task.compares and prompt.coverage is None:
        prompt = replace(prompt, coverage=_compared(task, settings))
    for words in cut_words(prompt.cuts):
        reporting.warn(words)
    if prompt.left_out:
        those = counted(prompt.left_out, "question")
        reporting.warn(f"the context is full: the first {those} and what was answered are left out")
    if (chosen := prompt.selection) is not None and (chosen.read or not chosen.earlier):
        why = "not everything fits"
        if chosen.fits:
            why = f"the documents have more than {settings.retrieval.whole_tokens} tokens"
        read = f"{chosen.read} more" if chosen.earlier else f"the best {chosen.read}"
        advice = ""
        if chosen.read < chosen.of_passages:
            advice = f"; --passages {max(5, 2 * chosen.read)} reads more"
        reporting.warn(
            f"{why}: read {read} of {counted(chosen.of_passages, 'passage')},"
            f" from {chosen.documents} of {counted(chosen.of_documents, 'document')}{advice}"
        )
    return prompt


def _with_turns(task: Task, alone: Prompt) -> Prompt:
    """The prompt of all documents and the turns that fit; `alone` is the one without turns."""
    if task.turns and (whole := fits(task)) is not None:
        return whole
    room = task.room - len(alone.ids) + _tokens(task, task.question)
    made, left_out = _with_fewer(task, room, lambda own: fits(own) if own.turns else alone)
    return replace(made, left_out=left_out)


def _with_fewer(
    task: Task, room: int, make: Callable[[Task], T | None], passages: int = 0
) -> tuple[T, int]:
    """What `make` makes of the task without the oldest turns, and how many questions those are.

    First without those that do not fit in `room`, beside the question with `passages` tokens of
    passages; then, while it makes nothing, without one question more, down to none.
    """
    asked, tokens, begins = [], [], []
    for at, turn in enumerate(task.turns):
        own = _tokens(task, turn.text)
        if turn.role == "user" or not at:
            begins.append(at)
            asked.append(own + passages)
            tokens.append(own + sum(_tokens(task, d.text) for d in task.passages_of(turn)))
        else:
            tokens[-1] += own
    asked.append(_tokens(task, task.question) + passages)
    begins.append(len(task.turns))
    for first in range(first_kept(asked, tokens, room), len(begins)):
        if (made := make(replace(task, turns=task.turns[begins[first] :]))) is not None:
            return made, first
    raise AssertionError


def _tokens(task: Task, text: str) -> int:
    return len(task.tokenizer.encode(text)) + BETWEEN


def _retrieve(task: Task, s: Settings) -> Prompt:
    """Everything if it fits and is not more than `whole_tokens`; else the best passages."""
    if not task.question.strip():
        what = "passages are chosen by a question, and there is none"
        raise UsageError(what, hint="Use --overflow truncate to cut the documents.")
    alone = replace(task, turns=())
    whole, frame = fits(alone), frame_tokens(replace(alone, documents=()))
    if whole is not None and len(whole.ids) - frame <= (s.retrieval.whole_tokens or task.room):
        return _with_turns(task, whole)
    whole_room = task.room - frame
    room, left_out = whole_room, 0
    if task.turns:
        task, room, left_out = _beside_turns(task, s, room)
    clock = time.perf_counter()
    ranking = _ranked(task, s, room)
    seconds = time.perf_counter() - clock
    reporting.status("Choosing passages …")
    bound = _Bound.of(s, whole_room, len(task.queries), len(ranking.found))
    found = _built(task, ranking, room, bound)
    if found is None:
        raise ContextOverflowError(
            f"no passage fits: question and answer leave {room} of {task.context} tokens",
            hint="Give a smaller --set passage_tokens, or name a model with a longer context (-m).",
        )
    prompt, excerpts, passages = found
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
    compared = _compared(task, s, index)
    return replace(prompt, selection=selection, left_out=left_out, coverage=compared)


def _compared(task: Task, s: Settings, index: "Index | None" = None) -> Coverage | None:
    """How much of the question the documents have, where words can tell; None where they cannot.

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
    """The task with the turns that leave room for passages, that room, and how many questions go.

    `room` is that without turns. Passages may need half of it.
    """
    room += _tokens(task, task.question)
    each = s.retrieval.passage_tokens + BETWEEN
    if s.retrieval.passages >= 0:
        wanted = s.retrieval.passages * each or room
    else:
        wanted = max(_FEWEST * each, _open_tokens(s, room))
    passages = min(wanted, room // 2)

    def make(own: Task) -> tuple[Task, int] | None:
        left = own.room - len(code(own.message(()), own.tokenizer)[1])
        return (own, left) if left >= passages or not own.turns else None

    (own, left), left_out = _with_fewer(replace(task, in_turns=True), room, make, passages)
    return own, left, left_out


def _ranked(task: Task, s: Settings, room: int) -> Ranking:
    """The passages, the best first; in their own order where none has a word of the question."""
    most = (s.retrieval.passages if s.retrieval.passages > 0 else room) + _PASSED_OVER
    earlier = earlier_questions(task.turns)
    search = Search(task.documents, s, task.question, most, earlier, task.keep)
    ranker = Ranker(search)
    each = [ranker.rank(question) for question in task.queries or (task.question,)]
    ranking = replace(each[0], found=_in_turn([one.found for one in each]))
    if ranking.found or task.earlier:
        return ranking
    reporting.warn("no passage has a word of the question; the first ones are read")
    first = [Ranked(i, Scores(0.0, 0.0)) for i in range(len(ranking.index))]
    return replace(ranking, found=first)


def _in_turn(rankings: Sequence[Sequence[Ranked]]) -> list[Ranked]:
    """The best of each ranking, then the second ones, and so on; a passage comes once."""
    found: dict[int, Ranked] = {}
    for of_one_rank in zip_longest(*rankings):
        for one in filter(None, of_one_rank):
            found.setdefault(one.passage, one)
    return [*found.values()]


def _built(
    task: Task, ranking: Ranking, room: int, bound: _Bound
) -> tuple[Prompt, tuple[Excerpt, ...], tuple[Chosen, ...]] | None:
    """The prompt of the passages within a bound, and where they stand; None where none fits.

    Those of earlier turns are there already.
    """
    index, ranked = ranking.index, ranking.found
    earlier = [excerpt for turn in task.turns for excerpt in turn.passages]
    chosen = _fitting(task, index, ranked, room, bound, earlier)
    while chosen or earlier:
        order = sorted((at for at, _ in chosen), key=lambda at: ranked[at].passage)
        excerpts = joined(task.documents, [index.place(ranked[at].passage) for at in order])
        prompt = task.build([named(task.documents, excerpt) for excerpt in excerpts])
        if (over := len(prompt.ids) - task.room) <= 0:
            passages = tuple(_chosen(task, index, at + 1, ranked[at]) for at in order)
            return prompt, (*earlier, *excerpts), passages
        if not chosen:
            break
        while chosen and over > 0:  # the counts were too low: leave the last ones out
            over -= chosen.pop()[1]
    return None


def _fitting(
    task: Task,
    index: "Index",
    ranked: Sequence[Ranked],
    room: int,
    bound: _Bound,
    earlier: Sequence[Excerpt] = (),
) -> list[tuple[int, int]]:
    """The first of `ranked` that fit: place there, and tokens; longer ones are passed over.

    One that stands in `earlier` passages counts, and is not read again.
    """
    chosen: list[tuple[int, int]] = []
    passed_over = read = used = 0
    for at_rank, one in enumerate(ranked):
        if len(chosen) + read == bound.most or passed_over == _PASSED_OVER:
            break
        at = index.place(one.passage)
        document = named(task.documents, at)
        text = f"{document.name}\n{document.text}"
        tokens = len(task.tokenizer.encode(text)) + BETWEEN
        if bound.is_met(len(chosen) + read + 1, used + tokens):
            break
        if any(e.document == at.document and e.start <= at.start < e.end for e in earlier):
            read += 1
            used += tokens
            continue
        if tokens > room:
            passed_over += 1
            continue
        room -= tokens
        used += tokens
        chosen.append((at_rank, tokens))
    return chosen


def _chosen(task: Task, index: "Index", rank: int, one: Ranked) -> Chosen:
    at = index.place(one.passage)
    section = place(task.documents[at.document], at.start)
    return Chosen(
        scores=one.scores,
        document=at.document,
        start=at.start,
        end=at.end,
        page=section.page or None,
        heading=section.heading or None,
        rank=rank,
    )
