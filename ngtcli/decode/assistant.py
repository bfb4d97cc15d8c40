"""A second, smaller model that drafts for the target model."""

from collections.abc import Sequence

from ngtcli.config import Settings
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import Sampler
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import ModelError

_EMPTY = DraftTree()


class AssistantModel:
    """Continues a text; the cache keeps the rows of its unchanged beginning from call to call.

    A call costs as much as is new, whatever the length of the text.
    """

    def __init__(self, model: TargetModel, sampling: Settings) -> None:
        if model.tree_reason:
            what = f"{model.name} cannot draft: {model.tree_reason}"
            raise ModelError(what, "Name another --set draft_model.")
        self.model, self._sampling = model, sampling
        self._sampler = Sampler(sampling, ())
        self._told = 0  # ids of the last call
        self._rows: list[int] = []  # the ids whose rows are in the cache

    def reset(self, ids: Sequence[int]) -> None:
        """Start on a new prompt; the model reads it at the first draft."""
        self.model.start(min(len(ids) + 64, self.model.context))
        self._sampler = Sampler(self._sampling, ids)
        self._told, self._rows = len(ids), []

    def continue_(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens to follow `ids`, fewer where the model's context ends.

        `ids` are those of the last call, or of `reset`, grown.
        """
        count = min(count, self.model.context - len(ids))
        if count < 1:
            return []
        self._catch_up(ids)
        out: list[int] = []
        last = ids[-1]
        for _ in range(count):
            token = self._sampler.choose(self.model.forward(last, _EMPTY)[0], out)
            if token < 0:  # the scores are not numbers
                break
            self.model.keep(())
            self._rows.append(last)
            out.append(token)
            last = token
        return out

    def _catch_up(self, ids: Sequence[int]) -> None:
        """Drop rows of drafts that were not accepted; read all of `ids` but the last."""
        rows = self._rows
        same = min(self._told, len(rows))  # up to there nothing has changed
        while same < min(len(rows), len(ids)) and rows[same] == ids[same]:
            same += 1
        same = min(same, len(ids) - 1)
        self.model.truncate(same)
        missing = ids[same:-1]
        if missing:
            self.model.prefill(missing)
        rows[same:] = missing
        self._sampler.commit(ids[self._told :])
        self._told = len(ids)
