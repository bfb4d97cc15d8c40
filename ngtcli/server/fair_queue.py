"""A bounded queue in which owners take turns, and a question waits until it is prepared."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Condition
from typing import Generic, TypeVar

from ngtcli.errors import BusyError

MOST = 1024  # questions that wait, of all owners; guess
MOST_OF_ONE = 256  # questions that wait, of one owner; guess
AHEAD = 8  # prepared, or being prepared, before there is room for them; guess

Question = TypeVar("Question")
Prepared = TypeVar("Prepared")


class State(Enum):
    """How far a question in the queue is."""

    NEW = "new"
    PREPARING = "preparing"
    READY = "ready"


@dataclass(slots=True, eq=False)
class _Entry(Generic[Question, Prepared]):
    question: Question
    owner: str
    state: State = State.NEW
    prepared: Prepared | None = None


class FairQueue(Generic[Question, Prepared]):
    """Questions of one owner leave in the order in which they came, the owners in turn.

    Several threads may use it. After `close` nothing is added, and nothing waited for.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        # By owner; the first has waited longest for its turn.
        self._owners: OrderedDict[str, deque[_Entry[Question, Prepared]]] = OrderedDict()
        self._entries: dict[Question, _Entry[Question, Prepared]] = {}
        self._begun = 0  # entries that are prepared, or being prepared
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, question: Question, owner: str) -> None:
        """Add a question at the end of its owner's. Raises BusyError."""
        with self._changed:
            count = len(self._entries)
            own_count = len(self._owners.get(owner, ()))
            if self._is_closed or count >= MOST or own_count >= MOST_OF_ONE:
                reason = "it is leaving" if self._is_closed else f"{count} questions wait"
                raise BusyError(f"no more questions are taken: {reason}", hint="Try again later.")
            entry = _Entry[Question, Prepared](question, owner)
            self._entries[question] = entry
            self._owners.setdefault(owner, deque()).append(entry)
            self._changed.notify_all()

    def state_of(self, question: Question) -> State | None:
        """Return how far a question is; None where it is not in the queue."""
        with self._changed:
            entry = self._entries.get(question)
            return entry.state if entry is not None else None

    def remove(self, question: Question) -> bool:
        """Take out a question unless it is being prepared; return whether it was taken out."""
        with self._changed:
            entry = self._entries.get(question)
            if entry is None or entry.state == State.PREPARING:
                return False
            self._leave(entry)
            return True

    def to_prepare(self) -> Question | None:
        """Wait for the next question to be prepared; None at the end. It stays until taken."""
        with self._changed:
            while not self._is_closed:
                entry = self._next_new() if self._begun < AHEAD else None
                if entry is not None:
                    entry.state = State.PREPARING
                    self._begun += 1
                    return entry.question
                self._changed.wait()
            return None

    def prepared(self, question: Question, prepared: Prepared | None) -> None:
        """Let a question be taken, with what it was prepared to, or else leave, with None."""
        with self._changed:
            entry = self._entries[question]
            entry.state = State.READY
            entry.prepared = prepared
            if prepared is None:
                self._leave(entry)
            self._changed.notify_all()

    def take(
        self, suits: Callable[[Question], bool] = lambda _: True, wait: bool = False
    ) -> tuple[Question, Prepared] | None:
        """Take the next question that is ready, if it `suits`, with what it was prepared to.

        None where there is none, or at the end.
        """
        with self._changed:
            while True:
                entry = self._next_ready()
                if entry is not None or not wait or self._is_closed:
                    break
                self._changed.wait()
            if entry is None or not suits(entry.question):
                return None
            self._leave(entry)
            if entry.owner in self._owners:
                self._owners.move_to_end(entry.owner)
            assert entry.prepared is not None
            return entry.question, entry.prepared

    def close(self) -> list[Question]:
        """Take no more questions; remove and return those that are not being prepared."""
        with self._changed:
            self._is_closed = True
            left = [e for e in self._entries.values() if e.state != State.PREPARING]
            for entry in left:
                self._leave(entry)
            self._changed.notify_all()
            return [entry.question for entry in left]

    def _next_new(self) -> _Entry[Question, Prepared] | None:
        """Return the first new question of the first owner that has one."""
        for entries in self._owners.values():
            for entry in entries:
                if entry.state == State.NEW:
                    return entry
        return None

    def _next_ready(self) -> _Entry[Question, Prepared] | None:
        """Return the question at the head of the first owner whose head is ready."""
        for entries in self._owners.values():
            if entries[0].state == State.READY:
                return entries[0]
        return None

    def _leave(self, entry: _Entry[Question, Prepared]) -> None:
        entries = self._owners[entry.owner]
        entries.remove(entry)
        del self._entries[entry.question]
        if entry.state != State.NEW:
            self._begun -= 1
        if not entries:
            del self._owners[entry.owner]
        self._changed.notify_all()
