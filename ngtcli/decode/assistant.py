"""A second, smaller model that drafts for the target model."""

from collections.abc import Sequence

from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import Sampler, SamplingSettings
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import ModelError

_EMPTY = DraftTree()


class AssistantModel:
    """Continues a text; the cache keeps the rows of its unchanged beginning from call to call."""

    def __init__(self, model: TargetModel, sampling: SamplingSettings) -> None:
        if model.plain_reason:
            raise ModelError(
                f"{model.name} cannot draft: {model.plain_reason}", "Name another --draft-model."
            )
        self.model, self._sampling = model, sampling
        self._sampler = Sampler(sampling, ())
        self._prompt = 0
        self._rows: list[int] = []  # the ids whose rows are in the cache

    def reset(self, ids: Sequence[int]) -> None:
        """Start on a new prompt; the model reads it at the first draft."""
        self.model.start(min(len(ids) + 64, self.model.context))
        self._sampler = Sampler(self._sampling, ids)
        self._prompt, self._rows = len(ids), []

    def continue_(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens to follow `ids`, fewer where the model's context ends."""
        count = min(count, self.model.context - len(ids))
        if count < 1:
            return []
        self._catch_up(ids)
        out: list[int] = []
        last = ids[-1]
        for _ in range(count):
            scores = self.model.forward(last, _EMPTY)
            best = self._sampler.best(scores)
            spoken = [*ids[self._prompt :], *out]
            token = best[0] if best else self._sampler.choose(scores[0], spoken)
            if token < 0:  # the scores are not numbers
                break
            self.model.keep(())
            self._rows.append(last)
            out.append(token)
            last = token
        return out

    def _catch_up(self, ids: Sequence[int]) -> None:
        """Drop rows of drafts that were not accepted; read all of `ids` but the last."""
        same = 0
        for known, token in zip(self._rows, ids[:-1], strict=False):
            if known != token:
                break
            same += 1
        self.model.truncate(same)
        missing = list(ids[same:-1])
        if missing:
            self.model.prefill(missing)
        self._rows = list(ids[:-1])
