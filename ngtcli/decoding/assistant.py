"""A second, smaller model that drafts for the target model."""

from collections.abc import Sequence

import torch

from ngtcli.config import Settings
from ngtcli.decoding.memory_limits import MIN_CHUNK, ran_within_memory
from ngtcli.decoding.model import PREFILL_CHUNK, TargetModel
from ngtcli.decoding.sampling import Sampler
from ngtcli.drafting.log import Mark, TokenLog
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import ModelError
from ngtcli.system import reporting

_EMPTY = DraftTree()
_SPARE = 64  # KV positions after the prompt at first (guess: more are made when needed)


class AssistantModel:
    """Continues a sequence by a chain of tokens.

    The entries of the sequence stay in the model's slot from call to call; a mark says how much of
    the log they stand for. The class holds no `Slot` of its own: where a context passes the border
    of LongRoPE the model opens its slot again, and the earlier `Slot` is void.

    Nothing is drafted after a token that the model does not know. If memory runs out, `draft`
    raises, so that the next draft is smaller. If it does not suffice for a single token, the
    model's memory is given back, and a warning goes to whoever created this object.
    """

    def __init__(self, model: TargetModel, sampling: Settings) -> None:
        if not model.verifies_trees:
            raise ModelError(
                f"{model.name} cannot draft: {model.mode.why}",
                hint="Name another --set draft_model.",
            )
        self.model = model
        self._sampling = sampling
        self._reporter = reporting.current()
        self._sampler = Sampler(sampling, ())
        self._mark = Mark()  # of the sampler, of the slot, and of the search for unknown tokens
        self._drafted: list[int] = []  # by the last call
        self._unknown: int | None = None  # where the first token stands that the model lacks
        self._has_given_up = False

    def begin(self, prompt: Sequence[int]) -> None:
        """Start on a new prompt; the model reads it at the first draft."""
        self._sampler = Sampler(self._sampling, prompt)
        self._mark = Mark(len(prompt))
        self._drafted = []
        self._unknown = self._first_unknown(prompt, 0)
        self._has_given_up = False
        capacity = min(len(prompt) + _SPARE, self.model.context)
        if not ran_within_memory(self.model, lambda: self._open(capacity)):
            self._give_up()

    def draft(self, log: TokenLog, count: int) -> list[int]:
        """Draft the tokens after those of a log.

        Args:
            log: Of the sequence that began with the last prompt.
            count: The number of tokens; fewer are drafted where the model's context ends.

        Raises:
            torch.OutOfMemoryError: Memory has ended. The same log may be passed again.
        """
        count = min(count, self.model.context - len(log))
        cached = self._follow(log)
        if count < 1 or self._has_given_up or self._unknown is not None:
            self._cut(cached)
            return []
        self._cut(min(cached, len(log) - 1))

        def draft() -> None:
            last = log.token_ids[-1]
            while len(self._drafted) < count:
                logits = self.model.forward(last, _EMPTY)[0]
                token = self._sampler.choose(logits, self._drafted)
                if token < 0:  # the logits are not numbers
                    break
                self.model.keep(())
                self._drafted.append(token)
                last = token

        if not self._catch_up(log) or not ran_within_memory(self.model, draft):
            if count == 1:
                self._give_up()
                return []
            raise torch.OutOfMemoryError("out of memory in the draft model")
        return list(self._drafted)

    def _open(self, capacity: int, tokens: int = 0) -> None:
        self.model.start(capacity, length=tokens or capacity)

    def _follow(self, log: TokenLog) -> int:
        """Let sampler and mark be at the end of the log; return how many entries still hold.

        Those of tokens that were drafted and then emitted hold, too.
        """
        unchanged, new = log.since(self._mark)
        cached = unchanged
        if unchanged == self._mark.length:
            cached += _common_length(new, self._drafted)
        else:  # the sampler cannot forget tokens
            self._sampler = Sampler(self._sampling, log.token_ids[: log.prompt_length])
            self._sampler.commit(log.token_ids[log.prompt_length : unchanged])
        self._sampler.commit(new)
        self._mark = log.mark
        self._drafted = []
        if self._unknown is None or self._unknown >= unchanged:
            self._unknown = self._first_unknown(log.token_ids, unchanged)
        return cached

    def _first_unknown(self, ids: Sequence[int], start: int) -> int | None:
        """Find the first token, from index `start` on, for which the model has no embedding.

        Both models have one tokenizer, but each may pad its embeddings to a size of its own.
        """
        vocab_size = self.model.vocabulary
        return next((i for i in range(start, len(ids)) if ids[i] >= vocab_size), None)

    def _cut(self, length: int) -> None:
        """Drop the entries of what was not accepted."""
        if not self._has_given_up:
            self.model.truncate(length)

    def _catch_up(self, log: TokenLog) -> bool:
        """Prefill all of the log but its last token.

        False if memory does not suffice for it, not even in short chunks.
        """
        end = len(log) - 1
        if self.model.must_restart(len(log)) and not ran_within_memory(
            self.model, lambda: self._open(min(end + _SPARE, self.model.context), len(log))
        ):
            return False
        chunk = PREFILL_CHUNK

        def prefill() -> None:  # what was read before a failure stays
            self.model.prefill(log.token_ids[self.model.length : end], chunk)

        while not ran_within_memory(self.model, prefill):
            if chunk <= MIN_CHUNK:
                return False
            chunk //= 2
        return True

    def _give_up(self) -> None:
        """Draft no more for this sequence, and give the memory back."""
        self._has_given_up = True
        self.model.drop_cache()
        self._reporter.warn(
            "not enough memory for the draft model: this answer continues without it"
        )


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of token ids that both sequences begin with.

    >>> _common_length([5, 6, 7], [5, 6, 9]), _common_length([5], [5, 6]), _common_length([], [5])
    (2, 1, 0)
    """
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
