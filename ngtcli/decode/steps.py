"""What a run is told and what it yields, step by step. Knows no torch."""

from dataclasses import dataclass

OWN = "model"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, besides the model's end tokens; `num_draft` nodes a step at most."""

    max_tokens: int = 256
    num_draft: int = 32
    stop: tuple[str, ...] = ()
    max_repeats: int = 0  # of the same tokens in a row; see Repetition


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and the text it completed.

    `origin` is OWN for the model's own choice; an accepted draft names its source, or "draft".
    """

    id: int
    text: str
    origin: str = OWN

    @property
    def drafted(self) -> bool:
        """Whether it was an accepted draft."""
        return self.origin != OWN


@dataclass(frozen=True, slots=True)
class Step:
    """What one step emitted; `nodes` were drafted; `finish_reason` is "" but in the last step.

    Reasons: "stop" (an end token or stop string), "repetition" (the text repeats itself), "length"
    (max_tokens), "context" (no room left).
    """

    tokens: tuple[Token, ...]
    finish_reason: str = ""
    nodes: int = 0
