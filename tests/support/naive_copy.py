"""The place that an answer is copied from (drafting/auto/core/copies.py), written over lists."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.origins import SOURCES
from ngtcli.drafting.tries.counts import NONE

# Rows of the escape probabilities.
COPIED = len(SOURCES)
EDITED = len(SOURCES) + 1
KEY = CONFIG.copy_key
SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Place:
    """A place of the text. `at` is None if nothing is copied, `broken` if nothing departed."""

    at: int | None = None
    held: int = 0
    departed: int = 0
    broken: int | None = None
    before: int = 0
    behind: int = 0


class NaiveCopy:
    """Where an answer to a prompt is copied from."""

    def __init__(self, prompt: list[int], answer: list[int]) -> None:
        self.text: list[int] = []
        self.place = Place()
        self.places: dict[int, int] = {}
        for token in prompt + answer:
            self.extend(token)

    def extend(self, token: int) -> None:
        self.text.append(token)
        place = self.follow(self.place, token)
        end = len(self.text)
        if end >= KEY:
            slot = self.slot(end)
            earlier = self.places.get(slot)
            self.places[slot] = end
            if earlier is not None and earlier != place.at:
                held = max(
                    length
                    for length in range(min(earlier, CONFIG.copy_compared) + 1)
                    if self.text[earlier - length : earlier] == self.text[end - length : end]
                )
                if held >= KEY and (place.at is None or held > place.held):
                    place = Place(earlier, held)
        if place.at is not None:
            place = replace(place, behind=end - place.at)
        self.place = place

    def slot(self, end: int) -> int:
        """Return the hash of the tokens before `end`. Two keys may share one, as in `auto`."""
        mixed = 0
        for token in self.text[end - KEY : end]:
            mixed = (mixed + token + 2) * SPREAD % 2**64
        return (mixed >> 20) % 2048

    def follow(self, place: Place, token: int) -> Place:
        if place.at is None:
            return place
        if not place.departed and self.text[place.at] == token:
            return self.put(replace(place, held=place.held + 1), place.at + 1)
        if not place.departed and (place.held >= CONFIG.copy_firm or place.broken is None):
            place = replace(place, broken=place.at, before=place.held)
        place = replace(place, held=0, departed=place.departed + 1)
        assert place.broken is not None
        near = self.text[place.broken : place.broken + CONFIG.copy_window]
        if token in near:
            at = place.broken + near.index(token) + 1
            return self.put(replace(place, held=1, departed=0), at)
        return replace(place, at=None) if place.departed > CONFIG.copy_edit else place

    def put(self, place: Place, at: int) -> Place:
        return replace(place, at=at if at < len(self.text) else at - place.behind)

    def guesses(self, path: list[int], distinct: int) -> list[tuple[int, int, int, int]]:
        """Return the tokens of a copy, each with row, order and bucket of its escape."""
        place = self.place
        for token in path:
            place = self.follow(place, token)
        if place.at is None:
            return []
        before = 0 if place.broken is None else 1 + bisect_right([8, 24], place.before)
        if not place.departed:
            order = bisect_right([2, 3, 6, 12, 24, 48], place.held)
            varied = min(3, max(1, distinct)) - 1
            token = self.text[place.at]
            if token == NONE:
                return []
            return [(token, COPIED, order, 3 * before + varied)]
        assert place.broken is not None
        order = bisect_right([2, 3, 4, 5, 7, 10], place.departed)
        replaced = place.broken + place.departed
        inserted = place.broken
        return [
            (self.text[at], EDITED, order, 3 * before + kind)
            for kind, at in enumerate((replaced, inserted))
            if at < len(self.text) and self.text[at] != NONE
        ]
