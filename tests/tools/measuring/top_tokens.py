"""The most likely next tokens after each token of a text, for a recording."""

from collections.abc import Sequence

from ngtcli.decoding.logits import highest
from ngtcli.decoding.model import TargetModel
from tests.tools.measuring.precision import Passage, distributions
from tests.tools.measuring.traces import TopTokens


def top_tokens(model: TargetModel, token_ids: Sequence[int], count: int) -> TopTokens:
    """Return the `count` best tokens after each token but the last, with log-probabilities.

    They come of one forward pass over all tokens, as a prompt is prefilled. In half precision they
    may differ in the last bits from the logits of decoding, which chose the tokens of the answer.
    Raises ContextOverflowError if memory runs out.
    """
    ids: list[tuple[int, ...]] = []
    log_probabilities: list[tuple[float, ...]] = []
    for rows, _ in distributions(model, Passage(tuple(token_ids), 1)):
        values, indices = highest(rows, count)
        ids += map(tuple, indices.tolist())
        for row in values.tolist():
            log_probabilities.append(tuple([round(value, 4) for value in row]))
    return TopTokens(tuple(ids), tuple(log_probabilities))
