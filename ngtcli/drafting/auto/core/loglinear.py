"""A log-linear stage that corrects the probabilities of the blend. Compiled.

The blend (blend.py) knows how often a token followed a match. Other features predict the token as
well: the texts in which the match is, whether the token occurred recently in the answer, whether it
is near the place that is being copied (cells.py). Each feature puts a candidate into one of its
cells. With the weights w of these cells the probability of a candidate c becomes

    P(c) = P_blend(c) * exp(w_1 + … + w_n) / Z

Z makes all probabilities sum to 1. The sum includes the tokens that are not candidates; their
weights are 0. This is a maximum-entropy model (Berger, Della Pietra & Della Pietra 1996) with the
blend as its prior. With all weights 0 it is the blend. After each emitted token the weights take
one step along the gradient of the log-probability of that token (Adagrad; Duchi, Hazan & Singer
2011).

A weight w is stored as its factor, exp(w). So scoring multiplies factors, and a step of d
multiplies a factor by (2 + d) / (2 - d), which is exp(d) with an error of third order. The code
uses no exponential function and no logarithm, because they differ between libraries: products,
quotients, sums and square roots in a fixed order give the same bits on every CPU.
"""

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.cells import COUNTS as COUNT_RANGES
from ngtcli.drafting.auto.core.cells import (
    DISTANCES,
    FEATURES,
    GENERAL,
    GENERAL_ORDERS,
    NO_EVIDENCE,
    ORDERS,
    OWN,
    PLACES,
    POOL,
    PROBABILITIES,
    PROMPT,
    SHORT_ORDERS,
    SHORTFALLS,
    STARTS,
    TEXT_ORDERS,
    TOTALS,
)
from ngtcli.drafting.auto.core.copies import ANSWER, USED, CopyArrays
from ngtcli.drafting.auto.core.sizes import bin_of
from ngtcli.drafting.tries.classes import CLASSES
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

FEATURE_COUNT = len(FEATURES)
_TEXTS, _KNOWLEDGE, _PROBABILITY, _COUNTS, _RECENCY, _PLACE, _CLASSES, _SHORTFALL = STARTS
# Bits of evidence: the order of the longest match of each kind plus 1, and above them the cell of
# the longest of all, counted from 1.
_ORDER_BITS = 3
_ORDER_MASK = 7
_CELL_SHIFT = 4 * _ORDER_BITS
_RATE = CONFIG.stage_rate
_MAX_FACTOR = CONFIG.stage_max_factor
_BEFORE = CONFIG.stage_before
_BEHIND = CONFIG.stage_behind
_TRIED = CONFIG.stage_tried
_COMPARED = CONFIG.stage_compared
_STEP = CONFIG.stage_step
_SPREAD = 0x9E3779B97F4A7C15  # as in tries/counts.py
_NEGLIGIBLE = 1e-4  # errors below it teach nothing (guess)


class Stage(NamedTuple):
    """The arrays of the stage.

    Attributes:
        factors: float64 (cells,), e to the power of each weight; empty if the stage is off.
        squares: float64 (cells,), for each weight the sum of its squared gradients.
        classes: int8 (tokens,), the class of each token; those after its end are of class 0.
        place: int64 (1,), the index in the text of what may be copied next, by the last tokens.
        newest: int32 (power of two,), a hash table from two tokens to the index after their last
            occurrence in the text before the answer. It has no keys, like `places` in copies.py.
        earlier: int32 (tokens of that text + 1,), for each index the one before in its chain.
        seen: int32 (power of two,), where a token was last in the answer; it has no keys either.
    """

    factors: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int8]
    place: npt.NDArray[np.int64]
    newest: npt.NDArray[np.int32]
    earlier: npt.NDArray[np.int32]
    seen: npt.NDArray[np.int32]


@njit(inline="always")
def named_stage(plain: Any) -> Any:
    """Return a Stage from a plain tuple."""
    factors, squares, classes, place, newest, earlier, seen = plain
    return Stage(factors, squares, classes, place, newest, earlier, seen)


# --- what is known of a candidate ---


@njit(inline="always")
def evidence_of(kind: int, order: int, count: float, total: float) -> int:
    """Return the evidence of a match for a token that followed it `count` of `total` times."""
    if kind == NO_EVIDENCE:
        return 0
    often = 0 if count < 1.5 else 1 if count < 2.5 else 2 if count < 4.5 else 3
    seen = (
        0 if total < 1.5 else 1 if total < 2.5 else 2 if total < 5.5 else 3 if total < 15.5 else 4
    )
    cell = ((kind * COUNT_RANGES + often) * TOTALS + seen) * SHORT_ORDERS + min(order, 3)
    return ((cell + 1) << _CELL_SHIFT) | ((order + 1) << (_ORDER_BITS * kind))


