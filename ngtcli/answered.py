"""A finished answer of several that are given together, by ngt itself or by another engine."""

from dataclasses import dataclass, field
from typing import Any

from ngtcli.decode.stats import Statistics
from ngtcli.decode.steps import Step
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.trie.documents import TrieReport

Given = tuple[int, Prompt | NgtError]  # the caller's number of a prompt, and it or an error
_NO_PROMPT = Prompt("", [], (), ())


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, or the `error` in its place; then all but `key` and `prompt` is empty.

    `key` is the caller's number of the prompt, which is empty where it could not be made. `steps`
    are all steps; an engine that does not tell them has one with all tokens. `policy` is what the
    drafter reports, JSON-ready; `exact` says whether in any dtype no token depends on drafts.
    """

    key: int
    prompt: Prompt
    steps: tuple[Step, ...] = ()
    finish_reason: str = ""
    statistics: Statistics = field(default_factory=Statistics)
    policy: dict[str, Any] = field(default_factory=dict)
    error: NgtError | None = None
    exact: bool = False
    trie: TrieReport = TrieReport("none")

    @property
    def text(self) -> str:
        """The text of all steps."""
        return "".join(token.text for step in self.steps for token in step.tokens)


def failed(key: int, error: NgtError, prompt: Prompt = _NO_PROMPT) -> Answered:
    """What stands in place of an answer that could not be given."""
    return Answered(key, prompt, error=error)
