"""A bounded queue in which those who ask take turns, and a question waits until it is prepared."""

from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Condition

from ngtcli.engine.engine import Asked
from ngtcli.errors import BusyError

MOST = 1024  # that wait, of all owners; guess
MOST_OF_ONE = 256  # that wait, of one owner; guess
AHEAD = 8  # prepared, or being prepared, before there is room for them; guess


class FairQueue:
    """Those of one owner leave in the order in which they came, the owners in turn.

    The `state` of a question is "new", "preparing" or "ready". May be used by several threads.
    After `close` nothing is added, and nothing waited for.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        # By owner; the first has waited longest for its turn.
        self._owners: OrderedDict[str, deque[Asked]] = OrderedDict()
        self._count = self._begun = 0
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def put(self, one: Asked) -> None:
        """Add one at the end of its owner's. Raises BusyError."""
        with self._changed:
            own = len(self._owners.get(one.owner, ()))
            if self._is_closed or self._count >= MOST or own >= MOST_OF_ONE:
                why = "it is leaving" if self._is_closed else f"{self._count} questions wait"
                raise BusyError(f"no more questions are taken: {why}", "Try again later.")
            self._owners.setdefault(one.owner, deque()).append(one)
            self._count += 1
            self._changed.notify_all()

    def remove(self, one: Asked) -> bool:
        """Take out one that is not being prepared; whether that was so."""
        with self._changed:
            if one.state == "preparing" or one not in self._owners.get(one.owner, ()):
                return False
            self._leave(one)
            return True

    def to_prepare(self) -> Asked | None:
        """The next to be prepared, waited for; None at the end. It stays until it is taken."""
        with self._changed:
            while not self._is_closed:
                if self._begun < AHEAD and (one := self._first("new")) is not None:
                    one.state, self._begun = "preparing", self._begun + 1
                    return one
                self._changed.wait()
            return None

    def prepared(self, one: Asked, is_ready: bool) -> None:
        """One is ready to be taken, or else leaves."""
        with self._changed:
            one.state = "ready"
            if not is_ready:
                self._leave(one)
            self._changed.notify_all()

    def take(
        self, suits: Callable[[Asked], bool] = lambda _: True, wait: bool = False
    ) -> Asked | None:
        """The next that is ready, if it `suits`; None where there is none, or at the end."""
        with self._changed:
            while (one := self._first("ready")) is None and wait and not self._is_closed:
                self._changed.wait()
            if one is None or not suits(one):
                return None
            self._leave(one)
            if one.owner in self._owners:
                self._owners.move_to_end(one.owner)
            return one

    def close(self) -> list[Asked]:
        """Take no more; those that wait and are not being prepared leave, and are returned."""
        with self._changed:
            self._is_closed = True
            left = [o for own in self._owners.values() for o in own if o.state != "preparing"]
            for one in left:
                self._leave(one)
            self._changed.notify_all()
            return left

    def _first(self, state: str) -> Asked | None:
        """Of the first owner that has such a one next: of its "new" ones, or at its head."""
        for own in self._owners.values():
            for one in own:
                if one.state == state:
                    return one
                if state == "ready":
                    break
        return None

    def _leave(self, one: Asked) -> None:
        own = self._owners[one.owner]
        own.remove(one)
        self._count -= 1
        self._begun -= one.state != "new"
        if not own:
            del self._owners[one.owner]
        self._changed.notify_all()
