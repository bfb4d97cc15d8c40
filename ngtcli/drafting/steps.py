"""What an answer yields step by step, and how long that took. Knows no torch."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from ngtcli.system.json_form import HIDDEN, json_key, json_property, schema_of, shape

OWN = "model"
_THOUGHT = "text of a thought, for a token that is none of the answer's"
_PROBABILITY = "at temperature 1, among the tokens that may stand here"


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and the text it completed.

    `origin` is OWN for the model's own choice; an accepted draft names its source, or "draft".
    `thought` is the text of a thought that it completed, None for a token of the answer.
    `probability`, where it is wanted, is that at temperature 1 among the tokens that a grammar
    allows.
    """

    id: int
    text: str
    origin: str = OWN
    thought: str | None = field(default=None, metadata=json_key(omit=True, about=_THOUGHT))
    probability: float | None = field(
        default=None, metadata=json_key(omit=True, digits=6, about=_PROBABILITY)
    )

    @property
    def drafted(self) -> bool:
        """Whether it was an accepted draft."""
        return self.origin != OWN


@dataclass(frozen=True, slots=True)
class Step:
    """What one step emitted; `nodes` were drafted; `finish_reason` is "" but in the last step.

    Of the nodes `predicted` came from a predicted answer.

    Reasons: "stop" (an end token or stop string), "repetition" (the text repeats itself), "length"
    (max_tokens), "context" (no room left).
    """

    tokens: tuple[Token, ...]
    finish_reason: str = ""
    nodes: int = 0
    predicted: int = 0


PARTS = ("draft", "tree", "forward", "verify", "cache")


class Stopwatch:
    """Splits the seconds of a step into PARTS: `with watch("draft"): …`, part by part.

    A part's time begins where that of the part before it ended, so nothing between two is lost;
    parts do not nest. `wait_for_device` is called before a part ends. Without it the work of an
    asynchronous device counts for the part that waits for its result.

    >>> watch = Stopwatch()
    >>> with watch("draft"):
    ...     pass
    >>> watch.elapsed_s >= watch.parts["draft"] > 0.0
    True
    """

    def __init__(self, wait_for_device: Callable[[], None] | None = None) -> None:
        self.parts = dict.fromkeys(PARTS, 0.0)
        self._wait = wait_for_device
        self._part = ""
        self._began = self._last = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds from the beginning of the step to the end of its last part."""
        return self._last - self._began

    def __call__(self, part: str) -> Self:
        self._part = part
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._wait is not None:
            self._wait()
        now = time.perf_counter()
        self.parts[self._part] += now - self._last
        self._last = now


@dataclass(frozen=True, slots=True)
class Reused:
    """How many tokens of a prompt were read for an earlier one, and their rows kept.

    Those `from_disk` are among them. Their rows came back in `seconds`; reading them took `read_s`.
    """

    tokens: int = 0
    from_disk: int = 0
    seconds: float = 0.0
    read_s: float = 0.0


_CACHED = "tokens of the prompt that were read before: their rows were kept"
_PREDICTED = "drafts that came from a predicted answer and were"
_THOUGHTS = "new tokens that are none of the answer's, of a model that thinks"


@dataclass(slots=True)
class Statistics:
    """Grows step by step. Times are in seconds of wall clock.

    `shared_steps` are those whose passes served other texts, too; `plain_steps` those over one row
    alone, which took `plain_s`.
    """

    prompt_tokens: int = 0
    cached_tokens: int = field(default=0, metadata=json_key(about=_CACHED))
    cached_from_disk: int = field(default=0, metadata=json_key(about="of these, from disk"))
    cached_s: float = field(
        default=0.0, metadata=json_key(digits=6, about="seconds to bring their rows back")
    )
    cached_read_s: float = field(
        default=0.0, metadata=json_key(digits=6, about="seconds that reading them took")
    )
    new_tokens: int = 0
    thought_tokens: int | None = field(default=None, metadata=json_key(omit=True, about=_THOUGHTS))
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_prediction_tokens: int | None = field(
        default=None, metadata=json_key(omit=True, about=f"{_PREDICTED} accepted")
    )
    rejected_prediction_tokens: int | None = field(
        default=None, metadata=json_key(omit=True, about=f"{_PREDICTED} not")
    )
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    prefill_s: float = field(default=0.0, metadata=json_key(digits=6))
    decode_s: float = field(default=0.0, metadata=json_key(digits=6))
    split_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(PARTS, 0.0),
        metadata=json_key(digits=6, schema=lambda: shape(dict.fromkeys(PARTS, schema_of(float)))),
    )

    shared_steps: int = field(default=0, metadata=HIDDEN)
    plain_steps: int = field(default=0, metadata=HIDDEN)
    plain_s: float = field(default=0.0, metadata=HIDDEN)

    def add_prefill(self, seconds: float, reused: Reused) -> None:
        """Count the seconds of reading the prompt, again if need be; at first some was known."""
        if not self.prefill_s:
            self.cached_tokens, self.cached_from_disk = reused.tokens, reused.from_disk
            self.cached_s, self.cached_read_s = reused.seconds, reused.read_s
        self.prefill_s += seconds

    def add_step(self, drafted: int, accepted: int, emitted: int) -> None:
        """Count one step that emitted `emitted` tokens, `accepted` of them drafted."""
        self.steps += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self.new_tokens += emitted
        self.acceptance_histogram[accepted] += 1

    def add_predicted(self, drafted: int, accepted: int) -> None:
        """Count the nodes of a step that came from a predicted answer."""
        self.accepted_prediction_tokens = (self.accepted_prediction_tokens or 0) + accepted
        rejected = drafted - accepted
        self.rejected_prediction_tokens = (self.rejected_prediction_tokens or 0) + rejected

    def add_time(self, watch: Stopwatch, rows: int, of: int) -> None:
        """Count the share of a step's seconds for `rows` of the `of` that its pass had."""
        share = rows / of
        self.shared_steps += rows < of
        if of == 1:
            self.plain_steps += 1
            self.plain_s += watch.elapsed_s
        self.decode_s += share * watch.elapsed_s
        for part, seconds in watch.parts.items():
            self.split_s[part] += share * seconds

    @property
    @json_property(after="accepted_tokens", digits=4)
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per step."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    @json_property(after="mean_acceptance_length", digits=4)
    def draft_acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    @json_property(after="decode_s", digits=3)
    def tokens_per_s(self) -> float:
        """New tokens per second of decoding, prefill left out."""
        return self.new_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class PassesReport:
    """How many shapes of passes are captured, the seconds that took, and why none is."""

    captured: int
    seconds: float = field(metadata=json_key(digits=3))
    reason: str