@njit(inline="always")
def joined_evidence(known: int, further: int) -> int:
    """Return a token's evidence, joined with that of a match no longer than the earlier ones."""
    if known >> _CELL_SHIFT == 0:
        return known | further
    orders = further & ((1 << _CELL_SHIFT) - 1)
    for kind in range(NO_EVIDENCE):
        field = _ORDER_MASK << (_ORDER_BITS * kind)
        if known & field == 0:
            known |= orders & field
    return known


@njit(inline="always")
def _order_of(evidence: int, kind: int) -> int:
    """Return the order of the longest match of a kind plus 1, 0 for none."""
    return (evidence >> (_ORDER_BITS * kind)) & _ORDER_MASK


@njit(inline="always")
def _class_of(stage: Any, token: int) -> int:
    return int(stage.classes[token]) if 0 <= token < len(stage.classes) else 0


@njit(inline="always")
def _distance_cell(stage: Any, copies: Any, token: int, depth: int) -> int:
    """Return the range of the token's distance to its last occurrence in the answer.

    The token is `depth` tokens after the end of the answer.
    """
    index = stage.seen[token & (len(stage.seen) - 1)]
    if index == NONE or copies.text[index] != token:
        return 0
    distance = copies.sizes[USED] + depth - index
    cell = 1
    while distance >= 2 and cell < DISTANCES - 1:
        distance >>= 1
        cell += 1
    return cell


@njit(inline="always")
def _place_cell(stage: Any, copies: Any, token: int, depth: int) -> int:
    """Return the range of the distance from the last copied place to the nearest occurrence."""
    place = stage.place[0] + depth
    end = copies.sizes[ANSWER]
    for index in range(place, min(place + _BEHIND, end)):
        if copies.text[index] == token:
            ahead = index - place
            if ahead < 3:
                return int(ahead)
            cell = 3
            while ahead > 4 and cell < 7:
                ahead = (ahead + 1) >> 1
                cell += 1
            return cell
    for index in range(min(place, end) - 1, max(place - _BEFORE, 0) - 1, -1):
        if copies.text[index] == token:
            return 8 if place - index <= 4 else 9
    return PLACES - 1


@njit(inline="always")
def _factor(
    stage: Any,
    copies: Any,
    token: int,
    probability: float,
    evidence: int,
    before: int,
    depth: int,
    in_texts: int,
    in_general: int,
    cells: Any,
) -> float:
    """Return the product of a candidate's factors; write its cell of each feature to `cells`.

    `before` is the class of the token before; `in_texts` and `in_general` are as for `score`.
    """
    answer = _order_of(evidence, OWN)
    prompt = _order_of(evidence, PROMPT)
    pool = _order_of(evidence, POOL)
    general = _order_of(evidence, GENERAL)
    longest = max(max(answer, prompt), max(pool, general))
    text = max(0, max(answer, prompt) - 1)
    of_token = _class_of(stage, token)
    cells[0] = _TEXTS + answer * ORDERS + prompt
    cells[1] = _KNOWLEDGE + (pool * GENERAL_ORDERS + general) * SHORT_ORDERS + min(text, 3)
    halves = bin_of(probability, PROBABILITIES)
    cells[2] = _PROBABILITY + halves * CLASSES + of_token
    cells[3] = _COUNTS + (evidence >> _CELL_SHIFT) - 1
    distance = _distance_cell(stage, copies, token, depth)
    cells[4] = _RECENCY + (distance * CLASSES + of_token) * 2 + (1 if answer >= 2 else 0)
    place = _place_cell(stage, copies, token, depth)
    cells[5] = _PLACE + place * SHORT_ORDERS + min(prompt, 3)
    cells[6] = _CLASSES + (before * CLASSES + of_token) * 3 + min(max(0, longest - 1), 2)
    shortfall = min(max(0, max(in_texts, in_general) - max(0, longest - 1)), SHORTFALLS - 1)
    text_order = min(in_texts, TEXT_ORDERS - 1)
    general_order = min(in_general, GENERAL_ORDERS - 2)
    ends = text_order * (GENERAL_ORDERS - 1) + general_order
    cells[7] = _SHORTFALL + ends * SHORTFALLS + shortfall
    if evidence >> _CELL_SHIFT == 0:  # no counts are known
        cells[3] = NONE
    factor = 1.0
    for feature in range(FEATURE_COUNT):
        if cells[feature] != NONE:
            factor *= stage.factors[cells[feature]]
    return factor


@unowned
def score(
    stage: Any,
    copies: Any,
    candidates: Any,
    size: int,
    before: int,
    depth: int,
    longest: Any,
    least: float,
    cells: Any,
) -> None:
    """Replace the probabilities of the first `size` candidates by those of the stage.

    Args:
        before: The token before them, `depth` tokens after the end of the text.
        longest: The orders of the longest matches of the last tokens: in the texts of the user and
            of the model, and in the general text.
        least: Candidates that are less likely by the blend are not scored: their weights are 0.
        cells: int32 (rows, features), a buffer for the cells of each candidate, NONE for no cell;
            with a single row they are not kept.
    """
    tokens = candidates.tokens
    probabilities = candidates.probabilities
    evidence = candidates.evidence
    of_before = _class_of(stage, before)
    blended = 0.0
    total = 0.0
    for i in range(size):
        row = cells[i if len(cells) > 1 else 0]
        blended += probabilities[i]
        if probabilities[i] < least:
            row[0] = NONE
        else:
            probabilities[i] *= _factor(
                stage,
                copies,
                tokens[i],
                probabilities[i],
                evidence[i],
                of_before,
                depth,
                longest[0],
                longest[1],
                row,
            )
        total += probabilities[i]
    scale = 1.0 / (total + max(0.0, 1.0 - blended))
    for i in range(size):
        probabilities[i] *= scale


