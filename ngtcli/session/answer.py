"""An answer: how it is asked for, while it is made, and finished as one of several.

What is finished may come from ngt itself or from another engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from ngtcli.decode.loop import Run
from ngtcli.decode.steps import Statistics, Step
from ngtcli.draft.drafter import Drafter
from ngtcli.draft.origins import PolicyReport
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.trie.ngram import NGramTrie
from ngtcli.trie.store import TrieReport

# The trie of documents, None for methods that draft from none, and how it was had.
DocumentsTrie = tuple[NGramTrie | None, TrieReport]
Given = tuple[int, Prompt | NgtError]  # the caller's number of a prompt, and it or an error
_NO_PROMPT = Prompt("", [], (), ())


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What one answer does differently from its session; None stands for the session's own.

    `method` and `num_draft` take the place of the settings' values. With `split_times` the device
    is waited for between the parts of a step. `trie` takes the place of the one of the prompt's
    documents, which is then neither read nor written. `drafter` is one made for this method.
    `to_the_end`: the answer goes on where it repeats itself, as that of other programs.
    """

    method: str | None = None
    num_draft: int | None = None
    split_times: bool = False
    trie: DocumentsTrie | None = None
    drafter: Drafter | None = None
    to_the_end: bool = False


class Answer:
    """A prepared answer: iterate over it for its steps, or `finish` it, then read `run`."""

    def __init__(
        self,
        run: Run,
        prompt: Prompt,
        trie: TrieReport,
        at_end: Callable[[], None],
        background_words: Callable[[], str] = lambda: "",
    ) -> None:
        self.run, self.prompt, self.trie, self._at_end = run, prompt, trie, at_end
        self.interrupted = False
        self.background_words = background_words  # what general text `auto` drafts from

    def __iter__(self) -> Iterator[Step]:
        try:
            yield from self.run
        finally:
            self._at_end()

    def finish(self) -> Self:
        """Run all steps; the answer itself."""
        for _ in self:
            pass
        return self

    @property
    def policy(self) -> PolicyReport | None:
        """What the drafter decided in this run; None for most methods."""
        return self.run.drafter.report()

    @property
    def finish_reason(self) -> str:
        return "interrupted" if self.interrupted else self.run.finish_reason


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer; or an `error`, and then nothing else but `key` and `prompt`.

    `key` is the caller's number of the prompt, which is empty where it could not be made. `steps`
    are all steps; an engine that does not tell them has one with all tokens. `policy` is what the
    drafter decided; `exact` says whether in any dtype no token depends on drafts.
    """

    key: int
    prompt: Prompt
    steps: tuple[Step, ...] = ()
    finish_reason: str = ""
    statistics: Statistics = field(default_factory=Statistics)
    policy: PolicyReport | None = None
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
