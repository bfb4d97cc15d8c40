"""The best tokens of a model after each token of a text, for a recording."""

from collections.abc import Sequence

from ngtcli.decoding.logits import highest
from ngtcli.decoding.model import TargetModel
from tests.tools.measuring.precision import Passage, distributions
from tests.tools.measuring.traces import TopTokens


def top_tokens(model: TargetModel, token_ids: Sequence[int], count: int) -> TopTokens:
    """Return the `count` best tokens after each token but the last, with log-probabilities.

    They come of one forward pass over all tokens, as a prompt is prefilled; in half precision those
    of an answer may differ in the last bits from the logits that chose it. Raises
    ContextOverflowError where memory ends.
    """
    ids: list[tuple[int, ...]] = []
    log_probabilities: list[tuple[float, ...]] = []
    for rows, _ in distributions(model, Passage(tuple(token_ids), 1)):
        values, indices = highest(rows, count)
        ids += map(tuple, indices.tolist())
        log_probabilities += [tuple([round(x, 4) for x in row]) for row in values.tolist()]
    return TopTokens(tuple(ids), tuple(log_probabilities))
