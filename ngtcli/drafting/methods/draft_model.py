"""Speculative decoding with a draft model (Leviathan et al. 2023; Chen et al. 2023).

A second, smaller model with the same tokenizer continues the text by a chain of `gamma` tokens. At
temperature 0 it decodes greedily. Otherwise it samples with the target's settings and with the same
random numbers per position as verification, so the more the two distributions agree, the more often
both sample the same token. Unlike rejection sampling, this gives the same text for a seed with and
without drafts. The default is Chen et al.'s K = 4.
"""

from dataclasses import dataclass
from itertools import takewhile

from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import chain
from ngtcli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The number of tokens drafted per step."""

    gamma: int = option(4, 1, 256)


class DraftModel(Drafter):
    """A drafter whose drafts the assistant, a draft model, generates."""

    def __init__(self, settings: DraftSettings, options: Options) -> None:
        super().__init__(settings, options)
        if settings.assistant is None:
            raise UsageError("there is no draft model", hint="Name one with --set draft_model.")
        self._assistant = settings.assistant
        self._vocabulary = 0  # of the target model; 0 if it is not known

    def begin(self, context: Context) -> None:
        self._vocabulary = context.vocabulary
        self._assistant.begin(context.ids)

    def propose(self, log: TokenLog, room: Room) -> Draft:
        count = min(self.options.gamma, room.nodes)
        tokens = self._assistant.draft(log, count)
        if self._vocabulary:  # the embeddings of the draft model may be padded to a larger size
            tokens = list(takewhile(lambda token: token < self._vocabulary, tokens))
        return Draft(chain(tokens))
