"""Prompts of the passages that match the question best, where not all documents fit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.documents.passages import place
from ngtcli.errors import ContextOverflowError, UsageError, counted
from ngtcli.prompt.build import Prompt, Task
from ngtcli.prompt.fitting import cut_words, fit_prompt, frame_tokens
from ngtcli.prompt.splitting import BETWEEN, fits, joined, named
from ngtcli.retrieve.ranking import Ranked, rank
from ngtcli.retrieve.selection import Chosen, Excerpt, Scores, Selection

if TYPE_CHECKING:
    from ngtcli.retrieve.index import Index
    from ngtcli.retrieve.ranking import Ranking

_PASSED_OVER = 20  # passages too long for the room left before the search for shorter ones ends


def prompt_for(
    task: Task, settings: Settings, warn: Callable[[str], None] = lambda _: None
) -> Prompt:
    """The prompt that fits the task's context, as `settings` say; `warn` gets what was left out.

    Raises ContextOverflowError and ModelError as `fit_prompt`; UsageError for passages without a
    question.
    """
    if settings.overflow == "retrieve":
        prompt = _retrieve(task, settings, warn)
    else:
        prompt = fit_prompt(task, settings.overflow)
    for words in cut_words(prompt.cuts):
        warn(words)
    if (chosen := prompt.selection) is not None:
        why = "longer than --whole-tokens" if chosen.fits else "not everything fits"
        warn(
            f"{why}: read {chosen.read} of {counted(chosen.of_passages, 'passage')},"
            f" from {chosen.documents} of {counted(chosen.of_documents, 'document')}"
        )
    return prompt


def _retrieve(task: Task, s: Settings, warn: Callable[[str], None]) -> Prompt:
    """Everything if it fits and is not more than `whole_tokens`; else the best passages."""
    if not task.question.strip():
        what = "passages are chosen by a question, and there is none"
        raise UsageError(what, "Use --overflow truncate to cut the documents.")
    whole = fits(task)
    frame = frame_tokens(replace(task, documents=()))
    if whole is not None and len(whole.ids) - frame <= (s.whole_tokens or task.room):
        return whole
    room = task.room - frame
    clock = time.perf_counter()
    ranking = _ranked(task, s, room, warn)
    seconds = time.perf_counter() - clock
    task.status("Choosing passages …")
    found = _built(task, ranking, room, s.passages or len(ranking.found))
    if found is None:
        raise ContextOverflowError(
            f"no passage fits: question and answer leave {room} of {task.context} tokens",
            "Give a smaller --passage-tokens, or name a model with a longer context (-m).",
        )
    prompt, excerpts, passages = found
    index = ranking.index
    selection = Selection(
        passages, excerpts, len(index), len(task.documents), index.status, seconds,
        ranking.dense, ranking.embedded, whole is not None,
    )  # fmt: skip
    return replace(prompt, selection=selection, given=tuple(task.documents))


def _ranked(task: Task, s: Settings, room: int, warn: Callable[[str], None]) -> "Ranking":
    """The passages, the best first; in their own order where none has a word of the question."""
    most = (s.passages or room) + _PASSED_OVER
    ranking = rank(task.documents, s, task.question, most, task.status, warn)
    if ranking.found:
        return ranking
    warn("no passage has a word of the question; the first ones are read")
    first = [Ranked(i, Scores(0.0, 0.0)) for i in range(len(ranking.index))]
    return replace(ranking, found=first)


def _built(
    task: Task, ranking: "Ranking", room: int, most: int
) -> tuple[Prompt, tuple[Excerpt, ...], tuple[Chosen, ...]] | None:
    """The prompt of at most `most` passages, and where they stand; None where none fits."""
    index, ranked = ranking.index, ranking.found
    chosen = _fitting(task, index, ranked, room, most)
    while chosen:
        order = sorted((at for at, _ in chosen), key=lambda at: ranked[at].passage)
        excerpts = joined(task.documents, [index.place(ranked[at].passage) for at in order])
        prompt = task.build([named(task.documents, excerpt) for excerpt in excerpts])
        if (over := len(prompt.ids) - task.room) <= 0:
            passages = tuple(_chosen(task, index, at + 1, ranked[at]) for at in order)
            return prompt, tuple(excerpts), passages
        while chosen and over > 0:  # the counts were too low: leave the last ones out
            over -= chosen.pop()[1]
    return None


def _fitting(
    task: Task, index: "Index", ranked: Sequence[Ranked], room: int, most: int
) -> list[tuple[int, int]]:
    """The first of `ranked` that fit: place there, and tokens; longer ones are passed over."""
    chosen: list[tuple[int, int]] = []
    passed_over = 0
    for at_rank, one in enumerate(ranked):
        if len(chosen) == most or passed_over == _PASSED_OVER:
            break
        document = named(task.documents, index.place(one.passage))
        text = f"{document.name}\n{document.text}"
        tokens = len(task.tokenizer.encode(text)) + BETWEEN
        if tokens > room:
            passed_over += 1
            continue
        room -= tokens
        chosen.append((at_rank, tokens))
    return chosen


def _chosen(task: Task, index: "Index", rank: int, one: Ranked) -> Chosen:
    at = index.place(one.passage)
    section = place(task.documents[at.document], at.start)
    return Chosen(one.scores, at.document, at.start, at.end, section.page, section.heading, rank)
