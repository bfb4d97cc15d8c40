"""When an answer ends, and what its tokens may be. Knows no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # here: light commands do without
    from ngtcli.decoding.grammar.matcher import Grammar
    from ngtcli.decoding.reasoning import Thinking


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, besides the model's end tokens.

    Attributes:
        max_tokens: Of the answer. The tokens of `thinking` come on top of them.
        num_draft: Draft nodes in a step at most.
        stop: Strings that end the answer, and are cut off.
        max_repeats: Of the same tokens in a row; see Repetition.
        thinking: How the model sets its reasoning off. Stop strings, repeats and the grammar count
            in the answer alone.
        grammar: What the answer must conform to.
        probabilities: Whether each token has its own.
    """

    max_tokens: int = 256
    num_draft: int = 32
    stop: tuple[str, ...] = ()
    max_repeats: int = 0
    thinking: "Thinking | None" = None
    grammar: "Grammar | None" = None
    probabilities: bool = False

    @property
    def max_output(self) -> int:
        """Tokens of reasoning and answer at most."""
        return self.max_tokens + (self.thinking.extra_tokens if self.thinking else 0)
