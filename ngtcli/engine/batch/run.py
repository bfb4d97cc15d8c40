"""Many items answered together: the lines of a batch, or the documents of a folder.

An `Item` makes its requests and ends with one row for the `Results`. `answer_all` begins the next
item whenever there is room for another request, so that the requests of several items share forward
passes. This module imports neither numpy nor the libraries that load models.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from ngtcli.engine.events import BatchItem, Ended, Outcome
from ngtcli.engine.no_answer import caught
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError

# Yields the requests that can be answered now, gets their answers in that order, and returns the
# row. The error of a request is raised where its requests were yielded.
Work = Generator[Sequence[Request], Sequence[Ended], object]

# Answers what it draws, in any order: `engine.drivers.run`, or that of a server.
AnswerItems = Callable[[Callable[[bool], BatchItem | None]], Generator[Outcome]]


class ItemId(NamedTuple):
    """The identity of an item in this run and the next ones, whatever its name.

    Attributes:
        source: The real path of its file; without a file, STDIN or its place in the input.
        key: A hash of its text and of everything else that its row depends on.
    """

    source: str
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An item of a run, such as a line or a document.

    Attributes:
        id: Its identity in the results; no two items of a run have the same.
        name: Its name in messages.
        work: Begins its work.
    """

    id: ItemId
    name: str
    work: Callable[[], Work]


class Items(Protocol):
    """The items of a run, some of which may not have arrived yet."""

    def wait(self) -> bool:
        """Wait until there is an item; return False at the end."""

    def take(self) -> Item | None:
        """Return the next item; None if there is none at the moment."""

    def done(self, item: Item) -> None:
        """Mark an item as done, so that there is room for another one."""


class ListedItems:
    """Items that are all there when a run begins."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = deque(items)

    def wait(self) -> bool:
        """Return whether an item is left."""
        return bool(self._items)

    def take(self) -> Item | None:
        """Return the next item; None after the last one."""
        return self._items.popleft() if self._items else None

    def done(self, item: Item) -> None:
        """Do nothing: there is always room for another item."""


class Results(Protocol):
    """The receiver of the rows: a journal with its view, or standard output."""

    def put(self, item: Item, row: object) -> bool:
        """Store the row of an item, or the NgtError in its place; return whether it has failed.

        Raises NgtError if nothing can be written any more.
        """


class Progress(Protocol):
    """The receiver of the progress of a run."""

    def answered(self, item: Item, request: Request, answer: Ended) -> None:
        """Note the answer to a request of an item."""

    def finished(self, *, failed: bool, documents: int = 0) -> None:
        """Note that an item has its row, and how many documents its requests were about."""


@dataclass(slots=True, eq=False)
class _OpenItem:
    """An item in progress: its requests that have not been drawn yet, and the answers so far."""

    item: Item
    work: Work
    requests: Sequence[Request] = ()
    undrawn: deque[int] = field(default_factory=deque)  # the number of each request
    answers: dict[int, Ended] = field(default_factory=dict)
    documents: int = 0
    has_row: bool = False


def answer_all(
    items: Items, results: Results, answer_drawn: AnswerItems, progress: Progress
) -> int:
    """Answer all items, and return how many of them failed.

    `answer_drawn` is called only if there is a request, so that a run without one loads no model.

    Raises:
        NgtError: The run cannot continue. The error of a single item becomes its row.
    """
    run = _Run(items, results, progress)
    first = run.draw(True)
    if first is None:
        return run.failures
    drawn_before = [first]

    def draw(waits: bool) -> BatchItem | None:
        return drawn_before.pop() if drawn_before else run.draw(waits)

    with closing(answer_drawn(draw)) as outcomes:
        for outcome in outcomes:
            run.take(outcome)
    return run.failures


class _Run:
    """The state of `answer_all`."""

    def __init__(self, items: Items, results: Results, progress: Progress) -> None:
        self._items = items
        self._results = results
        self._progress = progress
        self._open: list[_OpenItem] = []
        self.failures = 0

    def draw(self, waits: bool) -> BatchItem | None:
        """Return the next request, first those of items in progress; None if there is none.

        With `waits`, wait for an item; then None is the end.
        """
        while True:
            for open_item in self._open:
                if open_item.undrawn:
                    number = open_item.undrawn.popleft()
                    return (open_item, number), open_item.requests[number]
            if waits and not self._items.wait():
                return None
            item = self._items.take()
            if item is None:
                return None
            open_item = _OpenItem(item, item.work())
            self._open.append(open_item)
            self._advance(open_item, partial(next, open_item.work))

    def take(self, outcome: Outcome) -> None:
        """Give the outcome of a request to its item."""
        open_item, number = outcome.key
        if open_item.has_row:
            return
        answer = outcome.answer
        work = open_item.work
        if isinstance(answer, NgtError):
            self._advance(open_item, partial(work.throw, answer))
            return
        self._progress.answered(open_item.item, open_item.requests[number], answer)
        open_item.answers[number] = answer
        if len(open_item.answers) == len(open_item.requests):
            answers = [open_item.answers[i] for i in range(len(open_item.requests))]
            self._advance(open_item, partial(work.send, answers))

    def _advance(self, open_item: _OpenItem, resume: Callable[[], Sequence[Request]]) -> None:
        """Resume the work of an item until it has new requests or its row."""
        try:
            requests = resume()
        except StopIteration as end:
            self._finish(open_item, end.value)
            return
        except Exception as error:
            self._finish(open_item, caught(error))
            return
        open_item.requests = requests
        open_item.undrawn = deque(range(len(requests)))
        open_item.answers = {}
        documents = max((len(request.documents) for request in requests), default=0)
        open_item.documents = max(open_item.documents, documents)

    def _finish(self, open_item: _OpenItem, row: object) -> None:
        open_item.has_row = True
        self._open.remove(open_item)
        failed = self._results.put(open_item.item, row)
        self.failures += failed
        self._items.done(open_item.item)
        self._progress.finished(failed=failed, documents=open_item.documents)