# --- learning ---


@unowned
def learn(stage: Any, candidates: Any, size: int, cells: Any, gradient: Any, token: int) -> None:
    """Make a step of Adagrad towards `token`, after `score` of all candidates with `cells`.

    `gradient` is float64 (cells of the stage,), all 0, and is so again afterwards.
    """
    for i in range(size):
        error = (1.0 if candidates.tokens[i] == token else 0.0) - candidates.probabilities[i]
        if abs(error) >= _NEGLIGIBLE and cells[i, 0] != NONE:
            for feature in range(FEATURE_COUNT):
                if cells[i, feature] != NONE:
                    gradient[cells[i, feature]] += error
    for i in range(size):
        if cells[i, 0] == NONE:
            continue
        for feature in range(FEATURE_COUNT):
            cell = cells[i, feature]
            if cell == NONE or gradient[cell] == 0.0:
                continue
            slope = gradient[cell]
            gradient[cell] = 0.0
            stage.squares[cell] += slope * slope
            step = _RATE * slope / sqrt(stage.squares[cell] + 1.0)
            factor = stage.factors[cell] * (2.0 + step) / (2.0 - step)
            stage.factors[cell] = min(_MAX_FACTOR, max(1.0 / _MAX_FACTOR, factor))


@njit()
def changed_cells(before: Any, after: Any) -> Any:
    """Return the cells in which two float64 (2, cells) differ, and their columns in both.

    This is compiled, because numpy would take half of the time of the whole stage.

    Returns:
        int64 (changes,), and two float64 (2, changes).
    """
    cells = np.empty(before.shape[1], np.int64)
    changes = 0
    for cell in range(before.shape[1]):
        if before[0, cell] != after[0, cell] or before[1, cell] != after[1, cell]:
            cells[changes] = cell
            changes += 1
    cells = cells[:changes].copy()
    return cells, before[:, cells], after[:, cells]


@unowned
def follow_text(stage: Any, copies: Any) -> None:
    """Note the last token of the text, which has just been appended, and where it may stand.

    The place last copied is after the longest match of the last two tokens or more in the text
    before the answer; of equal ones after the nearest to the place before. A single token moves
    the place a few tokens on.
    """
    end = copies.sizes[USED]
    before_answer = copies.sizes[ANSWER]
    text = copies.text
    last = copies.text[end - 1]
    stage.seen[last & (len(stage.seen) - 1)] = end - 1
    if end < 2:
        return
    place = stage.place[0]
    nearest = np.int64(NONE)
    longest = 1
    index = stage.newest[_slot(stage.newest, text[end - 2], last)]
    tried = 0
    while index != NONE and tried < _TRIED:
        length = 0
        while length < min(index, _COMPARED) and text[index - 1 - length] == text[end - 1 - length]:
            length += 1
        is_nearer = length == longest > 1 and abs(index - place) < abs(nearest - place)
        if length > longest or is_nearer:
            longest = length
            nearest = np.int64(index)
        index = stage.earlier[index]
        tried += 1
    if nearest != NONE:
        stage.place[0] = nearest
        return
    for index in range(place, min(place + _STEP, before_answer)):
        if text[index] == last:
            stage.place[0] = index + 1
            return


@njit(inline="always")
def _slot(newest: Any, first: int, second: int) -> Any:
    """Return the slot in `newest` of two tokens."""
    key = (np.int64(first + 2) << np.int64(32)) | np.int64(second + 2)
    mixed = np.uint64(key) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(20)) & (len(newest) - 1)


@njit()
def index_text(text: Any, length: int, newest: Any, earlier: Any) -> None:
    """Fill `newest` and `earlier`, which hold NONE, with the first `length` tokens of a text."""
    for end in range(2, length + 1):
        slot = _slot(newest, text[end - 2], text[end - 1])
        earlier[end] = newest[slot]
        newest[slot] = end


@njit()
def follow_again(plain: Any, copies: Any) -> None:
    """Follow the answer from its beginning, after some of its tokens were taken back."""
    stage = named_stage(plain)
    named = CopyArrays(copies[0], copies[1], copies[2])
    end = named.sizes[USED]
    for used in range(named.sizes[ANSWER] + 1, end + 1):
        named.sizes[USED] = used
        follow_text(stage, named)
    named.sizes[USED] = end
