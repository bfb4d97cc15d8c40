"""A bounded queue in which owners take turns, and a request waits until it is prepared."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Condition
from typing import Generic, TypeVar

from ngtcli.errors import BusyError

MAX_WAITING = 1024  # requests that wait, of all owners (guess)
MAX_WAITING_OF_OWNER = 256  # requests that wait, of one owner (guess)
MAX_PREPARED = 8  # prepared, or being prepared, before there is room for them (guess)

Request = TypeVar("Request")
Prepared = TypeVar("Prepared")


class State(Enum):
    """How far a request in the queue is."""

    NEW = "new"
    PREPARING = "preparing"
    READY = "ready"


@dataclass(slots=True, eq=False)
class _Entry(Generic[Request, Prepared]):
    request: Request
    owner: str
    state: State = State.NEW
    prepared: Prepared | None = None


class FairQueue(Generic[Request, Prepared]):
    """A queue of requests. Those of one owner leave in the order of arrival; owners take turns.

    Several threads may use it. After `close` it refuses requests, and nobody waits for one.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        # By owner; the first has waited longest for its turn.
        self._owners: OrderedDict[str, deque[_Entry[Request, Prepared]]] = OrderedDict()
        self._entries: dict[Request, _Entry[Request, Prepared]] = {}
        self._prepared_count = 0  # entries that are prepared, or being prepared
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, request: Request, owner: str) -> None:
        """Add a request after the others of its owner. Raises BusyError."""
        with self._changed:
            count = len(self._entries)
            owner_count = len(self._owners.get(owner, ()))
            if self._is_closed or count >= MAX_WAITING or owner_count >= MAX_WAITING_OF_OWNER:
                reason = "the server is stopping" if self._is_closed else f"{count} requests wait"
                raise BusyError(f"no more requests are taken: {reason}", hint="Try again later.")
            entry = _Entry[Request, Prepared](request, owner)
            self._entries[request] = entry
            self._owners.setdefault(owner, deque()).append(entry)
            self._changed.notify_all()

    def state_of(self, request: Request) -> State | None:
        """Return the state of a request; None if it is not in the queue."""
        with self._changed:
            entry = self._entries.get(request)
            return entry.state if entry is not None else None

    def remove(self, request: Request) -> bool:
        """Remove a request unless it is being prepared; return whether it was removed."""
        with self._changed:
            entry = self._entries.get(request)
            if entry is None or entry.state == State.PREPARING:
                return False
            self._remove_entry(entry)
            return True

    def to_prepare(self) -> Request | None:
        """Wait for the next request to prepare, which stays in the queue; None after `close`."""
        with self._changed:
            while not self._is_closed:
                entry = self._next_new() if self._prepared_count < MAX_PREPARED else None
                if entry is not None:
                    entry.state = State.PREPARING
                    self._prepared_count += 1
                    return entry.request
                self._changed.wait()
            return None

    def prepared(self, request: Request, prepared: Prepared | None) -> None:
        """Store a prepared request, which is then ready; None removes it instead."""
        with self._changed:
            entry = self._entries[request]
            entry.state = State.READY
            entry.prepared = prepared
            if prepared is None:
                self._remove_entry(entry)
            self._changed.notify_all()

    def take(
        self, suits: Callable[[Request], bool] = lambda _: True, wait: bool = False
    ) -> tuple[Request, Prepared] | None:
        """Take the next request that is ready, and its prepared form.

        Args:
            suits: Decides whether the request is taken.
            wait: Whether to wait for a request.

        Returns:
            None if no request is ready or suits, or after `close`.
        """
        with self._changed:
            while True:
                entry = self._next_ready()
                if entry is not None or not wait or self._is_closed:
                    break
                self._changed.wait()
            if entry is None or not suits(entry.request):
                return None
            self._remove_entry(entry)
            if entry.owner in self._owners:
                self._owners.move_to_end(entry.owner)
            assert entry.prepared is not None
            return entry.request, entry.prepared

    def close(self) -> list[Request]:
        """Take no more requests; remove and return those that are not being prepared."""
        with self._changed:
            self._is_closed = True
            removed = [entry for entry in self._entries.values() if entry.state != State.PREPARING]
            for entry in removed:
                self._remove_entry(entry)
            self._changed.notify_all()
            return [entry.request for entry in removed]

    def _next_new(self) -> _Entry[Request, Prepared] | None:
        """Return the first new request of the first owner that has one."""
        for entries in self._owners.values():
            for entry in entries:
                if entry.state == State.NEW:
                    return entry
        return None

    def _next_ready(self) -> _Entry[Request, Prepared] | None:
        """Return the request at the head of the first owner whose head is ready."""
        for entries in self._owners.values():
            if entries[0].state == State.READY:
                return entries[0]
        return None

    def _remove_entry(self, entry: _Entry[Request, Prepared]) -> None:
        entries = self._owners[entry.owner]
        entries.remove(entry)
        del self._entries[entry.request]
        if entry.state != State.NEW:
            self._prepared_count -= 1
        if not entries:
            del self._owners[entry.owner]
        self._changed.notify_all()
