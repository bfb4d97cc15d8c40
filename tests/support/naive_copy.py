"""The place that is copied (drafting/auto/core/copies.py), written over lists."""

from bisect import bisect_right
from dataclasses import dataclass, replace

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.origins import SOURCES
from ngtcli.drafting.tries.counts import NONE

COPIED, EDITED = len(SOURCES), len(SOURCES) + 1  # rows of escape probabilities
KEY, SPREAD = CONFIG.copy_key, 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Place:
    """`at` is None where nothing is copied, `broken` where nothing departed."""

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
        self.place, self.places = Place(), dict[int, int]()
        for token in prompt + answer:
            self.extend(token)

    def extend(self, token: int) -> None:
        self.text.append(token)
        place, end = self.follow(self.place, token), len(self.text)
        if end >= KEY:
            slot = self.slot(end)
            found, self.places[slot] = self.places.get(slot), end
            if found is not None and found != place.at:
                held = max(
                    k
                    for k in range(min(found, CONFIG.copy_compared) + 1)
                    if self.text[found - k : found] == self.text[end - k : end]
                )
                if held >= KEY and (place.at is None or held > place.held):
                    place = Place(found, held)
        if place.at is not None:
            place = replace(place, behind=end - place.at)
        self.place = place

    def slot(self, end: int) -> int:
        """Two keys may have one, as there."""
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
        """Each with its row, order and bucket of the escapes."""
        place = self.place
        for token in path:
            place = self.follow(place, token)
        if place.at is None:
            return []
        before = 0 if place.broken is None else 1 + bisect_right([8, 24], place.before)
        if not place.departed:
            order = bisect_right([2, 3, 6, 12, 24, 48], place.held)
            varied = min(3, max(1, distinct)) - 1
            found = [(self.text[place.at], COPIED, order, 3 * before + varied)]
            return [guess for guess in found if guess[0] != NONE]
        assert place.broken is not None
        order = bisect_right([2, 3, 4, 5, 7, 10], place.departed)
        ways = enumerate((place.broken + place.departed, place.broken))
        return [
            (self.text[at], EDITED, order, 3 * before + way)
            for way, at in ways
            if at < len(self.text) and self.text[at] != NONE
        ]
