"""How much the model's scores predict, and so how often they are worth reading."""

from ngtcli.draft.auto.config import CONFIG


class ScoreUsefulness:
    """Keeps the share of tokens that scores predicted of late."""

    def __init__(self) -> None:
        self._share = CONFIG.usefulness_start
        self._steps = 0

    def begin_step(self) -> int:
        """How many of the model's best tokens this step reads; seldom any if useless."""
        self._steps += 1
        useful = self._share > CONFIG.min_usefulness or self._steps % CONFIG.seldom == 0
        return CONFIG.ranks_read if useful else 0

    def learn(self, predicted: float, tokens: int) -> None:
        """Of `tokens` emitted ones, scores predicted so many (an expectation)."""
        kept = CONFIG.usefulness_decay**tokens
        self._share = kept * self._share + (1 - kept) * predicted / tokens
