"""A second, smaller model that drafts for the target model."""

from collections.abc import Callable, Sequence

from ngtcli.config import Settings
from ngtcli.decoding.memory_limits import MIN_CHUNK, fits
from ngtcli.decoding.model import PREFILL_CHUNK, TargetModel
from ngtcli.decoding.sampling import Sampler
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import ModelError

_EMPTY = DraftTree()


class AssistantModel:
    """Continues a text; the cache keeps the rows of its unchanged beginning from call to call.

    The model reads only what is new in a text, which may also lose tokens from call to call.
    Nothing is drafted behind a token that the model does not know. Where memory does not suffice
    nothing more is drafted for the text, and `warn` is told.
    """

    def __init__(
        self,
        model: TargetModel,
        sampling: Settings,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        if not model.verifies_trees:
            what = f"{model.name} cannot draft: {model.mode.why}"
            raise ModelError(what, hint="Name another --set draft_model.")
        self.model, self._sampling, self._warn = model, sampling, warn
        self._sampler = Sampler(sampling, ())
        self._prompt: list[int] = []
        self._text: list[int] = []  # the token ids of the last call
        self._rows: list[int] = []  # the token ids whose rows are in the cache
        self._unknown: int | None = None  # where the first token stands that the model lacks
        self._fits = True  # whether memory has sufficed so far

    def reset(self, ids: Sequence[int]) -> None:
        """Start on a new prompt; the model reads it at the first draft."""
        self._sampler = Sampler(self._sampling, ids)
        self._prompt, self._text, self._rows = list(ids), list(ids), []
        self._unknown = self._first_unknown(ids, 0)
        self._fits = True
        capacity = min(len(ids) + 64, self.model.context)
        if not fits(self.model, lambda: self.model.start(capacity)):
            self._give_up()

    def continue_(self, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens to follow `ids`, fewer where the model's context or the memory ends."""
        ids = list(ids)
        count = min(count, self.model.context - len(ids))
        self._follow(ids)
        if count < 1 or not self._fits or self._unknown is not None:
            return []
        out: list[int] = []

        def draft() -> None:
            last = out[-1] if out else ids[-1]
            while len(out) < count:
                token = self._sampler.choose(self.model.forward(last, _EMPTY)[0], out)
                if token < 0:  # the logits are not numbers
                    break
                self.model.keep(())
                self._rows.append(last)
                out.append(token)
                last = token

        if not self._catch_up(ids) or not fits(self.model, draft):
            self._give_up()
        return out

    def _follow(self, ids: list[int]) -> None:
        """Let the sampler stand behind `ids`, which may lack tokens of the last text."""
        known = len(self._text)
        if ids[:known] != self._text:
            known = _common(self._text, ids)
            self._sampler = Sampler(self._sampling, self._prompt)
            self._sampler.commit(ids[len(self._prompt) : known])
        self._sampler.commit(ids[known:])
        self._text[known:] = ids[known:]
        if self._unknown is None or self._unknown >= known:
            self._unknown = self._first_unknown(ids, known)

    def _first_unknown(self, ids: Sequence[int], start: int) -> int | None:
        """Where from `start` on the first token stands for which the model has no embedding.

        Both models have one tokenizer, but each may pad its embeddings to a size of its own.
        """
        size = self.model.vocabulary
        return next((at for at in range(start, len(ids)) if ids[at] >= size), None)

    def _catch_up(self, ids: list[int]) -> bool:
        """Drop rows of drafts that were not accepted; read all of `ids` but the last.

        False where memory does not suffice for it, not even in short chunks.
        """
        same = min(_common(self._rows, ids), len(ids) - 1)
        self.model.truncate(same)
        self._rows[same:] = ids[same:-1]
        chunk = PREFILL_CHUNK
        while self.model.length < len(self._rows):
            rest = self._rows[self.model.length :]  # what was read before a failure stays
            if fits(self.model, lambda rest=rest, chunk=chunk: self.model.prefill(rest, chunk)):  # type: ignore[misc]
                break
            if chunk <= MIN_CHUNK:
                return False
            chunk //= 2
        return True

    def _give_up(self) -> None:
        """Draft no more for this text, and give its memory back."""
        self._fits, self._rows = False, []
        self.model.use(self.model.mode)  # without buffers
        self._warn("memory does not suffice for the draft model: this answer goes on without it")


def _common(known: list[int], ids: list[int]) -> int:
    """How many token ids both begin with.

    The parts are compared in halves, as slices: most texts have thousands in common.

    >>> _common([5, 6, 7, 8], [5, 6, 9]), _common([5], [5, 6]), _common([], [5])
    (2, 1, 0)
    """
    low, high = 0, min(len(known), len(ids))
    if known[:high] == ids[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if known[low:middle] == ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
