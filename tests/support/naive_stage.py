"""The log-linear stage of `auto`, written over dictionaries, with weights in place of factors."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from ngtcli.drafting.auto.config import CONFIG
from tests.support.naive_blend import NaiveBlend, Part

OWN, PROMPT, POOL, GENERAL = range(1, 5)  # sources in the order of the blend
_TIE = {OWN: 0, PROMPT: 1, POOL: 2, GENERAL: 3}
Cell = tuple[str, tuple[int, ...]]


class NaiveStage:
    """The stage of one answer, which comes after the tokens `before` and may copy them."""

    def __init__(self, before: Sequence[int], classes: Sequence[int]) -> None:
        self.before = list(before)
        self.classes = list(classes)
        self.weights: defaultdict[Cell, float] = defaultdict(float)
        self.squares: defaultdict[Cell, float] = defaultdict(float)

    def class_of(self, token: int) -> int:
        return self.classes[token] if token < len(self.classes) else 0

    def place(self, answer: Sequence[int]) -> int:
        """Return where in the tokens before it the answer may continue."""
        place = 0
        for length in range(1, len(answer) + 1):
            text = [*self.before, *answer[:length]]
            matches = []
            for at in range(1, len(self.before) + 1):
                compared = min(at, CONFIG.stage_compared)
                match_length = 0
                while match_length < compared:
                    if text[at - 1 - match_length] != text[-1 - match_length]:
                        break
                    match_length += 1
                if match_length >= 2:
                    matches.append((match_length, -abs(at - place), at))
            if matches:
                _, _, place = max(matches)  # the longest, then the nearest, then the last
            else:
                near = self.before[place : place + CONFIG.stage_step]
                if answer[length - 1] in near:
                    place += near.index(answer[length - 1]) + 1
        return place

    def cells(
        self,
        token: int,
        parts: list[Part],
        probability: float,
        answer: Sequence[int],
        place: int,
        matched: tuple[int, int],
    ) -> list[Cell]:
        """Return the cell of a candidate by each feature."""
        known = [part for part in parts if part.source in _TIE]
        orders = dict.fromkeys(_TIE, -1)
        for part in known:
            assert part.source is not None
            orders[part.source] = max(orders[part.source], part.order)
        longest = max(orders.values())
        in_text = max(0, orders[OWN], orders[PROMPT])
        kind = self.class_of(token)
        last = [*self.before, *answer][-1]
        cells: list[Cell] = [
            ("texts", (orders[OWN] + 1, orders[PROMPT] + 1)),
            ("knowledge", (orders[POOL] + 1, orders[GENERAL] + 1, min(in_text, 3))),
            ("probability", (min(15, math.floor(-math.log2(probability))), kind)),
            ("recency", (self._recency(token, answer), kind, int(orders[OWN] >= 1))),
            ("place", (self._nearness(token, place), min(3, orders[PROMPT] + 1))),
            ("classes", (self.class_of(last), kind, min(2, max(0, longest)))),
            ("shortfall", (*matched, min(3, max(0, max(matched) - max(0, longest))))),
        ]
        if known:
            best = min(known, key=lambda part: (-part.order, _TIE[part.source or 0]))
            times = bisect_right([1.5, 2.5, 4.5], best.times)
            total = bisect_right([1.5, 2.5, 5.5, 15.5], best.total)
            source = _TIE[best.source or 0]
            cells.append(("counts", (source, times, total, min(best.order, 3))))
        return cells

    def _recency(self, token: int, answer: Sequence[int]) -> int:
        if token not in answer:
            return 0
        ago = answer[::-1].index(token) + 1
        return 1 + min(8, ago.bit_length() - 1)

    def _nearness(self, token: int, place: int) -> int:
        ahead = self.before[place : place + CONFIG.stage_behind]
        if token in ahead:
            return bisect_right([1, 2, 3, 5, 9, 17, 33], ahead.index(token))
        back = self.before[max(0, place - CONFIG.stage_before) : place][::-1]
        if token in back:
            return 8 if back.index(token) < 4 else 9
        return 10

    def candidates(
        self, blend: NaiveBlend, answer: Sequence[int], least: float
    ) -> dict[int, tuple[float, list[Cell]]]:
        """Return each candidate's probability by the stage, and its cells."""
        parts: defaultdict[int, list[Part]] = defaultdict(list)
        for part in blend.contributions([*self.before, *answer]):
            if part.probability >= least:
                parts[part.token].append(part)
        place = self.place(answer)
        matched = blend.longest_matches([*self.before, *answer])
        blended = 0.0
        scores: dict[int, float] = {}
        cells: dict[int, list[Cell]] = {}
        for token, token_parts in parts.items():
            probability = sum(part.probability for part in token_parts)
            blended += probability
            cells[token] = self.cells(token, token_parts, probability, answer, place, matched)
            weight = sum(self.weights[cell] for cell in cells[token])
            scores[token] = probability * math.exp(weight)
        total = sum(scores.values()) + max(0.0, 1 - blended)
        return {token: (score / total, cells[token]) for token, score in scores.items()}

    def learn(self, blend: NaiveBlend, answer: Sequence[int], token: int) -> None:
        """Take one step of Adagrad along the gradient of the log-probability of `token`."""
        gradient: defaultdict[Cell, float] = defaultdict(float)
        candidates = self.candidates(blend, answer, CONFIG.stage_least)
        for candidate, (probability, cells) in candidates.items():
            error = float(candidate == token) - probability
            if abs(error) >= 1e-4:
                for cell in cells:
                    gradient[cell] += error
        for cell, slope in gradient.items():
            if slope:
                self.squares[cell] += slope**2
                step = CONFIG.stage_rate * slope / math.sqrt(self.squares[cell] + 1)
                self.weights[cell] += math.log((2 + step) / (2 - step))
