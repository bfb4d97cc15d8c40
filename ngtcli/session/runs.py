"""The log of runs, as it is written: a line of JSON for each answer, its figures and settings.

The lines stand in two files of the state folder, the older one of which is replaced when the newer
one is full. Text of questions, answers and documents is in them only where that is set.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.text import utf8
from ngtcli.errors import NgtError, reason_of
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.system import process
from ngtcli.system.files import home, others_cache, private_folder
from ngtcli.system.journal import LineFile

# Bytes of a file, of which there are two. A line has about 460 without texts (measured), so that
# they have the last 17,000 to 35,000 answers; that many are a guess.
MOST = 8_000_000
_LOCK_S = 1.0  # longest wait for another process, whose line takes less than a ms; guess
_TEXT = 100_000  # characters of a question or an answer that are kept; guess
_NAMES = 100  # documents whose names are kept; guess
_ENOUGH = 4  # plain steps of a run, the mean of fewer of which says little; guess
FIGURES = (  # of the statistics
    *("prompt_tokens", "cached_tokens", "new_tokens", "steps", "drafted_tokens"),
    *("accepted_tokens", "prefill_s", "decode_s"),
)
_DIGITS = 5  # bytes of an id: among 35,000 two are alike with a chance of 6 in 10,000


def plain_seconds(question: Question, answer: Ended) -> float | None:
    """Seconds that plain decoding would have taken for the tokens of an answer; None if unknown.

    They are those tokens times the cost of a pass over one row, as the drafter knew it at the end:
    measured on this device, and refined by the steps of the run. Where the drafter knows none they
    are times the mean of the run's own plain steps. Passes that other texts shared cost each of
    them less, so of such an answer nothing is known; nor is of one that nothing was drafted for.
    """
    of = answer.statistics
    if of.shared_steps or question.settings.method == "none" or not question.settings.num_draft:
        return None
    cost_s = answer.policy.cost_s.get(1) if answer.policy else None
    if cost_s is None and of.plain_steps >= _ENOUGH:
        cost_s = of.plain_s / of.plain_steps
    return None if cost_s is None else of.new_tokens * cost_s


def line_of(question: Question, answer: Ended, by: str) -> dict[str, Any]:
    """The line of an answer that is complete, by the names of a `RunRecord`; without what is None.

    It is not made as one, since what answers would wait for that class.
    """
    settings, of, documents = question.settings, answer.statistics, question.documents
    found: dict[str, Any] = {
        "id": os.urandom(_DIGITS).hex(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": by,
        "task": question.task,
        "model": utf8(settings.model),
        "method": utf8(settings.method),
        "preset": utf8(question.preset.name),
        "settings": dict(_differing(settings)),
        "documents": len(documents),
        "characters": sum(len(document.text) for document in documents),
        "parts": len(answer.parts),
        "finish_reason": answer.finish_reason,
    }
    found |= {name: getattr(of, name) for name in FIGURES}
    if (plain_s := plain_seconds(question, answer)) is not None:
        found["plain_s"] = plain_s
    if settings.log_text:
        found["question"] = utf8(question.question[:_TEXT])
        found["text"] = utf8(answer.text[:_TEXT])
        found["names"] = [utf8(document.name) for document in documents[:_NAMES]]
    return {n: round(v, 6) if isinstance(v, float) else v for n, v in found.items()}


def _differing(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The settings that are not as by default: numbers, choices and names, but no free text."""
    for name, about in SETTINGS.items():
        value = getattr(settings, name)
        plain = about.kind in (int, float, bool) or about.choices or about.complete
        if plain and value != about.default and name not in ("model", "method"):
            yield name, utf8(value) if isinstance(value, str) else value


def log_answer(question: Question, answer: Ended, by: str, warn: Callable[[str], object]) -> None:
    """Add the line of an answer to the log, if that is wanted; what fails is told in one line."""
    if not question.settings.log:
        return
    try:
        if others_cache() is None:  # else nothing is kept, which has been told
            append(line_of(question, answer, by))
    except (OSError, NgtError) as error:
        warn(f"the run is not logged: {reason_of(error)}; --no-log leaves the log out")


def folder() -> Path:
    """Where the log is. Raises UsageError as `home` does."""
    return home("state") / "runs"


def files() -> tuple[Path, Path]:
    """The file that is written to, and the one before it."""
    return folder() / "runs.jsonl", folder() / "runs.1.jsonl"


def append(found: Mapping[str, Any]) -> None:
    """Add a line, whole or not at all, whatever other processes add. Raises OSError, NgtError."""
    line, (path, before) = json.dumps(found).encode(), files()
    private_folder(path.parent)
    with process.unbroken():
        while True:
            with LineFile(path, wait_s=_LOCK_S) as file:
                size = file.seek(0, os.SEEK_END)
                if size and size + len(line) > MOST:
                    os.replace(path, before)
                    continue
                torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
                file.append(b"\n" * bool(torn) + line, sync=False)
                return
